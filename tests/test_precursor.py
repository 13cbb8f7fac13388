"""Phases of curves drawn by hand, precursor counts, concordance and what chance alone gives."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from lifelines.utils import concordance_index

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.precursor import (
    EVENTS,
    OUTCOMES,
    SURROGATES,
    Case,
    Rule,
    concordance,
    definition_sweep,
    lead_steps,
    outcome,
    outcomes,
    phases,
    surrogate_rate,
    surrogates,
    swapped_rate,
)
from emergence_lib.errors import ParameterError, UnknownNameError

STEPS = [0, 10, 20, 40, 80, 160, 320, 640]
NEVER = Event(640, False)


def curve(*values):
    return pd.Series(values, index=STEPS[: len(values)], dtype=float)


DIP = curve(9, 10, 8, 2, 3, 6, 7, 12)
"""Peak 10 at 10, onset (1 down) at 20, floor 2 at 40, half-way back (6) at 160."""


def test_phases_of_a_curve_drawn_by_hand():
    found = phases(DIP, Rule(onset=0.25, recovery=0.5))
    assert (found.peak, found.peak_step) == (10, 10)
    assert (found.floor, found.floor_step) == (2, 40)
    assert found.onset == Event(20, True)
    assert found.recovery == Event(160, True)
    assert found.depth == pytest.approx(0.8)
    assert found.collapsed


@pytest.mark.parametrize(
    ("change", "event", "step"),
    [
        ({"onset": 0.26}, "onset", 40),
        ({"onset": 1.0}, "onset", 40),
        ({"recovery": 0.1}, "recovery", 80),
        ({"recovery": 0.51}, "recovery", 320),
        ({"recovery": 1.0}, "recovery", 640),
    ],
)
def test_thresholds_move_the_events(change, event, step):
    assert getattr(phases(DIP, Rule(**change)), event) == Event(step, True)


def test_a_floor_is_sought_only_where_asked():
    late = curve(10, 5, 8, 8, 8, 8, 8, 1)
    assert phases(late, Rule()).floor_step == 640
    assert phases(late, Rule(within=0.5)).floor_step == 10
    assert phases(late, Rule(within=7 / 8)).floor_step == 10


def test_first_floor_and_last_peak_of_several():
    found = phases(curve(4, 4, 2, 2, 4), Rule())
    assert (found.peak_step, found.floor_step) == (10, 20)


def test_a_rank_that_only_rises_has_no_collapse():
    found = phases(curve(1, 2, 3, 4), Rule(min_depth=0))
    assert not found.collapsed
    assert found.depth == 0
    assert found.onset == found.recovery == Event(40, False)
    assert not phases(curve(2, 2, 2), Rule(min_depth=0)).collapsed


def test_min_depth_includes_equality():
    assert phases(curve(10, 5, 6), Rule(min_depth=0.5)).collapsed
    assert not phases(curve(10, 5, 6), Rule(min_depth=0.51)).collapsed


def test_recovery_that_does_not_come_is_censored():
    assert phases(curve(10, 2, 3), Rule()).recovery == Event(20, False)


@pytest.mark.parametrize(
    ("acquired", "change", "expected"),
    [
        (80, {}, "leads"),
        (40, {}, "ties"),
        (20, {}, "lags"),
        (80, {"lead": 2}, "ties"),
        (160, {"lead": 2}, "leads"),
        (80, {"event": "recovery"}, "lags"),
        (160, {"event": "recovery"}, "ties"),
        (320, {"event": "recovery"}, "leads"),
        (40, {"event": "onset"}, "leads"),
        (80, {"min_depth": 0.9}, "no collapse"),
    ],
)
def test_outcome_by_definition(acquired, change, expected):
    assert outcome(Case(DIP, Event(acquired, True)), Rule(**change)) == expected


def test_outcome_of_what_never_happens():
    assert outcome(Case(DIP, NEVER), Rule(min_depth=0.9)) == "not acquired"
    unrecovered = curve(10, 2, 3)
    assert outcome(Case(unrecovered, Event(20, True)), Rule(event="recovery")) == "lags"
    counts = outcomes([Case(DIP, NEVER), Case(DIP, Event(80, True))], Rule())
    assert list(counts.index) == list(OUTCOMES)
    assert counts.to_dict() == {**dict.fromkeys(OUTCOMES, 0), "leads": 1, "not acquired": 1}


def test_lead_in_steps():
    case = Case(DIP, Event(320, True))
    assert [lead_steps(case, Rule(event=event)) for event in EVENTS] == [300, 280, 160]
    assert math.isnan(lead_steps(Case(DIP, NEVER), Rule()))
    assert math.isnan(lead_steps(case, Rule(min_depth=0.9)))


def test_sweep_lists_every_combination_with_its_counts():
    cases = [Case(DIP, Event(step, True)) for step in (20, 40, 80)] + [Case(DIP, NEVER)]
    table = definition_sweep(cases, Rule(), event=EVENTS, min_depth=(0.1, 0.9))
    assert list(table.columns) == ["event", "min_depth", "n", "leads", "ties", "rate"]
    assert list(zip(table.event, table.min_depth, strict=True)) == list(
        itertools.product(EVENTS, (0.1, 0.9))
    )
    assert (table.n == 3).all()
    floor = table[(table.event == "floor") & (table.min_depth == 0.1)].iloc[0]
    assert (floor.leads, floor.ties) == (1, 1)
    assert floor.rate == pytest.approx(1 / 3)
    assert (table.leads[table.min_depth == 0.9] == 0).all()
    with pytest.raises(UnknownNameError, match="min_depth"):
        definition_sweep(cases, Rule(), min_deph=(0.1,))


def test_concordance_equals_harrells_with_ties_and_censoring():
    generator = np.random.default_rng(0)
    for _ in range(20):
        score = generator.integers(0, 6, 15).astype(float)
        acquired = [
            Event(float(step), bool(seen))
            for step, seen in zip(
                generator.integers(0, 8, 15), generator.random(15) < 0.7, strict=True
            )
        ]
        expected = concordance_index(
            [e.step for e in acquired], score, [e.observed for e in acquired]
        )
        assert concordance(score, acquired).index == pytest.approx(expected)


def test_concordance_counts_its_ties_and_leaves_out_what_is_unknown():
    found = concordance([1, 2, 2, math.nan], [Event(s, True) for s in (10, 20, 30, 5)])
    assert (found.concordant, found.discordant, found.ties) == (2, 0, 1)
    assert found.index == pytest.approx(2.5 / 3)
    assert math.isnan(concordance([1], [Event(1, True)]).index)
    with pytest.raises(ParameterError, match="one event"):
        concordance([1, 2], [Event(1, True)])


def test_swapped_rate_is_the_mean_over_all_permutations():
    shapes = [DIP, curve(9, 3, 9, 9, 9, 9, 9, 9), curve(9, 9, 9, 9, 9, 9, 4, 9)]
    cases = [
        Case(shape, Event(step, True)) for shape, step in zip(shapes, (80, 10, 640), strict=True)
    ]
    leads = [
        outcome(Case(cases[i].rank, cases[j].acquired), Rule()) == "leads"
        for i in range(3)
        for j in range(3)
        if i != j
    ]
    assert swapped_rate(cases, Rule()) == pytest.approx(np.mean(leads))
    assert swapped_rate([*cases, Case(DIP, NEVER)], Rule()) == pytest.approx(np.mean(leads))
    assert math.isnan(swapped_rate(cases[:1], Rule()))
    with pytest.raises(ParameterError, match="checkpoints"):
        swapped_rate([cases[0], Case(curve(9, 3), Event(10, True))], Rule())


def test_an_early_transient_leads_whatever_comes_late():
    """The trivial explanation: the rate is 1 and says nothing, since swapped it is 1 as well."""
    cases = [Case(DIP, Event(step, True)) for step in (160, 320, 640)]
    assert outcomes(cases, Rule())["leads"] == 3
    assert swapped_rate(cases, Rule()) == 1


@pytest.mark.parametrize("kind", SURROGATES)
def test_surrogates_keep_the_start_and_the_size_of_the_moves(kind):
    found = surrogates(DIP, np.random.default_rng(0), kind, 4_000)
    assert found.shape == (4_000, len(DIP))
    np.testing.assert_allclose(found[:, 0], DIP.iloc[0])
    moves = np.diff(np.log(found))
    expected = np.diff(np.log(DIP.to_numpy()))
    assert np.mean(moves**2) == pytest.approx(np.mean(expected**2), rel=0.02)
    if kind == "shuffled differences":
        np.testing.assert_allclose(found[:, -1], DIP.iloc[-1])
        np.testing.assert_allclose(np.sort(moves), np.tile(np.sort(expected), (4_000, 1)))
        # Each move is as likely at each place.
        np.testing.assert_allclose(moves.mean(0), expected.mean(), atol=0.05)
    else:
        np.testing.assert_allclose(moves.mean(0), 0, atol=0.05)
    again = surrogates(DIP, np.random.default_rng(0), kind, 4_000)
    np.testing.assert_array_equal(found, again)


def test_surrogate_rate_of_a_single_fall_is_known():
    """One fall among seven moves: its floor comes before checkpoint k in k - 1 of 7 orders."""
    step_down = curve(8, 8, 8, 2, 2, 2, 2, 2)
    for k, at in enumerate(STEPS):
        case = Case(step_down, Event(at, True))
        rate = surrogate_rate([case], Rule(), np.random.default_rng(k), n=4_000)
        assert rate == pytest.approx(max(0, k - 1) / 7, abs=0.03)
    assert math.isnan(surrogate_rate([Case(DIP, NEVER)], Rule(), np.random.default_rng(0)))


@pytest.mark.parametrize("name", ["onset", "recovery", "within"])
@pytest.mark.parametrize("value", [0, 1.1, -1])
def test_shares_are_checked(name, value):
    with pytest.raises(ParameterError, match=name):
        Rule(**{name: value})


def test_other_parameters_are_checked():
    with pytest.raises(UnknownNameError, match="floor"):
        Rule(event="flor")
    with pytest.raises(ParameterError, match="lead"):
        Rule(lead=0)
    with pytest.raises(ParameterError, match="min_depth"):
        Rule(min_depth=1.5)
    with pytest.raises(UnknownNameError, match="random walk"):
        surrogates(DIP, np.random.default_rng(0), "random wlk", 1)


@pytest.mark.parametrize("bad", [[], [1, 0, 2], [1, math.nan]])
def test_ranks_are_checked(bad):
    with pytest.raises(ParameterError, match="positive"):
        phases(curve(*bad), Rule())
    with pytest.raises(ParameterError, match="increasing"):
        phases(pd.Series([1.0, 2.0], index=[5, 5]), Rule())
