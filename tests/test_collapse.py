"""Collapse: a recorded row against an independent computation, and judges on made-up runs."""

import json
import math
import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

from emergence_lib import plotting
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import collapse_phases as found
from emergence_lib.experiments.base import Point
from emergence_lib.experiments.collapse import COLLAPSE, CollapseGrid
from emergence_lib.experiments.collapse_cell import (
    CollapseCell,
    acquired,
    cases,
    curve,
    multi_task,
    rank_curve,
    run_collapse,
)
from emergence_lib.experiments.collapse_evidence import (
    judge_nearly_all_acquired,
    judge_sizes_agree,
    judge_task_specific_floors,
    judge_three_phases,
    rank_correlation,
    shuffled_sentence,
    size_agreement,
    variance_shares,
)
from emergence_lib.models import Transformer
from emergence_lib.models.shapes import ALGORITHMIC_SIZES, algorithmic_config
from emergence_lib.recorded import recorded_if_any
from emergence_lib.store import Store
from emergence_lib.tasks import MultiTask
from emergence_lib.training.train import step_generator

torch.set_num_threads(1)

LEVELS = [part.label for part in MultiTask().parts]
STEPS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


# --- sizes ------------------------------------------------------------------------------------


def test_the_sizes_have_the_parameters_that_the_table_says():
    table = sys.modules["emergence_lib.models.shapes"].__doc__
    for size in ALGORITHMIC_SIZES:
        with torch.device("meta"):  # 151M weights need not be drawn to be counted
            model = Transformer(algorithmic_config(size, 21))
        n = sum(p.numel() for p in model.parameters())
        line = next(line for line in table.splitlines() if line.split()[:1] == [size])
        assert line.split()[-1] == f"{n:,}"
        assert model.config.vocab_size + model.config.max_pos == 64
    with pytest.raises(UnknownNameError, match=r"size '3m'"):
        algorithmic_config("3m", 21)


# --- a row ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smoke():
    (point,) = COLLAPSE.points("smoke")
    return point, run_collapse(point, "cpu")


def test_the_smoke_profile_leaves_a_row_of_the_schema(smoke):
    point, row = smoke
    COLLAPSE.check_row(row)
    assert json.loads(json.dumps(row, allow_nan=False)) == row  # as the store keeps it
    assert row["task_levels"] == ["MOD 1", "MOD 2", "MOD 3"]
    assert row["checkpoints"][0] == 0
    assert row["checkpoints"][-1] == point.params["steps"]
    assert row["n_params"] == 404_992
    n = len(row["checkpoints"])
    assert np.shape(row["accuracy"]) == np.shape(row["loss"]) == (3, n)
    assert np.shape(row["rankme"]) == np.shape(row["rankme_centred"]) == (3, 2, n)
    frame = pd.DataFrame([{**point.params, "seed": point.seed, **row}])
    for judge in COLLAPSE.judges.values():
        assert judge(frame).status == "not tested here"


def test_the_untrained_model_s_numbers_are_those_of_another_computation(smoke):
    """Greedy answers, cross entropy and an SVD in numpy, a sequence at a time."""
    point, row = smoke
    cell = CollapseCell(**point.params)
    task = cell.task()
    model = Transformer(cell.model_config(), step_generator(point.seed, "weights"))
    batch = task.balanced(cell.samples, step_generator(point.seed, "eval"))
    for g, part in enumerate(task.parts):
        vectors, hits, losses = [], [], []
        for tokens in batch.tokens[batch.labels["task_level"] == g]:
            prompt, answer = tokens[: part.prompt_end + 1], tokens[part.prompt_end + 1 :]
            said, hit = prompt, True
            for true in answer[: part.answer_tokens]:
                tap = {"resid.2": None}
                with torch.no_grad():
                    logits = model(said[None], tap=tap)[0, -1]
                if len(said) == len(prompt):
                    vectors.append(tap["resid.2"][0, -1].numpy())
                losses.append(-logits.log_softmax(-1)[true].item())
                hit = hit and bool(logits.argmax() == true)
                said = torch.cat([said, true[None]])
            hits.append(hit)
        singular = np.linalg.svd(np.stack(vectors).astype(np.float64), compute_uv=False)
        shares = singular / singular.sum() + 1e-7
        expected = math.exp(-(shares * np.log(shares)).sum())
        assert row["rankme"][g][1][0] == pytest.approx(expected, abs=1e-3)
        assert row["accuracy"][g][0] == pytest.approx(np.mean(hits), abs=1e-4)
        assert row["loss"][g][0] == pytest.approx(np.mean(losses), abs=1e-4)


def test_the_same_seed_gives_the_same_row_and_another_seed_another(smoke):
    point, row = smoke
    assert run_collapse(point, "cpu") == row
    assert run_collapse(replace(point, seed=1), "cpu")["rankme"] != row["rankme"]


