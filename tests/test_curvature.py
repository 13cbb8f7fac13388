"""Hessian eigenvalues, the LLC and gradient ranks against cases whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from emergence_lib.analysis.geometry import rankme
from emergence_lib.analysis.gradient_rank import effective_rank, per_sequence_gradients, sketch
from emergence_lib.analysis.hessian import explicit_loss, hessian_product, top_eigenvalues
from emergence_lib.analysis.llc import LLC, SGLD, local_learning_coefficient
from emergence_lib.errors import EstimateError, ParameterError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks.base import Batch
from emergence_lib.training.train import masked_loss, step_generator

torch.set_num_threads(1)


def generator(stream="test"):
    return step_generator(0, stream)


def quadratic(eigenvalues):
    """½ wᵀHw in a turned basis, the parameter, and H."""
    n = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(n, n, generator=generator(), dtype=torch.float64))[0]
    hessian = basis @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ basis.T
    w = torch.randn(n, generator=generator(), dtype=torch.float64).requires_grad_()
    return 0.5 * w @ hessian @ w, w, hessian


SMALL = ModelConfig(
    n_layers=1, d_model=8, n_heads=2, d_mlp=8, vocab_size=5, max_pos=6, tied_embeddings=True,
    embed_std=0.3, init_std=0.3, activation="gelu",
)  # fmt: skip


@pytest.fixture
def small():
    """A transformer small enough for its whole Hessian, and a batch with uneven answers."""
    model = Transformer(SMALL, generator("weights"))
    tokens = torch.randint(5, (6, 7), generator=generator("tokens"))
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for row in range(6):
        mask[row, 5 - row % 3 :] = True
    return model, Batch(tokens, mask)


# --- Hessian ----------------------------------------------------------------------------------


def test_the_two_orders_of_top_eigenvalues_are_told_apart():
    spectrum = [-9.0, 5.0, 3.0, *np.linspace(-1, 1, 40)]
    for by, expected in (("algebraic", [5, 3, 1]), ("magnitude", [-9, 5, 3])):
        loss, w, _ = quadratic(spectrum)
        found = top_eigenvalues(loss, [w], generator(), by=by, n=3, tolerance=1e-8)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_start_vector_comes_from_the_generator_alone():
    values = []
    for stream in ("a", "a", "b"):
        loss, w, _ = quadratic(np.linspace(-1, 2, 60).tolist())
        values.append(top_eigenvalues(loss, [w], generator(stream), tolerance=0.1)[0])
    assert values[0] == values[1] != values[2]


def test_a_transformer_s_top_eigenvalues_are_those_of_its_whole_hessian(small):
    model, batch = small
    names, parameters = zip(*model.named_parameters(), strict=True)

    def loss(*values):
        weights = dict(zip(names, values, strict=True))
        taps = {"tap": {"pattern.0": None}}
        logits = torch.func.functional_call(model, weights, (batch.tokens[:, :-1],), taps)
        return masked_loss(logits, batch)

    sizes = [p.numel() for p in parameters]
    blocks = torch.autograd.functional.hessian(loss, parameters)
    whole = torch.cat(
        [
            torch.cat([b.reshape(m, n) for b, n in zip(row, sizes, strict=True)], 1)
            for row, m in zip(blocks, sizes, strict=True)
        ]
    )
    exact = np.linalg.eigvalsh(whole.double().numpy())
    found = top_eigenvalues(explicit_loss(model, batch), parameters, generator(), n=2)
    np.testing.assert_allclose(found, exact[[-1, -2]], rtol=1e-3)
    by_size = exact[np.argsort(-np.abs(exact))][0]
    found = top_eigenvalues(explicit_loss(model, batch), parameters, generator(), by="magnitude")
    np.testing.assert_allclose(found[0], by_size, rtol=1e-3)
    v = np.random.default_rng(0).normal(size=sum(sizes)).astype(np.float32)
    product = hessian_product(explicit_loss(model, batch), parameters)
    np.testing.assert_allclose(product(v), whole.numpy() @ v, atol=1e-4)


def test_explicit_attention_has_the_model_s_loss(small):
    model, batch = small
    fused = masked_loss(model(batch.tokens[:, :-1]), batch)
    torch.testing.assert_close(explicit_loss(model, batch), fused)


def test_lanczos_that_does_not_settle_says_so():
    loss, w, _ = quadratic(np.linspace(1, 1.001, 300).tolist())
    with pytest.raises(EstimateError, match=r"1 largest eigenvalues by algebraic .* 1 restarts"):
        top_eigenvalues(loss, [w], generator(), tolerance=1e-12, max_restarts=1)


@pytest.mark.parametrize(
    "change", [{"by": "size"}, {"n": 0}, {"n": 3}, {"tolerance": 0.0}, {"max_restarts": 0}]
)
def test_impossible_lanczos_settings_are_named(change):
    loss, w, _ = quadratic([1.0, 2.0, 3.0])
    with pytest.raises(ParameterError, match=next(iter(change))):
        top_eigenvalues(loss, [w], generator(), **change)


# --- LLC --------------------------------------------------------------------------------------

COPIES = 400
"""Independent copies of a small loss in one tensor: λ adds up over them, and noise averages."""


def per_copy(potential, shape, sgld, start=0.0):
    """λ̂ of one copy, whose loss is `potential` summed."""
    w = torch.full((COPIES, *shape), start, dtype=torch.float64, requires_grad=True)
    found = local_learning_coefficient(lambda _: potential(w), [None], [w], sgld, generator())
    return found, found.value / COPIES


def quartic(w):
    return w.pow(4).sum()


def test_a_quadratic_has_half_its_dimension():
    """With the pull γ: ½ Σ nβh/(nβh + γ); here 1.5 less what γ takes, known exactly."""
    h = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    sgld = SGLD(0.001, 100.0, 5.0, n_chains=2, burn_in=150, n_draws=300)
    found, value = per_copy(lambda w: 0.5 * (h * w**2).sum(), (3,), sgld)
    a = 100.0 * h + 5.0
    exact = float((100.0 * h / a / (1 - sgld.step_size * a / 4)).sum() / 2)
    assert exact == pytest.approx(1.5, rel=0.1)
    assert value == pytest.approx(exact, rel=0.02)  # the discretization is in the formula
    assert found.interpretable
    assert found.standard_error / COPIES < 0.03


def test_a_quartic_valley_has_a_quarter():
    sgld = SGLD(0.004, 100.0, 0.0, n_chains=1, burn_in=400, n_draws=800)
    _, value = per_copy(quartic, (), sgld)
    assert value == pytest.approx(0.25, rel=0.06)  # a regular point would have 0.5


def test_a_normal_crossing_is_below_half_its_dimension():
    """K = w₁²w₂²: λ = 1/2 with multiplicity 2. At finite nβ the mean is known by quadrature."""
    n_beta, pull = 50.0, 1.0
    sgld = SGLD(0.001, n_beta, pull, n_chains=1, burn_in=3_000, n_draws=1_000)
    _, value = per_copy(lambda w: (w[:, 0] * w[:, 1]).pow(2).sum(), (2,), sgld)
    w = np.linspace(-6, 6, 6001)
    # ∫ over w₂ is Gaussian: precision a = 2nβw₁² + γ, and E[nβ w₁² w₂²] = nβ w₁²/a.
    a = 2 * n_beta * w**2 + pull
    density = np.exp(-pull * w**2 / 2) / np.sqrt(a)
    exact = (density * n_beta * w**2 / a).sum() / density.sum()
    assert exact == pytest.approx(0.5, abs=0.2)
    assert exact < 0.5
    assert value == pytest.approx(exact, rel=0.08)


def test_a_regression_on_mini_batches_has_half_its_parameters():
    """d = 40 at the least-squares solution, where L_n(w) - L_n(w*) is a quadratic; λ = d/2."""
    n, d = 512, 40
    x = torch.randn(n, d, generator=generator("x"))
    y = torch.randn(n, 1, generator=generator("y"))
    w = torch.linalg.lstsq(x, y).solution.requires_grad_()
    batches = list(torch.arange(n).split(128))
    sgld = SGLD(4e-4, n / math.log(n), 1.0, n_chains=2, burn_in=300, n_draws=600)

    def loss(i):
        return (x[i] @ w - y[i]).pow(2).mean()

    found = local_learning_coefficient(loss, batches, [w], sgld, generator())
    assert found.value == pytest.approx(d / 2, rel=0.1)
    assert found.interpretable


def test_burn_in_is_not_averaged():
    """The walk starts at w*, so that draws taken before it has spread pull the value down."""
    late = SGLD(0.002, 100.0, 0.0, n_chains=1, burn_in=400, n_draws=100)
    early = SGLD(0.002, 100.0, 0.0, n_chains=1, burn_in=0, n_draws=8)
    values = {s.burn_in: per_copy(lambda w: 0.5 * w.pow(2).sum(), (), s) for s in (late, early)}
    assert values[400][1] == pytest.approx(0.5, abs=0.06)
    assert values[0][1] < 0.25
    assert values[0][0].drift > 0


def test_the_model_is_put_back_and_a_generator_gives_the_same_numbers():
    w = torch.tensor([0.3, -0.1], requires_grad=True)
    kept = w.detach().clone()
    sgld = SGLD(0.01, 10.0, 1.0, burn_in=2, n_draws=5)
    runs = [
        local_learning_coefficient(
            lambda c: ((w - c) ** 2).sum(), [0.0, 1.0], [w], sgld, generator()
        )
        for _ in range(2)
    ]
    assert torch.equal(w, kept)
    np.testing.assert_array_equal(runs[0].trace, runs[1].trace)
    assert not np.array_equal(runs[0].trace[0], runs[0].trace[1])


def test_a_chain_that_is_not_finite_is_named_and_the_mean_withheld():
    sgld = SGLD(1.0, 1e6, 0.0, n_chains=2, burn_in=50, n_draws=300)
    found, _ = per_copy(quartic, (), sgld, start=1.0)
    assert set(found.failed) == {0, 1}
    assert math.isnan(found.value)
    assert not found.interpretable
    assert found.notes[0].startswith(f"chain 0: the loss is not finite from step {found.failed[0]}")


def test_a_point_on_a_slope_is_not_interpretable():
    """Away from a minimum, as early in training, the walk goes downhill: λ̂ is negative."""
    sgld = SGLD(1e-4, 100.0, 0.0, n_chains=2, burn_in=5, n_draws=50)
    found, value = per_copy(lambda w: 0.5 * w.pow(2).sum(), (), sgld, start=5.0)
    assert value < 0
    assert any(note.startswith("negative") for note in found.notes)
    assert any("still falls" in note for note in found.notes)


def test_falling_is_told_from_noise():
    noise = np.random.default_rng(0).normal(5, 1, size=(4, 60))
    assert LLC(noise, {}).interpretable
    assert LLC(noise - np.linspace(0, 4, 60), {}).notes == (
        "the loss still falls during the walk: w* is not a minimum",
    )
    climbing = LLC(noise + np.linspace(0, 4, 60), {})
    assert climbing.interpretable
    assert climbing.drift == pytest.approx(2.0, abs=0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"step_size": 0.0},
        {"n_beta": math.nan},
        {"localization": -1.0},
        {"n_chains": 0},
        {"burn_in": -1},
        {"n_draws": 1},
    ],
)
def test_impossible_sampling_is_named(change):
    with pytest.raises(ParameterError, match=next(iter(change))):
        SGLD(**{"step_size": 1.0, "n_beta": 1.0, "localization": 0.0} | change)
    with pytest.raises(ParameterError, match="batches"):
        local_learning_coefficient(lambda _: torch.zeros(()), [], [], SGLD(1, 1, 0), generator())


# --- gradient ranks ---------------------------------------------------------------------------


def test_gradients_of_single_sequences_are_those_of_backward(small):
    model, batch = small
    found = per_sequence_gradients(model, batch)
    assert found.shape == (6, sum(p.numel() for p in model.parameters()))
    for row in range(6):
        one = Batch(batch.tokens[row : row + 1], batch.loss_mask[row : row + 1])
        loss = masked_loss(model(one.tokens[:, :-1]), one)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        expected = torch.cat([part.flatten() for part in parts])
        torch.testing.assert_close(found[row], expected, atol=1e-6, rtol=1e-4)


def test_a_sequence_without_an_answer_has_no_gradient(small):
    model, batch = small
    with pytest.raises(ParameterError, match="loss_mask"):
        per_sequence_gradients(model, Batch(batch.tokens, torch.zeros_like(batch.loss_mask)))


def test_effective_ranks_that_are_known():
    orthogonal = torch.eye(16)[:6]
    assert effective_rank(orthogonal) == pytest.approx(6)
    assert effective_rank(orthogonal, centred=True) == pytest.approx(5)
    parallel = torch.arange(1.0, 7.0)[:, None] * torch.randn(1, 30, generator=generator())
    assert effective_rank(parallel) == pytest.approx(1, abs=1e-4)
    # Lengths 3 and 1 at a right angle: eigenvalues in shares .9 and .1, not .75 and .25.
    unequal = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    assert effective_rank(unequal) == pytest.approx(math.exp(entropy))
    vectors = torch.randn(20, 50, generator=generator()) + 1
    same = rankme(vectors, centred=True)
    assert effective_rank(vectors, centred=True) == pytest.approx(same, rel=1e-5)
    # A shared mean hides everything else from the uncentred one.
    shifted = torch.randn(20, 50, generator=generator()) + 100
    assert effective_rank(shifted) < 1.1
    assert effective_rank(shifted, centred=True) > 12
    assert math.isnan(effective_rank(torch.zeros(3, 4)))
    for wrong in (torch.zeros(1, 4), torch.full((3, 4), math.nan)):
        with pytest.raises(ParameterError, match="vectors"):
            effective_rank(wrong)


def test_a_sketch_keeps_ranks_and_inner_products():
    scales = torch.logspace(0, -2, 32)[:, None]
    vectors = scales * torch.randn(32, 40_000, generator=generator())
    vectors[:, :50] *= 20  # a few coordinates carry much, as in real gradients
    small = sketch(vectors, 2048, generator("sketch"))
    assert small.shape == (32, 2048)
    for centred in (False, True):
        exact = effective_rank(vectors, centred=centred)
        assert effective_rank(small, centred=centred) == pytest.approx(exact, rel=0.05)
        # The first coordinates alone say something else: they are the variant of the paper.
        assert effective_rank(sketch(vectors, 8, generator()), centred=centred) < 0.9 * exact
    norms, exact_norms = small.norm(dim=1), vectors.norm(dim=1)
    torch.testing.assert_close(norms, exact_norms, rtol=0.15, atol=0.0)
