"""Can a run's first part tell when its queries will be learned? Over the runs of the three lenses.

The unit is a query that is not learned when the window ends (`forecast_features`); queries of one
run are never split between fitting and testing.

Two different questions, two concordances. *Within runs*: which of a run's queries comes first? What
all queries of a run share cannot help there. *Between runs*: which of two queries of different runs
comes first, where it helps to know which run is slow? No paper makes a claim about this.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd

from emergence_lib.analysis.forecast import (
    Permuted,
    Units,
    between_runs,
    by_run,
    factor_off,
    fit_chosen,
    left_out,
    permutation_test,
)
from emergence_lib.analysis.survival import Estimate, mean_interval
from emergence_lib.experiments.evidence import Groups, over_runs, with_interval
from emergence_lib.experiments.forecast_features import (
    LENSES,
    MAIN_SHARE,
    SETS,
    STEPS,
    TASKS,
    at_risk,
    plateau,
    runs_at_risk,
    share_name,
    windows,
)

MAIN_WINDOW = share_name(MAIN_SHARE)

CARRIED = ("loss", "three lenses")
"""Sets that are carried over to another task."""

OVER_WINDOWS = ("loss", "three lenses", "lenses and loss")
"""Sets that are forecast with at every window; the others at the main one only."""

MIN_RUNS = 4
"""Runs with a query still to come, below which nothing is said about a task."""

MIN_EVENTS = 8
"""Queries seen to be learned after the window, below which nothing is said either."""


def units(table: pd.DataFrame, names: Iterable[str], unit: float = 1.0) -> Units:
    """A table of `at_risk` as what `analysis.forecast` fits, with times in `unit` steps."""
    return Units(
        table[list(names)].to_numpy(float),
        table["time"].to_numpy(float) / unit,
        table["observed"].to_numpy(bool),
        table["seed"].to_numpy(int),
    )


def enough(table: pd.DataFrame) -> bool:
    """Whether a table of `at_risk` has the runs and events that anything can be said about."""
    seen = table[table["observed"].astype(bool)]
    return seen["seed"].nunique() >= MIN_RUNS and len(seen) >= MIN_EVENTS


def tasks(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Condition → its rows, of those in `TASKS` that are recorded."""
    recorded = set(rows["condition"])
    return {name: rows[rows["condition"] == name] for name in TASKS if name in recorded}


def forecasts(rows: pd.DataFrame) -> pd.DataFrame:
    """How well each set of features forecasts, within each task, for runs left out.

    Args:
        rows: of the experiment `lenses`.

    Returns:
        One line a task, window and set: task, window (words), steps, set, n_runs, n_queries,
        n_seen (of them learned later), within (`Estimate` over runs), runs (each run's), factor
        (median factor off) and between (between runs; NaN but at the main window).
    """
    lines = []
    for task, own in tasks(rows).items():
        for window, steps in windows(own).items():
            if math.isinf(steps) or not enough(table := at_risk(own, steps)):
                continue
            for name in SETS if window == MAIN_WINDOW else OVER_WINDOWS:
                sample = units(table, SETS[name])
                where = {"task": task, "window": window, "steps": steps, "set": name}
                between = between_runs(sample) if window == MAIN_WINDOW else math.nan
                lines.append(where | _score(left_out(sample), sample) | {"between": between})
    return pd.DataFrame(lines, columns=["task", "window", "steps", "set", *_JUDGED, "between"])


def _score(predicted: np.ndarray, sample: Units) -> dict[str, object]:
    own = by_run(predicted, sample)
    return {
        "n_runs": len(np.unique(sample.run)),
        "n_queries": len(sample.time),
        "n_seen": int(sample.observed.sum()),
        "within": over_runs(own.values(), share_interval),
        "runs": own,
        "factor": factor_off(predicted, sample),
    }


def share_interval(values: Sequence[float]) -> Estimate:
    """`mean_interval` of shares, cut to what a share can be."""
    mean, low, high = mean_interval(values)
    return (
        Estimate(mean, max(low, 0.0), min(high, 1.0))
        if math.isfinite(low)
        else Estimate(mean, low, high)
    )


def permutations(rows: pd.DataFrame, n_shuffles: int = 99) -> dict[str, Permuted]:
    """Task → permutation test of the three lenses at half a plateau, times shuffled within runs."""
    found = {}
    for task, own in tasks(rows).items():
        window = windows(own)[MAIN_WINDOW]
        if not math.isinf(window) and enough(table := at_risk(own, window)):
            generator = np.random.default_rng(0)
            found[task] = permutation_test(units(table, LENSES), generator, n_shuffles)
    return found


def gains(table: pd.DataFrame) -> dict[str, Estimate]:
    """What the three lenses add to the loss, run by run, at the main window.

    Args:
        table: from `forecasts`.

    Returns:
        Task → mean over runs of the difference in within-run concordance.
    """
    found = {}
    for task, cell in table[table["window"] == MAIN_WINDOW].groupby("task", sort=False):
        runs = cell.set_index("set")["runs"]
        both, loss = runs["lenses and loss"], runs["loss"]
        found[str(task)] = over_runs([both[run] - loss[run] for run in both], mean_interval)
    return found


