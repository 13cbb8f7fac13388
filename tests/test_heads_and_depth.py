"""Heads and depth on both tasks: grids, measures and the verdicts on made-up rows."""

from __future__ import annotations

import math
import re
from functools import cache
from itertools import chain

import pandas as pd
import pytest
import torch

from emergence_lib.analysis.power_law import fit_power_law
from emergence_lib.analysis.survival import Estimate
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import heads_evidence, two_tasks
from emergence_lib.experiments.depth import DEPTH, DepthGrid, depth_effect, judge_depth
from emergence_lib.experiments.heads import HEADS, SHAPES, HeadsGrid
from emergence_lib.experiments.heads_evidence import (
    judge_larger_heads_saturate,
    judge_more_heads_help,
)

torch.set_num_threads(1)
WIDTH = {"linear_map": 128, "cellular_automata": 64}
LM, CA = "linear_map", "cellular_automata"
WATCHED = 4_000


@cache
def fit_once(sizes, events):
    """The power law of these runs: cases share those of a task, and a fit takes 0.3 s."""
    return fit_power_law(sizes, events)


@pytest.fixture(autouse=True)
def _no_fit_twice(monkeypatch):
    monkeypatch.setattr(
        heads_evidence, "fit_power_law", lambda sizes, events: fit_once(tuple(sizes), tuple(events))
    )


def run(task, wait, seed=0, n_heads=8, d_head=16, n_layers=1):
    """A run that waited so many steps for what its task waits for, None for all it was watched."""
    return {
        "task": task,
        "n_heads": n_heads,
        "d_head": d_head,
        "d_model": WIDTH[task],
        "n_layers": n_layers,
        "seed": seed,
        "steps": WATCHED,
        "stopped_at": WATCHED if wait is None else wait,
        "solved": wait is not None,
        "plateau_end": None if wait is None else wait - (50 if task == CA else 0),
        "final_loss": 0.5 if wait is None else 0.33,
    }


def spread(task, waits, **shape):
    """Four runs around `waits` steps, or that never got there."""
    for seed, noise in enumerate((-0.06, -0.02, 0.02, 0.06)):
        wait = None if waits is None else round(waits * math.exp(noise))
        yield run(task, wait, seed, **shape)


def judged(judge, *groups):
    verdict = judge(pd.DataFrame([*chain(*groups)]))
    assert not re.search(r"\bnan\b|\binf\b|None|  ", verdict.evidence)
    return verdict


# --- more heads -------------------------------------------------------------------------


def more_heads(task, power, d_head=16):
    return chain(*(spread(task, 1_000 * h**power, n_heads=h, d_head=d_head) for h in (1, 2, 4, 16)))


@pytest.mark.parametrize(
    ("linear_map", "automata", "status"),
    [
        (-0.5, -0.3, "reproduced"),
        (0.3, -0.3, "partly"),
        (0.3, 0.3, "not reproduced"),
    ],
)
def test_more_heads_of_one_size_are_judged_on_both_tasks(linear_map, automata, status):
    verdict = judged(judge_more_heads_help, more_heads(LM, linear_map), more_heads(CA, automata))
    assert (verdict.status, verdict.n) == (status, 32)
    found = [float(x) for x in re.findall(r"power (-?\d\.\d\d) \[", verdict.evidence)]
    assert found == pytest.approx([linear_map, automata], abs=0.05)


def test_a_task_alone_is_partly_at_most_and_waits_that_never_end_count():
    few = chain(spread(LM, None, n_heads=1), spread(LM, None, n_heads=2))
    many = chain(spread(LM, 2_000, n_heads=4), spread(LM, 700, n_heads=16))
    verdict = judged(judge_more_heads_help, few, many)
    assert verdict.status == "partly"
    assert "(8 of 16 waits ended)" in verdict.evidence
    assert "Cellular automata: not tested." in verdict.evidence


def test_other_head_sizes_do_not_count_among_those_of_one_size():
    verdict = judged(judge_more_heads_help, more_heads(LM, -0.5, d_head=8))
    assert verdict.status == "not tested here"


def test_waits_at_fixed_width_are_listed_as_they_are():
    width = [*spread(LM, 700, n_heads=8), *spread(LM, 1_500, n_heads=128, d_head=1)]
    never = [*spread(LM, None, n_heads=1, d_head=128), *spread(CA, 900, n_heads=4)]
    text = heads_evidence.width_sentence(pd.DataFrame(width + never))
    low, high = (round(1_500 * math.exp(noise)) for noise in (-0.06, 0.06))
    assert " Linear map: H = 1 not within the 4,000 steps watched; H = 8 " in text
    assert re.search(rf"H = 128 1,4\d\d \[{low:,}, (not seen|{high:,})\] steps. Cellular", text)
    assert heads_evidence.width_sentence(pd.DataFrame()) == ""


