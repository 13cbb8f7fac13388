"""Sparse autoencoders on planted dictionaries; Q, steering and look-ahead on hand-made models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emergence_lib.analysis.features import (
    Examples,
    ablation_effects,
    alignment,
    look_ahead_map,
    q_ratio,
    q_table,
    residuals,
    steered_continuation,
    top_examples,
)
from emergence_lib.analysis.sparse_autoencoder import (
    SparseAutoencoder,
    fit,
    read_gemma_scope,
    train_topk,
)
from emergence_lib.errors import ParameterError, StoreError, UnknownNameError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.models.residual_hooks import HookedCausalLM

torch.set_num_threads(1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def orthogonal(d: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=seeded(seed)))[0]


def identity_sae(d: int, k: int = 1) -> SparseAutoencoder:
    """Latent w is coordinate w."""
    return SparseAutoencoder(torch.eye(d), torch.zeros(d), torch.eye(d), torch.zeros(d), k=k)


# --- sparse autoencoders -------------------------------------------------------------------------


def planted(n_rows: int, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Rows made of 3 out of 24 unit directions in 16 dimensions, and those directions."""
    generator = seeded(1)
    dictionary = nn.functional.normalize(torch.randn(24, 16, generator=generator), dim=-1)
    chosen = torch.rand(n_rows, 24, generator=generator).topk(3).indices
    f = torch.zeros(n_rows, 24).scatter(1, chosen, 1 + torch.rand(n_rows, 3, generator=generator))
    return 5 * f @ dictionary + offset, dictionary


def test_training_recovers_a_planted_dictionary():
    x, dictionary = planted(8_192, offset=2.0)
    sae = train_topk(x, 32, 3, seeded(), steps=1_000, batch_size=256, lr=5e-3)
    nearest = (dictionary @ sae.W_dec.T).max(-1).values
    assert (nearest > 0.95).double().mean() >= 0.9
    assert sae.W_dec.norm(dim=-1) == pytest.approx(torch.ones(32), abs=1e-5)
    quality = fit(sae, x)
    assert quality.unexplained < 0.08
    assert quality.active <= 3
    # Random directions of the same sizes explain far less: the test above is no accident.
    random = train_topk(x, 32, 3, seeded(), steps=1, batch_size=512, lr=1e-9)
    assert fit(random, x).unexplained > 0.3


def test_training_repeats_bit_for_bit_and_knows_no_unit():
    x, _ = planted(1_024)
    first, again = (train_topk(x, 16, 2, seeded(3), steps=20) for _ in range(2))
    assert torch.equal(first.W_dec, again.W_dec)
    larger = train_topk(8 * x, 16, 2, seeded(3), steps=20)
    assert torch.allclose(larger.encode(8 * x), 8 * first.encode(x), rtol=1e-4, atol=1e-3)
    assert fit(larger, 8 * x).unexplained == pytest.approx(fit(first, x).unexplained, rel=1e-4)


def test_topk_keeps_the_k_largest_that_are_positive():
    sae = identity_sae(4, k=2)
    f = sae.encode(torch.tensor([[3.0, 1.0, 2.0, -1.0], [-1.0, -2.0, 0.5, -3.0]]))
    assert f.tolist() == [[3.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.5, 0.0]]


def test_fit_of_known_autoencoders():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert fit(identity_sae(2), x) == (quality := fit(identity_sae(2, k=2), x))
    assert (quality.unexplained, quality.dead, quality.active) == (0.0, 0.0, 1.0)
    silent = SparseAutoencoder(torch.eye(2), torch.full((2,), -9.0), torch.eye(2), x.mean(0), k=1)
    quality = fit(silent, x)
    assert (quality.unexplained, quality.dead, quality.active) == (1.0, 1.0, 0.0)


def gemma_scope_file(path, d_model=6, n_latents=10, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "W_enc": rng.normal(size=(d_model, n_latents)).astype(np.float32),
        "b_enc": rng.normal(size=n_latents).astype(np.float32),
        "W_dec": rng.normal(size=(n_latents, d_model)).astype(np.float32),
        "b_dec": rng.normal(size=d_model).astype(np.float32),
        "threshold": rng.uniform(0.5, 1.5, size=n_latents).astype(np.float32),
    } | changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return arrays


