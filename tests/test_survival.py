"""Survival estimates against published tables and hand calculations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import (
    bootstrap_interval,
    capped_mean,
    kaplan_meier,
    logrank,
    mean_interval,
    median_time,
    restricted_mean,
    solve_rate,
)
from emergence_lib.errors import ParameterError

settings.register_profile("no deadline", deadline=None)  # a shared machine stalls at times
settings.load_profile("no deadline")


def events(text):
    """Times, those with a plus right-censored."""
    return [Event(int(word.rstrip("+")), "+" not in word) for word in text.split()]


# Weeks in remission of 42 leukaemia patients (Freireich et al. 1963), the textbook example.
TREATED = events("6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+")
PLACEBO = events("1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23")
# Small enough for the hand: S is 1, .8, .6, .3, 0 from 0, 1, 2, 5, 10.
SMALL = events("1 2 2+ 5 10")
NEVER = events("10+ 10+ 10+")


def test_kaplan_meier_is_the_published_table():
    table = kaplan_meier(TREATED)
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    for step, unsolved in published.items():
        assert table.unsolved[step] == pytest.approx(unsolved, abs=6e-4)
    assert table.at_risk[[6, 7, 10, 13, 16, 22, 23]].tolist() == [21, 17, 15, 12, 11, 7, 6]
    assert table.index[0] == 0
    assert table.unsolved[0] == 1
    # Greenwood on the log-log scale at the first event time: 3 of 21.
    error = math.sqrt(3 / (21 * 18)) / abs(math.log(18 / 21))
    assert table.low[6] == pytest.approx((18 / 21) ** math.exp(1.959964 * error), abs=1e-6)
    assert table.high[6] == pytest.approx((18 / 21) ** math.exp(-1.959964 * error), abs=1e-6)


def test_medians_under_censoring():
    assert median_time(TREATED).value == 23
    assert median_time(PLACEBO).value == 8
    assert median_time(TREATED).low == 13
    assert median_time(TREATED).high == math.inf  # the upper bound of the curve stays above 1/2
    assert median_time(NEVER) == (math.inf, math.inf, math.inf)


def test_restricted_mean_is_the_area_under_the_steps():
    mean, low, high = restricted_mean(SMALL, 8)
    assert mean == pytest.approx(1 + 0.8 + 3 * 0.6 + 3 * 0.3)
    variance = 3.5**2 / (5 * 4) + 2.7**2 / (4 * 3) + 0.9**2 / (2 * 1)
    half = 2.776445 * math.sqrt(variance * 5 / 4)  # t, 4 degrees of freedom
    assert low == pytest.approx(mean - half, abs=1e-5)
    assert high == 8  # mean + half lies beyond the horizon
    mean, low, _ = restricted_mean(SMALL, 4)  # what happens later does not matter
    assert mean == pytest.approx(1 + 0.8 + 2 * 0.6)
    variance = 2.0**2 / (5 * 4) + 1.2**2 / (4 * 3)
    assert low == pytest.approx(mean - 2.776445 * math.sqrt(variance * 5 / 4), abs=1e-5)
    assert restricted_mean(PLACEBO, 100).value == pytest.approx(182 / 21)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 300), min_size=2, max_size=12), st.integers(50, 200))
def test_without_early_censoring_it_is_the_t_interval_of_the_capped_mean(times, horizon):
    runs = [Event(min(time, horizon), time <= horizon) for time in times]
    capped = np.minimum(times, horizon)
    mean, low, high = restricted_mean(runs, horizon)
    assert mean == pytest.approx(capped.mean())
    assert capped_mean(runs, horizon) == pytest.approx(capped.mean())
    if (capped == horizon).all():
        assert math.isnan(low)
        assert math.isnan(high)
    elif capped.std() > 0:
        t = stats.ttest_1samp(capped, 0).confidence_interval(0.95)
        assert low == pytest.approx(max(t.low, 0), abs=1e-6)
        assert high == pytest.approx(min(t.high, horizon), abs=1e-6)


def test_censoring_tells_the_two_means_apart():
    # The run lost at step 2 counts as the horizon by the paper's convention.
    assert capped_mean(SMALL, 8) == pytest.approx((1 + 2 + 8 + 5 + 8) / 5)
    assert restricted_mean(SMALL, 8).value < capped_mean(SMALL, 8)


def test_what_cannot_be_known_is_nan():
    assert restricted_mean(NEVER, 10).value == 10
    assert math.isnan(restricted_mean(NEVER, 10).high)
    assert math.isnan(restricted_mean(events("3"), 10).low)
    with pytest.raises(ParameterError, match="at most 10"):
        restricted_mean(NEVER, 11)
    assert restricted_mean(events("3 5"), 11).value == 4  # all solved: nothing is missing


def test_logrank_is_the_published_value():
    result = logrank({"placebo": PLACEBO, "treated": TREATED}, horizon=23)
    assert result.statistic == pytest.approx(16.793, abs=1e-3)
    assert result.p_value == pytest.approx(4.17e-5, abs=1e-7)
    ratio = result.ratios["treated"]
    means = [restricted_mean(group, 23).value for group in (TREATED, PLACEBO)]
    assert ratio.value == pytest.approx(means[0] / means[1])
    assert 1 < ratio.low < ratio.value < ratio.high
    swapped = logrank({"treated": TREATED, "placebo": PLACEBO}, horizon=23).ratios["placebo"]
    assert swapped.low == pytest.approx(1 / ratio.high)


def test_logrank_by_hand():
    # a: 1 3   b: 2 4+.  At 1: 2 of 4 at risk are a's; at 2: 1 of 3; at 3: 1 of 2.
    expected = 2 / 4 + 1 / 3 + 1 / 2
    variance = 1 / 4 + 2 / 9 + 1 / 4
    result = logrank({"a": events("1 3"), "b": events("2 4+")}, horizon=4)
    assert result.statistic == pytest.approx((2 - expected) ** 2 / variance)
    assert result.p_value == pytest.approx(stats.chi2.sf(result.statistic, 1))
    assert result.ratios["b"].value == pytest.approx(3 / 2)


def test_ratio_against_runs_that_never_solve_has_no_interval():
    result = logrank({"never": NEVER, "fast": events("2 3 4")}, horizon=10)
    assert result.ratios["fast"].value == pytest.approx(0.3)
    assert math.isnan(result.ratios["fast"].low)
    assert result.p_value < 0.05


@pytest.mark.parametrize("n", [1, 3, 5, 10])
def test_clopper_pearson_at_the_ends(n):
    assert solve_rate(n, n) == pytest.approx((1, 0.025 ** (1 / n), 1))
    assert solve_rate(0, n) == pytest.approx((0, 0, 1 - 0.025 ** (1 / n)))


@settings(max_examples=40)
@given(st.integers(2, 40).flatmap(lambda n: st.tuples(st.integers(1, n - 1), st.just(n))))
def test_clopper_pearson_inverts_the_binomial_tails(case):
    k, n = case
    value, low, high = solve_rate(k, n)
    assert value == k / n
    assert stats.binom.sf(k - 1, n, low) == pytest.approx(0.025)
    assert stats.binom.cdf(k, n, high) == pytest.approx(0.025)


@settings(max_examples=5)
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=6), st.integers(0, 100))
def test_bootstrap_stays_within_the_sample_and_repeats(values, seed):
    first = bootstrap_interval(values, np.random.default_rng(seed))
    assert first == bootstrap_interval(values, np.random.default_rng(seed))
    assert first.value == np.median(values)
    assert min(values) <= first.low <= first.high <= max(values)


def test_bootstrap_of_a_large_sample_is_the_normal_interval():
    values = np.random.default_rng(0).normal(size=400)
    found = bootstrap_interval(values, np.random.default_rng(1), np.mean)
    half = 1.96 * values.std() / 20
    assert found == pytest.approx(
        (values.mean(), values.mean() - half, values.mean() + half), abs=0.01
    )


def test_bootstrap_of_one_value_has_no_interval():
    value, low, high = bootstrap_interval([3.0], np.random.default_rng(0))
    assert value == 3
    assert math.isnan(low)
    assert math.isnan(high)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: kaplan_meier([]), "events"),
        (lambda: capped_mean([], 10), "events"),
        (lambda: median_time([Event(-1, True)]), "event.step"),
        (lambda: median_time([Event(math.nan, True)]), "event.step"),
        (lambda: restricted_mean(SMALL, 0), "horizon"),
        (lambda: logrank({"a": SMALL}, 8), "groups"),
        (lambda: solve_rate(4, 3), "n_solved"),
        (lambda: solve_rate(0, 0), "n"),
        (lambda: bootstrap_interval([], np.random.default_rng(0)), "values"),
        (lambda: bootstrap_interval([1, math.inf], np.random.default_rng(0)), "values"),
    ],
)
def test_errors_name_the_parameter(call, named):
    with pytest.raises(ParameterError, match=named):
        call()


def test_the_mean_interval_is_students():
    """Student's own sleep data (1908, differences): mean 1.58, 95 % interval 0.70 to 2.46."""
    differences = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    result = mean_interval(differences)
    assert result.value == pytest.approx(1.58)
    assert (result.low, result.high) == pytest.approx((0.7001, 2.4599), abs=1e-4)
    assert math.isnan(mean_interval([1.0, 1.1]).low)


def test_the_mean_interval_of_noise_is_above_zero_as_seldom_as_it_should():
    rng = np.random.default_rng(0)
    for n in (3, 5):
        share = np.mean([mean_interval(rng.normal(size=n)).low > 0 for _ in range(2_000)])
        assert 0.015 < share < 0.035  # 2.5 % one-sided, three standard errors either way
