"""Toy pre-caching: the grid, one run, and judges on rows made by hand."""

from __future__ import annotations

import json
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from emergence_lib import plotting
from emergence_lib.analysis.gradients import PARTS
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import toy_precaching_evidence as found
from emergence_lib.experiments.base import Point
from emergence_lib.experiments.toy_precaching import TOY_PRECACHING, ToyPrecachingGrid
from emergence_lib.experiments.toy_precaching_cell import ABLATIONS, ToyCell, run_toy
from emergence_lib.models.untied import UntiedConfig

torch.set_num_threads(1)
TASKS = ("majority", "conditioned_majority")


@pytest.fixture(scope="module")
def smoke():
    points = TOY_PRECACHING.points("smoke")
    rows = [run_toy(point, "cpu") for point in points]
    return points, rows


def table(points, rows):
    return pd.DataFrame(
        [{"seed": p.seed, **p.params, **r} for p, r in zip(points, rows, strict=True)]
    )


# --- the grid and a run -----------------------------------------------------------------------


def test_each_block_goes_seed_by_seed_through_every_cell():
    points = TOY_PRECACHING.points("cpu")
    cells = [(p.params["task"], p.params["ablation"]) for p in points]
    for block in (points[:20], points[20:40]):
        assert [p.seed for p in block[:8]] == [0] * 4 + [1] * 4
        assert len({(p.params["task"], p.params["ablation"]) for p in block[:4]}) == 4
    assert len(set(cells)) == 8
    followed = [p for p in points if p.params["tracked"]]
    assert (len(points), len(followed)) == (44, 4)
    assert {p.params["ablation"] for p in followed} == {"plain"}
    assert {p.params["muon_lr"] for p in followed} == {None}
    assert all(json.loads(json.dumps(p.params)) == p.params for p in points)


def test_the_paper_profile_has_the_paper_s_sizes():
    for point in TOY_PRECACHING.points("paper"):
        cell = ToyCell(**point.params | {"tracked": ()})
        config, training = cell.model_config(), cell.train_config(point.seed)
        assert (config.n_layers, config.d_model, config.n_heads) == (2, 128, 4)
        assert config.tied_embeddings
        assert (training.steps, training.batch_size, training.lr) == (3_000, 256, 1e-3)
        assert training.final_lr == 1
        assert (cell.majority().seq_len, cell.majority().n_inputs) == (21, 10)
    assert {p.seed for p in TOY_PRECACHING.points("paper")} == set(range(10))


@pytest.mark.parametrize(
    ("ablation", "myopic", "untied"),
    [
        ("plain", False, False),
        ("myopic", True, False),
        ("untied", False, True),
        ("both", True, True),
    ],
)
def test_each_ablation_switches_off_what_it_says(ablation, myopic, untied):
    cell = ToyCell(ablation=ablation)
    assert cell.train_config(0).myopic is myopic
    config = cell.model_config()
    assert isinstance(config, UntiedConfig) is untied
    assert not untied or config.cut == 10


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"ablations": ("plane",)}, UnknownNameError, "ablation 'plane'. Did you mean 'plain'"),
        ({"tasks": ("parity",)}, UnknownNameError, "toy task 'parity'"),
        ({"tasks": "majority"}, ParameterError, "tasks='majority'"),
        ({"seeds": 0}, ParameterError, "seeds=0"),
        ({"tracked": (20,)}, ParameterError, "tracked=20"),
        ({"steps": 0}, ParameterError, "steps=0"),
        (
            {"tracked": (4,), "muon_lr": 0.01},
            ParameterError,
            r"muon_lr=0\.01 .* None where positions are tracked",
        ),
    ],
)
def test_impossible_grids_are_refused(change, error, says):
    with pytest.raises(error, match=says):
        ToyPrecachingGrid(**change)