def test_a_gemma_scope_file_is_read_as_its_authors_define_it(tmp_path):
    arrays = gemma_scope_file(tmp_path / "params.npz")
    sae = read_gemma_scope(tmp_path / "params.npz")
    x = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32)
    before = x @ arrays["W_enc"] + arrays["b_enc"]
    f = np.where(before > arrays["threshold"], before, 0)
    assert ((before > 0) & (f == 0)).any()  # a plain ReLU would differ
    assert sae.encode(torch.from_numpy(x)).numpy() == pytest.approx(f, abs=1e-5)
    out = sae.decode(torch.from_numpy(f)).numpy()
    assert out == pytest.approx(f @ arrays["W_dec"] + arrays["b_dec"], abs=1e-5)


def test_a_bad_gemma_scope_file_is_refused(tmp_path):
    path = tmp_path / "params.npz"
    with pytest.raises(StoreError, match=r"params\.npz"):
        read_gemma_scope(path)
    path.write_bytes(b"no archive")
    with pytest.raises(StoreError, match="Cannot read"):
        read_gemma_scope(path)
    gemma_scope_file(path, threshold=None)
    with pytest.raises(StoreError, match="no threshold"):
        read_gemma_scope(path)
    gemma_scope_file(path, b_dec=np.array([object()], dtype=object))
    with pytest.raises(StoreError, match="Cannot read"):
        read_gemma_scope(path)
    gemma_scope_file(path, b_enc=np.zeros(3, np.float32))
    with pytest.raises(ParameterError, match=r"b_enc.shape"):
        read_gemma_scope(path)


@pytest.mark.parametrize("k", [0, 5, None])
def test_k_is_within_the_dictionary(k):
    with pytest.raises(ParameterError, match="k="):
        SparseAutoencoder(torch.eye(4), torch.zeros(4), torch.eye(4), torch.zeros(4), k=k)
    if k is not None:
        with pytest.raises(ParameterError, match="k="):
            train_topk(torch.randn(9, 4), 4, k, seeded())


def test_rows_that_do_not_vary_teach_nothing():
    with pytest.raises(ParameterError, match="rows that differ"):
        train_topk(torch.ones(9, 4), 4, 1, seeded())


# --- Q on a model whose effects are known ---------------------------------------------------------


class Echo(nn.Module):
    """Coordinate w of the residual stream at t raises logit 0 of prediction t + j by gain[w, j]."""

    def __init__(self, gain: Tensor, residual: Tensor) -> None:
        super().__init__()
        self.gain, self.residual = gain, residual

    def forward(self, tokens, *, tap=None, edit=None):
        x = self.residual[tokens[:, 0]]
        if edit:
            x = edit["resid.1"](x)
        if tap is not None:
            tap["resid.1"] = x
        logits = torch.zeros(*x.shape[:2], 2)
        for j in range(self.gain.shape[1]):
            logits[:, j:, 0] += (x @ self.gain[:, j])[:, : x.shape[1] - j]
        return logits


def bernoulli_kl(a: float, b: float) -> float:
    p, q = 1 / (1 + math.exp(-a)), 1 / (1 + math.exp(-b))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


GAIN = torch.tensor([[1.0, 0.5, 0.25], [0.1, 0.0, 2.0]])
RESIDUAL = torch.zeros(3, 6, 2)
RESIDUAL[0, 1, 0], RESIDUAL[1, 2, 0], RESIDUAL[2, 3, 1] = 1.0, 2.0, 1.5
WINDOWS = torch.arange(3)[:, None].expand(3, 6)


def echo_q(**changes):
    given = {"latents": [0, 1], "n_examples": 2, "horizon": 2} | changes
    return q_ratio(Echo(GAIN, RESIDUAL), "resid.1", identity_sae(2), WINDOWS, **given)


