"""The precursors experiment: what is measured on a checkpoint, and what its judges make of rows."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from emergence_lib import plotting
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import precursor_events as events
from emergence_lib.experiments.collapse_cell import CollapseCell
from emergence_lib.experiments.precursor_measures import MEASURES, draw_sample, look
from emergence_lib.experiments.precursors import MIDDLE, PRECURSORS, PrecursorCell, PrecursorGrid
from emergence_lib.tasks.base import Batch
from emergence_lib.training.train import step_generator

torch.set_num_threads(1)

STEPS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
LATE = [0, 0, 0, 0, 0, 0, 0, 0.9, 1, 1]
"""Accuracy of a task-level acquired at step 64, the checkpoint of index 7."""

EARLY_DIP = [8, 8, 4, 2, 4, 7, 8, 8, 8, 8]
LATE_DIP = [8, 8, 8, 8, 8, 8, 8, 8, 2, 8]
FLAT = [8.0] * 10
RISING = [1, 1, 1, 1, 1, 1, 1, 4, 4.1, 4.2]
"""Moves most at index 7 and has its peak at the end."""

EARLY_PEAK = [1, 1, 5, 9, 5, 2, 1, 1, 1, 1]


def row(seed, levels=("COPY 2", "MOD 2"), **curves):
    """A recorded run whose task-levels all have these curves; what is not given does nothing."""
    defaults = {
        "accuracy": LATE,
        "rankme": EARLY_DIP,
        "fisher_rank": FLAT,
        "covariance_rank": FLAT,
        "covariance_rank_first": FLAT,
        "hessian": RISING,
        "llc": RISING,
        "llc_readable": [1] * 10,
        "probe": LATE,
        "said": LATE,
        "probe_shuffled": [0.1] * 10,
    }
    curves = defaults | curves
    return {
        "seed": seed,
        "levels": list(levels),
        "warmup_steps": 0,
        "checkpoints": STEPS,
        "probe_chance": [0.1] * len(levels),
        **{name: [list(values)] * len(levels) for name, values in curves.items()},
    }


def runs(n=4, **curves):
    return pd.DataFrame([row(seed, **curves) for seed in range(n)])


def verdict(claim, rows):
    return PRECURSORS.judges[claim](rows)


# --- events -----------------------------------------------------------------------------------


def test_who_leads_on_curves_drawn_by_hand():
    table = events.lead_table(runs(1, covariance_rank=LATE_DIP, llc=EARLY_PEAK))
    table = table[table.level == "COPY 2"].set_index("measure")
    assert table.outcome.to_dict() == {
        "rankme": "leads",
        "fisher_rank": "no collapse",
        "covariance_rank": "lags",
        "hessian": "lags",  # its peak is at the end
        "llc": "leads",  # a peak counts as a floor does
    }
    assert table.acquired.tolist() == [64] * 5
    assert table.lead["rankme"] == 64 - 4
    assert table.lead["llc"] == 64 - 4
    assert np.isnan(table.lead["fisher_rank"])
    assert table.transient.to_dict() == {
        "rankme": True,
        "fisher_rank": False,
        "covariance_rank": False,
        "hessian": False,
        "llc": True,
    }
    assert table.together["hessian"]
    assert table.fastest["hessian"] == 64
    assert not table.together["rankme"]


def test_llc_values_that_cannot_be_read_are_left_out():
    flags = [0] * 4 + [1] * 6
    one = row(0, llc=[-50, -9, 3, 2, *RISING[4:]], llc_readable=flags)
    found = events.readable(pd.Series(one), "llc", "MOD 2")
    assert found.index.tolist() == STEPS[4:]
    missing = row(0, llc=[None] * 6 + [1, 2, 3, 4])
    assert events.case(pd.Series(missing), "llc", "MOD 2") is None
    assert len(events.lead_table(pd.DataFrame([missing]), ["llc"])) == 0


def test_llc_values_of_the_warm_up_are_left_out():
    one = pd.DataFrame([row(0, llc=EARLY_PEAK) | {"warmup_steps": 4}])
    run = one.iloc[0]
    assert events.readable(run, "llc", "MOD 2").index.tolist() == STEPS[4:]
    assert events.readable(run, "llc", "MOD 2", with_warmup=True).index.tolist() == STEPS
    assert events.readable(run, "hessian", "MOD 2").index.tolist() == STEPS
    assert not events.lead_table(one, ["llc"]).leads.any()  # what is left has no peak
    assert events.lead_table(one, ["llc"], with_warmup=True).leads.all()


def test_shares_and_their_intervals_stay_within_0_and_1():
    rows = pd.concat([runs(2), runs(1, rankme=FLAT).assign(seed=2)])
    found = events.share(events.lead_table(rows, ["rankme"]), "leads")
    assert found.value == pytest.approx(2 / 3)
    assert (found.low, found.high) == (0, 1)


def test_acquisition_is_corrected_for_chance():
    """0.6 is above the paper's 0.5, and for a comparison nothing but chance."""
    guess = [0.6] * 10
    rows = pd.Series(row(0, levels=("CMP 2", "COPY 2"), accuracy=guess))
    assert not events.acquired(rows, "CMP 2").observed
    assert events.acquired(rows, "COPY 2").step == 0


