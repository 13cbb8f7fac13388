"""Judges of layers, difficulty, fine timing and proxies on made-up runs of `collapse`."""

import math

import numpy as np
import pandas as pd
import pytest

from emergence_lib.analysis.precursor import EVENTS
from emergence_lib.experiments.collapse import CollapseGrid
from emergence_lib.experiments.difficulty_evidence import (
    chance_rates,
    concordance_table,
    difficulty,
    judge_easy_tasks_are_not_led,
    judge_fine_timing,
    judge_hard_tasks_are_led,
    lead_rates,
    reversal_concordance,
)
from emergence_lib.experiments.proxies_evidence import (
    judge_proxies,
    level_means,
    paired,
    transfer_table,
)
from emergence_lib.experiments.top_down_evidence import (
    counts_by_task,
    judge_top_down,
    layer_means,
    layer_table,
    top_down_table,
)
from emergence_lib.tasks import MultiTask

LEVELS = [part.label for part in MultiTask().parts]
STEPS = [0, *(round(2 ** (i / 2)) for i in range(2, 26))]
LAST = len(STEPS)
N_LAYERS = {"405k": 2, "1m": 4, "3.2m": 4}


def dip(floor_at, floor=4.0, peak=20.0, back=15.0):
    """A rank that falls in one move at checkpoint `floor_at` and comes back two later."""
    values = np.full(LAST, peak)
    values[floor_at:] = floor
    values[floor_at + 2 :] = back
    return values


def run(size, seed, rank, acquired):
    """A recorded run.

    Args:
        rank: (task-level's index, layer from 1) → curve over `STEPS`.
        acquired: task-level's index → checkpoint, or `LAST` for never.
    """
    params = CollapseGrid(sizes=(size,)).cells()[0].params()
    layers = range(1, N_LAYERS[size] + 1)
    ranks = [[rank(i, layer).tolist() for layer in layers] for i in range(len(LEVELS))]
    accuracy = [[float(k >= acquired(i)) for k in range(LAST)] for i in range(len(LEVELS))]
    return {
        **params,
        "seed": seed,
        "task_levels": LEVELS,
        "checkpoints": STEPS,
        "accuracy": accuracy,
        "loss": accuracy,
        "rankme": ranks,
        "rankme_centred": ranks,
        "n_params": 1,
    }


def runs(rank, acquired, sizes=("405k",), seeds=3):
    return pd.DataFrame([run(size, s, rank, acquired) for size in sizes for s in range(seeds)])


NOTHING = runs(lambda i, layer: dip(3), lambda i: 10, seeds=1).iloc[:0]