def test_q_of_a_model_made_by_hand_is_analytic():
    d = {f: [bernoulli_kl(f * g, 0) for g in (1.0, 0.5, 0.25)] for f in (1.0, 2.0)}
    table = echo_q().set_index("latent")
    assert table.n.to_dict() == {0: 2, 1: 1}  # latent 1 is active in one window only
    ratios = [(kl[1] + kl[2]) / kl[0] for kl in d.values()]
    assert table.q_mean[0] == pytest.approx(np.mean(ratios), rel=1e-4)
    sums = sum(kl[1] + kl[2] for kl in d.values()) / sum(kl[0] for kl in d.values())
    assert table.q_sum[0] == pytest.approx(sums, rel=1e-4)
    assert abs(table.q_mean[0] - table.q_sum[0]) > 1e-3  # the two are not the same estimate
    assert table.immediate[0] == pytest.approx(np.mean([kl[0] for kl in d.values()]), rel=1e-4)
    assert table.q_mean[1] == pytest.approx(bernoulli_kl(3.0, 0) / bernoulli_kl(0.15, 0), rel=1e-3)
    assert table.total.to_numpy() == pytest.approx(table.immediate + table.later)


def test_examples_are_the_most_active_windows_and_leave_room_for_the_horizon():
    found = top_examples(identity_sae(2), RESIDUAL, [0, 1], 1, horizon=2)
    assert found.latent.tolist() == [0, 1]
    assert found.window.tolist() == [1, 2]
    assert found.position.tolist() == [2, 3]
    assert found.activation.tolist() == [2.0, 1.5]
    later = top_examples(identity_sae(2), RESIDUAL, [1], 3, horizon=3)  # position 3 is too late
    assert later.latent.tolist() == []
    assert q_table(later, torch.zeros(0, 4)).empty


def test_only_the_latents_own_contribution_is_ablated():
    """The autoencoder below reconstructs nothing of coordinate 1; ablation must not touch it."""
    blind = SparseAutoencoder(
        torch.eye(2)[:, :1], torch.zeros(1), torch.eye(2)[:1], torch.zeros(2), k=1
    )
    residual = RESIDUAL + torch.tensor([0.0, 0.5])
    examples = top_examples(blind, residual, [0], 1, horizon=2)
    effects = ablation_effects(Echo(GAIN, residual), "resid.1", blind, WINDOWS, examples, horizon=2)
    base = 0.5 * 2.1  # what coordinate 1 gives predictions 2, 3 and 4
    expected = [bernoulli_kl(base + 2 * g, base) for g in GAIN[0].tolist()]
    assert effects[0].tolist() == pytest.approx(expected, rel=2e-3)


def test_a_latent_without_an_immediate_effect_has_an_infinite_q():
    examples = Examples(*(torch.tensor([0, 0]),) * 3, torch.ones(2))
    table = q_table(examples, torch.tensor([[0.0, 0.1], [0.2, 0.1]]))
    assert table.q_mean[0] == math.inf
    assert table.q_sum[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"horizon": 6}, "horizon"), ({"latents": [2]}, "latents"), ({"n_examples": 0}, "n_examples")],
)
def test_impossible_questions_name_their_parameter(changes, name):
    with pytest.raises(ParameterError, match=f"{name}="):
        echo_q(**changes)


def test_ablation_in_a_real_model_is_causal_and_second_order_in_small_latents():
    """Halving a small contribution quarters its KL, and nothing before its token moves."""
    config = ModelConfig(n_layers=2, d_model=16, n_heads=2, vocab_size=11, max_pos=8, init_std=0.3)
    model = Transformer(config, seeded(5))
    tokens = torch.randint(11, (4, 8), generator=seeded(6))
    resid = residuals(model, "resid.1", tokens)
    assert resid.shape == (4, 8, 16)
    sums = []
    for scale in (0.02, 0.01):
        sae = SparseAutoencoder(
            orthogonal(16), torch.zeros(16), scale * orthogonal(16).T, torch.zeros(16), k=4
        )
        examples = top_examples(sae, resid, range(16), 4, horizon=3)
        effects = ablation_effects(model, "resid.1", sae, tokens, examples, horizon=3)
        sums.append(effects.double().sum())
    assert float(sums[0] / sums[1]) == pytest.approx(4, rel=0.1)


