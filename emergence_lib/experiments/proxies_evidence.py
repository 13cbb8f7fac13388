"""How well the smallest model of `collapse` stands in for larger ones (claim B-14).

Paper B (arXiv 2602.15997; fact sheet B3) says that small proxies map larger models while the task
stays hard, and gives no number that is known to us. Here: the rank correlation over task-levels of
what was measured on the smallest size with the same on a larger one, apart for the task-levels
that stay hard for both and for the others; and by what factor a floor or a time is off.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from emergence_lib.analysis.survival import Estimate
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.collapse_cell import multi_task
from emergence_lib.experiments.collapse_evidence import MIN_RUNS, rank_correlation
from emergence_lib.experiments.collapse_phases import ordered_table, sizes_in
from emergence_lib.experiments.evidence import UNKNOWN, with_interval

QUANTITIES = {"floor": "floors", "step": "steps of acquisition"}
GROUPS = ("hard for both", "others", "all")

MIN_LEVELS = 5
"""Task-levels below which a rank correlation says nothing."""


def level_means(rows: pd.DataFrame) -> pd.DataFrame:
    """What each size says of each task-level, over its seeds.

    Returns:
        Columns size, task_level, floor (geometric mean of the lowest RankMe), step (median of
        acquisition, infinite where most runs do not get there), hard (in the later half of the
        size's acquired task-levels, or never acquired), n (runs).
    """
    table = ordered_table(rows)
    steps, floors = table.acquired.astype(float), table.floor.astype(float)
    table = table.assign(step=steps.fillna(np.inf), log=np.log(floors))
    means = (
        table.groupby(["size", "task_level"], sort=False)
        .agg(log=("log", "mean"), step=("step", "median"), n=("seed", "size"))
        .reset_index()
    )
    finite = means.step.where(np.isfinite(means.step))
    middle = finite.groupby(means["size"]).transform("median").fillna(-np.inf)
    return means.assign(floor=np.exp(means.log), hard=means.step > middle)[
        ["size", "task_level", "floor", "step", "hard", "n"]
    ]


def paired(rows: pd.DataFrame) -> pd.DataFrame:
    """The smallest recorded size beside each larger one.

    Returns:
        One line a larger size and task-level: columns large, task_level, group ("hard for both" or
        "others"), floor_small, floor_large, step_small, step_large.
    """
    means = level_means(rows)
    sizes = sizes_in(means)
    small = means[means["size"].isin(sizes[:1])].set_index("task_level")
    lines = []
    for size in sizes[1:]:
        large = means[means["size"] == size].set_index("task_level")
        for level in small.index.intersection(large.index, sort=False):
            a, b = small.loc[level], large.loc[level]
            group = "hard for both" if a.hard and b.hard else "others"
            lines.append((size, level, group, a.floor, b.floor, a.step, b.step))
    columns = ["large", "task_level", "group", "floor_small", "floor_large"]
    return pd.DataFrame(lines, columns=[*columns, "step_small", "step_large"])


def transfer_table(rows: pd.DataFrame) -> pd.DataFrame:
    """How well the smallest size predicts each larger one, by group of task-levels.

    Returns:
        Columns large, quantity (a key of `QUANTITIES`), group (one of `GROUPS`), n (task-levels;
        those that neither size acquires have no step to compare and are left out there),
        rho, low, high (bootstrap over task-levels; NaN below `MIN_LEVELS`), factor (median by which
        the larger model's value is off, at least 1, of those known for both).
    """
    pairs = paired(rows)
    lines = []
    for size in dict.fromkeys(pairs.large):
        for quantity in QUANTITIES:
            for group in GROUPS:
                mine = pairs[(pairs.large == size) & (pairs.group.eq(group) | (group == "all"))]
                a, b = (mine[f"{quantity}_{end}"].to_numpy() for end in ("small", "large"))
                some, known = np.isfinite(a) | np.isfinite(b), np.isfinite(a) & np.isfinite(b)
                off = np.abs(np.log(a[known] / b[known]))
                factor = float(np.exp(np.median(off))) if known.any() else np.nan
                n = int(some.sum())
                rho = rank_correlation(a[some], b[some]) if n >= MIN_LEVELS else UNKNOWN
                lines.append((size, quantity, group, n, *rho, factor))
    columns = ["large", "quantity", "group", "n", "rho", "low", "high", "factor"]
    return pd.DataFrame(lines, columns=columns)


def judge_proxies(rows: pd.DataFrame) -> Verdict:
    """B-14: a small model stands in for a larger one while the task stays hard for both.

    Spearman's ρ between the smallest size and each larger one, over the task-levels that are hard
    for both. "reproduced": every interval of floors and of steps of acquisition lies above 0;
    "partly": those of one of the two do; else "not reproduced". Fewer than three runs, one size, or
    fewer than five such task-levels at every larger size test nothing.
    """
    runs = multi_task(rows)
    table = transfer_table(rows) if len(sizes_in(runs)) > 1 else pd.DataFrame()
    if len(runs) < MIN_RUNS or table.empty:
        return Verdict("not tested here", "Three runs are needed, at two sizes or more.", len(runs))
    hard = table[(table.group == GROUPS[0]) & table.rho.notna()]
    if set(hard.quantity) < set(QUANTITIES):
        need = f"Too few task-levels stay hard for both: {MIN_LEVELS} are needed."
        return Verdict("not tested here", need, len(runs))
    holds = hard.groupby("quantity").low.min() > 0
    status = ("not reproduced", "partly", "reproduced")[int(holds.sum())]
    small = sizes_in(runs)[0]
    parts = []
    for quantity, name in QUANTITIES.items():
        listed = []
        for size in dict.fromkeys(hard.large):
            lines = table[(table.large == size) & (table.quantity == quantity)].set_index("group")
            mine, others = lines.loc[GROUPS[0]], lines.loc["others"]
            listed.append(
                f"{size} {_in_words(mine)} over {mine.n} task-levels hard for both, off by a "
                f"factor of {mine.factor:.1f} (others: {_in_words(others)} over {others.n}, "
                f"factor {others.factor:.1f})"
            )
        parts.append(f"{name}: {'; '.join(listed)}")
    evidence = (
        f"Spearman's ρ between {small} and larger sizes over task-levels, {'. '.join(parts)}. "
        f"{len(runs)} runs."
    )
    return Verdict(status, evidence, len(runs))


def _in_words(line: pd.Series) -> str:
    return with_interval(Estimate(line.rho, line.low, line.high), ".2f")
