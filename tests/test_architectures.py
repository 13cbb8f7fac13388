"""Mixers at matched parameters: sizes, runs, and judges on rows made by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pandas as pd
import pytest
import torch

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.architectures import (
    ARCHITECTURES,
    CHOSEN,
    RATES,
    ArchitecturesGrid,
    MixerCell,
)
from emergence_lib.experiments.architectures_evidence import (
    RECURRENT,
    against_attention,
    best_rates,
    curves,
    excess,
    excess_groups,
    final_loss_groups,
    final_runs,
    judge_mixer_and_attention,
    judge_recurrent_mixers,
    mixer_table,
    paper_final_losses,
    rates_sentence,
    search_table,
    wait,
)
from emergence_lib.experiments.matched_mixers import matched_config, n_parameters
from emergence_lib.models import ModelConfig
from emergence_lib.models.mixers import MIXERS

torch.set_num_threads(1)


# --- matching ---------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["quick", "cpu", "paper"])
def test_all_mixers_of_a_cell_have_nearly_the_same_number_of_parameters(profile):
    totals: dict[tuple, set[int]] = {}
    for point in ARCHITECTURES.points(profile):
        cell = MixerCell.of(point)
        key = tuple(point.params.get(name) for name in ("task", "state_size", "n_rules"))
        totals.setdefault(key, set()).add(n_parameters(cell.model_config()))
        assert set(cell.model_config().mixers) == {point.params["mixer"]}
    for found in totals.values():
        assert max(found) <= 1.02 * min(found)


@pytest.mark.parametrize("mixer", MIXERS)
def test_no_other_width_of_the_mlp_comes_closer(mixer):
    config = ModelConfig(n_layers=2, d_model=32, n_heads=2, vocab_size=3, max_pos=7)
    matched = matched_config(config, mixer)
    wanted = n_parameters(config)
    distance = [
        abs(n_parameters(replace(matched, d_mlp=matched.d_mlp + more)) - wanted)
        for more in (-1, 0, 1)
    ]
    assert distance[1] == min(distance)
    assert (matched == config) == (mixer == "attention")


def test_a_long_mixer_gets_fewer_matrices_and_at_last_does_not_fit():
    config = ModelConfig(n_layers=1, d_model=16, n_heads=4, vocab_size=3, max_pos=20)
    assert matched_config(config, "mlp_mixer").n_heads == 4
    longer = matched_config(replace(config, max_pos=30), "mlp_mixer")
    assert (longer.n_heads, longer.d_head) == (2, 8)
    assert longer.d_mlp >= 16
    with pytest.raises(ParameterError, match="fewer parameters than attention"):
        matched_config(replace(config, max_pos=100), "mlp_mixer")


# --- grid and run -----------------------------------------------------------------------------


def test_every_mixer_is_searched_at_every_rate_and_judged_on_other_seeds():
    points = ARCHITECTURES.points("cpu")
    for task, rates in RATES.items():
        found = {
            (p.params["mixer"], p.params["lr"], p.params["muon_lr"])
            for p in points
            if p.params["task"] == task and p.seed == 0
        }
        assert found == {(mixer, *rate) for mixer in MIXERS for rate in rates}
        final = [p for p in points if p.params["task"] == task and p.seed > 0]
        for mixer in MIXERS:
            of_mixer = [p for p in final if p.params["mixer"] == mixer]
            assert len({p.seed for p in of_mixer}) >= 3
            rate = {(p.params["lr"], p.params["muon_lr"]) for p in of_mixer}
            assert rate == {CHOSEN[task][mixer]} <= set(rates)


@pytest.mark.parametrize("task", RATES)
def test_a_run_leaves_the_row_that_the_schema_says(task):
    grid = ArchitecturesGrid(
        task, mixers=("linear_rnn",), seeds=1, state_size=4, steps=5, d_model=16
    )
    (point,) = grid.points()
    row = ARCHITECTURES.run(point, "cpu")
    ARCHITECTURES.check_row(row)
    assert row == ARCHITECTURES.run(point, "cpu")
    assert row["eval_steps"][-1] == row["stopped_at"] == 5
    assert row["final_loss"] == pytest.approx(row["eval_loss"][-1], abs=1e-5)
    cell = MixerCell.of(point)
    assert cell.cell.task(1).floor <= row["attainable"] < row["final_loss"]
    assert row["mlp_units"] == cell.model_config().d_mlp


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"task": "linear"}, UnknownNameError, "Did you mean 'linear_map'"),
        ({"shape": "smal"}, UnknownNameError, "Did you mean 'small'"),
        ({"mixers": ("mambo",)}, UnknownNameError, "Did you mean 'mamba'"),
        ({"mixers": ()}, ParameterError, "at least one mixer"),
        ({"seeds": 0}, ParameterError, "seeds=0"),
        ({"row_weight": 9}, ParameterError, "at most state_size=8"),
        ({"mixers": ["mamba"], "d_model": 16}, ParameterError, "fewer parameters"),
    ],
)
def test_impossible_parameters_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        ARCHITECTURES.block("quick", **changes)


def test_one_mixer_may_be_given_by_name():
    assert ArchitecturesGrid(mixers="mamba").mixers == ("mamba",)


# --- evidence ---------------------------------------------------------------------------------

FLOOR, PLATEAU, STEPS = 0.3, 0.7, 1_000


def row(mixer, seed, learned_at, *, task="linear_map", lr=1e-3, muon_lr=0.005, row_weight=3):
    """A run on the plateau until `learned_at`, at the floor after it (None: never)."""
    steps = list(range(0, STEPS + 1, 100))
    loss = [PLATEAU if learned_at is None or s < learned_at else FLOOR for s in steps]
    solved = learned_at is not None and task == "linear_map"
    if solved:
        steps = steps[: steps.index(learned_at) + 2]
        loss = loss[: len(steps)]
    return {
        "task": task, "mixer": mixer, "seed": seed, "lr": lr, "muon_lr": muon_lr,
        "row_weight": row_weight if task == "linear_map" else math.nan, "state_size": 8,
        "n_rules": math.nan if task == "linear_map" else 8,
        "colours": math.nan if task == "linear_map" else 2,
        "steps": STEPS, "eval_steps": steps, "eval_loss": loss, "stopped_at": steps[-1],
        "solved": solved, "final_loss": loss[-1], "attainable": FLOOR, "parameters": 100,
    }  # fmt: skip


def finals(times, task="linear_map", seeds=(1, 2, 3)):
    """Rows in which each mixer learns at its time; a hundred steps later on the last seed."""
    late = {seed: 100 * (seed == seeds[-1]) for seed in seeds}
    return [
        row(
            mixer, seed, None if at is None else at + late[seed] * (mixer != "attention"), task=task
        )
        for mixer, at in times.items()
        for seed in seeds
    ]


def test_excess_is_the_mean_height_above_the_attainable_loss():
    run = pd.Series(row("mamba", 1, None))
    assert excess(run) == pytest.approx(PLATEAU - FLOOR)
    run["eval_loss"] = [PLATEAU - (PLATEAU - FLOOR) * s / STEPS for s in run.eval_steps]
    assert excess(run) == pytest.approx((PLATEAU - FLOOR) / 2)
    stopped = pd.Series(row("mamba", 1, 400))  # 300 steps up, 100 down, then held at the floor
    assert stopped.eval_steps[-1] == 500
    assert excess(stopped) == pytest.approx((PLATEAU - FLOOR) * 0.35)


def test_the_search_table_names_the_best_rate():
    rows = pd.DataFrame(
        [
            row("mamba", 0, 600, muon_lr=None, lr=3e-3),
            row("mamba", 0, 400, muon_lr=0.02),
            row("rwkv", 0, 300, muon_lr=None, lr=3e-3),
            row("rwkv", 0, None, muon_lr=0.02),
            row("rwkv", 1, 100, muon_lr=0.02),
        ]
    )
    assert best_rates(rows, "linear_map") == {"mamba": (1e-3, 0.02), "rwkv": (3e-3, None)}
    table = search_table(rows, "linear_map")
    assert table.loc["Mamba", "best"] == "Muon 0.02, AdamW 0.001"
    assert table.loc["RWKV", "best"] == "AdamW 0.003"
    assert table.loc["RWKV", "Muon 0.02, AdamW 0.001"] == pytest.approx(PLATEAU - FLOOR)
    assert "RWKV (Muon 0.02, AdamW 0.001, search: AdamW 0.003)" in rates_sentence(
        rows, "linear_map"
    )
    assert rates_sentence(rows.drop(3), "linear_map").startswith(
        "Run on the linear map at another rate"
    )
    assert "not recorded" in rates_sentence(rows, "cellular_automata")
    rows.loc[4, ["lr", "muon_lr"]] = [3e-3, math.nan]
    assert rates_sentence(rows, "linear_map").startswith("Every final run on the linear map has")
    assert search_table(rows, "cellular_automata").empty


def test_the_difference_is_paired_by_seed_and_the_table_sorted():
    rows = pd.DataFrame(finals({"attention": 400, "mlp_mixer": 200, "mamba": None}))
    final = final_runs(rows, "linear_map")
    unit = (PLATEAU - FLOOR) / 10  # a hundred steps on the plateau
    assert against_attention(final, "mlp_mixer").value == pytest.approx(-(2 - 1 / 3) * unit)
    table = mixer_table(final).set_index("mixer")
    assert list(table.index) == ["MLP-Mixer", "attention", "Mamba"]
    assert table["got there"].tolist() == ["3 of 3", "3 of 3", "0 of 3"]
    assert table.loc["Mamba", "after steps"] == "> 1,000"
    assert table.loc["attention", "after steps"] == "500"
    assert [len(of) for of in curves(final).values()] == [3, 3, 3]
    assert list(curves(final)) == ["attention", "MLP-Mixer", "Mamba"]
    groups = excess_groups(rows)
    assert list(groups) == ["linear map"]
    names, means, runs = groups["linear map"]
    assert means[0].value == pytest.approx(3.5 * unit)
    assert math.isnan(means[names.index("RWKV")].value)
    assert runs[names.index("RWKV")] == []
    assert mixer_table(final_runs(rows, "cellular_automata")).empty


def automata(times):
    return finals(times, task="cellular_automata")


def test_on_automata_a_run_gets_there_half_way_from_a_guess_to_the_bayes_predictor():
    rows = pd.DataFrame(automata({"attention": 400, "rwkv": None}))
    table = mixer_table(final_runs(rows, "cellular_automata")).set_index("mixer")
    assert table["got there"].to_dict() == {"attention": "3 of 3", "RWKV": "0 of 3"}
    assert table.loc["attention", "after steps"] == "400"
    half_way = (math.log(2) + FLOOR) / 2
    for loss, there in ((half_way - 1e-3, True), (half_way + 1e-3, False)):
        run = pd.Series(row("rwkv", 1, None, task="cellular_automata"))
        run["eval_loss"] = [loss] * len(run.eval_steps)
        assert wait(run).observed == there


def test_final_losses_of_two_mixers_stand_beside_the_papers():
    rows = finals({"attention": 600, "mlp_mixer": 100, "rwkv": 100})
    rows += [r | {"row_weight": 5} for r in finals({"attention": None, "mlp_mixer": 600})]
    names, means, runs = final_loss_groups(pd.DataFrame(rows))["linear map"]
    assert names == ["MLP-Mixer, s = 3", "attention, s = 3", "MLP-Mixer, s = 5", "attention, s = 5"]
    assert [mean.value for mean in means] == pytest.approx([0, 0, 0, PLATEAU - FLOOR])
    assert [len(of) for of in runs] == [3] * 4
    paper = paper_final_losses()
    assert set(names) <= set(paper)
    assert paper["attention, s = 5"] == pytest.approx(0.595 - 15 / 31 * math.log(2))
    assert final_loss_groups(pd.DataFrame(rows).assign(seed=0)) == {}


def test_a14_names_the_denser_map_beside_the_one_that_is_judged():
    rows = finals({"attention": 600, "mlp_mixer": 100})
    rows += [r | {"row_weight": 5} for r in finals({"attention": 100, "mlp_mixer": 600})]
    verdict = judge_mixer_and_attention(pd.DataFrame(rows))
    assert (verdict.status, verdict.n) == ("partly", 12)
    assert re.search(r"; on the map with s = 5: \+0\.\d\d\d \[\+", verdict.evidence)


@pytest.mark.parametrize(
    ("linear", "cellular", "status"),
    [
        ((600, 100), (300, 600), "reproduced"),
        ((600, 100), (600, 300), "partly"),
        ((300, 600), (300, 600), "partly"),
        ((300, 600), (600, 300), "not reproduced"),
    ],
)
def test_a14_needs_both_halves(linear, cellular, status):
    both = ("attention", "mlp_mixer")
    rows = pd.DataFrame(
        finals(dict(zip(both, linear, strict=True)))
        + automata(dict(zip(both, cellular, strict=True)))
    )
    verdict = judge_mixer_and_attention(rows)
    assert (verdict.status, verdict.n) == (status, 12)
    assert "nan" not in verdict.evidence
    assert "ratio of mean times" in verdict.evidence


def test_a14_without_automata_is_partly_at_best_and_without_seeds_nothing():
    rows = pd.DataFrame(finals({"attention": 600, "mlp_mixer": 100}))
    verdict = judge_mixer_and_attention(rows)
    assert verdict.status == "partly"
    assert "cellular automata are not recorded" in verdict.evidence
    assert judge_mixer_and_attention(rows[rows.seed < 3]).status == "not tested here"
    assert judge_mixer_and_attention(rows.assign(seed=0)).status == "not tested here"


@pytest.mark.parametrize(
    ("few", "many", "status"),
    [((600, 300), (300, 600), "reproduced"), ((300, 600), (600, 300), "partly")],
)
def test_a14_is_decided_by_the_automata_with_most_rules(few, many, status):
    both = ("attention", "mlp_mixer")
    rows = finals({"attention": 600, "mlp_mixer": 100})
    rows += automata(dict(zip(both, few, strict=True)))
    rows += [r | {"n_rules": 64} for r in automata(dict(zip(both, many, strict=True)))]
    verdict = judge_mixer_and_attention(pd.DataFrame(rows))
    assert (verdict.status, verdict.n) == (status, 18)
    assert "with 8 rules" in verdict.evidence
    assert "with 64 rules" in verdict.evidence


def test_a15_counts_comparisons():
    slow = dict.fromkeys(RECURRENT, 800)
    both = finals({"attention": 300, **slow}) + automata({"attention": 300, **slow})
    verdict = judge_recurrent_mixers(pd.DataFrame(both))
    assert (verdict.status, verdict.n) == ("reproduced", 36)
    assert "Of 10 comparisons 10 are worse" in verdict.evidence
    one = judge_recurrent_mixers(pd.DataFrame(finals({"attention": 300, **slow})))
    assert one.status == "partly"
    assert "Only one of the two tasks" in one.evidence
    mixed = slow | {"rwkv": 100}
    rows = finals({"attention": 300, **mixed}) + automata({"attention": 300, **slow})
    assert judge_recurrent_mixers(pd.DataFrame(rows)).status == "partly"
    fast = finals({"attention": 800, **dict.fromkeys(RECURRENT, 200)})
    assert judge_recurrent_mixers(pd.DataFrame(fast)).status == "not reproduced"
    two = finals({"attention": 300, "mamba": 800, "rwkv": 800})
    assert judge_recurrent_mixers(pd.DataFrame(two)).status == "not tested here"


def test_the_sparsest_map_is_the_one_that_is_judged():
    rows = finals({"attention": 600, "mlp_mixer": 100})
    denser = [r | {"row_weight": 5} for r in finals({"attention": 100, "mlp_mixer": 600})]
    final = final_runs(pd.DataFrame(rows + denser), "linear_map")
    assert set(final.row_weight) == {3}


def test_the_recorded_points_keep_their_keys():
    """A changed key orphans every recorded point; see test_experiments."""
    assert ARCHITECTURES.points("cpu")[0].key == "474859d19927b3ae"