# --- steering and look-ahead ----------------------------------------------------------------------


class Reader(nn.Module):
    """Logits are the residual stream, which is 0 but for what is added."""

    def forward(self, tokens, *, tap=None, edit=None):
        x = torch.zeros(*tokens.shape, 3)
        return edit["resid.0"](x) if edit else x


def test_steering_changes_what_is_written_row_by_row():
    push = torch.tensor([[50.0, 0.0, 0.0], [0.0, 0.0, 50.0], [0.0, 0.0, 0.0]])
    prompt = torch.zeros(3, 2, dtype=torch.long)
    drawn = steered_continuation(Reader(), "resid.0", push, prompt, 30, seeded())
    assert drawn.shape == (3, 30)
    assert (drawn[0] == 0).all()
    assert (drawn[1] == 2).all()
    assert drawn[2].unique().tolist() == [0, 1, 2]


def test_the_look_ahead_map_is_found_at_its_distance_only():
    ahead, rotation = 3, orthogonal(8, 2)
    source = torch.randn(200, 12, 8, generator=seeded(3))
    target = torch.randn(200, 12, 8, generator=seeded(4))
    target[:, ahead - 1 :] = source[:, : 12 - ahead + 1] @ rotation + 7
    found = look_ahead_map(source, target, ahead, ridge=1e-6)
    assert torch.allclose(found, rotation, atol=1e-3)
    assert look_ahead_map(source, target, 1).norm() < 0.2 * rotation.norm()
    with pytest.raises(ParameterError, match="ahead="):
        look_ahead_map(source, target, 13)


def test_alignment_is_relative_to_a_random_direction():
    look_ahead = torch.diag(torch.tensor([2.0, 0.0, 0.0, 0.0]))
    found = alignment(look_ahead, torch.tensor([[3.0, 0, 0, 0], [0, 1.0, 0, 0], [1.0, 1.0, 0, 0]]))
    assert found.tolist() == pytest.approx([2.0, 0.0, math.sqrt(2)])
    many = torch.randn(4_000, 4, generator=seeded())
    assert alignment(look_ahead, many).square().mean().item() == pytest.approx(1, rel=0.1)
    with pytest.raises(ParameterError, match="directions"):
        alignment(look_ahead, torch.zeros(1, 4))


# --- models of transformers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def gemma():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=17, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=32,
        attn_implementation="eager",
    )  # fmt: skip
    return Gemma2ForCausalLM(config).eval()


def test_hooks_see_the_hidden_states_that_transformers_reports(gemma):
    tokens = torch.randint(17, (2, 12), generator=seeded())
    model = HookedCausalLM(gemma)
    tap = dict.fromkeys(f"resid.{k}" for k in range(3))
    with torch.no_grad():
        logits = model(tokens, tap=tap)
        plain = gemma(tokens, output_hidden_states=True)
    assert torch.equal(logits, plain.logits)
    for k in range(3):  # the last one is reported behind the final norm
        assert torch.equal(tap[f"resid.{k}"], plain.hidden_states[k])
    with torch.no_grad():
        edited = model(tokens, edit={"resid.2": lambda x: 2 * x}, tap=(after := {"resid.3": None}))
        again = model(tokens)
    assert not torch.allclose(edited, logits)
    assert after["resid.3"] is not None
    assert torch.equal(again, logits)  # no hook stays behind
    with pytest.raises(UnknownNameError, match=r"resid\.4"):
        model(tokens, tap={"resid.4": None})


