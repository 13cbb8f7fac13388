"""Ridge probes against an ordinary least-squares problem that has the same solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emergence_lib.analysis.probes import correlation, fit_ridge
from emergence_lib.errors import ParameterError


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.1, 30.0])
def test_a_probe_solves_the_augmented_least_squares_problem_of_each_site(alpha):
    """Ridge is least squares with √α I appended to the centred activations and 0 to the targets."""
    x, y = noise(2, 3, 40, 5) + 2, noise(3, 40, 4, seed=1) - 1
    probe = fit_ridge(x, y, alpha)
    assert probe.weight.shape == (2, 3, 5, 4)
    for k, i in np.ndindex(2, 3):
        centred = (x[k, i] - x[k, i].mean(0), y[i] - y[i].mean(0))
        above = np.vstack([centred[0], np.sqrt(alpha) * np.eye(5)])
        below = np.vstack([centred[1], np.zeros((5, 4))])
        weight = np.linalg.lstsq(above, below, rcond=None)[0]
        assert probe.weight[k, i].numpy() == pytest.approx(weight, abs=1e-10)
        bias = y[i].mean(0).numpy() - x[k, i].mean(0).numpy() @ weight
        assert probe(x)[k, i].numpy() == pytest.approx(x[k, i].numpy() @ weight + bias, abs=1e-10)


def test_a_single_feature_is_read_as_one_of_several():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 30, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 30, 3, generator=generator, dtype=torch.float64)
    several, alone = fit_ridge(x, y), fit_ridge(x, y[..., :1])
    assert alone.weight.shape == (2, 4, 1)
    assert alone.bias.shape == (2, 1)
    assert torch.allclose(alone(x), several(x)[..., :1])


def test_the_bias_is_not_shrunk():
    probe = fit_ridge(noise(30, 3), torch.full((30, 1), 7.0), alpha=1e9)
    assert probe(noise(5, 3, seed=2)).flatten().tolist() == pytest.approx([7.0] * 5, abs=1e-6)


def test_correlation_is_pearson_s():
    a = noise(2, 30, 3)
    b = a + noise(2, 30, 3, seed=1)
    found = correlation(a, b)
    for site, feature in np.ndindex(2, 3):
        expected = np.corrcoef(a[site, :, feature], b[site, :, feature])[0, 1]
        assert found[site, feature].item() == pytest.approx(expected, abs=1e-12)
    assert correlation(a, -2 * a + 3).numpy() == pytest.approx(-1)
    assert correlation(a, torch.ones_like(a)).tolist() == [[0] * 3] * 2


def test_impossible_probes_are_refused():
    with pytest.raises(ParameterError, match=r"alpha=0 .* a positive number"):
        fit_ridge(noise(5, 2), noise(5, 1), alpha=0)
    with pytest.raises(ParameterError, match=r"features.shape\[-2\]=4 .* 5 samples"):
        fit_ridge(noise(5, 2), noise(4, 1))
