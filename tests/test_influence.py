"""Influence of the gradient's parts against its definition with one backward pass a feature."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import naive_gradients as naive
import pytest
import torch

from emergence_lib.analysis.gradients import PARTS
from emergence_lib.analysis.influence import (
    Tracker,
    influence,
    integrated_influence,
    require_same,
    site_changes,
)
from emergence_lib.analysis.stop_gradient import decompose_by_definition
from emergence_lib.errors import ParameterError, TrainingError, UnknownNameError
from emergence_lib.models import ModelConfig
from emergence_lib.models.untied import UntiedConfig
from emergence_lib.tasks import Majority
from emergence_lib.training import TrainConfig, train
from emergence_lib.training.train import masked_loss, step_generator

torch.set_num_threads(1)
TASK = Majority(n_inputs=4, n_outputs=2)
SHAPE = {
    "n_layers": 2,
    "d_model": 8,
    "n_heads": 2,
    "vocab_size": 4,
    "max_pos": 6,
    "init_std": 0.3,
    "embed_std": 0.5,
    "activation": "gelu",
    "tied_embeddings": True,
}
MODEL = ModelConfig(**SHAPE)
CONFIG = TrainConfig(
    steps=4, batch_size=8, lr=3e-3, warmup_steps=2, grad_clip=None, eval_every=2, eval_batch_size=8
)


def directions(dtype=torch.float64):
    """One to three random features a site."""
    draw = torch.Generator().manual_seed(5)
    sites = {(0, 1): 1, (1, 2): 3, (2, 2): 2, (1, 4): 3, (2, 5): 1}
    return {site: torch.randn(n, 8, generator=draw, dtype=dtype) for site, n in sites.items()}


def models():
    return [MODEL.build(torch.Generator().manual_seed(seed)).double() for seed in (1, 2)]


def tokens():
    return TASK.sample(5, torch.Generator().manual_seed(6)).tokens


def test_influence_is_the_gradient_of_the_mismatch_along_each_step():
    model, final = models()
    draw = torch.Generator().manual_seed(7)
    features = directions()
    steps = {
        site: {
            name: torch.randn(3, *p.shape, generator=draw, dtype=p.dtype)
            for name, p in model.named_parameters()
        }
        for site in features
    }
    found = influence(model, final, tokens(), features, steps)
    for site, w in features.items():
        listed = [[steps[site][n][t] for n, _ in model.named_parameters()] for t in range(3)]
        expected = naive.influence(model, final, tokens(), site, w, listed)
        assert found[site].shape == (3, len(w))
        assert torch.allclose(found[site], expected, rtol=1e-11, atol=1e-13)


def test_a_site_s_change_is_the_limit_of_a_small_step():
    model, _ = models()
    draw = torch.Generator().manual_seed(8)
    steps = {
        name: torch.randn(1, *p.shape, generator=draw, dtype=p.dtype)
        for name, p in model.named_parameters()
    }
    found = site_changes(model, tokens(), (2, 3), steps)[0]
    ends = []
    for sign in (1, -1):
        moved, _ = models()
        with torch.no_grad():
            for name, p in moved.named_parameters():
                p += sign * 1e-5 * steps[name][0]
            ends.append(moved.residual(tokens()[:, :-1], 2)[:, 3])
    assert torch.allclose(found, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-7)


class Literal:
    """A `BeforeStep` that follows the definition, with three separate moments for Adam."""

    def __init__(self, final, features, config):
        self.final, self.features, self.config = final, features, config
        self.total = {(rule, site): 0 for rule in ("adam", "sgd") for site in features}
        self.moments, self.square, self.count = {}, None, 0

    def __call__(self, step, model, batch):
        self.count += 1
        (b1, b2), myopic = self.config.betas, self.config.myopic
        lr = self.config.lr * min(1, step / self.config.warmup_steps)
        loss = masked_loss(model(batch.tokens[:, :-1], myopic=myopic), batch)
        full = naive.gradient(loss, list(model.parameters()))
        old = self.square or [torch.zeros_like(g) for g in full]
        self.square = [b2 * v + (1 - b2) * g * g for v, g in zip(old, full, strict=True)]
        sizes = [(v / (1 - b2**self.count)).sqrt() + 1e-8 for v in self.square]
        for site, w in self.features.items():
            by_definition = decompose_by_definition(
                model, batch.tokens, batch.loss_mask, site, myopic=myopic
            )
            parts = [list(getattr(by_definition, part).values()) for part in PARTS]
            before = self.moments.get(site, [[torch.zeros_like(g) for g in full]] * 3)
            now = [
                [b1 * m + (1 - b1) * g for m, g in zip(ms, gs, strict=True)]
                for ms, gs in zip(before, parts, strict=True)
            ]
            self.moments[site] = now
            adam = [
                [lr * m / (1 - b1**self.count) / s for m, s in zip(ms, sizes, strict=True)]
                for ms in now
            ]
            sgd = [[lr * g for g in gs] for gs in parts]
            for rule, steps in (("adam", adam), ("sgd", sgd)):
                self.total[rule, site] = self.total[rule, site] + naive.influence(
                    model, self.final, batch.tokens, site, w, steps
                )


@pytest.mark.parametrize(
    ("shape", "myopic"),
    [(MODEL, False), (MODEL, True), (UntiedConfig(**SHAPE, cut=3), False)],
)
def test_tracked_influences_are_those_of_the_definition_over_a_training(shape, myopic):
    config = replace(CONFIG, myopic=myopic)
    features = directions(torch.float32)
    first = train(TASK, shape, config)
    literal = Literal(first.model, features, config)
    train(TASK, shape, config, before_step=literal)
    found = integrated_influence(TASK, shape, config, lambda model: features)
    assert found.run.trajectory.equals(first.trajectory)
    index = ["rule", "layer", "position", "part", "feature"]
    table = found.influences.set_index(index).sort_index()
    assert len(table) == 2 * 3 * sum(map(len, features.values()))
    for (rule, (k, i)), expected in literal.total.items():
        size = expected.abs().max().item()
        for p, part in enumerate(PARTS):
            for f in range(expected.shape[1]):
                ours = table.influence[rule, k, i, part, f]
                assert ours == pytest.approx(expected[p, f].item(), abs=2e-3 * size)
        if myopic or k == 2:
            assert (table.influence[rule, k, i, "precached"] == 0).all()
    for (k, i), w in features.items():
        model = shape.build(step_generator(0, "weights"))
        batch = TASK.sample(8, step_generator(0, "train", 1))
        start = naive.mismatch(model, first.model, batch.tokens, (k, i), w)
        assert torch.allclose(found.mismatch[k, i], start, rtol=1e-4)


def test_the_parts_of_adam_s_step_sum_to_what_the_optimizer_does():
    """Every step's parts, pulled out of the tracker, against the change of the weights."""
    seen = {}

    class Spy(Tracker):
        def _influences(self, model, tokens, layout, errors, whole, by_part):
            weights = torch.cat([p.detach().flatten() for p in model.parameters()])
            shared = whole[0] - by_part[0].sum(1)
            assert (by_part[0].abs().amax((0, 2)) > 1e-5).all(), "both parts move something"
            seen[len(self.history)] = weights, by_part[0].sum(1) + shared
            return super()._influences(model, tokens, layout, errors, whole, by_part)

    first = train(TASK, MODEL, CONFIG)
    train(TASK, MODEL, CONFIG, before_step=Spy(first.model, CONFIG, directions(torch.float32)))
    weights = [w for w, _ in seen.values()]
    weights.append(torch.cat([p.detach().flatten() for p in first.model.parameters()]))
    # The gradient of a key bias is 0 but for rounding, since softmax does not see it, and Adam
    # blows the rounding up to a step. Nothing else differs.
    is_bias = {n: n.endswith("qkv.bias") for n, _ in first.model.named_parameters()}
    counted = torch.cat(
        [torch.full((p.numel(),), not is_bias[n]) for n, p in first.model.named_parameters()]
    )
    for t, (before, after) in enumerate(pairwise(weights)):
        for step in seen[t][1]:
            assert torch.allclose((before - step)[counted], after[counted], atol=1e-7)
        assert (before - after).abs().max() > 5e-4