@pytest.fixture(scope="module")
def reloaded(gemma, tmp_path_factory):
    """Gemma 2 as its users get it: from a folder in the format of the Hub."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("gemma")
    gemma.save_pretrained(folder)
    assert (folder / "model.safetensors").exists()
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def pocket():
    """A model of the pocket suite's family."""
    config = ModelConfig(
        n_layers=3, d_model=16, n_heads=2, vocab_size=17, max_pos=32, positional="rotary",
        parallel_residual=True, init_std=0.3,
    )  # fmt: skip
    return Transformer(config, seeded(2))


@pytest.mark.parametrize("which", ["Gemma 2", "pocket"])
def test_gemma_with_gemma_scope_and_our_models_take_the_same_calls(which, reloaded, tmp_path):
    """The whole page on Q in the real formats, with random weights: Gemma itself is not run."""
    model = HookedCausalLM(reloaded) if which == "Gemma 2" else pocket()
    gemma_scope_file(tmp_path / "params.npz", d_model=16, n_latents=20)
    sae = read_gemma_scope(tmp_path / "params.npz")
    tokens = torch.randint(17, (6, 20), generator=seeded())

    table = q_ratio(model, "resid.2", sae, tokens, range(20), n_examples=3)
    assert len(table) > 5
    assert (table.immediate > 0).all()
    assert np.isfinite(table.q_sum).all()

    source, last = (residuals(model, f"resid.{k}", tokens) for k in (2, 3))
    examples = top_examples(sae, source, range(20), 3)
    effects = ablation_effects(model, "resid.2", sae, tokens, examples)
    again = q_table(examples, effects).set_index("latent").q_sum
    assert again.to_numpy() == pytest.approx(table.set_index("latent").q_sum.to_numpy(), rel=1e-5)

    prompt = tokens[:2, :8]
    push = torch.stack([torch.zeros(16), 1e4 * torch.randn(16, generator=seeded(8))])
    steered = steered_continuation(model, "resid.2", push, prompt, 10, seeded(9))
    plain = steered_continuation(model, "resid.2", 0 * push, prompt, 10, seeded(9))
    assert torch.equal(steered[0], plain[0])
    assert not torch.equal(steered[1], plain[1])

    for ahead in (1, 3):
        answers = alignment(look_ahead_map(source, last, ahead), sae.W_dec)
        assert answers.shape == (20,)
        assert (answers > 0).all()


def test_an_ablation_in_gemma_is_what_a_hook_of_transformers_gives(reloaded, tmp_path):
    """Gemma Scope's layer 1 is what decoder layer 1 puts out, here resid.2."""
    arrays = gemma_scope_file(tmp_path / "params.npz", d_model=16, n_latents=20)
    sae = read_gemma_scope(tmp_path / "params.npz")
    tokens = torch.randint(17, (6, 20), generator=seeded())
    model = HookedCausalLM(reloaded)
    examples = top_examples(sae, residuals(model, "resid.2", tokens), range(20), 1)
    effects = ablation_effects(model, "resid.2", sae, tokens, examples)
    for row in range(0, len(examples.latent), 4):
        latent, at = int(examples.latent[row]), int(examples.position[row])
        window = tokens[examples.window[row]][None]

        def ablate(layer, args, out, latent=latent, at=at):
            x = out[0, at].numpy()
            before = x @ arrays["W_enc"][:, latent] + arrays["b_enc"][latent]
            assert before > arrays["threshold"][latent]
            out = out.clone()
            out[0, at] -= torch.from_numpy(before * arrays["W_dec"][latent])
            return out

        with torch.no_grad():
            original = reloaded(window).logits[0].log_softmax(-1)
            handle = reloaded.model.layers[1].register_forward_hook(ablate)
            ablated = reloaded(window).logits[0].log_softmax(-1)
            handle.remove()
        kl = (original.exp() * (original - ablated)).sum(-1)[at : at + 10]
        assert effects[row].numpy() == pytest.approx(kl.numpy(), rel=2e-2, abs=2e-6)
    assert effects.max() > 1e-3


def test_a_model_without_a_list_of_layers_is_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=5, n_positions=4))
    with pytest.raises(ParameterError, match="this one has 0"):
        HookedCausalLM(tiny)
