"""What the forecast's page says, on made-up rows whose truth is known."""

from __future__ import annotations

import math
import warnings

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from emergence_lib import plotting
from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import Estimate
from emergence_lib.experiments import forecast_evidence as evidence
from emergence_lib.experiments.forecast_features import (
    ALL,
    LENSES,
    SETS,
    at_risk,
    features,
    half_learned,
    plateau,
    runs_at_risk,
    windows,
)

STEPS = list(range(0, 3_001, 25))
MEASURES = ("alignment", "entropy", "rankme", "rankme_centred", "direct")


def made(condition: str, n_runs: int = 5, signal: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Runs of six queries, learned at random steps after 400; flat loss until then.

    Attention on the needed keys is linear in the logarithm of that step with slope `signal` (below
    0: more is sooner), from the start; every other measure is a constant that knows nothing.
    """
    generator = np.random.default_rng(seed)
    guess = math.log(4 if condition == "cellular automata" else 2)
    lines = []
    for run in range(n_runs):
        when = np.round(generator.uniform(400, 2_400, size=6) / 25) * 25
        columns = {m: np.repeat(generator.uniform(1, 2, (6, 1)), len(STEPS), 1) for m in MEASURES}
        if signal:
            about = 2 + signal * (np.log(when) - 7)
            columns["alignment"] = np.repeat(about[:, None], len(STEPS), 1)
        loss = np.where(np.array(STEPS)[None] >= when[:, None], 0.0, guess)
        lines.append(
            {"condition": condition, "seed": run, "eval_steps": STEPS}
            | {"query_loss": loss.tolist(), "precached": generator.random(len(STEPS)).tolist()}
            | {name: values.tolist() for name, values in columns.items()}
        )
    return pd.DataFrame(lines)


# --- what is seen and what is to come -------------------------------------------------------------


def test_features_are_levels_and_changes_at_the_end_of_the_window():
    row = made("linear map", 1).iloc[0].copy()
    row["alignment"] = [[step / 3_000 for step in STEPS]] * 6
    row["rankme"] = [[math.exp(step / 1_000) for step in STEPS]] * 6
    seen = features(row, 300)[2]
    assert set(seen) == set(ALL)
    assert seen["position"] == 2
    assert seen["alignment"] == pytest.approx(275 / 3_000)  # the median of looks 250, 275, 300
    assert seen["alignment change"] == pytest.approx((275 - 125) / 3_000)
    assert seen["rank"] == pytest.approx(0.275)
    assert seen["rank lost"] == pytest.approx(0.3)
    assert (seen["loss"], seen["loss change"], seen["run's loss"]) == (1, 0, 1)


def test_features_do_not_look_beyond_the_window():
    row = made("linear map", 1).iloc[0]
    later = row.copy()
    for name in (*MEASURES, "query_loss"):
        changed = np.array(row[name])
        changed[:, STEPS.index(325) :] = 0.123
        later[name] = changed.tolist()
    later["precached"] = row["precached"][:13] + [0.9] * (len(STEPS) - 13)
    assert features(row, 300) == features(later, 300)
    assert features(row, 325) != features(later, 325)


def test_queries_to_come_have_their_time_from_the_windows_end():
    rows = made("linear map", 1)
    loss = np.full((6, len(STEPS)), math.log(2))
    for query, step in enumerate((100, 400, 400, 600, 1_000)):  # the sixth never
        loss[query, STEPS.index(step) :] = 0
    rows.at[0, "query_loss"] = loss.tolist()
    table = at_risk(rows, 400)
    assert table["query"].tolist() == [3, 4, 5]
    assert table["time"].tolist() == [200, 600, 2_600]
    assert table["observed"].tolist() == [True, True, False]
    assert plateau(rows) == 100
    assert windows(rows)["0.5 plateau"] == 50
    assert windows(rows)["200 steps"] == 200
    (run,) = runs_at_risk(rows, 300).itertuples()
    assert (run.time, run.observed) == (100, True)  # the third of six at 400
    assert runs_at_risk(rows, 400).empty


def test_half_learned_counts_censored_queries():
    events = [Event(10, True), Event(99, False), Event(30, True), Event(99, False)]
    assert half_learned(events) == Event(30, True)
    assert half_learned([events[0], *[events[1]] * 3]) == Event(99, False)


# --- what is said ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def telling() -> pd.DataFrame:
    return made("linear map", signal=0.3)


@pytest.fixture(scope="module")
def told(telling) -> pd.DataFrame:
    return evidence.forecasts(telling)


def test_a_lens_that_knows_is_found_and_credited_over_the_loss(telling, told):
    table, tests = told, evidence.permutations(telling, 19)
    main = table[table["window"] == "0.5 plateau"].set_index("set")
    assert list(main.index) == list(SETS)
    assert main["within"]["attention (A)"].value > 0.95
    assert main["within"]["mean"] == Estimate(0.5, 0.5, 0.5)
    assert main["factor"]["attention (A)"] < main["factor"]["mean"]
    assert tests["linear map"].p_value == 0.05
    said = evidence.answer(table, tests)
    assert "tell which query comes first on 1 of 1 (linear map)" in said
    assert "add to what the loss tells on 1 of 1 (linear map)" in said
    assert "5 runs, 30 queries to come, 30 of them learned later" in said
    clock = evidence.clock_table(table)
    assert clock["runs"].tolist() == [5] * len(SETS)


def test_lenses_that_know_nothing_are_not_credited():
    rows = made("linear map", seed=3)
    table, tests = evidence.forecasts(rows), evidence.permutations(rows, 19)
    said = evidence.answer(table, tests)
    assert (
        "tell which query comes first on 0 of 1, and add to what the loss tells on 0 of 1" in said
    )


def test_nothing_is_said_of_too_few_runs():
    rows = made("linear map", 3)
    table = evidence.forecasts(rows)
    assert table.empty
    assert "at least 4 runs" in evidence.answer(table, evidence.permutations(rows))
    assert "Two tasks" in evidence.transfer_words(evidence.transfers(rows))
    assert evidence.whole_runs(rows).empty
    assert evidence.live_table(rows.iloc[0], rows).empty
    nothing = rows.iloc[:0]
    assert evidence.forecasts(nothing).empty
    assert evidence.runs_table(nothing).empty


def test_what_holds_on_both_tasks_carries_over_and_what_is_reversed_is_said(telling):
    same = pd.concat([telling, made("cellular automata", signal=0.3, seed=1)])
    table = evidence.transfers(same)
    lenses = table[(table["set"] == "three lenses") & (table["unit"] == "plateaus")]
    assert len(lenses) == 2
    assert all(within.low > 0.5 for within in lenses["within"])
    carries = "in plateaus.** The order of a run's queries carries over across tasks in"
    said = evidence.transfer_words(table)
    assert f"Three lenses, {carries} 2 of 2" in said
    assert f"Loss, {carries} 0 of 2" in said
    other = pd.concat([telling, made("cellular automata", signal=-0.3, seed=1)])
    said = evidence.transfer_words(evidence.transfers(other))
    line = next(line for line in said.splitlines() if "Three lenses, in plateaus" in line)
    assert "it is reversed across tasks in 2 of 2" in line


def test_plateaus_make_tasks_of_different_speed_alike(telling):
    """The same runs, four times as slow: in plateaus the clock carries over, in steps it cannot."""
    slow = telling.assign(
        condition="linear map, s = 4",
        eval_steps=[[4 * step for step in STEPS]] * len(telling),
    )
    table = evidence.transfers(pd.concat([telling, slow]))
    lenses = table[(table["set"] == "three lenses") & (table["source"] == "linear map")]
    assert "between difficulties in 2 of 2," in evidence.transfer_words(table)
    factor = lenses.set_index("unit")["factor"]
    assert factor["plateaus"] < 1.3
    assert factor["steps"] > 2


def test_whole_runs_are_ordered_within_their_difficulty():
    both = pd.concat([made("linear map", 5, 0.3), made("linear map, s = 2", 5, 0.3, seed=1)])
    lines = both.to_dict("records")
    for at, line in enumerate(lines):  # all queries of a run at one step
        when = 500 + 150 * at
        line["query_loss"] = [[math.log(2) if step < when else 0.0 for step in STEPS]] * 6
        line["alignment"] = [[0.3 * math.log(when)] * len(STEPS)] * 6
    rows = pd.DataFrame(lines)
    found = evidence.whole_runs(rows).set_index("set")
    assert found["n_runs"].unique().tolist() == [10]
    assert found["ordered"]["mean"] == 0.5
    assert found["ordered"]["attention (A)"] >= 0.75
    assert evidence.runs_table(rows)["ordered"].iloc[0] == "50%"


def test_a_live_run_is_forecast_by_runs_with_other_seeds(telling):
    live = telling.iloc[0].copy()
    table = evidence.live_table(live, telling)
    assert table["query"].tolist() == list(range(6))
    said = [float(text.split()[-1].replace(",", "")) for text in table["forecast by three lenses"]]
    true = [float(text.split()[-1].replace(",", "")) for text in table["learned"]]
    assert np.argsort(said).tolist() == np.argsort(true).tolist()
    alone = evidence.live_table(live, telling.iloc[:1])  # nothing but its own seed is recorded
    assert alone.empty


# --- figures --------------------------------------------------------------------------------------


@pytest.fixture
def _style():
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("error")
        plt.switch_backend("agg")
        plotting.use_style()
        yield
        plt.close("all")


@pytest.mark.usefixtures("_style")
def test_figures_show_every_task_and_window(telling, told):
    table = told
    (ax,) = plotting.order_by_window(table, plotting.FORECAST_COLOURS).axes
    assert "n = 5 runs" in ax.get_title()
    drawn = {line.get_label(): line.get_ydata() for line in ax.lines}
    own = table[table["set"] == "three lenses"].sort_values("steps")
    assert list(drawn["three lenses"]) == [e.value for e in own["within"]]
    both = pd.concat([telling, made("cellular automata", signal=0.3, seed=1)])
    carried = evidence.transfers(both)
    figure = plotting.carried_over(carried)
    figure.canvas.draw()
    assert [ax.get_title() for ax in figure.axes] == [
        "loss, in plateaus",
        "three lenses, in plateaus",
        "loss, in steps",
        "three lenses, in steps",
    ]
    grid = np.asarray(figure.axes[1].images[0].get_array().filled(np.nan))
    line = carried[(carried["set"] == "three lenses") & (carried["unit"] == "plateaus")].iloc[0]
    assert grid[0, 1] == pytest.approx(line["within"].value)
    assert np.isnan(grid[0, 0])


@pytest.mark.usefixtures("_style")
def test_figures_say_that_nothing_is_recorded(telling):
    nothing = telling.iloc[:0]
    for figure in (
        plotting.order_by_window(evidence.forecasts(nothing), plotting.FORECAST_COLOURS),
        plotting.carried_over(evidence.transfers(nothing)),
    ):
        figure.canvas.draw()
        assert figure.axes[0].get_title() == "not recorded yet"


def test_the_sets_are_made_of_known_features():
    assert {name for names in SETS.values() for name in names} == set(ALL)
    assert set(SETS["three lenses"]) == set(LENSES)
    assert not set(LENSES) & set(SETS["loss"])
