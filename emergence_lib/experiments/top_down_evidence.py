"""What the recorded runs of `collapse` say about the order of the layers (claim B-4).

Paper B (arXiv 2602.15997; fact sheet B3) counts pairs of task and model whose collapse runs from
the output down: 32 of 32 in v1, 28 of 32 in v3. Its criterion is not known to us. Ours compares the
last layer with the first, in models of four layers or more: which loses more of its rank, and which
is half-way down sooner. Layers of one run share a schedule of checkpoints, so ties are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from emergence_lib.analysis.precursor import Rule, phases
from emergence_lib.analysis.survival import mean_interval, solve_rate
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.collapse_cell import multi_task, rank_curve
from emergence_lib.experiments.collapse_evidence import MIN_RUNS, per_run
from emergence_lib.experiments.collapse_phases import sizes_in
from emergence_lib.experiments.evidence import with_interval

HALF_WAY = Rule(onset=0.5)
"""The time of a layer's collapse is the checkpoint at which half the way down is done."""

MIN_LAYERS = 4
"""Fewer have no order to speak of."""

FIRST = ("last layer", "together", "first layer")
"""Which of the two ends of the model is half-way down first."""


def deep_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs on all tasks of models with at least `MIN_LAYERS` layers."""
    runs = multi_task(rows)
    return runs[np.array([len(ranks[0]) >= MIN_LAYERS for ranks in runs.rankme], dtype=bool)]


def layer_table(rows: pd.DataFrame, centred: bool = False) -> pd.DataFrame:
    """One line a run, task-level and layer: how deep its rank falls, and when.

    Args:
        rows: recorded runs of any kind.
        centred: take the centred rank instead of the paper's.

    Returns:
        Columns size, seed, task_level, layer (from 1), top (that of the last layer), depth (share
        of the peak lost), half_way (step; infinite without a collapse), relative (depth minus the
        mean depth over the layers of this run and task-level).
    """
    lines = []
    for _, row in rows.iterrows():
        top = len(row["rankme"][0])
        for level in row["task_levels"]:
            found = [
                phases(rank_curve(row, level, layer, centred), HALF_WAY)
                for layer in range(1, top + 1)
            ]
            mean = np.mean([one.depth for one in found])
            for layer, one in enumerate(found, 1):
                step = one.onset.step if one.collapsed else np.inf
                run = (row["size"], row["seed"], level)
                lines.append((*run, layer, top, one.depth, step, one.depth - mean))
    columns = ["size", "seed", "task_level", "layer", "top", "depth", "half_way", "relative"]
    numbers = dict.fromkeys(["depth", "half_way", "relative"], float)
    return pd.DataFrame(lines, columns=columns).astype(numbers)


def top_down_table(rows: pd.DataFrame, centred: bool = False) -> pd.DataFrame:
    """The last layer beside the first, one line a run and task-level with a collapse in either.

    A layer that does not collapse is later than one that does.

    Returns:
        Columns size, seed, task_level, deeper (the last layer loses the larger share), first (one
        of `FIRST`), sooner (``first == "last layer"``), top_down (deeper and sooner).
    """
    table = layer_table(rows, centred)
    key = ["size", "seed", "task_level"]
    first = table[table.layer == 1].set_index(key)
    last = table[table.layer == table.top].set_index(key)
    gap = (last.half_way > first.half_way).astype(int) - (last.half_way < first.half_way)
    found = pd.DataFrame(
        {
            "deeper": last.depth > first.depth,
            "first": [FIRST[int(g) + 1] for g in gap],
            "sooner": gap < 0,
        },
        index=first.index,
    )
    found["top_down"] = found.deeper & found.sooner
    either = np.isfinite(first.half_way) | np.isfinite(last.half_way)
    return found[either].reset_index()


def layer_means(rows: pd.DataFrame, centred: bool = False) -> pd.DataFrame:
    """Depth and time of the collapse by layer and size, as the figure shows them.

    Each run gives its mean over task-levels (median for the step, over those that collapse); the
    interval is over runs.

    Returns:
        Columns size, layer, n (runs), quantity ("depth" or "half_way"), mean, low, high (NaN below
        three runs), lowest, highest (of the runs).
    """
    table = layer_table(deep_runs(rows), centred)
    table = table.assign(half_way=table.half_way.replace(np.inf, np.nan))
    by_run = table.groupby(["size", "layer", "seed"]).agg(
        depth=("depth", "mean"), half_way=("half_way", "median")
    )
    lines = []
    for size in sizes_in(table):
        for layer, runs in by_run.loc[size].groupby("layer"):
            for quantity in ("depth", "half_way"):
                values = runs[quantity].dropna()
                if len(values):
                    mean = mean_interval(values.tolist())
                    extremes = (values.min(), values.max())
                    lines.append((size, layer, len(values), quantity, *mean, *extremes))
    columns = ["size", "layer", "n", "quantity", "mean", "low", "high", "lowest", "highest"]
    return pd.DataFrame(lines, columns=columns)


def counts_by_task(rows: pd.DataFrame) -> pd.DataFrame:
    """The paper's unit: pairs of task and size, each by the majority of its runs and levels.

    Returns:
        One line a task, in the tasks' order, and a column a size; True where more than half of the
        task-levels of the runs are `top_down`, NaN where none collapses.
    """
    table = top_down_table(deep_runs(rows))
    table["task"] = table.task_level.str.split().str[0]
    share = table.groupby(["task", "size"], sort=False).top_down.mean().unstack("size")
    order = [*dict.fromkeys(table.task)]
    return (share > 0.5).where(share.notna()).loc[order, sizes_in(table)]


def layer_panels(
    rows: pd.DataFrame, levels: Sequence[str]
) -> dict[str, dict[int, list[pd.Series]]]:
    """What a figure of some task-levels shows: layer → the rank as a share of its highest so far.

    Args:
        rows: runs of one size.
        levels: task-levels; one curve for each run that has them.
    """
    panels: dict[str, dict[int, list[pd.Series]]] = {level: {} for level in levels}
    for _, row in rows.iterrows():
        for level in levels:
            for layer in range(1, len(row["rankme"][0]) + 1):
                rank = rank_curve(row, level, layer)
                panels[level].setdefault(layer, []).append(rank / rank.cummax())
    return panels


def first_by_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """Which end is half-way down first, of every size in both conventions.

    Returns:
        Columns kind ("3.2m, uncentred (n = 2)", n runs) and first (one of `FIRST`).
    """
    runs = deep_runs(rows)
    found = []
    for size in sizes_in(runs):
        mine = runs[runs["size"] == size]
        for name, centred in (("uncentred", False), ("centred", True)):
            kind = f"{size}, {name} (n = {len(mine)})"
            found.append(top_down_table(mine, centred)[["first"]].assign(kind=kind))
    return pd.concat(found) if found else pd.DataFrame(columns=["first", "kind"])


def judge_top_down(rows: pd.DataFrame) -> Verdict:
    """B-4: layers near the output collapse first and deepest.

    Of the task-levels with a collapse in the first or last layer, the share of a run in which the
    last layer loses more of its rank, and the share in which it is half-way down strictly sooner.
    "reproduced": both lie above one half with the lower end of their interval over runs; "partly":
    one does; else "not reproduced". Fewer than three runs of four layers or more test nothing.
    """
    runs = deep_runs(rows)
    if len(runs) < MIN_RUNS:
        need = f"Three runs of models with {MIN_LAYERS} layers or more are needed."
        return Verdict("not tested here", need, len(runs))
    table = top_down_table(runs)
    deeper, sooner = per_run(table, "deeper"), per_run(table, "sooner")
    status = ("not reproduced", "partly", "reproduced")[(deeper.low > 0.5) + (sooner.low > 0.5)]
    first = table["first"].value_counts().reindex(FIRST, fill_value=0)
    centred = top_down_table(runs, centred=True)
    pairs = counts_by_task(rows).stack().dropna().astype(bool)
    exact = solve_rate(int(pairs.sum()), len(pairs))
    evidence = (
        f"In {len(runs)} runs ({', '.join(sizes_in(runs))}) the last layer loses more of its rank "
        f"than the first in {int(table.deeper.sum())} of {len(table)} pairs of run and task-level "
        f"({with_interval(deeper, '.0%')} of a run) and is half-way down sooner in "
        f"{first.iloc[0]}, at the same checkpoint in {first.iloc[1]}, later in {first.iloc[2]} "
        f"(sooner in {with_interval(sooner, '.0%')} of a run). Centred rank: deeper "
        f"{with_interval(per_run(centred, 'deeper'), '.0%')}, sooner "
        f"{with_interval(per_run(centred, 'sooner'), '.0%')}. By task and size, both deeper and "
        f"sooner: {int(pairs.sum())} of {len(pairs)} ({with_interval(exact, '.0%')}; paper: 32 of "
        f"32 in v1, 28 of 32 in v3)."
    )
    return Verdict(status, evidence, len(runs))