def test_a_run_fills_the_schema_and_repeats(smoke):
    points, rows = smoke
    for point, row in zip(points, rows, strict=True):
        TOY_PRECACHING.check_row(row)
        json.dumps(row, allow_nan=False)
        assert np.array(row["probe_r"], dtype=float).shape == (3, 20)
        assert [r is None for r in row["probe_r"][1]] == [True] + [False] * 19
        assert max(row["sum_error"], row["scheme_error"]) < 1e-12
        assert (row["influence"] is None) is (point.params["ablation"] != "plain")
    plain = rows[1]
    assert np.array(plain["influence"]).shape == (2, 2, 2, 3)
    assert np.array(plain["mismatch"]).shape == (2, 2)
    of_part = np.array(plain["influence"])[:, :, :, PARTS.index("precached")]
    assert (of_part[:, 1] == 0).all(), "nothing is pre-cached in the last layer"
    assert (of_part[:, 0] != 0).all()
    assert run_toy(points[0], "cpu") == rows[0]


def test_the_untrained_probe_is_that_of_the_weights_training_starts_from(smoke):
    points, rows = smoke
    untouched = points[0].params | {"lr": 1e-12}
    row = run_toy(Point("toy_precaching", 1, untouched, 0), "cpu")
    assert row["untrained_r"] == rows[0]["untrained_r"]
    trained, before = (np.array(row[c], dtype=float)[:, 1:] for c in ("probe_r", "untrained_r"))
    assert trained == pytest.approx(before, abs=1e-3)


def test_judges_and_figures_take_the_smoke_rows_and_none(smoke):
    rows = table(*smoke)
    for frame in (rows, rows.iloc[:0]):
        for claim, judge in TOY_PRECACHING.judges.items():
            tested = claim == "C-1" and len(frame)
            assert (judge(frame).status == "reproduced") == bool(tested)
        found.summary(frame)
        assert ("No run is followed" in found.influence_sentence(frame)) is (not len(frame))
        probes = found.by_task(frame, found.probe_curves)
        plotting.probes_by_position(probes, 10)
        plotting.influence_by_position(found.by_task(frame, found.influence_table), 10)
        for column in ("accuracy", "gain"):
            plotting.named_estimates(
                found.by_training(frame, column),
                dict.fromkeys(found.NAMES.values(), "black"),
                column,
                guides=found.guesses(frame),
            )
        plt.close("all")


# --- judges on made-up rows -------------------------------------------------------------------

GOOD = {"plain": 0.3, "myopic": 0.2, "untied": 0.25, "both": -0.1}


def made(gains=None, accuracies=None, n=4, error=1e-15, jitter=0.01):
    """`n` runs of every cell; gains and accuracies by (task, ablation), or by ablation for both."""
    rows = []
    for task in TASKS:
        for a, ablation in enumerate(ABLATIONS):
            for seed in range(n):
                gain = _of(gains or GOOD, task, ablation) + jitter * math.sin(seed + a)
                before = np.full((3, 20), 0.4)
                after = before.copy()
                after[2, 2:10] += gain
                after[1] -= 0.3  # the worse layer, which must not count
                after[:, 10:] = 0.99
                default = 0.7 if (task, ablation) == (TASKS[1], "myopic") else 0.99
                accuracy = _of(accuracies or {}, task, ablation, default)
                rows.append(
                    {
                        "task": task,
                        "ablation": ablation,
                        "seed": seed,
                        "accuracy": accuracy + jitter * 0.1 * math.cos(seed + a),
                        "guess_accuracy": 0.5,
                        "eval_loss": [1.3, 0.61],
                        "floor": 0.6,
                        "probe_r": [[None, *r[1:]] for r in after.tolist()],
                        "untrained_r": [[None, *r[1:]] for r in before.tolist()],
                        "normed_r": [[None, *r[1:]] for r in (after - 0.1).tolist()],
                        "untrained_normed_r": [[None, *r[1:]] for r in before.tolist()],
                        "sum_error": error,
                        "scheme_error": error / 2,
                        "influence": None,
                        "mismatch": None,
                        "tracked": [],
                    }
                )
    return pd.DataFrame(rows)


def _of(values, task, ablation, default=None):
    return values.get((task, ablation), values.get(ablation, default))