def test_rates_by_level_put_the_easy_ones_first():
    one = row(0)
    one["accuracy"][1] = [0, 0, 0, 0.9, *[1] * 6]  # MOD 2 at the floor of its rank
    table = events.rates_by_level(pd.DataFrame([one]))
    rank = table[table.measure == "rankme"]
    assert rank.level.tolist() == ["MOD 2", "COPY 2"]
    assert rank.leads.tolist() == [0, 1]
    assert rank.n.tolist() == [1, 1]


def test_the_definition_decides_in_the_sweep():
    table = events.sweep_table(runs(2)).set_index(["measure", "event", "min_depth"]).rate
    assert table["rankme", "floor", 0.5] == 1
    assert table["hessian", "floor", 0.1] == 0
    assert table["covariance_rank", "onset", 0.05] == 0
    deep = runs(2, fisher_rank=[8, 8, 6, 6, 6, 8, 8, 8, 8, 8])
    table = events.sweep_table(deep).set_index(["measure", "event", "min_depth"]).rate
    assert table["fisher_rank", "floor", 0.1] == 1
    assert table["fisher_rank", "floor", 0.3] == 0


def test_an_early_transient_leads_in_another_tasks_place_just_as_well():
    table = events.chance_table(runs(2)).set_index("measure")
    assert table.rate["rankme"] == table.swapped["rankme"] == 1
    assert table.rate["fisher_rank"] == table.swapped["fisher_rank"] == 0
    assert table.n["rankme"] == 4
    assert 0 < table.shuffled["rankme"] <= 1
    assert 0 < table.walk["rankme"] < 1


def test_a_probe_that_reads_an_untrained_model_is_not_first():
    early = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    found = events.probe_table(runs(1, probe=early)).iloc[0]
    assert (found.read, found.said, found.acquired) == (8, 64, 64)
    assert found["first"]
    assert not found.untrained
    found = events.probe_table(runs(1, probe=[1] * 10)).iloc[0]
    assert found.untrained
    assert not found["first"]
    found = events.probe_table(runs(1)).iloc[0]  # at the same checkpoint
    assert not found["first"]
    found = events.probe_table(runs(1, said=[0] * 10)).iloc[0]  # read, but never said
    assert found["first"]
    assert math.isnan(found.said)


# --- judges -----------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", ["B-6", "B-7", "B-8", "B-11"])
def test_too_few_runs_test_nothing(claim):
    for rows in (runs(2), runs(4, accuracy=[0] * 10, said=[0] * 10), runs(4).iloc[:0]):
        assert verdict(claim, rows).status == "not tested here"


