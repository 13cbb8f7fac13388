"""Every experiment's grids and keys, and the linear map's runs.

What the linear map's judges make of rows is in test_judges.py.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pandas as pd
import pytest
import torch

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import EXPERIMENTS, PROFILES, Point
from emergence_lib.experiments.attention_bias import ATTENTION_BIAS, AttentionBiasGrid
from emergence_lib.experiments.linear_map_cell import (
    LinearMapCell,
    plateau_event,
    plateau_level,
    solve_event,
)
from emergence_lib.experiments.linear_map_search import LINEAR_MAP_SEARCH, RECIPES, search_table
from emergence_lib.experiments.plateau import PLATEAU, PlateauGrid
from emergence_lib.experiments.sparsity import SPARSITY, SparsityGrid
from emergence_lib.experiments.watched_rows import head_table, row_losses
from emergence_lib.tasks import LinearMap

torch.set_num_threads(1)
FINDINGS = (PLATEAU, ATTENTION_BIAS, SPARSITY)
LINEAR_MAP = (*FINDINGS, LINEAR_MAP_SEARCH)


def table(rows, points):
    """Rows as `Store.rows` gives them to a judge."""
    return pd.DataFrame(
        [{"seed": p.seed, **p.params, **row} for p, row in zip(points, rows, strict=True)]
    )


@pytest.fixture(scope="module")
def smoke():
    """experiment → (points, rows) of its smoke profile, run here."""
    results = {}
    for experiment in LINEAR_MAP:
        points = experiment.points("smoke")
        results[experiment.name] = points, [experiment.run(p, "cpu") for p in points]
    return results


# --- keys: recorded results hang on them ------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("plateau", "bbfcee32bc653457"),
        ("attention_bias", "9dc3b871a9f958cb"),
        ("sparsity", "eb02938e4cd76082"),
        ("linear_map_search", "3d28ebc6b99b5318"),
    ],
)
def test_the_recorded_points_keep_their_keys(name, key):
    """A changed key orphans every recorded point of the experiment.

    If the meaning of a row changed, that is right: raise the experiment's `version` (in its
    `Experiment` and in its grid's points), record anew, and put the new key here. If not, the
    parameters of the points changed by accident.
    """
    assert EXPERIMENTS[name].points("cpu")[0].key == key


def test_a_key_depends_on_all_that_a_point_is_and_on_nothing_else():
    point = Point("plateau", 1, {"a": 1, "b": 2.0}, 0)
    assert point.key == Point("plateau", 1, {"b": 2.0, "a": 1}, 0).key
    others = [
        replace(point, experiment="sparsity"),
        replace(point, version=2),
        replace(point, params={"a": 1, "b": 2.5}),
        replace(point, seed=1),
    ]
    assert len({p.key for p in [point, *others]}) == 5


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
def test_points_carry_their_experiment_and_version(experiment):
    for profile in PROFILES:
        for point in experiment.points(profile):
            assert (point.experiment, point.version) == (experiment.name, experiment.version)
            # What is stored is JSON: it must come back as the same point.
            params = json.loads(json.dumps(dict(point.params)))
            assert replace(point, params=params).key == point.key


@pytest.mark.parametrize("experiment", LINEAR_MAP, ids=lambda e: e.name)
@pytest.mark.parametrize("profile", PROFILES)
def test_points_of_the_linear_map_are_cells_that_can_be_trained(experiment, profile):
    for point in experiment.points(profile):
        LinearMapCell(**point.params).validate()


# --- grids ------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
@pytest.mark.parametrize("profile", PROFILES)
def test_points_of_a_profile_are_unique(experiment, profile):
    keys = [point.key for point in experiment.points(profile)]
    assert keys
    assert len(set(keys)) == len(keys)
    for block in experiment.profiles[profile]:  # a notebook sweeps a block's points as they are
        keys = [point.key for point in block.points()]
        assert len(set(keys)) == len(keys)
    assert set(experiment.profiles) == set(experiment.seconds) == set(PROFILES)


@pytest.mark.parametrize("experiment", FINDINGS, ids=lambda e: e.name)
@pytest.mark.parametrize("profile", ["cpu", "paper"])
def test_recorded_points_have_the_paper_s_shape(experiment, profile):
    for point in experiment.points(profile):
        cell = LinearMapCell(**point.params)
        assert (cell.d_model, cell.n_heads, cell.steps) == (128, 8, 10_000)
        config = cell.model_config()
        assert (config.n_layers, config.d_model, config.n_heads) == (1, 128, 8)
        assert config.d_mlp == 512
        assert config.max_pos >= cell.task(0).seq_len - 1


def cells(experiment, profile):
    """(S, s, c, Muon's rate) → seeds."""
    found: dict[tuple, list[int]] = {}
    for point in experiment.points(profile):
        names = ("state_size", "row_weight", "attention_bias", "muon_lr")
        found.setdefault(tuple(point.params[n] for n in names), []).append(point.seed)
    return found


def test_the_plateau_is_recorded_over_sixteen_seeds():
    assert cells(PLATEAU, "cpu") == {(16, 3, 0.0, 0.005): list(range(16))}


def test_the_bias_is_recorded_over_strengths_and_on_the_hard_cell():
    found = cells(ATTENTION_BIAS, "cpu")
    for strength in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0):
        assert len(found.pop((16, 3, strength, 0.005))) >= 5
    for strength in (0.0, 4.0):  # the hard cell and its control at the common rate
        assert len(found.pop((16, 8, strength, 0.005))) >= 5
    assert {key: len(seeds) for key, seeds in found.items()} == {
        (16, 8, 4.0, muon_lr): 3 for muon_lr in (0.0025, 0.01)
    }


