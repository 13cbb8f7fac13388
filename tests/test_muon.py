"""Muon against the singular value decomposition, a recomputation in numpy, and torch's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.models import ModelConfig
from emergence_lib.tasks import LinearMap
from emergence_lib.training import TrainConfig, train
from emergence_lib.training.muon import Muon, orthogonalize

torch.set_num_threads(1)
SHAPES = [(6, 6), (12, 4), (4, 12), (96, 32), (32, 96)]


def matrix(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- the orthogonalised update ----------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_come_near_one_and_singular_vectors_stay(shape):
    u, _, vh = torch.linalg.svd(matrix(*shape), full_matrices=False)
    sigma = torch.linspace(1, 0.05, min(shape))
    result = orthogonalize(u * sigma @ vh)
    assert result.shape == shape
    # In the basis of the singular vectors of the input, the result is diagonal: only the singular
    # values changed, each on its own.
    inside = u.T @ result @ vh.T
    assert (inside - inside.diag().diag()).abs().max() < 1e-3
    assert inside.diag().min() > 0.6
    assert inside.diag().max() < 1.3
    # Hence close to U Vᵀ, and exactly in its span.
    assert torch.linalg.matrix_norm(result - u @ vh, 2) < 0.4
    assert torch.allclose(u @ (u.T @ result), result, atol=1e-3)


def test_scale_does_not_matter_and_nothing_gives_nothing():
    given = matrix(5, 9)
    torch.testing.assert_close(orthogonalize(1e3 * given), orthogonalize(given), rtol=1e-3, atol=0)
    assert torch.equal(orthogonalize(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_a_tall_matrix_gives_the_transpose_of_a_wide_one():
    torch.testing.assert_close(orthogonalize(matrix(9, 4).T), orthogonalize(matrix(9, 4)).T)


# --- the step ---------------------------------------------------------------------------------


def reference(weight, gradients, lr, mu=0.95):
    """Jordan et al. in numpy, in float64, from the formula rather than the code."""
    weight = weight.astype(np.float64)
    rows, columns = weight.shape
    momentum = np.zeros_like(weight)
    for gradient in gradients:
        momentum = mu * momentum + (1 - mu) * gradient
        x = (1 - mu) * gradient + mu * momentum
        x = x / np.linalg.norm(x)
        for _ in range(5):
            xxt = x @ x.T
            x = 3.4445 * x - 4.7750 * xxt @ x + 2.0315 * xxt @ xxt @ x
        weight = weight - lr * np.sqrt(max(1, rows / columns)) * x
    return weight


@pytest.mark.parametrize("shape", [(6, 6), (12, 4), (4, 12)], ids=str)
def test_steps_are_those_of_the_formula(shape):
    weight = torch.nn.Parameter(matrix(*shape))
    gradients = [matrix(*shape, seed=seed) for seed in (1, 2, 3)]
    expected = reference(weight.detach().numpy(), [g.double().numpy() for g in gradients], 0.03)
    optimizer = Muon([weight], lr=0.03)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(weight.grad, gradient)  # the caller's gradient is left alone
    np.testing.assert_allclose(weight.detach().numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (32, 96)], ids=str)
def test_the_size_of_a_step_is_what_the_docstring_says(shape):
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = matrix(*shape)
    Muon([weight], lr=0.02).step()
    size = weight.detach().square().mean().sqrt().item()
    assert size == pytest.approx(0.02 / shape[1] ** 0.5, rel=0.25)


def test_a_parameter_without_gradient_stays():
    weight = torch.nn.Parameter(matrix(3, 3))
    optimizer = Muon([weight])
    optimizer.step()
    assert torch.equal(weight, matrix(3, 3))
    assert not optimizer.state


def test_each_group_has_its_rate():
    slow, fast = (torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(2))
    slow.grad = fast.grad = matrix(4, 4)
    Muon([{"params": [slow], "lr": 0.1}, {"params": [fast], "lr": 0.3}]).step()
    torch.testing.assert_close(fast.detach(), 3 * slow.detach())


@pytest.mark.parametrize("shape", [(3,), (), (2, 3, 4)], ids=str)
def test_only_matrices_are_taken(shape):
    with pytest.raises(ParameterError, match=r"shape of a parameter=.*matrix"):
        Muon([torch.nn.Parameter(torch.zeros(shape))])


def test_it_is_torch_s_muon_but_for_its_precision():
    theirs_class = getattr(torch.optim, "Muon", None)
    if theirs_class is None:
        pytest.skip("this torch has no Muon")
    ours, theirs = (torch.nn.Parameter(matrix(48, 16)) for _ in range(2))
    optimizers = (
        Muon([ours], lr=0.02),
        theirs_class([theirs], lr=0.02, weight_decay=0.0, momentum=0.95, nesterov=True),
    )
    for seed in range(1, 4):
        ours.grad, theirs.grad = matrix(48, 16, seed=seed), matrix(48, 16, seed=seed)
        for optimizer in optimizers:
            optimizer.step()
    moved = (ours - matrix(48, 16)).detach()
    difference = (ours - theirs).detach().norm() / moved.norm()
    assert 0 < difference < 0.03  # bfloat16 keeps 8 bits


# --- who gets what in training ----------------------------------------------------------------

TASK = LinearMap(4, 2)
MODEL = ModelConfig(n_layers=2, d_model=8, n_heads=2, vocab_size=2, max_pos=7)
CONFIG = TrainConfig(
    steps=1, batch_size=4, warmup_steps=0, eval_every=1, eval_batch_size=4, muon_lr=0.02, lr=0.01
)


def weights(**changes):
    run = train(TASK, MODEL, replace(CONFIG, **changes), checkpoints=[0, 1])
    return run.checkpoint(0), run.checkpoint(1)


def test_muon_gets_the_mixers_matrices_and_adamw_everything_else():
    start, base = weights()
    _, other_muon = weights(muon_lr=0.04)
    _, other_adamw = weights(lr=0.02)
    _, adamw_alone = weights(muon_lr=None)
    # After one step from the same weights and batch, a rate shows in what it drives, there only.
    by_muon = {n for n in base if not torch.equal(base[n], other_muon[n])}
    by_adamw = {n for n in base if not torch.equal(base[n], other_adamw[n])}
    assert by_muon == {f"blocks.{i}.mixer.{w}.weight" for i in (0, 1) for w in ("qkv", "out")}
    assert by_muon.isdisjoint(by_adamw)
    assert by_muon | by_adamw == {n for n in base if not torch.equal(base[n], start[n])}
    for name in base.keys() - by_muon:  # and AdamW does to the rest what it does alone
        assert torch.equal(base[name], adamw_alone[name])
    for name in by_muon:
        assert not torch.equal(base[name], adamw_alone[name])
        torch.testing.assert_close(
            other_muon[name] - start[name], 2 * (base[name] - start[name]), atol=1e-6, rtol=1e-4
        )


def test_muon_warms_up_with_adamw():
    start, base = weights()
    _, warm = weights(warmup_steps=10)
    for name in base:
        torch.testing.assert_close(
            warm[name] - start[name], (base[name] - start[name]) / 10, atol=1e-6, rtol=1e-4
        )