@pytest.mark.parametrize(
    ("curves", "status"),
    [
        ({"llc": RISING}, "reproduced"),
        ({"llc": EARLY_PEAK}, "not reproduced"),
        ({"llc": [1, 1, 9, 9.1, 9.2, 9.3, 9.4, 9.5, 9.6, 9.7]}, "partly"),  # early, peak late
    ],
)
def test_the_llc_is_synchronous_or_not(curves, status):
    found = verdict("B-6", runs(**curves))
    assert found.status == status
    assert found.n == 4
    assert "8 acquired task-levels in 4 runs" in found.evidence
    assert "The 100% of the values that the sampler does not flag" in found.evidence


def test_flags_are_counted_in_the_verdict_on_the_llc():
    found = verdict("B-6", runs(llc_readable=[0] * 4 + [1] * 6))
    assert "The 60% of the values that the sampler does not flag" in found.evidence


@pytest.mark.parametrize(
    ("curve", "status"), [(RISING, "reproduced"), (EARLY_PEAK, "not reproduced")]
)
def test_the_hessian_leads_seldom_or_often(curve, status):
    found = verdict("B-7", runs(hessian=curve))
    assert found.status == status
    assert "in its place, " in found.evidence
    assert "RankMe's floor, by the same rule: 100%" in found.evidence


def test_a_hessian_that_leads_in_half_of_the_runs_decides_nothing():
    rows = pd.concat([runs(2), runs(2, hessian=EARLY_PEAK).assign(seed=[2, 3])])
    assert verdict("B-7", rows).status == "partly"


@pytest.mark.parametrize(
    ("curves", "status"),
    [
        ({}, "reproduced"),
        ({"fisher_rank": EARLY_DIP}, "partly"),
        ({"fisher_rank": EARLY_DIP, "covariance_rank": EARLY_DIP}, "not reproduced"),
        ({"fisher_rank": LATE_DIP, "covariance_rank": LATE_DIP}, "reproduced"),
    ],
)
def test_gradient_ranks_show_an_early_event_or_not(curves, status):
    assert verdict("B-8", runs(**curves)).status == status


@pytest.mark.parametrize(
    ("curves", "status"),
    [
        ({"probe": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]}, "reproduced"),
        ({}, "not reproduced"),
        ({"probe": [0] * 10}, "not reproduced"),
        ({"probe": [1] * 10}, "not tested here"),  # readable untrained: says nothing
    ],
)
def test_probes_come_first_or_not(curves, status):
    assert verdict("B-11", runs(**curves)).status == status


# --- grid and measures ------------------------------------------------------------------------


def test_the_recorded_grid_is_of_the_middle_levels_and_the_recipe_of_collapse():
    points = PRECURSORS.points("cpu")
    assert [point.seed for point in points] == list(range(len(points)))
    assert len(points) >= 3
    params = points[0].params
    assert tuple(params["levels"]) == MIDDLE
    assert {name: params[name] for name in ("size", "lr", "muon_lr", "batch_size")} == {
        name: CollapseCell().params()[name] for name in ("size", "lr", "muon_lr", "batch_size")
    }
    assert PrecursorCell.of(params) == PrecursorCell()
    assert len(PRECURSORS.points("paper")[0].params["levels"]) == 24


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seeds": 0}, ParameterError, "seeds"),
        ({"steps": 9}, ParameterError, "steps"),
        ({"draws": 3}, ParameterError, "draws"),
        ({"levels": ()}, ParameterError, "levels"),
        ({"levels": ("MOD 2", "MOD 2")}, ParameterError, "levels"),
        ({"levels": "MODD 2"}, UnknownNameError, "MOD 2"),
    ],
)
def test_impossible_parameters_are_named(changes, error, message):
    with pytest.raises(error, match=message):
        PrecursorGrid(**changes)


