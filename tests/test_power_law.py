"""The exponent of a waiting time, against least squares and against a known law with censoring."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.power_law import fit_power_law
from emergence_lib.errors import ParameterError

SIZES = np.repeat([4, 8, 16, 32, 64], 3)


def times(exponent=0.8, spread=0.2, n=1):
    noise = np.random.default_rng(5).normal(0, spread, n * len(SIZES))
    sizes = np.tile(SIZES, n)
    return sizes, 50 * sizes**exponent * np.exp(noise)


def test_without_censoring_it_is_least_squares():
    sizes, steps = times()
    law = fit_power_law(sizes, [Event(step, True) for step in steps])
    line = stats.linregress(np.log(sizes), np.log(steps))
    half = stats.t.ppf(0.975, len(sizes) - 2) * line.stderr
    expected = (line.slope, line.slope - half, line.slope + half)
    assert law.exponent == pytest.approx(expected, rel=1e-3)
    assert law.scale == pytest.approx(np.exp(line.intercept), rel=1e-3)
    assert law.median(8) == pytest.approx(np.exp(line.intercept + line.slope * np.log(8)), rel=1e-3)
    assert (law.n, law.observed) == (15, 15)


def test_censored_runs_enter_as_at_least_that_long():
    """Half of the longest waits cut off: the exponent stays, and dropping them flattens it."""
    sizes, steps = times(n=20)
    horizon = np.median(steps[sizes == 64])
    events = [Event(min(step, horizon), bool(step <= horizon)) for step in steps]
    law = fit_power_law(sizes, events)
    assert law.exponent.low < 0.8 < law.exponent.high
    assert law.exponent.high - law.exponent.low < 0.1
    seen = np.array([event.observed for event in events])
    flat = fit_power_law(sizes[seen], [e for e in events if e.observed])
    assert flat.exponent.high < 0.8
    assert law.observed == seen.sum() < law.n

    def surprise(p):  # Tobit's likelihood by hand
        z = (np.log([e.step for e in events]) - p[0] - p[1] * np.log(sizes)) / np.exp(p[2])
        return -np.where(seen, stats.norm.logpdf(z) - p[2], stats.norm.logsf(z)).sum()

    best = optimize.minimize(surprise, [4.0, 1.0, -1.0], method="Nelder-Mead").x
    assert law.exponent.value == pytest.approx(best[1], abs=2e-3)
    assert law.spread == pytest.approx(np.exp(best[2]), rel=1e-2)


@pytest.mark.parametrize(
    ("sizes", "events"),
    [
        ([4, 8, 16], [Event(1, True)] * 3),
        ([4, 8, 16, 32], [Event(1, True)] * 3),
        ([4, 8, 16, 0], [Event(1, True)] * 4),
        ([4, 8, 16, 32], [Event(0, True)] * 4),
        ([4, 4, 4, 8], [Event(5, True)] * 3 + [Event(9, False)]),
        ([4, 8, 16, 32], [Event(5, True)] * 2 + [Event(9, False)] * 2),
    ],
)
def test_too_little_or_impossible_is_refused(sizes, events):
    with pytest.raises(ParameterError):
        fit_power_law(sizes, events)
