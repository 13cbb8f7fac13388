"""Bisection against brute force, and events, jumps and widths on curves with known answers."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emergence_lib.analysis.emergence import (
    Emergence,
    Event,
    Jump,
    acquisition,
    emergence_point,
    level,
    loss_jumps,
    next_evaluations,
    plateau_length,
    scan,
    transition_width,
)
from emergence_lib.errors import ParameterError
from emergence_lib.tasks import LinearMap
from emergence_lib.training import pythia_schedule

settings.register_profile("no deadline", deadline=None)  # a shared machine stalls at times
settings.load_profile("no deadline")


class Oracle:
    """Answers from a table and remembers what it was asked."""

    def __init__(self, steps, passes):
        self.answers = dict(zip(steps, passes, strict=True))
        self.asked = []

    def __call__(self, step):
        self.asked.append(step)
        return self.answers[step]


checkpoints = st.lists(st.integers(0, 143_000), min_size=1, max_size=200, unique=True).map(sorted)


@st.composite
def monotone(draw):
    steps = draw(checkpoints)
    first = draw(st.integers(0, len(steps)))
    return steps, [i >= first for i in range(len(steps))]


@st.composite
def arbitrary(draw):
    steps = draw(checkpoints)
    return steps, draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps)))


def check_economy(oracle, found, n):
    assert len(set(oracle.asked)) == len(oracle.asked) == found.evaluations
    assert found.evaluations <= math.floor(math.log2(n)) + 1


@given(monotone())
def test_bisection_equals_brute_force_when_monotone(case):
    steps, passes = case
    oracle = Oracle(steps, passes)
    found = emergence_point(oracle, steps)
    failing = [s for s, p in zip(steps, passes, strict=True) if not p]
    passing = [s for s, p in zip(steps, passes, strict=True) if p]
    assert found.last_failing == (max(failing) if failing else None)
    assert found.first_passing == (min(passing) if passing else None)
    assert found.censored == (not passing)
    check_economy(oracle, found, len(steps))
    full = scan(Oracle(steps, passes), steps)
    assert full.reversals == 0
    assert (full.emergence.last_failing, full.emergence.first_passing, full.emergence.censored) == (
        found.last_failing,
        found.first_passing,
        found.censored,
    )


@given(arbitrary())
def test_bisection_finds_a_true_edge_when_not_monotone(case):
    steps, passes = case
    oracle = Oracle(steps, passes)
    found = emergence_point(oracle, steps)
    check_economy(oracle, found, len(steps))
    if found.censored:
        assert found.first_passing is None
        assert found.last_failing == steps[-1]
        assert not passes[-1]
        return
    i = steps.index(found.first_passing)
    assert passes[i]
    assert found.last_failing == (steps[i - 1] if i else None)
    assert i == 0 or not passes[i - 1]


@given(arbitrary())
def test_scan_counts_what_a_regular_expression_counts(case):
    steps, passes = case
    text = "".join("10"[not p] for p in passes)
    found = scan(Oracle(steps, passes), steps)
    assert found.reversals == len(re.findall("(?=10)", text))
    assert found.emergence.censored == ("1" not in text)
    assert found.emergence.evaluations == len(steps)
    if "1" in text:
        first = text.index("1")
        assert found.emergence.first_passing == steps[first]
        assert found.emergence.last_failing == (steps[first - 1] if first else None)
    else:
        assert found.emergence.last_failing == steps[-1]


@given(arbitrary())
def test_what_to_fetch_ahead_is_what_bisection_asks_for(case):
    steps, passes = case
    oracle = Oracle(steps, passes)
    emergence_point(oracle, steps)
    results = {}
    for i, step in enumerate(oracle.asked):
        ahead = next_evaluations(results, steps)
        assert ahead[0] == step
        assert set(oracle.asked[i + 1 : i + 2]) <= set(ahead[1:])
        assert len(ahead) <= 3
        results[step] = oracle.answers[step]
    assert next_evaluations(results, steps) == ()


def test_pythia_needs_at_most_eight_checkpoints():
    steps = pythia_schedule()
    assert len(steps) == 154
    costs = [
        emergence_point(lambda step, first=first: steps.index(step) >= first, steps).evaluations
        for first in range(155)
    ]
    assert max(costs) == 8


def test_midpoint_is_what_the_paper_plots():
    between = Emergence(30_000, 31_000, False, 8)
    assert between.midpoint == 30_500
    assert between.event == Event(30_500, True)
    assert Emergence(None, 0, False, 8).midpoint == 0
    never = Emergence(143_000, None, True, 9)
    assert never.midpoint == 143_000
    assert never.event == Event(143_000, False)


@pytest.mark.parametrize("steps", [[], [2, 1], [1, 1]])
@pytest.mark.parametrize("search", [emergence_point, scan])
def test_unsorted_steps_are_refused(search, steps):
    with pytest.raises(ParameterError, match="steps"):
        search(lambda step: True, steps)


def curve(values, every=10):
    return pd.Series(values, index=np.arange(len(values)) * every)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 5))
def test_sustained_events_equal_a_search_for_a_run_of_ones(holds, sustain):
    first = "".join("01"[h] for h in holds).find("1" * sustain)
    expected = Event(10 * (first if first >= 0 else len(holds) - 1), first >= 0)
    assert acquisition(curve([0.6 if h else 0.4 for h in holds]), 0.5, sustain) == expected
    assert plateau_length(curve([1.2 if h else 1.4 for h in holds]), 1.3, sustain) == expected


def test_thresholds_are_strict_and_defaults_are_the_papers():
    assert acquisition(curve([0.5, 0.5, 0.5])) == Event(20, False)
    assert acquisition(curve([0.0, 0.9, 0.2, 0.6, 0.6, 0.6])) == Event(30, True)
    assert acquisition(curve([0.0, 0.6, 0.6])) == Event(20, False)  # two are not three
    assert plateau_length(curve([1.4, 1.3, 1.29, 1.4]), 1.3) == Event(20, True)


@pytest.mark.parametrize("state_size", [8, 16, 32])
def test_a_row_of_the_linear_map_is_one_share_of_the_way(state_size):
    floor = LinearMap(state_size=state_size).floor
    predictions = 2 * state_size - 1
    one_row_learned = math.log(2) * (predictions - 1) / predictions
    assert level(math.log(2), floor, 1 / state_size) == pytest.approx(one_row_learned)
    assert level(math.log(2), floor, 0.5 / state_size) > one_row_learned


@given(
    st.lists(st.tuples(st.integers(6, 12), st.floats(0.05, 1)), min_size=1, max_size=6),
    st.integers(1, 3),
)
def test_jumps_of_a_staircase_are_exact(stairs, last_plateau):
    values, expected, height = [], [], 10.0
    for length, drop in stairs:
        values += [height] * length
        expected.append((10 * (len(values) - 1), 10 * len(values), drop))
        height -= drop
    jumps = loss_jumps(curve(values + [height] * (last_plateau + 4)), min_drop=0.04)
    assert [(jump.start, jump.end) for jump in jumps] == [(s, e) for s, e, _ in expected]
    assert [jump.drop for jump in jumps] == pytest.approx([drop for _, _, drop in expected])


@pytest.mark.parametrize("seed", range(20))
def test_jumps_are_found_in_noise(seed):
    rng = np.random.default_rng(seed)
    row = math.log(2) / 31
    edges = [20, 45, 60, 90, 101]
    clean = math.log(2) - row * np.searchsorted(edges, np.arange(120), side="right")
    jumps = loss_jumps(curve(clean + rng.normal(0, row / 12, 120), every=1), min_drop=row / 2)
    assert [jump.end for jump in jumps] == pytest.approx(edges, abs=1)
    assert [jump.drop for jump in jumps] == pytest.approx([row] * 5, rel=0.25)


def test_what_is_no_jump():
    flat, spike = [1.0] * 20, [3.0] * 5
    assert loss_jumps(curve(flat), 0.1) == []
    assert loss_jumps(curve([*flat, 0.2, *flat]), 0.1) == []  # a single outlier
    assert (
        loss_jumps(curve([*flat, 0.2, 0.2, *flat]), 0.1, window=5) == []
    )  # a dip that does not last
    assert loss_jumps(curve(flat + spike + flat), 0.1) == []  # recovery from a loss spike
    assert loss_jumps(curve(np.linspace(1, 0, 50)), 0.1, window=4) == []  # steady progress
    assert len(loss_jumps(curve(np.linspace(1, 0, 50)), 0.08, window=4)) == 1


def test_a_jump_that_takes_a_few_evaluations_is_one_jump():
    values = [1.0] * 10 + [0.8, 0.6, 0.4, 0.2] + [0.0] * 10
    assert loss_jumps(curve(values), 0.3) == [Jump(90, 140, 1.0)]
    close = [2.0] * 10 + [1.0] * 3 + [0.0] * 10  # closer together than the window
    assert loss_jumps(curve(close), 0.3) == [Jump(90, 130, 2.0)]
    apart = loss_jumps(curve(close), 0.3, window=2)
    assert apart == [Jump(90, 100, 1.0), Jump(120, 130, 1.0)]
    uneven = [2.0, 1.0, 1.0, 0.5, 0.5, 0.0]  # two steep stretches that share evaluations
    assert loss_jumps(curve(uneven), 0.6, window=3) == [Jump(0, 50, 2.0)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(1, 6))
def test_jumps_are_ordered_and_disjoint_on_any_curve(values, window):
    jumps = loss_jumps(curve(values), 0.05, window)
    ends = [step for jump in jumps for step in (jump.start, jump.end)]
    assert ends == sorted(ends)
    assert all(jump.start < jump.end and jump.drop >= 0.05 for jump in jumps)


@settings(max_examples=30)
@given(st.floats(20, 200), st.floats(2_000, 3_000), st.floats(0.05, 0.3), st.floats(0.4, 1))
def test_width_of_a_logistic_fall(scale, centre, low, high):
    steps = np.arange(0, 5_001, 5)
    values = low + (high - low) / (1 + np.exp((steps - centre) / scale))
    width = transition_width(pd.Series(values, index=steps), high, low)
    assert width == pytest.approx(2 * math.log(9) * scale, rel=5e-3)


def test_width_counts_from_the_last_time_above_and_needs_the_whole_fall():
    early_dip = curve([1, 0.8, 1, 1, 0.5, 0, 0])
    assert transition_width(early_dip, 1, 0) == pytest.approx(16)  # 32 … 48
    assert transition_width(curve([1, 1, 0, 0]), 1, 0) == pytest.approx(8)
    assert transition_width(curve([1, 0.5, 0.2]), 1, 0) is None  # never arrives
    assert transition_width(curve([0.5, 0.2, 0]), 1, 0) is None  # began below


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: acquisition([0.1, 0.9]), "accuracy"),
        (lambda: acquisition(curve([0.1]), sustain=0), "sustain"),
        (lambda: plateau_length(curve([]), 1.3), "loss"),
        (lambda: plateau_length(pd.Series([1.0, 2.0], index=[5, 5]), 1.3), "loss.index"),
        (lambda: plateau_length(curve([1.0, math.nan]), 1.3), r"loss\[10\]"),
        (lambda: level(0.3, 0.7, 0.5), "floor"),
        (lambda: level(0.7, 0.3, 1.0), "fraction"),
        (lambda: loss_jumps(curve([1.0]), 0.0), "min_drop"),
        (lambda: loss_jumps(curve([1.0]), 0.1, window=0), "window"),
        (lambda: transition_width(curve([1.0]), 0.2, 0.4), "low"),
    ],
)
def test_errors_name_the_parameter(call, named):
    with pytest.raises(ParameterError, match=named):
        call()