def test_the_probe_is_not_fitted_on_what_it_is_tested_on():
    task = CollapseCell().task()
    level = [part.label for part in task.parts].index("MOD 2")
    batch = task.balanced(80, step_generator(0, "eval"))
    own = batch.labels["task_level"] == level
    part = task.parts[level]
    sample = draw_sample(part, Batch(batch.tokens[own], batch.loss_mask[own]), seed=0)
    assert sample.held_out.tokens.shape == (80, part.seq_len)
    seen = {tuple(row) for row in sample.fresh.tokens[sample.fit].tolist()}
    held_out = {tuple(row) for row in sample.held_out.tokens.tolist()}
    assert seen
    assert not seen & held_out
    # As large a share of the fresh sequences is held out as of all there are.
    n = part.modulus**2
    assert sample.fit.float().mean().item() == pytest.approx(1 - 80 / n, abs=0.08)


@pytest.fixture(scope="module")
def smoke():
    """The smoke profile's points with their rows, as the store would give them."""
    points = PRECURSORS.points("smoke")
    rows = [PRECURSORS.run(point, "cpu") for point in points]
    for found in rows:
        PRECURSORS.check_row(found)
    return pd.DataFrame(
        [{"seed": p.seed, **p.params, **row} for p, row in zip(points, rows, strict=True)]
    )


def test_the_smoke_profile_measures_everything(smoke):
    run = smoke.iloc[0]
    n = len(run["checkpoints"])
    for name in MEASURES:
        assert [len(curve) for curve in run[name]] == [n] * len(run["levels"])
    at_start = {name: run[name][0][0] for name in MEASURES}
    assert at_start["loss"] == pytest.approx(math.log(21), abs=0.3)
    assert 1 < at_start["fisher_rank"] <= 32
    assert 1 < at_start["covariance_rank"] <= 31
    assert at_start["covariance_rank"] == pytest.approx(
        events.series(run, "covariance_rank", "CMP 1").iloc[0]
    )
    assert at_start["hessian"] > 0
    assert abs(at_start["hessian_magnitude"]) >= at_start["hessian"] * 0.98
    assert at_start["llc"] < 0  # an untrained model is at no minimum
    assert at_start["llc_readable"] == 0
    assert at_start["rankme"] >= 1


def test_a_row_starts_with_the_untrained_model_to_the_same_numbers(smoke):
    run, cell = smoke.iloc[0], CollapseCell()
    task = cell.task()
    batch = task.balanced(cell.samples, step_generator(0, "eval"))
    level = [part.label for part in task.parts].index(run["levels"][0])
    own = batch.labels["task_level"] == level
    held_out = Batch(batch.tokens[own], batch.loss_mask[own])
    model = cell.model_config().build(step_generator(0, "weights"))
    found = look(model, draw_sample(task.parts[level], held_out, 0), int(run["draws"]), 0)
    assert {name: float(f"{value:.6g}") for name, value in found.items()} == {
        name: run[name][0][0] for name in MEASURES
    }


# --- figures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [runs(3), runs(3).iloc[:0]], ids=["runs", "nothing"])
def test_every_figure_is_drawn_whether_or_not_anything_is_recorded(rows):
    figures = [
        plotting.measure_panels(*events.panels(rows, ("COPY 2", "MOD 2"))),
        plotting.lead_dots(events.lead_table(rows), events.FIVE),
        plotting.rates_by_difficulty(events.rates_by_level(rows), events.FIVE),
        plotting.definition_map(events.sweep_table(rows), events.FIVE),
        plotting.against_chance(events.chance_table(rows), events.FIVE),
        plotting.probe_panels(*events.probe_curves(rows)),
    ]
    for figure in figures:
        figure.canvas.draw()
        text = " ".join(ax.get_title() for ax in figure.axes)
        assert ("not recorded yet" in text) == rows.empty
        plt.close(figure)
