"""Gradient components against the literal stop-gradient construction, in float64."""

from __future__ import annotations

import naive_gradients as naive
import pytest
import torch

from emergence_lib.analysis import gradients
from emergence_lib.analysis.gradients import PARTS, decompose, residual_gradients
from emergence_lib.analysis.stop_gradient import decompose_by_definition, identity_errors
from emergence_lib.errors import ParameterError
from emergence_lib.models import ModelConfig
from emergence_lib.models.untied import UntiedConfig
from emergence_lib.tasks import Batch, ConditionedMajority
from emergence_lib.training.train import masked_loss

torch.set_num_threads(1)
TASK = ConditionedMajority(n_inputs=4, n_outputs=3)
N_POS, LAYERS = 7, 2
SITES = [(k, i) for k in range(LAYERS + 1) for i in range(N_POS)]
SHAPE = {
    "n_layers": LAYERS,
    "d_model": 8,
    "n_heads": 2,
    "vocab_size": 4,
    "max_pos": N_POS,
    "init_std": 0.4,
    "embed_std": 0.7,
}
GPT2 = {"activation": "gelu", "tied_embeddings": True}
NEOX = {"positional": "rotary", "rotary_fraction": 0.5, "parallel_residual": True}
CONFIGS = {
    "GPT-2": ModelConfig(**SHAPE, **GPT2),
    "NeoX": ModelConfig(**SHAPE, **NEOX, norm="rmsnorm"),
    "untied": UntiedConfig(**SHAPE, **GPT2, cut=4),
}


def some_model(config):
    return config.build(torch.Generator().manual_seed(3)).double()


def some_batch():
    """The last two predictions and one in a quarter of the sequences do not count."""
    batch = TASK.sample(6, torch.Generator().manual_seed(4))
    mask = batch.loss_mask.clone()
    mask[:, -1] = False
    mask[0, 2] = False
    return batch.tokens, mask


def relative(found, expected):
    """Largest difference, relative to the largest entry of the expected gradient."""
    found, expected = (torch.cat([x.flatten() for x in part]) for part in (found, expected))
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