def test_integrated_influence_is_about_the_mismatch_that_is_gone():
    """With steps small enough the first order is all: the parts sum to R at the start."""
    features = directions(torch.float32)
    config = replace(CONFIG, steps=20, lr=1e-4, warmup_steps=0, batch_size=128)
    found = integrated_influence(TASK, MODEL, config, lambda model: features, rules=("adam",))
    total = found.influences.groupby(["layer", "position", "feature"]).influence.sum()
    for site, start in found.mismatch.items():
        assert total[site].to_numpy() == pytest.approx(start.numpy(), rel=0.25)


def test_a_second_run_that_differs_is_refused():
    first = train(TASK, MODEL, CONFIG)
    require_same(first, train(TASK, MODEL, CONFIG))
    with pytest.raises(TrainingError, match="did not repeat the first"):
        require_same(first, train(TASK, MODEL, replace(CONFIG, seed=1)))
    again = train(TASK, MODEL, CONFIG)  # the same numbers, and one weight off by its last bit
    with torch.no_grad():
        weight = again.model.blocks[0].mlp.up.weight[0]
        weight[0] = torch.nextafter(weight[0], torch.tensor(torch.inf))
    with pytest.raises(TrainingError, match="1 parameters differ"):
        require_same(first, again)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"grad_clip": 1.0}, "grad_clip"), ({"weight_decay": 0.1}, "weight_decay")],
)
def test_only_plain_adam_is_followed(change, says):
    final = MODEL.build()
    with pytest.raises(ParameterError, match=says):
        Tracker(final, replace(CONFIG, **change), directions())
    with pytest.raises(UnknownNameError, match=r"rule 'adamw'\. Did you mean 'adam'"):
        Tracker(final, CONFIG, directions(), ("adamw",))
    with pytest.raises(ParameterError, match="sites"):
        Tracker(final, CONFIG, {(3, 0): torch.zeros(1, 8)})