def test_final_losses_stand_above_their_own_floors_beside_the_papers():
    rows = pd.DataFrame([*spread(LM, 700), *spread(LM, None, n_heads=128, d_head=1)])
    groups = heads_evidence.excess_at_fixed_width(rows.assign(state_size=8, row_weight=3))
    names, means, runs = groups["linear map"]
    assert names == ["H = 8", "H = 128"]
    floor = 7 / 15 * math.log(2)
    assert [mean.value for mean in means] == pytest.approx([0.33 - floor, 0.5 - floor])
    assert [len(of) for of in runs] == [4, 4]
    paper = heads_evidence.PAPER_EXCESS
    assert paper["H = 8"] == pytest.approx(0.343 - 15 / 31 * math.log(2))
    assert heads_evidence.excess_at_fixed_width(pd.DataFrame()) == {}


def test_heads_beyond_enough_are_looked_at_alone():
    # Three times as long with one head as with four; from there on longer with more.
    few, four = spread(LM, 3_000, n_heads=1), spread(LM, 1_000, n_heads=4)
    many = [*spread(LM, 1_400, n_heads=8), *spread(LM, 2_000, n_heads=16)]
    text = heads_evidence.more_than_enough_sentence(pd.DataFrame([*few, *four, *many]))
    power = re.search(r"linear map at a fixed size (\d\.\d\d) \[0\.\d\d, ", text)
    assert float(power[1]) == pytest.approx(0.5, abs=0.05)
    assert "(12 of 12 waits ended)" in text
    assert heads_evidence.more_than_enough_sentence(pd.DataFrame()).startswith("Too few")


@pytest.mark.parametrize("rows", [pd.DataFrame(), pd.DataFrame([run(LM, 500), run(CA, 500)])])
@pytest.mark.parametrize("judge", [judge_more_heads_help, judge_larger_heads_saturate, judge_depth])
def test_too_little_is_no_test(judge, rows):
    verdict = judge(rows)
    assert (verdict.status, verdict.n) == ("not tested here", 0)


# --- larger heads -----------------------------------------------------------------------


def larger_heads(task, small, large):
    """The wait goes as size^small up to 16 and as size^large from there."""
    n_heads = heads_evidence.N_HEADS[task]
    for d_head in (1, 4, 16, 32, 64):
        power = small * math.log(d_head / 16) if d_head < 16 else large * math.log(d_head / 16)
        yield from spread(task, 600 * math.exp(power), n_heads=n_heads, d_head=d_head)


@pytest.mark.parametrize(
    ("linear_map", "automata", "status"),
    [
        ((-0.5, 0.0), (-0.4, 0.1), "reproduced"),
        ((-0.5, 0.0), (0.0, 0.0), "partly"),
        ((-0.4, -0.4), (0.0, 0.0), "partly"),  # small heads are slow, and large ones no less so
        ((0.4, -0.2), (0.0, 0.0), "not reproduced"),
    ],
)
def test_larger_heads_are_judged_below_and_above_the_middle_size(linear_map, automata, status):
    verdict = judged(
        judge_larger_heads_saturate, larger_heads(LM, *linear_map), larger_heads(CA, *automata)
    )
    assert (verdict.status, verdict.n) == (status, 40)


def test_one_dimension_a_head_is_reported_beside():
    tiny = spread(LM, 800, n_heads=128, d_head=1)
    verdict = judged(judge_larger_heads_saturate, larger_heads(LM, -0.5, 0.0), tiny)
    assert "With 128 heads of one dimension, 4 of 4 runs learn the whole" in verdict.evidence
    assert "cellular automata, 4 heads: not tested" in verdict.evidence
    assert verdict.status == "partly"


def test_small_heads_that_never_get_there_count_as_slow():
    never = chain(*(spread(CA, None, n_heads=4, d_head=d) for d in (2, 4)))
    ended = chain(*(spread(CA, 900, n_heads=4, d_head=d) for d in (16, 64)))
    verdict = judged(judge_larger_heads_saturate, never, ended)
    assert (verdict.status, verdict.n) == ("partly", 16)
    assert "0 of 8 waits of smaller heads ended, with size 16 4 of 4 (log-rank p = 0.0" in (
        verdict.evidence
    )
    either = [*spread(CA, None, n_heads=4, d_head=2), *spread(CA, None, n_heads=4)]
    assert heads_evidence.smaller_never_end(pd.DataFrame(either)) == (False, "not tested")
    fast = [*spread(CA, 300, n_heads=4, d_head=2), *spread(CA, None, n_heads=4)]
    hindered, words = heads_evidence.smaller_never_end(pd.DataFrame(fast))
    assert not hindered
    assert words.startswith("4 of 4 waits of smaller heads ended, with size 16 0 of 4")


def test_a_difference_has_the_intervals_of_both():
    found = heads_evidence.difference(Estimate(0.1, -0.2, 0.4), Estimate(-0.5, -0.9, -0.1))
    assert found == pytest.approx((0.6, 0.1, 1.1))


