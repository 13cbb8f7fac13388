"""Forecasts: known answers, no leak between runs, lifelines as an independent implementation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from lifelines import WeibullAFTFitter
from lifelines.utils import concordance_index
from scipy import stats

from emergence_lib.analysis.forecast import (
    Units,
    between_runs,
    by_run,
    choose_penalty,
    concordance,
    factor_off,
    fit,
    fit_chosen,
    left_out,
    permutation_test,
)
from emergence_lib.errors import ParameterError


def made(seed: int, effect: float, n_runs: int = 6, n_units: int = 8, noise: float = 0.1) -> Units:
    """Units whose log time is `effect` times the first of two features, plus Gumbel noise."""
    generator = np.random.default_rng(seed)
    x = np.clip(generator.normal(size=(n_runs * n_units, 2)), -2, 2)
    wait = np.exp(3 + effect * x[:, 0] + noise * np.log(generator.exponential(size=len(x))))
    watched = np.quantile(wait, 0.8)
    run = np.repeat(np.arange(n_runs), n_units)
    return Units(x, np.minimum(wait, watched), wait < watched, run)


def test_the_model_is_the_one_of_lifelines():
    units = made(0, 0.5, n_runs=20, noise=0.7)
    model = fit(units, 0.0)
    table = pd.DataFrame(units.features, columns=["x0", "x1"])
    table = table.assign(time=units.time, seen=units.observed)
    reference = WeibullAFTFitter().fit(table, "time", "seen")
    rho = float(np.exp(reference.params_.loc[("rho_", "Intercept")]))
    assert model.scale == pytest.approx(rho, rel=1e-3)
    weights = model.weights / model.width / model.scale
    assert weights == pytest.approx(reference.params_["lambda_"][["x0", "x1"]].to_numpy(), abs=1e-3)
    assert model.median(units.features) == pytest.approx(
        reference.predict_median(table).to_numpy(), rel=1e-3
    )
    assert model.log_likelihood(units) == pytest.approx(reference.log_likelihood_, abs=1e-2)


def test_concordance_is_the_one_of_lifelines():
    generator = np.random.default_rng(1)
    time, seen = generator.exponential(size=60), generator.random(60) < 0.6
    guess = np.round(time + generator.normal(size=60), 1)  # some ties
    assert concordance(guess, time, seen) == pytest.approx(concordance_index(time, guess, seen))


def test_concordance_of_a_censored_and_a_seen_unit_at_one_time():
    one, other = np.array([1.0, 2.0]), np.array([5.0, 5.0])
    assert concordance(one, other, np.array([True, False])) == 1.0
    assert concordance(one, other, np.array([False, True])) == 0.0
    assert np.isnan(concordance(one, other, np.array([True, True])))


def test_a_feature_that_determines_the_time_is_found():
    units = made(2, 1.0, noise=0.02)
    predicted = left_out(units)
    assert np.mean(list(by_run(predicted, units).values())) > 0.97
    assert factor_off(predicted, units) < 1.2
    assert permutation_test(units, np.random.default_rng(0), 19).p_value == 0.05
    mean_only = Units(units.features[:, :0], units.time, units.observed, units.run)
    flat = left_out(mean_only)
    assert set(by_run(flat, mean_only).values()) == {0.5}  # a run has one prediction
    assert factor_off(flat, mean_only) > 1.5


def test_features_without_meaning_forecast_nothing():
    """Over 30 worlds: concordance about one half, p values about uniform."""
    tests = [
        permutation_test(made(seed, 0.0, n_runs=4, n_units=6), np.random.default_rng(seed), 19)
        for seed in range(30)
    ]
    values = [test.value for test in tests]
    assert np.mean(values) == pytest.approx(0.5, abs=3 * np.std(values) / np.sqrt(30))
    assert np.std(values) < 0.2
    assert stats.kstest([test.p_value for test in tests], "uniform").pvalue > 0.01
    assert min(test.p_value for test in tests) >= 0.05


def test_what_runs_have_in_common_is_no_evidence_about_their_units():
    """Every unit of a run shares feature and time: between runs perfect, within them nothing."""
    generator = np.random.default_rng(3)
    of_run = np.repeat(generator.normal(size=8), 6)
    time = np.exp(of_run + 0.05 * generator.normal(size=48))
    units = Units(of_run[:, None], time, np.full(48, True), np.repeat(np.arange(8), 6))
    predicted = left_out(units)
    assert between_runs(units) > 0.85
    assert between_runs(units, stratum=units.run // 2) > 0.7  # four pairs of runs
    assert np.isnan(between_runs(units, stratum=units.run))
    assert np.mean(list(by_run(predicted, units).values())) == 0.5
    assert permutation_test(units, generator, 19).p_value > 0.9


def test_knowing_nothing_is_a_coin_between_runs_too():
    """With one run left out, the mean of the others would order them backwards."""
    units = made(8, 1.0)
    nothing = Units(units.features[:, :0], units.time, units.observed, units.run)
    assert between_runs(nothing) == 0.5
    assert concordance(left_out(nothing), nothing.time, nothing.observed) < 0.45


def test_no_unit_of_a_run_helps_to_predict_it():
    """Changing a run's times must leave its own predictions as they are, and move others'."""
    units = made(4, 0.5)
    changed = units.time.copy()
    changed[units.run == 2] *= 7
    other = Units(units.features, changed, units.observed, units.run)
    own = units.run == 2
    before, after = left_out(units), left_out(other)
    assert (before[own] == after[own]).all()
    assert (before[~own] != after[~own]).any()


def test_a_penalty_is_chosen_for_what_is_left_out():
    assert choose_penalty(made(5, 1.0, noise=0.05)) == 0.01
    strong = [choose_penalty(made(seed, 0.0)) for seed in range(10)]
    assert np.median(strong) == 1.0


def test_far_features_count_as_three_standard_deviations():
    units = made(6, 1.0)
    model = fit_chosen(units)
    far, edge = (model.centre + k * model.width for k in (50, 3))
    assert model.median(far[None]) == pytest.approx(model.median(edge[None]))


def test_equal_times_do_not_run_away():
    same = Units(np.zeros((6, 1)), np.full(6, 4.0), np.full(6, True), np.arange(6))
    assert fit(same, 0.1).median(np.zeros((1, 1))) == pytest.approx([4.0], rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": np.array([0.0, 1.0])}, "positive"),
        ({"features": np.array([[np.nan], [1.0]])}, "finite"),
        ({"run": np.array([0])}, "length"),
    ],
)
def test_impossible_units_are_refused(changes, message):
    given = {
        "features": np.ones((2, 1)),
        "time": np.ones(2),
        "observed": np.full(2, True),
        "run": np.arange(2),
    }
    with pytest.raises(ParameterError, match=message):
        Units(**given | changes)


def test_what_cannot_be_fitted_is_refused():
    units = made(7, 0.0)
    with pytest.raises(ParameterError, match="seen"):
        fit(Units(units.features, units.time, np.full(len(units.time), False), units.run), 0.1)
    with pytest.raises(ParameterError, match="two runs"):
        left_out(units[units.run == 0])
    with pytest.raises(ParameterError, match="penalty"):
        fit(units, -1.0)