# --- grids ------------------------------------------------------------------------------------


def test_profiles_hold_what_the_issue_asks_for():
    seeds: dict[tuple, int] = {}
    for point in COLLAPSE.points("cpu"):
        p = point.params
        kind = (p["size"], p["tasks"], p["shuffled"], p["muon_lr"] is None)
        seeds[kind] = seeds.get(kind, 0) + 1
    for size, n in (("405k", 5), ("1m", 3), ("3.2m", 2), ("10.6m", 1)):
        assert seeds[size, "all", False, False] == n
    assert seeds["405k", "all", True, False] == seeds["405k", "all", False, True] == 2
    assert sum(n for (_, tasks, *_), n in seeds.items() if tasks != "all") == 8
    assert [p.seed for p in COLLAPSE.points("cpu")[:5]] == [0, 1, 2, 3, 4]
    assert {p.params["size"] for p in COLLAPSE.points("paper")} == set(ALGORITHMIC_SIZES)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seeds": 0}, ParameterError, "seeds=0"),
        ({"sizes": "4k"}, UnknownNameError, "size '4k'"),
        ({"tasks": "copy+sotr"}, UnknownNameError, "'sotr'. Did you mean 'sort'"),
        ({"tasks": "copy+copy"}, ParameterError, "each once"),
        ({"steps": 0}, ParameterError, "steps=0"),
        ({"samples": 1}, ParameterError, "samples=1"),
        ({"muon_lr": "fast"}, ParameterError, "muon_lr='fast'"),
    ],
)
def test_impossible_parameters_say_what_is_allowed(changes, error, message):
    with pytest.raises(error, match=message.replace(".", r"\.")):
        COLLAPSE.block("quick", **changes)


def test_one_name_and_a_list_of_it_are_the_same_points():
    one, listed = CollapseGrid(sizes="1m", tasks="mod"), CollapseGrid(sizes=["1m"], tasks=["mod"])
    assert [p.key for p in one.points()] == [p.key for p in listed.points()]


# --- made-up runs -----------------------------------------------------------------------------


def made_up(
    size="405k", seed=0, *, floors=None, acquired_at=None, recovers=True, collapses=True, **params
):
    """A run whose curves are known: rank 10, the floor at step 8, back to 10 at step 64."""
    floors = floors or {level: 2 + i / 10 for i, level in enumerate(LEVELS)}
    times = acquired_at or {level: 128 * 2 ** (i % 4) for i, level in enumerate(LEVELS)}
    rank, accuracy = [], []
    for level in LEVELS:
        low = floors[level] if collapses else 9.5
        after = 10.0 if recovers else low
        xs = [0, 2, 8, 64, STEPS[-1]]
        rank.append(np.interp(STEPS, xs, [10, 10, low, after, after]).tolist())
        accuracy.append([0.97 if step >= times[level] else 0.5 for step in STEPS])
    cell = replace(CollapseCell(size=size), **params)
    return {
        **cell.params(),
        "seed": seed,
        "task_levels": LEVELS,
        "checkpoints": STEPS,
        "accuracy": accuracy,
        "loss": accuracy,
        "rankme": [[[1.0] * len(STEPS), r] for r in rank],
        "rankme_centred": [[[1.0] * len(STEPS), [5.0] * len(STEPS)] for _ in rank],
        "n_params": 404_992,
    }


def frame(*runs):
    return pd.DataFrame(list(runs))


def sizes(n=3, **changes):
    """`n` runs of each of two sizes."""
    return frame(*(made_up(size, seed, **changes) for size in ("405k", "1m") for seed in range(n)))


def test_a_row_is_read_by_task_level_and_layer():
    row = frame(made_up()).iloc[0]
    rank = rank_curve(row, "COPY 2")
    assert rank.index.tolist() == STEPS
    assert (rank[0], rank[8], rank[4096]) == (10, pytest.approx(2.1), 10)
    assert (rank_curve(row, "COPY 2", layer=1) == 1).all()
    assert (rank_curve(row, "COPY 2", centred=True) == 5).all()
    assert curve(row, "accuracy", "COPY 2")[256] == 0.97
    assert acquired(row, "COPY 2").step == 256
    assert cases(row)["COPY 3"].acquired.step == 512
    with pytest.raises(UnknownNameError, match="task-level"):
        curve(row, "accuracy", "COPY 4")
    with pytest.raises(ParameterError, match="layer=3"):
        rank_curve(row, "COPY 2", layer=3)


def test_acquisition_above_chance_and_by_the_paper_s_half():
    row = made_up()
    row["accuracy"][LEVELS.index("CMP 1")] = [0.6] * len(STEPS)  # chance is 0.5
    row = pd.Series(row)
    assert not acquired(row, "CMP 1").observed
    assert acquired(row, "CMP 1", corrected=False).step == 0