@pytest.mark.parametrize("myopic", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_components_are_those_of_the_definition_at_every_site(name, myopic):
    model, (tokens, mask) = some_model(CONFIGS[name]), some_batch()
    found = decompose(model, tokens, mask, SITES, myopic=myopic)
    assert list(found) == sorted(SITES, key=lambda site: (site[1], site[0]))
    loss = masked_loss(model(tokens[:, :-1], myopic=myopic), Batch(tokens, mask))
    full = naive.gradient(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    for site in SITES:
        by_definition = decompose_by_definition(model, tokens, mask, site, myopic=myopic)
        literal = [[getattr(by_definition, part)[name] for name in names] for part in PARTS]
        parts = [[getattr(found[site], part)[name] for name in names] for part in PARTS]
        for ours, theirs in zip(parts, literal, strict=True):
            largest = max(g.abs().max() for g in theirs)
            worst = max((a - b).abs().max() for a, b in zip(ours, theirs, strict=True))
            assert worst <= 1e-12 * largest  # so what is 0 by definition is 0 to the bit
        for three in (parts, literal):
            assert relative([sum(p) for p in zip(*three, strict=True)], full) < 1e-12


def test_errors_of_the_identity_are_rounding_and_a_wrong_split_is_seen(monkeypatch):
    model, (tokens, mask) = some_model(CONFIGS["GPT-2"]), some_batch()
    assert max(identity_errors(model, tokens, mask, SITES)) < 1e-12
    right = gradients._pulled_back
    monkeypatch.setattr(gradients, "_pulled_back", lambda r, p, g: right(r, p, g * 1.001))
    of_sum, of_scheme = identity_errors(model, tokens, mask, SITES)
    assert of_sum < 1e-12
    assert 1e-5 < of_scheme < 1e-2


def test_the_stop_takes_away_what_flows_through_the_site():
    """Finite differences: L_i moves with r_i^k as the direct part says, L_j as the other."""
    model, (tokens, mask) = some_model(CONFIGS["NeoX"]), some_batch()
    k, i = 1, 2
    parts = decompose_by_definition(model, tokens, mask, (k, i))
    # A change of the first block's MLP bias moves r at every position by the same vector, and r_i
    # alone when an edit puts it there: the derivative along it is what the bias' gradient holds.
    bias = model.blocks[0].mlp.down.bias
    for n in range(3):
        shift = torch.zeros_like(bias).detach()
        shift[n] = 1e-5
        ends = []
        for sign in (1, -1):

            def move(x, sign=sign, shift=shift):
                return torch.cat([x[:, :i], x[:, i : i + 1] + sign * shift, x[:, i + 1 :]], 1)

            log_p = model(tokens[:, :-1], edit={f"resid.{k}": move}).log_softmax(-1)
            losses = -log_p.gather(2, tokens[:, 1:, None]).squeeze(2) * mask / mask.sum()
            ends.append(torch.stack([losses[:, i].sum(), losses[:, i + 1 :].sum()]))
        slope = (ends[0] - ends[1]) / 2e-5
        name = "blocks.0.mlp.down.bias"
        found = torch.stack([parts.direct[name][n], parts.precached[name][n]])
        assert torch.allclose(found, slope, rtol=1e-5, atol=1e-9)


def test_every_part_is_there_and_none_is_another():
    """At an early site of an ordinary model no part is negligible, so the test above can fail."""
    model, (tokens, mask) = some_model(CONFIGS["GPT-2"]), some_batch()
    [parts] = decompose(model, tokens, mask, [(1, 2)]).values()
    sizes = {p: sum(g.pow(2).sum() for g in getattr(parts, p).values()).sqrt() for p in PARTS}
    assert min(sizes.values()) > 0.01 * max(sizes.values())


def test_what_is_pre_cached_is_exactly_zero_at_the_last_layer_and_in_myopic_models():
    model, (tokens, mask) = some_model(CONFIGS["GPT-2"]), some_batch()
    for _, parts in decompose(model, tokens, mask, [(LAYERS, i) for i in range(N_POS)]).items():
        assert not any(g.any() for g in parts.precached.values())
    for parts in decompose(model, tokens, mask, SITES, myopic=True).values():
        assert not any(g.any() for g in parts.precached.values())
    direct, precached = residual_gradients(model.float(), tokens, mask)
    assert not precached[LAYERS].any()
    assert direct[LAYERS].any()


def test_residual_gradients_are_those_of_each_loss_alone():
    model, (tokens, mask) = some_model(CONFIGS["NeoX"]), some_batch()
    direct, precached = residual_gradients(model, tokens, mask)
    assert direct.shape == precached.shape == (LAYERS + 1, 6, N_POS, 8)
    for i in range(N_POS):
        tap = {f"resid.{k}": None for k in range(LAYERS + 1)}
        logits = model(tokens[:, :-1], tap=tap)
        log_p = logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
        losses = -(log_p * mask).sum(0) / mask.sum()
        for loss, ours in ((losses[i], direct), (losses[i + 1 :].sum(), precached)):
            theirs = naive.gradient(loss, list(tap.values()))
            for k in range(LAYERS + 1):
                assert torch.allclose(ours[k, :, i], theirs[k][:, i], rtol=1e-11, atol=1e-15)


def test_impossible_sites_and_mixers_are_refused():
    model, (tokens, mask) = some_model(CONFIGS["GPT-2"]), some_batch()
    for bad in ([(3, 0)], [(0, 7)], [(-1, 0)], []):
        with pytest.raises(ParameterError, match="sites"):
            decompose(model, tokens, mask, bad)
    other = some_model(ModelConfig(**SHAPE, mixer="linear_rnn"))
    with pytest.raises(ParameterError, match="myopic"):
        residual_gradients(other, tokens, mask)