@pytest.mark.parametrize(
    "judge",
    [
        judge_top_down,
        judge_hard_tasks_are_led,
        judge_easy_tasks_are_not_led,
        judge_fine_timing,
        judge_proxies,
    ],
)
def test_nothing_and_little_are_not_tested(judge):
    for rows in (NOTHING, runs(lambda i, layer: dip(3), lambda i: 6 + i // 2, seeds=2)):
        assert judge(rows).status == "not tested here"


# --- layers -----------------------------------------------------------------------------------


def layered(at, depth):
    """Every task-level alike: layer → checkpoint and floor of its collapse."""
    return runs(lambda i, layer: dip(at[layer], depth[layer]), lambda i: 15, sizes=("1m", "405k"))


LAYERED = {
    "reproduced": layered({1: 9, 2: 8, 3: 7, 4: 5}, {1: 12, 2: 9, 3: 7, 4: 3}),
    "partly": layered({1: 5, 2: 5, 3: 5, 4: 5}, {1: 12, 2: 9, 3: 7, 4: 3}),
    "not reproduced": layered({1: 5, 2: 7, 3: 8, 4: 9}, {1: 3, 2: 7, 3: 9, 4: 12}),
}


@pytest.mark.parametrize("status", LAYERED)
def test_top_down_verdicts(status):
    verdict = judge_top_down(LAYERED[status])
    assert verdict.status == status
    assert verdict.n == 3  # two layers have no order
    assert "(1m)" in verdict.evidence
    assert "405k" not in verdict.evidence


def test_ties_of_layers_are_counted_and_are_not_sooner():
    table = top_down_table(LAYERED["partly"])
    assert (table["first"] == "together").all()
    assert table.deeper.all()
    assert not table.sooner.any()
    assert not table.top_down.any()
    assert "at the same checkpoint in 72" in judge_top_down(LAYERED["partly"]).evidence


def test_a_layer_that_does_not_collapse_is_later_and_neither_is_left_out():
    flat = np.full(LAST, 20.0)
    rows = runs(
        lambda i, layer: flat if i < 4 or layer == 1 else dip(5), lambda i: 15, ("1m",), seeds=1
    )
    table = top_down_table(rows)
    assert len(table) == len(LEVELS) - 4
    assert (table["first"] == "last layer").all()
    assert table.top_down.all()


def test_layers_of_a_run_have_the_depth_and_time_they_were_given():
    table = layer_table(LAYERED["reproduced"][:1])
    assert len(table) == len(LEVELS) * 4
    last = table[table.layer == 4].iloc[0]
    assert last.depth == pytest.approx(1 - 3 / 20)
    assert last.half_way == STEPS[5]
    assert table.groupby("task_level").relative.sum().abs().max() < 1e-9
    means = layer_means(LAYERED["reproduced"])
    assert set(means["size"]) == {"1m"}
    first = means[(means.layer == 1) & (means.quantity == "half_way")].iloc[0]
    assert (first["mean"], first.lowest, first.highest, first.n) == (STEPS[9],) * 3 + (3,)


def test_counts_by_task_take_the_majority_of_levels():
    def rank(i, layer):
        top_down = i % 3 != 0  # two levels of three
        return dip(9 - layer if top_down else 4 + layer, 12 - 2 * layer if top_down else 4 + layer)

    table = counts_by_task(runs(rank, lambda i: 15, ("1m",), seeds=1))
    assert list(table.index) == ["COPY", "REV", "CMP", "PAR", "ADD", "MOD", "SORT", "MUL"]
    assert table.to_numpy().all()


# --- difficulty -------------------------------------------------------------------------------


def half(i):
    """Two levels of each task early, the others late, each at its own checkpoint."""
    return 4 + i // 4 if i < 12 else 13 + (i - 12) // 2


def test_difficulty_is_the_later_half_and_what_never_comes():
    classes = difficulty(runs(lambda i, layer: dip(3), half))
    assert list(classes.index) == LEVELS
    assert (classes == "easy").tolist() == [i < 12 for i in range(24)]
    rows = runs(lambda i, layer: dip(3), lambda i: 10 if i < 5 else LAST)
    assert (difficulty(rows) == "easy").tolist() == [i < 5 for i in range(24)]


def test_an_early_transient_is_partly_a_precursor_of_everything_late():
    verdict = judge_hard_tasks_are_led(runs(lambda i, layer: dip(3), half))
    assert verdict.status == "partly"
    assert "36 of 36" in verdict.evidence
    assert "another hard task-level: 100%" in verdict.evidence


def test_floors_that_follow_their_own_task_are_precursors():
    rows = runs(lambda i, layer: dip(half(i) - 1, back=20.0), half)
    assert judge_hard_tasks_are_led(rows).status == "reproduced"
    rates = lead_rates(rows)
    assert (rates.rate == 1).all()
    assert (rates[rates["class"] == "hard"].swapped < 1).all()


def test_floors_after_acquisition_are_not_precursors():
    rows = runs(lambda i, layer: dip(min(half(i) + 1, LAST - 3)), half)
    assert judge_hard_tasks_are_led(rows).status == "not reproduced"
    assert judge_easy_tasks_are_not_led(rows).status == "reproduced"


@pytest.mark.parametrize(
    ("leads", "status"),
    [(12, "not reproduced"), (0, "reproduced"), (6, "partly")],
)
def test_easy_verdicts(leads, status):
    """So many of the twelve easy task-levels have their floor before acquisition."""

    def rank(i, layer):
        return dip(half(i) - 1 if i < leads else half(i) + 1 if i < 12 else 3)

    verdict = judge_easy_tasks_are_not_led(runs(rank, half))
    assert verdict.status == status
    assert f"in {3 * leads} of 36 acquired easy" in verdict.evidence


def test_chance_rates_hold_each_kind_beside_the_measured_one():
    table = chance_rates(runs(lambda i, layer: dip(3), half), EVENTS)
    assert len(table) == len(EVENTS) * 2 * 3
    line = table.set_index(["event", "class", "kind"]).value
    assert line["floor", "hard", "measured"] == 1
    assert line["floor", "hard", "another task-level's rank"] == 1
    # The fall is one of 24 moves in a random order; checkpoint 13 and later are mostly after it.
    assert 0.4 < line["floor", "hard", "its own moves, shuffled"] < 1
    assert line["floor", "easy", "measured"] == 1


# --- fine timing ------------------------------------------------------------------------------


def test_floors_in_the_order_of_acquisition_predict_it():
    rows = runs(lambda i, layer: dip(half(i) - 2), half)
    table = concordance_table(rows)
    assert (table["index"] == 1).all()
    verdict = judge_fine_timing(rows)
    assert verdict.status == "partly"  # separates the classes, but predicts within them too


def test_floors_that_know_the_class_only():
    rows = runs(lambda i, layer: dip(2 if i < 12 else 9), half)
    table = concordance_table(rows)
    within = table[table.pairs != "between"]
    assert (within["index"] == 0.5).all()
    assert (within.ties == within.n).all()
    assert (table[table.pairs == "between"]["index"] == 1).all()
    assert judge_fine_timing(rows).status == "reproduced"


def test_floors_that_predict_within_but_not_between():
    def rank(i, layer):
        return dip(half(i) - half(0) + 12 if i < 12 else half(i) - half(12) + 2)

    assert judge_fine_timing(runs(rank, half)).status == "not reproduced"


def test_reversals_between_sizes():
    """Two groups swap places between sizes; the floors of one follow, those of the other do not."""

    def acquired(large):
        return lambda i: 10 + ((i % 2) if large else 1 - (i % 2))

    def rank(large):
        return lambda i, layer: dip(4 if large is None else 4 + ((i % 2) if large else 1 - (i % 2)))

    def both(follows):
        ends = [
            run(size, 0, rank(large if follows else None), acquired(large))
            for size, large in (("405k", False), ("1m", True))
        ]
        return reversal_concordance(pd.DataFrame(ends))

    followed, tied = both(True), both(False)
    assert (followed.concordant, followed.discordant, followed.ties) == (144, 0, 0)
    assert (tied.concordant, tied.discordant, tied.ties) == (0, 0, 144)


# --- proxies ----------------------------------------------------------------------------------


def two_sizes(floor, step):
    """Three runs of the smallest size and two of a larger one, from functions of (size, level)."""
    return pd.DataFrame(
        [
            run(
                size,
                seed,
                lambda i, layer, s=size: dip(3, floor(s, i)),
                lambda i, s=size: step(s, i),
            )
            for size, n in (("405k", 3), ("1m", 2))
            for seed in range(n)
        ]
    )


def up(size, i):
    return 2.0 + 0.5 * i


def down(size, i):
    return 2.0 + 0.5 * (i if size == "405k" else 23 - i)


def slow(size, i):
    return 6 + i // 2 + (0 if size == "405k" else 1)


def turned(size, i):
    """The same halves, but each in the opposite order at the larger size."""
    within = i % 12 if size == "405k" else 11 - i % 12
    return (6 if i < 12 else 13) + within // 2


@pytest.mark.parametrize(
    ("floor", "step", "status"),
    [
        (up, slow, "reproduced"),
        (up, turned, "partly"),
        (down, slow, "partly"),
        (down, turned, "not reproduced"),
    ],
)
def test_proxy_verdicts(floor, step, status):
    verdict = judge_proxies(two_sizes(floor, step))
    assert verdict.status == status
    assert verdict.n == 5


def test_groups_and_factors_of_a_proxy():
    rows = two_sizes(lambda size, i: 2.0 if size == "405k" else 3.0, slow)
    means = level_means(rows)
    assert means.groupby("size").hard.sum().to_dict() == {"405k": 12, "1m": 12}
    pairs = paired(rows)
    assert (pairs.group == "hard for both").sum() == 12
    assert np.allclose(pairs.floor_large / pairs.floor_small, 1.5)
    table = transfer_table(rows).set_index(["quantity", "group"])
    assert table.loc[("floor", "all"), "factor"] == pytest.approx(1.5)
    assert math.isnan(table.loc[("floor", "all"), "rho"])  # floors that do not vary
    assert table.loc[("step", "all"), "rho"] == pytest.approx(1)
    assert table.loc[("step", "hard for both"), "n"] == 12


def test_too_few_tasks_that_stay_hard_test_nothing():
    rows = two_sizes(up, lambda size, i: 6 + (i if size == "405k" else 23 - i) // 2)
    verdict = judge_proxies(rows)
    assert verdict.status == "not tested here"
    assert "hard for both" in verdict.evidence