def test_sparsity_is_recorded_for_every_s_that_was_asked_for():
    found = cells(SPARSITY, "cpu")
    weights = {
        size: {s: len(seeds) for (S, s, *_), seeds in found.items() if size == S}
        for size in (8, 16, 32)
    }
    assert weights[8].keys() == set(range(1, 9))
    assert weights[16].keys() == set(range(1, 17))
    assert weights[32].keys() >= {1, 2, 3, 4, 8, 16, 24, 28, 30, 31, 32}
    assert all(n >= 3 for of_size in weights.values() for n in of_size.values())
    for size in (8, 16, 32):
        assert {s for S, s, *_ in cells(SPARSITY, "paper") if size == S} == set(range(1, size + 1))


def test_the_search_gives_every_recipe_the_same_sequences():
    for profile in PROFILES:
        points = LINEAR_MAP_SEARCH.points(profile)
        used = {p.params["steps"] * p.params["batch_size"] for p in points}
        assert len(used) == 1
        assert len({json.dumps(dict(p.params), sort_keys=True) for p in points}) == len(RECIPES)
    first = LinearMapCell(**LINEAR_MAP_SEARCH.points("cpu")[0].params)
    assert replace(first, steps=LinearMapCell.steps) == LinearMapCell()  # no change comes first
    first = LinearMapCell(**LINEAR_MAP_SEARCH.points("paper")[0].params)
    assert first == LinearMapCell(batch_size=256)  # as in the other paper profiles, 10,000 steps