def test_the_phase_table_of_known_curves():
    table = found.phase_table(frame(made_up())).set_index("task_level")
    line = table.loc["REV 1"]  # the fourth: floor 2.3, acquired at 1024
    assert (line.untrained, line.peak, line.floor) == (10, 10, pytest.approx(2.3))
    assert (line.floor_step, line.acquired) == (8, 1024)
    assert line.recovered == 64  # half-way up lies between 32 (5.6) and 64 (10)
    assert line.depth == pytest.approx(0.77)
    assert line.collapsed
    assert line.in_order
    early = made_up(acquired_at=dict.fromkeys(LEVELS, 16))
    assert not found.phase_table(frame(early)).in_order.any()


def test_three_phases_are_reproduced_partly_or_not():
    verdict = judge_three_phases(sizes())
    assert verdict.status == "reproduced"
    assert verdict.n == 6
    assert "100% [100%, 100%] of the task-levels of a run (centred rank: 0%" in verdict.evidence
    one_size = frame(*(made_up(seed=seed) for seed in range(3)))
    assert judge_three_phases(one_size).status == "partly"
    some_early = {level: 16 if i % 4 == 0 else 512 for i, level in enumerate(LEVELS)}
    assert judge_three_phases(sizes(acquired_at=some_early)).status == "partly"
    most_early = {level: 512 if i % 4 == 0 else 16 for i, level in enumerate(LEVELS)}
    assert judge_three_phases(sizes(acquired_at=most_early)).status == "not reproduced"
    assert judge_three_phases(sizes(collapses=False)).status == "not reproduced"
    assert judge_three_phases(sizes(recovers=False)).status == "not reproduced"
    never = dict.fromkeys(LEVELS, 10**6)
    nothing = judge_three_phases(sizes(acquired_at=never))
    assert nothing.status == "not reproduced"
    assert "nan" not in nothing.evidence
    assert judge_three_phases(frame(made_up(), made_up(seed=1))).status == "not tested here"


def test_controls_do_not_count_as_runs_but_are_told():
    rows = frame(*(made_up(seed=s, shuffled=True) for s in range(3)), made_up(muon_lr=None))
    assert multi_task(rows).empty
    assert judge_three_phases(rows).status == "not tested here"
    assert "100% of the task-levels collapse" in shuffled_sentence(rows)
    assert "not recorded" in shuffled_sentence(rows[~rows.shuffled])


def test_variance_is_split_between_the_margins():
    tasks, widths = np.array([1.0, 2.0, 4.0])[:, None], np.array([0.0, 1.0])[None]
    assert variance_shares(tasks + 0 * widths) == pytest.approx((1, 0))
    assert variance_shares(0 * tasks + widths) == pytest.approx((0, 1))
    by_task, by_size = variance_shares(tasks + widths)
    assert by_task + by_size == pytest.approx(1)
    assert by_task / by_size == pytest.approx(np.var(tasks) / np.var(widths))


def test_rank_correlations_are_scipy_s():
    a, b = np.random.default_rng(0).integers(0, 9, (2, 24))
    expected = spearmanr(a, b).statistic
    value, low, high = rank_correlation(a, b)
    assert value == pytest.approx(expected)
    assert low < expected < high
    assert rank_correlation(a, a) == pytest.approx((1, 1, 1))
    assert np.isnan(rank_correlation(a, np.ones(24))).all()


def test_floors_follow_the_task_or_the_size():
    assert judge_task_specific_floors(sizes()).status == "reproduced"
    by_size = {"405k": dict.fromkeys(LEVELS, 2.0), "1m": dict.fromkeys(LEVELS, 6.0)}
    for floors in by_size.values():
        floors["COPY 1"] *= 1.1
    rows = frame(
        *(made_up(size, seed, floors=by_size[size]) for size in by_size for seed in range(2))
    )
    verdict = judge_task_specific_floors(rows)
    assert verdict.status == "not reproduced"
    assert "MOD 405k 2.0, 1m 6.0" in verdict.evidence
    mixed = {
        "405k": {level: 2 * math.exp(i / 24) for i, level in enumerate(LEVELS)},
        "1m": {level: 2 * math.exp(i / 24 + 0.55) for i, level in enumerate(LEVELS)},
    }
    rows = frame(*(made_up(size, seed, floors=mixed[size]) for size in mixed for seed in range(2)))
    assert judge_task_specific_floors(rows).status == "partly"
    one_size = frame(*(made_up(seed=seed) for seed in range(3)))
    assert judge_task_specific_floors(one_size).status == "not tested here"