def transfers(rows: pd.DataFrame) -> pd.DataFrame:
    """The loss and the three lenses, each fitted on one task and tested on another.

    Window and times are in plateaus (`MAIN_SHARE` of each task's own) or in steps (the middle one
    of `STEPS`). A task's plateau is taken as known, also of the task that is tested on.

    Returns:
        One line an ordered pair of tasks, unit and set: source, target, unit, set, n_runs,
        n_queries, n_seen, within, runs, factor, and baseline, the factor that the source's
        mean alone is off.
    """
    lines = []
    for unit in ("plateaus", "steps"):
        found = {}
        for task, own in tasks(rows).items():
            length = plateau(own)
            window = MAIN_SHARE * length if unit == "plateaus" else float(STEPS[1])
            if not math.isinf(window) and enough(table := at_risk(own, window)):
                found[task] = (table, length if unit == "plateaus" else 1.0)
        for (source, (table, scale)), name in product(found.items(), CARRIED):
            model = fit_chosen(units(table, SETS[name], scale))
            blind = fit_chosen(units(table, (), scale))
            for target, (other, of_target) in found.items():
                if target != source:
                    sample = units(other, SETS[name], of_target)
                    where = {"source": source, "target": target, "unit": unit, "set": name}
                    off = factor_off(blind.median(sample.features[:, :0]), sample)
                    score = _score(model.median(sample.features), sample)
                    lines.append(where | score | {"baseline": off})
    names = ["source", "target", "unit", "set", *_JUDGED, "baseline"]
    return pd.DataFrame(lines, columns=names)