@pytest.mark.parametrize(("profile", "batch"), [("cpu", 16), ("paper", 256)])
def test_the_search_halves_and_doubles_the_common_batch(profile, batch):
    points = LINEAR_MAP_SEARCH.points(profile)
    assert {p.params["batch_size"] for p in points} == {batch // 2, batch, 2 * batch}
    # So the longest run is twice the common one, at every size.
    assert max(p.params["steps"] for p in points) == 2 * points[0].params["steps"]


# --- parameters -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experiment", "changes", "message"),
    [
        (PLATEAU, {"row_weight": 9}, r"row_weight=9 .* at most state_size=8"),
        (PLATEAU, {"seeds": 0}, r"seeds=0 .* an integer ≥ 1"),
        (PLATEAU, {"seeds": 2.0}, r"seeds=2\.0 .* an integer ≥ 1"),
        (PLATEAU, {"seeds": True}, r"seeds=True .* an integer"),
        (PLATEAU, {"state_size": "8"}, r"state_size='8' .* an integer"),
        (PLATEAU, {"steps": 0}, r"steps=0 .* an integer ≥ 1"),
        (PLATEAU, {"muon_lr": "fast"}, r"muon_lr='fast' .* a number"),
        (PLATEAU, {"muon_lr": -0.1}, r"muon_lr=-0\.1 .* a positive number"),
        (ATTENTION_BIAS, {"row_weight": 9}, r"row_weight=9 .* at most state_size=8"),
        (ATTENTION_BIAS, {"seeds": 0}, r"seeds=0 .* an integer ≥ 1"),
        (ATTENTION_BIAS, {"strengths": ()}, r"strengths=\(\) .* at least one value"),
        (
            ATTENTION_BIAS,
            {"strengths": "[0, 4]"},
            r"strengths='\[0, 4\]' .* a number or a list of numbers; with papermill pass it by "
            r"-y\. For example: -y 'strengths: \[0\.0, 4\.0\]'$",
        ),
        (
            ATTENTION_BIAS,
            {"muon_lrs": "0.005"},
            r"muon_lrs='0\.005' .* a number, None or a list of these; with papermill pass it by "
            r"-y\. For example: -y 'muon_lrs: \[0\.005, null\]'$",
        ),
        (ATTENTION_BIAS, {"strengths": ["4"]}, r"strengths='4' .* a number"),
        (ATTENTION_BIAS, {"strengths": [0, None]}, r"strengths=None .* a number"),
        (ATTENTION_BIAS, {"strengths": math.inf}, r"attention_bias=inf .* a finite number"),
        (ATTENTION_BIAS, {"muon_lrs": [True]}, r"muon_lrs=True .* a number"),
        (ATTENTION_BIAS, {"muon_lrs": 0.0}, r"muon_lr=0\.0 .* a positive number"),
        (SPARSITY, {"row_weights": 9}, r"row_weights=9 .* an integer from 1 to 8"),
        (SPARSITY, {"row_weights": [1, 0]}, r"row_weights=0 .* an integer from 1 to 8"),
        (SPARSITY, {"row_weights": []}, r"row_weights=\[\] .* at least one value"),
        (SPARSITY, {"row_weights": 2.5}, r"row_weights=2\.5 .* an integer"),
        (
            SPARSITY,
            {"row_weights": "[1, 2]"},
            r"row_weights='\[1, 2\]' .* an integer or a list of integers from 1 to 8; "
            r"with papermill pass it by -y\. For example: -y 'row_weights: \[1, 8\]'$",
        ),
        (SPARSITY, {"state_size": 1}, r"state_size=1 .* an integer ≥ 2"),
        (SPARSITY, {"seeds": -1}, r"seeds=-1 .* an integer ≥ 1"),
        (LINEAR_MAP_SEARCH, {"sequences": 63}, r"sequences=63 .* an integer ≥ 64"),
        (LINEAR_MAP_SEARCH, {"batch_size": 15}, r"batch_size=15 .* even, since a recipe halves it"),
        (LINEAR_MAP_SEARCH, {"batch_size": 0}, r"batch_size=0 .* an integer ≥ 2"),
        (LINEAR_MAP_SEARCH, {"seeds": 0}, r"seeds=0 .* an integer ≥ 1"),
        (LINEAR_MAP_SEARCH, {"row_weight": 7}, r"row_weight=7 .* at most state_size=6"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "name", str(value)),
)
def test_impossible_parameters_say_what_is_allowed(experiment, changes, message):
    with pytest.raises(ParameterError, match=message):
        experiment.block("quick", **changes)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'row_wieght'\. Did you mean 'row_weight'\?"):
        PLATEAU.block("quick", row_wieght=3)
    with pytest.raises(UnknownNameError, match=r"profile 'qick'\. Did you mean 'quick'\?"):
        PLATEAU.block("qick")
    with pytest.raises(UnknownNameError, match=r"profile 'papr'\. Did you mean 'paper'\?"):
        PLATEAU.points("papr")


@pytest.mark.parametrize("profile", [5, None, ["quick"], {"quick": 1}])
def test_a_profile_that_is_no_text_is_refused_in_words(profile):
    for call in (PLATEAU.block, PLATEAU.points):
        with pytest.raises(ParameterError, match=re.escape(f"profile={profile!r} ")) as error:
            call(profile)
        assert "one of smoke, quick, cpu, paper" in str(error.value)


def keys(grid):
    return [point.key for point in grid.points()]


def test_lists_from_papermill_and_single_values_are_the_same_points():
    assert keys(SparsityGrid(row_weights=[3, 1, 3])) == keys(SparsityGrid(row_weights=(1, 3)))
    assert keys(SparsityGrid(row_weights=3)) == keys(SparsityGrid(row_weights=[3]))
    assert keys(SparsityGrid(state_size=5)) == keys(
        SparsityGrid(state_size=5, row_weights=range(1, 6))
    )
    listed = AttentionBiasGrid(strengths=[0, 4, 4.0], muon_lrs=[0.005])
    assert keys(listed) == keys(AttentionBiasGrid(strengths=(0.0, 4.0)))
    assert keys(AttentionBiasGrid(strengths=4)) == keys(AttentionBiasGrid(strengths=(4.0,)))
    assert keys(PlateauGrid(muon_lr=1)) == keys(PlateauGrid(muon_lr=1.0))


def test_adamw_alone_is_a_learning_rate_of_muon_too():
    grid = AttentionBiasGrid(strengths=0, muon_lrs=(None, 0.005), seeds=1)
    assert [p.params["muon_lr"] for p in grid.points()] == [None, 0.005]
    assert PlateauGrid(muon_lr=None).cell().train_config(0).muon_lr is None


@pytest.mark.parametrize("size", [4, 9])
def test_every_s_follows_a_changed_state_size(size):
    grid = SPARSITY.block("quick", state_size=size)
    assert [p.params["row_weight"] for p in grid.points()] == list(range(1, size + 1))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_takes_another_state_size_alone(profile):
    grid = SPARSITY.block(profile, state_size=2)
    assert {p.params["row_weight"] for p in grid.points()} == {1, 2}


def test_a_block_keeps_what_is_not_changed():
    grid = ATTENTION_BIAS.block("quick", strengths=[2])
    assert {p.params["attention_bias"] for p in grid.points()} == {2.0}
    assert {p.params["steps"] for p in grid.points()} == {1_000}
    assert {p.seed for p in grid.points()} == {0, 1}


# --- runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", LINEAR_MAP, ids=lambda e: e.name)
def test_the_smoke_profile_runs_and_every_row_has_the_schema_s_columns(experiment, smoke):
    for point, row in zip(*smoke[experiment.name], strict=True):
        experiment.check_row(row)
        assert json.loads(json.dumps(row, allow_nan=False)) == row  # as the store keeps it
        params = point.params
        assert len(row["eval_steps"]) == len(row["eval_loss"])
        assert row["eval_steps"][0] == 0
        assert row["eval_steps"][-1] == row["stopped_at"] <= params["steps"]
        assert row["final_loss"] == pytest.approx(row["eval_loss"][-1], abs=1e-5)
        assert len(row["row_accuracy"]) == params["state_size"]
        assert all(0 <= accuracy <= 1 for accuracy in row["row_accuracy"])
        assert row["solved"] or row["stopped_at"] == params["steps"]
    with pytest.raises(ParameterError, match="row of"):
        experiment.check_row(row | {"extra": 1})
    with pytest.raises(ParameterError, match="row of"):
        experiment.check_row({name: row[name] for name in list(row)[1:]})


@pytest.mark.parametrize("experiment", LINEAR_MAP, ids=lambda e: e.name)
def test_judges_take_the_smoke_rows_without_complaint(experiment, smoke):
    points, rows = smoke[experiment.name]
    for judge in experiment.judges.values():
        verdict = judge(table(rows, points))
        assert verdict.status == "not tested here"  # fifty steps show nothing
        assert "nan" not in verdict.evidence


@pytest.mark.parametrize("experiment", FINDINGS, ids=lambda e: e.name)
def test_the_same_seed_gives_the_same_row_and_another_seed_another(experiment, smoke):
    points, rows = smoke[experiment.name]
    assert experiment.run(points[-1], "cpu") == rows[-1]
    other = experiment.run(replace(points[-1], seed=7), "cpu")
    assert other["eval_loss"] != rows[-1]["eval_loss"]


def test_the_plateau_s_tables_agree_with_its_loss(smoke):
    """The total loss is that of S-1 coin tosses inside x0, and of the rows: all from one pass."""
    points, rows = smoke["plateau"]
    row = table(rows, points).iloc[0]
    losses = row_losses(row)
    assert losses.shape == (len(row.eval_steps), 4)
    # Of 2S-1 = 7 predictions 4 are rows; the first three lie near ln 2 each once warmed up.
    rest = 7 * row.eval_loss[-1] - losses.iloc[-1].sum()
    assert rest == pytest.approx(3 * math.log(2), abs=0.15)
    entropy, alignment = head_table(row, "row_entropy"), head_table(row, "row_alignment")
    assert entropy.shape == alignment.shape == (len(row.eval_steps), 8 * 4)
    for output in range(4):  # the query of output i sees S + i keys
        at_query = entropy.xs(output, axis=1, level="row")
        assert (at_query.to_numpy() <= math.log(4 + output) + 1e-3).all()
    assert ((alignment >= 0) & (alignment <= 1)).all(axis=None)


def test_a_solved_cell_says_so_and_its_loss_is_at_the_floor():
    cell = LinearMapCell(
        state_size=3, row_weight=1, d_model=32, n_heads=4, steps=2_000, eval_every=25
    )
    row = ATTENTION_BIAS.run(
        Point("attention_bias", 1, replace(cell, attention_bias=8.0).params(), 0), "cpu"
    )
    assert row["solved"]
    assert row["stopped_at"] < 2_000
    assert row["final_loss"] == pytest.approx(2 / 5 * math.log(2), abs=0.002)
    assert row["row_accuracy"] == [1.0] * 3  # evaluated with the bias that it was trained with
    below = [
        step
        for step, a, b in zip(
            row["eval_steps"], row["eval_loss"], row["eval_loss"][1:], strict=False
        )
        if max(a, b) < plateau_level(cell.task(0))
    ]
    assert row["plateau_end"] == below[0]
    assert solve_event(pd.Series(row)).observed
    assert plateau_event(pd.Series(row)).step == below[0]


def test_half_a_row_is_the_plateau_s_level():
    # S = 16: one row is ln 2 / 31.
    assert plateau_level(LinearMap(16, 3)) == pytest.approx(math.log(2) * (1 - 0.5 / 31))


def test_events_are_censored_where_nothing_was_seen():
    row = pd.Series({"plateau_end": None, "stopped_at": 10_000, "solved": False})
    for event in (plateau_event(row), solve_event(row)):
        assert (event.step, event.observed) == (10_000, False)
    assert not plateau_event(pd.Series(dict(row) | {"plateau_end": math.nan})).observed
    seen = pd.Series({"plateau_end": 300, "stopped_at": 900, "solved": True})
    assert (plateau_event(seen).step, solve_event(seen).step) == (300, 900)


def test_the_search_s_table_has_a_line_a_recipe_best_first(smoke):
    points, rows = smoke["linear_map_search"]
    frame = table(rows, points).assign(seconds=2.0)
    found = search_table(pd.concat([frame, frame.assign(seed=1, seconds=4.0)]))
    assert len(found) == len(RECIPES)
    assert (found.n == 2).all()
    assert (found.seconds == 3).all()
    assert found.final_loss.is_monotonic_increasing
    adamw = [recipe for recipe in RECIPES if recipe.get("muon_lr", 0.005) is None]
    assert (found.optimizer == "AdamW").sum() == len(adamw)
    assert set(found.rate[found.optimizer == "AdamW"]) == {r["lr"] for r in adamw}
    assert set(found.rate[found.optimizer == "Muon"]) == {0.0025, 0.005, 0.01, 0.02}
    learned = [sum(a > 0.9 for a in row["row_accuracy"]) for row in rows]
    assert found.rows_learned.sum() == pytest.approx(sum(learned))