def test_sizes_agree_in_both_in_one_or_in_none():
    agreeing = judge_sizes_agree(sizes())
    assert agreeing.status == "reproduced"
    assert "405k and 1m 1.00 [1.00, 1.00]" in agreeing.evidence
    backwards = {level: 2 + (23 - i) / 10 for i, level in enumerate(LEVELS)}
    late_first = {level: 128 * 2 ** (3 - i % 4) for i, level in enumerate(LEVELS)}
    small = [made_up("405k", seed) for seed in range(2)]
    rows = frame(*small, *(made_up("1m", seed, floors=backwards) for seed in range(2)))
    assert judge_sizes_agree(rows).status == "partly"
    table = size_agreement(rows).set_index("quantity")
    assert table.loc["floor", "rho"] == pytest.approx(-1)
    assert table.loc["order", "rho"] == pytest.approx(1)
    other = [made_up("1m", s, floors=backwards, acquired_at=late_first) for s in range(2)]
    assert judge_sizes_agree(frame(*small, *other)).status == "not reproduced"
    never = [made_up("1m", s, acquired_at=dict.fromkeys(LEVELS, 10**6)) for s in range(2)]
    unknown = judge_sizes_agree(frame(*small, *never))  # no order to agree with
    assert unknown.status == "partly"
    assert judge_sizes_agree(frame(*small, made_up(seed=2))).status == "not tested here"


def test_nearly_all_or_not_acquired():
    assert judge_nearly_all_acquired(sizes()).status == "reproduced"
    some = {level: 10**6 if i % 3 == 0 else 128 for i, level in enumerate(LEVELS)}
    verdict = judge_nearly_all_acquired(sizes(acquired_at=some))
    assert verdict.status == "not reproduced"
    assert "96 of 144 pairs" in verdict.evidence
    assert "Never acquired: COPY 1, REV 1, CMP 1, PAR 1, ADD 1, MOD 1, SORT 1" in verdict.evidence
    few = {level: 10**6 if i < 6 else 128 for i, level in enumerate(LEVELS)}
    mixed = frame(*(made_up(seed=s) for s in range(2)), made_up(seed=2, acquired_at=few))
    assert judge_nearly_all_acquired(mixed).status == "partly"
    assert judge_nearly_all_acquired(frame(made_up())).status == "not tested here"


# --- figures and pages ------------------------------------------------------------------------


def draw(rows):
    main = multi_task(rows)
    return [
        plotting.three_phases(found.phase_panels(main, LEVELS[:5])),
        plotting.floors_by_task(found.floor_table(main), paper={"MOD": 2.0}),
        plotting.agreement_of_sizes(size_agreement(rows), {"floor": "floors"}, bar=0.92),
        plotting.collapse_depths(found.depth_groups(rows)),
    ]


def test_a_page_can_be_drawn_before_anything_is_recorded(tmp_path):
    nothing = recorded_if_any(COLLAPSE, Store(tmp_path))
    assert nothing.rows.empty
    assert nothing.label == "profile cpu, nothing recorded yet"
    assert nothing.gap.startswith(f"{len(COLLAPSE.points('cpu'))} runs of this grid")
    for figure in draw(nothing.rows):
        assert "not recorded yet" in figure.axes[0].get_title()
    for judge in COLLAPSE.judges.values():
        assert judge(nothing.rows).status == "not tested here"


def test_recorded_if_any_is_recorded_where_there_is_something(tmp_path, smoke):
    row = smoke[1]
    store = Store(tmp_path)
    first = COLLAPSE.points("cpu")[0]
    assert isinstance(first, Point)
    date = "2026-11-30T10:00:00+00:00"
    store.write(first, row, {"profile": "cpu", "seconds": 1.0, "date": date})
    assert len(recorded_if_any(COLLAPSE, store).rows) == 1


def test_figures_show_the_numbers_they_are_given():
    rows = pd.concat([sizes(), frame(made_up(shuffled=True), made_up(tasks="mod"))])
    phases, floors, agreement, depths = draw(rows)
    panel = phases.axes[0]
    assert panel.get_title() == "COPY 1 (n = 6)"
    bold = [line.get_ydata().min() for line in panel.lines if line.get_linewidth() > 1]
    assert bold == [pytest.approx(2.0), 5]  # RankMe and its centred twin
    ends = [patch.get_x() + patch.get_width() for patch in panel.patches]
    assert ends == [8, 128]  # floor, acquisition
    drawn = floors.axes[0].lines[0].get_ydata()
    assert drawn == pytest.approx([2 + i / 10 for i in range(24)])
    assert agreement.axes[0].lines[0].get_ydata() == pytest.approx([1])
    labels = [label.get_text() for label in depths.axes[0].get_xticklabels()]
    assert labels == ["all tasks (n = 3)", "shuffled answers (n = 1)", "one task alone (n = 1)"]