def whole_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Forecasts of whole runs at half a plateau, fitted on all difficulties of the linear map.

    Times are in plateaus of the own difficulty; concordance counts pairs of one difficulty only.

    Returns:
        One line a set: set, n_runs, n_seen, ordered (share of the pairs of runs of one difficulty
        in the right order, both left out), factor.
    """
    tables = []
    for task, own in tasks(rows).items():
        length = plateau(own)
        if task != "cellular automata" and not math.isinf(length):
            table = runs_at_risk(own, MAIN_SHARE * length)
            table["time"] /= length
            tables.append(table.assign(task=TASKS.index(task)))
    if not tables or len(table := pd.concat(tables)) < 2 * MIN_RUNS:
        return pd.DataFrame(columns=["set", "n_runs", "n_seen", "ordered", "factor"])
    table["seed"] = range(len(table))  # every line is a run of its own
    lines = []
    for name, columns in SETS.items():
        if name != "position":
            sample = units(table, columns)
            ordered = between_runs(sample, stratum=table["task"].to_numpy(int))
            seen, off = int(sample.observed.sum()), factor_off(left_out(sample), sample)
            lines.append((name, len(table), seen, ordered, off))
    return pd.DataFrame(lines, columns=["set", "n_runs", "n_seen", "ordered", "factor"])


def answer(table: pd.DataFrame, tests: dict[str, Permuted]) -> str:
    """What can be forecast within each task, in sentences built from the rows.

    Args:
        table: from `forecasts`.
        tests: from `permutations`.
    """
    main = table[table["window"] == MAIN_WINDOW]
    if main.empty:
        return f"Nothing can be said yet: at least {MIN_RUNS} runs of a task are needed."
    added, parts, told, better = gains(table), [], [], []
    for task, cell in main.groupby("task", sort=False):
        by_set = cell.set_index("set")
        lenses, any_set = by_set.loc["three lenses"], by_set.iloc[0]
        shares = "; ".join(
            f"{name} {with_interval(by_set['within'][name], '.0%')}"
            for name in ("three lenses", "loss", "lenses and loss", "position")
        )
        parts.append(
            f"- **{str(task).capitalize()}** (window {any_set['steps']:,.0f} steps; "
            f"{any_set['n_runs']} runs, {any_set['n_queries']} queries to come, "
            f"{any_set['n_seen']} of them learned later). Pairs of a run in the right order: "
            f"{shares}. "
            f"Times shuffled within runs do as well as the lenses with p = "
            f"{tests[str(task)].p_value:.2f}. Adding the lenses to the loss changes its share by "
            f"{with_interval(added[str(task)], '+.0%')}."
        )
        if lenses["within"].low > 0.5:
            told.append(str(task))
        if added[str(task)].low > 0:
            better.append(str(task))
        shortest = "; ".join(
            f"{name} at {_windows_above_half(table, str(task), name)}" for name in OVER_WINDOWS
        )
        parts[-1] += f" Windows whose interval lies above one half: {shortest}."
    n = main["task"].nunique()
    parts.append(
        f"\nAt half a plateau the three lenses tell which query comes first on "
        f"{_of(told, n)}, and add to what the loss tells on {_of(better, n)}."
    )
    return "\n".join(parts)


def _windows_above_half(table: pd.DataFrame, task: str, name: str) -> str:
    own = table[(table["task"] == task) & (table["set"] == name)].sort_values("steps")
    steps = [f"{line.steps:,.0f}" for line in own.itertuples() if line.within.low > 0.5]
    return f"{', '.join(steps)} steps" if steps else "none"


def transfer_words(table: pd.DataFrame) -> str:
    """What carries over to another task and what does not, counted from `transfers`."""
    if table.empty:
        return "Two tasks with enough runs are needed before anything can be carried over."
    parts = []
    for (unit, name), lines in table.groupby(["unit", "set"], sort=False):
        closer = lines[lines["factor"] < lines["baseline"]]
        parts.append(
            f"- **{str(name).capitalize()}, in {unit}.** The order of a run's queries carries over "
            f"{_kinds(lines, [within.low > 0.5 for within in lines['within']])}, with an interval "
            f"above one half; it is reversed "
            f"{_kinds(lines, [within.high < 0.5 for within in lines['within']])}. The median "
            f"forecast is off by a factor of {lines['factor'].median():.1f}, the source's mean "
            f"alone by {lines['baseline'].median():.1f}; the forecast is closer than that mean in "
            f"{len(closer)} of {len(lines)}."
        )
    return "\n".join(parts)


def _kinds(lines: pd.DataFrame, holds: Sequence[bool]) -> str:
    """In how many pairs it holds: those of two difficulties of one task, and those of two tasks."""
    families = [[name.partition(",")[0] for name in lines[side]] for side in ("source", "target")]
    same = np.array([one == other for one, other in zip(*families, strict=True)])
    true = np.array(holds)
    kinds = {"between difficulties": same, "across tasks": ~same}
    return " and ".join(
        f"{kind} in {(true & of).sum()} of {of.sum()}" for kind, of in kinds.items() if of.any()
    )


def _of(names: Collection[str], n: int) -> str:
    """How many of n, and which: many names are left to the figure."""
    return f"{len(names)} of {n}" + (f" ({'; '.join(names)})" if 0 < len(names) <= 3 else "")


def set_groups(table: pd.DataFrame) -> Groups:
    """Task → (sets, within-run concordance with interval, each run's), at the main window."""
    groups: Groups = {}
    for task, cell in table[table["window"] == MAIN_WINDOW].groupby("task", sort=False):
        runs = [list(of.values()) for of in cell["runs"]]
        groups[str(task)] = (cell["set"].tolist(), cell["within"].tolist(), runs)
    return groups


def clock_table(table: pd.DataFrame) -> pd.DataFrame:
    """`forecasts` at the main window in words: order within and between runs, and the clock."""
    main = table[table["window"] == MAIN_WINDOW]
    return pd.DataFrame(
        {
            "task": main["task"],
            "seen of a query": main["set"],
            "runs": main["n_runs"],
            "queries": main["n_queries"],
            "learned later": main["n_seen"],
            "ordered within runs": [with_interval(share, ".0%") for share in main["within"]],
            "ordered between runs": [f"{share:.0%}" for share in main["between"]],
            "factor off": [f"{factor:.1f}" for factor in main["factor"]],
        }
    )


def runs_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`whole_runs` in words."""
    found = whole_runs(rows)
    return pd.DataFrame(
        {
            "seen of a run": found["set"],
            "runs": found["n_runs"],
            "half learned later": found["n_seen"],
            "ordered": [f"{share:.0%}" for share in found["ordered"]],
            "factor off": [f"{factor:.1f}" for factor in found["factor"]],
        }
    )


def live_table(live: pd.Series, rows: pd.DataFrame) -> pd.DataFrame:
    """Forecasts for one run by its first half plateau, from recorded runs with other seeds.

    Args:
        live: one row of the experiment `lenses`, not censored before the window ends.
        rows: recorded rows of the same condition and others.

    Returns:
        One line a query to come: position among the watched ones, forecast by the loss and by
        the lenses, and when it was learned. Empty where too little is recorded, or the live run is
        shorter than the window.
    """
    known = rows[(rows["condition"] == live["condition"]) & (rows["seed"] != live["seed"])]
    window = MAIN_SHARE * plateau(known)
    columns = ["query", *(f"forecast by {name}" for name in CARRIED), "learned"]
    own = at_risk(live.to_frame().T, window)
    if math.isinf(window) or own.empty or not enough(table := at_risk(known, window)):
        return pd.DataFrame(columns=columns)
    said = []
    for name in CARRIED:
        model = fit_chosen(units(table, SETS[name]))
        steps = window + model.median(units(own, SETS[name]).features)
        said.append([f"step {step:,.0f}" for step in steps])
    times = zip(own["time"] + window, own["observed"], strict=True)
    seen = [f"step {step:,.0f}" if done else f"not by step {step:,.0f}" for step, done in times]
    return pd.DataFrame(dict(zip(columns, [own["query"], *said, seen], strict=True)))


_JUDGED = ("n_runs", "n_queries", "n_seen", "within", "runs", "factor")
