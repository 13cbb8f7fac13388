"""The phases of every task-level of every run of `collapse`, as tables and as what figures show.

The phases of a rank curve are those of `analysis.precursor` under its default `Rule`; acquisition
is paper B's (fact sheet B1), with the threshold corrected for chance and the paper's 50 % beside
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.precursor import Rule, phases
from emergence_lib.analysis.survival import mean_interval
from emergence_lib.experiments.collapse_cell import (
    ALL,
    acquired,
    curve,
    multi_task,
    rank_curve,
)
from emergence_lib.models.shapes import ALGORITHMIC_SIZES
from emergence_lib.tasks.algorithmic import ALGORITHMS

RULE = Rule()
"""What counts as a collapse; `analysis.precursor.definition_sweep` says how much hangs on it."""

PHASE_COLUMNS = (
    "size",
    "seed",
    "task_level",
    "untrained",
    "peak",
    "floor",
    "floor_step",
    "depth",
    "collapsed",
    "recovered",
    "acquired",
    "acquired_at_half",
    "in_order",
    "final_accuracy",
)


def phase_table(rows: pd.DataFrame, centred: bool = False) -> pd.DataFrame:
    """One line a run and task-level: its collapse, recovery and acquisition at the last layer.

    Args:
        rows: recorded runs of any kind.
        centred: take the centred rank instead of the paper's.

    Returns:
        Columns size, seed, task_level, untrained (rank at step 0), peak, floor, floor_step, depth
        (share of the peak lost), collapsed, recovered and acquired (steps, NaN where not seen),
        acquired_at_half (by the paper's 50 %), in_order (collapse, recovery, then acquisition),
        final_accuracy.
    """
    lines = []
    for _, row in rows.iterrows():
        for level in row["task_levels"]:
            rank = rank_curve(row, level, centred=centred)
            found = phases(rank, RULE)
            learned, at_half = (acquired(row, level, corrected) for corrected in (True, False))
            recovered = found.recovery.step if found.recovery.observed else np.nan
            step = learned.step if learned.observed else np.nan
            lines.append(
                (
                    row["size"],
                    row["seed"],
                    level,
                    rank.iloc[0],
                    found.peak,
                    found.floor,
                    found.floor_step,
                    found.depth,
                    found.collapsed,
                    recovered,
                    step,
                    at_half.step if at_half.observed else np.nan,
                    found.collapsed and found.floor_step < recovered <= step,
                    curve(row, "accuracy", level).iloc[-1],
                )
            )
    return pd.DataFrame(lines, columns=PHASE_COLUMNS)


def sizes_in(rows: pd.DataFrame) -> list[str]:
    """The recorded sizes, smallest first."""
    return [size for size in ALGORITHMIC_SIZES if size in set(rows["size"])]


def floor_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The lowest RankMe of every task-level and size.

    Returns:
        Columns task_level, size, n (runs), mean, low, high (95 % over runs; NaN below three),
        lowest, highest (of the runs), untrained (mean rank at step 0).
    """
    lines = []
    for (level, size), cell in phase_table(rows).groupby(["task_level", "size"], sort=False):
        mean, low, high = mean_interval(cell.floor.tolist())
        lines.append(
            {
                "task_level": level,
                "size": size,
                "n": len(cell),
                "mean": mean,
                "low": low,
                "high": high,
                "lowest": cell.floor.min(),
                "highest": cell.floor.max(),
                "untrained": cell.untrained.mean(),
            }
        )
    columns = ["task_level", "size", "n", "mean", "low", "high", "lowest", "highest", "untrained"]
    return pd.DataFrame(lines, columns=columns)


def depth_groups(rows: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """How deep the smallest size's ranks collapse: on all tasks and in the controls.

    Returns:
        Kind of run → convention ("uncentred", "centred") → depth (share of the peak lost) of every
        task-level, mean over runs. Kinds without a recorded run are left out.
    """
    small = rows[rows["size"] == next(iter(ALGORITHMIC_SIZES))]
    shuffled = small.shuffled.astype(bool)
    kinds = {
        "all tasks": multi_task(small),
        "shuffled answers": small[shuffled],
        "one task alone": small[small.tasks.isin(ALGORITHMS)],
        "AdamW alone": small[small.muon_lr.isna() & (small.tasks == ALL)],
    }
    return {
        f"{kind} (n = {len(runs)})": {
            name: phase_table(runs, centred).groupby("task_level").depth.mean().tolist()
            for name, centred in (("uncentred", False), ("centred", True))
        }
        for kind, runs in kinds.items()
        if len(runs)
    }


class PhaseRun(NamedTuple):
    """What a figure of the three phases shows of one task-level of one run.

    Attributes:
        rank, centred: RankMe and its centred twin at the last layer, indexed by step.
        accuracy: exact match, indexed by step.
        floor, acquired: steps of the floor of `rank` and of acquisition (infinite where not seen).
    """

    rank: pd.Series
    centred: pd.Series
    accuracy: pd.Series
    floor: float
    acquired: float


def phase_panels(rows: pd.DataFrame, levels: Sequence[str]) -> dict[str, list[PhaseRun]]:
    """Task-level → one `PhaseRun` for each of the rows that has it."""
    panels: dict[str, list[PhaseRun]] = {level: [] for level in levels}
    for _, row in rows.iterrows():
        for level in set(levels) & set(row["task_levels"]):
            rank = rank_curve(row, level)
            panels[level].append(
                PhaseRun(
                    rank,
                    rank_curve(row, level, centred=True),
                    curve(row, "accuracy", level),
                    phases(rank, RULE).floor_step,
                    _step(acquired(row, level)),
                )
            )
    return panels


def ordered_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`phase_table` of the runs on all tasks, with the order of acquisition within each run.

    Column order is a rank from 1; task-levels that a run never acquires share the last place.
    """
    table = phase_table(multi_task(rows))
    times = table.acquired.fillna(np.inf)
    return table.assign(order=times.groupby([table["size"], table.seed]).rank())


def _step(event: Event) -> float:
    return event.step if event.observed else float("inf")