def test_the_table_of_a_family_is_in_the_order_in_which_it_grows():
    rows = pd.DataFrame([*larger_heads(LM, -0.5, 0.0), *more_heads(LM, -0.5)])
    table = heads_evidence.by_shape(rows, "fixed number")["linear map"]
    assert table.x.tolist() == [1, 4, 16, 32, 64]
    assert table.n.tolist() == [4] * 5
    table = heads_evidence.by_shape(rows, "fixed size")
    assert table["linear map"].x.tolist() == [1, 2, 4, 8, 16]
    assert table["cellular automata"].empty


def test_every_family_of_the_laptop_s_shapes_goes_through_the_first():
    for task, shapes in SHAPES.items():
        rows = pd.DataFrame([run(task, 500, n_heads=n, d_head=d) for n, d in shapes])
        covered = set()
        for name in heads_evidence.FAMILIES:
            found = heads_evidence.family(rows, task, name)
            pairs = set(zip(found.n_heads, found.d_head, strict=True))
            assert shapes[0] in pairs
            assert len(pairs) >= 4
            covered |= pairs
        assert covered == set(shapes)


# --- depth ------------------------------------------------------------------------------


def layers(task, shallow, deep):
    return chain(spread(task, shallow, n_layers=1), spread(task, deep, n_layers=4))


@pytest.mark.parametrize(
    ("linear_map", "automata", "status"),
    [
        ((600, 1_500), (3_000, 1_000), "reproduced"),
        ((600, None), (None, 1_000), "reproduced"),
        ((600, 1_500), (1_000, 1_000), "partly"),
        ((600, 600), (3_000, 1_000), "partly"),
        ((1_500, 600), (1_000, 3_000), "not reproduced"),
        ((600, 600), (1_000, 1_000), "not reproduced"),
    ],
)
def test_depth_is_judged_on_both_tasks(linear_map, automata, status):
    verdict = judged(judge_depth, layers(LM, *linear_map), layers(CA, *automata))
    assert (verdict.status, verdict.n) == (status, 16)


def test_each_task_has_its_own_wait():
    """Cellular automata: the end of the plateau, an evaluation before training stops."""
    for task, wait in ((LM, 600), (CA, 550)):
        found = two_tasks.event(pd.Series(run(task, 600)))
        assert (found.step, found.observed) == (wait, True)
        assert two_tasks.event(pd.Series(run(task, None))).step == WATCHED
    (line,) = heads_evidence.by_shape(pd.DataFrame([run(LM, 600)]), "fixed width")[
        "linear map"
    ].itertuples()
    assert line.median == 600
    assert math.isnan(line.low)  # one run says nothing about others
    assert math.isnan(line.high)


def test_the_effect_is_that_of_the_deepest_with_two_runs():
    rows = [*layers(LM, 600, 1_500), run(LM, 100, n_layers=8)]
    effect = depth_effect(pd.DataFrame(rows), LM)
    assert (effect.shallow, effect.deep, effect.n) == (1, 4, 8)
    assert effect.ratio.value == pytest.approx(2.5, rel=0.15)
    assert effect.solved == "4 of 4 and 4 of 4"
    assert depth_effect(pd.DataFrame(rows), CA) is None


# --- grids and runs ---------------------------------------------------------------------------


def test_grids_refuse_what_cannot_run():
    with pytest.raises(UnknownNameError, match="linear_map"):
        HeadsGrid("linear_mpa")
    with pytest.raises(UnknownNameError, match="cellular_automata"):
        DepthGrid("cellular")
    for shapes in ((), 8, ((8,),), ((8, 0),), "8"):
        with pytest.raises(ParameterError, match="shapes"):
            HeadsGrid(shapes=shapes)
    with pytest.raises(ParameterError, match="depths"):
        DepthGrid(depths=(0,))
    assert HeadsGrid(shapes=[[8, 16], [1, 128]]).shapes == ((8, 16), (1, 128))


@pytest.mark.parametrize("experiment", [HEADS, DEPTH], ids=lambda e: e.name)
def test_points_are_cells_and_smoke_rows_have_the_schema(experiment):
    for point in experiment.points("cpu"):
        cell = two_tasks.cell_of(point)
        assert two_tasks.params(cell) == point.params
        assert cell.model_config().n_heads == point.params["n_heads"]
    for point in experiment.points("smoke"):
        experiment.check_row(experiment.run(point, "cpu"))


@pytest.mark.parametrize(
    ("experiment", "first", "last"),
    [
        (HEADS, "efe9468622a95d1e", "3b8c8d8d3b2f55d0"),
        (DEPTH, "a3c84cdfda4a276f", "deadc0715446e627"),
    ],
    ids=["heads", "depth"],
)
def test_the_recorded_points_keep_their_keys(experiment, first, last):
    """A changed key orphans the recorded points: see the same test of the other experiments."""
    points = experiment.points("cpu")
    assert (points[0].key, points[-1].key) == (first, last)


def test_a_shape_reaches_the_model():
    cell = HeadsGrid(shapes=((4, 2),)).cell(4, 2)
    config = cell.model_config()
    assert (config.n_heads, config.d_head, config.d_model) == (4, 2, 128)
    assert DepthGrid().cell(3).model_config().n_layers == 3
    assert DepthGrid().cell(3).model_config().d_head == 16