def test_a_run_s_gain_is_at_the_best_layer_over_useless_positions_alone():
    line = found.run_table(made(jitter=0)).iloc[0]
    assert (line.task, line.ablation, line.seed) == ("majority", "plain", 0)
    assert line.gain == pytest.approx(0.3)
    assert line.normed_gain == pytest.approx(0.2)
    assert line.r == pytest.approx(0.7)
    assert line.untrained_r == pytest.approx(0.4)
    assert line.useful_r == pytest.approx(0.99)
    assert line.excess == pytest.approx(0.01)


def verdict(claim, rows):
    judged = TOY_PRECACHING.judges[claim](rows)
    assert "nan" not in judged.evidence
    return judged


@pytest.mark.parametrize(
    ("errors", "status"),
    [((1e-15, 1e-15), "reproduced"), ((1e-15, 1e-3), "partly"), ((1e-3, 1e-3), "not reproduced")],
)
def test_the_identity_is_judged_by_its_largest_error(errors, status):
    rows = made()
    rows.loc[5, ["sum_error", "scheme_error"]] = errors
    assert verdict("C-1", rows).status == status


@pytest.mark.parametrize(
    ("gains", "status"),
    [
        (GOOD, "reproduced"),
        (GOOD | {("majority", "both"): 0.2}, "partly"),  # lower than plain, yet there
        (GOOD | {("majority", "both"): 0.3}, "partly"),  # one task of the two
        (dict.fromkeys(ABLATIONS, 0.3), "not reproduced"),  # there with neither mechanism
        (dict.fromkeys(ABLATIONS, -0.1), "not reproduced"),  # never there
    ],
)
def test_useless_features_without_both_mechanisms(gains, status):
    rows = made(gains)
    judged = verdict("C-2", rows)
    assert judged.status == status
    assert judged.n == 16
    assert f"Majority: {gains['plain']:.2f}" in judged.evidence


@pytest.mark.parametrize(
    ("accuracies", "status"),
    [
        ({}, "reproduced"),
        ({(TASKS[1], "myopic"): 0.96}, "partly"),  # short, but by less than 0.05
        ({"myopic": 0.7}, "partly"),  # Majority falls as much: not for want of pre-caching
        ({(TASKS[1], "myopic"): 0.99}, "not reproduced"),
        ({(TASKS[1], "plain"): 0.8}, "not tested here"),  # the plain model did not learn
    ],
)
def test_conditioned_majority_without_pre_caching(accuracies, status):
    judged = verdict("C-3", made(accuracies=accuracies))
    assert judged.status == status
    assert judged.n == 8


@pytest.mark.parametrize(
    ("gains", "status"),
    [
        (GOOD, "reproduced"),
        (GOOD | {"both": 0.2}, "partly"),  # there, but with neither mechanism as well
        (GOOD | {"myopic": -0.05}, "partly"),  # less lost than with neither, yet not built
        (GOOD | {"myopic": -0.1}, "not reproduced"),
    ],
)
def test_sharing_alone(gains, status):
    judged = verdict("C-4", made(gains))
    assert judged.status == status
    assert judged.n == 8


@pytest.mark.parametrize("claim", ["C-2", "C-3", "C-4"])
def test_two_runs_of_each_test_nothing(claim):
    assert verdict(claim, made(n=2)).status == "not tested here"


def test_influences_are_shares_of_the_mismatch():
    rows = made(n=1)
    first = rows.index[0]
    rows.at[first, "tracked"] = [4, 12]
    rows.at[first, "mismatch"] = [[0.5, 1.0], [2.0, 4.0]]
    adam = [[[0.1, 0.2, 0.2], [0.5, 0.25, 0.25]], [[1.0, 0.0, 1.0], [2.0, 0.0, 2.0]]]
    rows.at[first, "influence"] = [adam, (10 * np.array(adam)).tolist()]
    shares = found.influence_table(rows, "majority").set_index(["layer", "position", "part"]).share
    assert shares[1, 4, "precached"] == pytest.approx(0.4)
    assert shares[2, 12, "direct"] == pytest.approx(0.5)
    assert "1.00 times the mismatch" in found.influence_sentence(rows)
    assert found.influence_table(rows, "conditioned_majority").empty
