"""Reading a recorded run of `precursors`: what each measure does, and whether it does so first.

One rule for every measure, `analysis.precursor.Rule`: a fall to a floor is an event, and it leads
where the floor comes before acquisition. What the paper describes as a rise (Hessian, LLC) is
turned over first, so that its peak is the floor.

LLC values that cannot be interpreted are left out, and with them the checkpoints they belong to:
those flagged by `analysis.llc.LLC.notes`, and those of the optimizer's warm-up, in which the loss
still falls with every step. The second was decided after three runs: a short walk does not notice
that fall, and the LLC had its peak there in half of the task-levels (`with_warmup`).

Task-levels of one run are not independent: shares are taken per run, and intervals over runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import Event, acquisition
from emergence_lib.analysis.precursor import (
    EVENTS,
    Case,
    Rule,
    definition_sweep,
    lead_steps,
    outcome,
    phases,
    surrogate_rate,
    swapped_rate,
)
from emergence_lib.analysis.survival import Estimate
from emergence_lib.experiments.collapse_cell import SUSTAIN, chance_levels
from emergence_lib.experiments.evidence import share_over_runs

RULE = Rule()
"""What counts as an event; `sweep_table` says how much hangs on it."""

FIVE = {
    "rankme": "RankMe",
    "fisher_rank": "gradient rank (Fisher)",
    "covariance_rank": "gradient covariance rank",
    "hessian": "largest Hessian eigenvalue",
    "llc": "LLC",
}
"""Paper B's five measures, as columns of a row → their names."""

RISES = ("hessian", "llc")
"""Those whose event is a peak."""

MIN_POINTS = 5
"""Checkpoints that a curve needs to have phases."""

NEAR = 1
"""Checkpoints within which two events are together."""


def series(row: pd.Series, measure: str, level: str) -> pd.Series:
    """One measure of one task-level over training steps, NaN where it was not finite.

    Args:
        row: one recorded run.
        measure: a key of `precursor_measures.MEASURES`.
        level: one of its `levels`.
    """
    values = row[measure][list(row["levels"]).index(level)]
    index = [int(step) for step in row["checkpoints"]]
    return pd.Series(np.asarray(values, dtype=float), index=index, name=measure)


def acquired(row: pd.Series, level: str) -> Event:
    """When the task-level was acquired, threshold corrected for chance (paper B's rule)."""
    threshold = (1 + chance_levels()[level]) / 2
    return acquisition(series(row, "accuracy", level), threshold, SUSTAIN)


def readable(row: pd.Series, measure: str, level: str, with_warmup: bool = False) -> pd.Series:
    """`series` where it can be interpreted: finite, positive; for the LLC see the module.

    Args:
        with_warmup: keep what the LLC is during the warm-up.
    """
    values = series(row, measure, level)
    keep = values > 0
    if measure == "llc":
        keep &= series(row, "llc_readable", level) > 0
        if not with_warmup:
            keep &= values.index > row["warmup_steps"]
    return values[keep]


def case(row: pd.Series, measure: str, level: str, with_warmup: bool = False) -> Case | None:
    """A curve for `analysis.precursor`, peaks turned into floors; None with too few checkpoints."""
    values = readable(row, measure, level, with_warmup)
    if len(values) < MIN_POINTS:
        return None
    return Case(1 / values if measure in RISES else values, acquired(row, level))


def cases(rows: pd.DataFrame, measure: str) -> list[Case]:
    """Those of all runs and task-levels."""
    found = (case(row, measure, level) for _, row in rows.iterrows() for level in row["levels"])
    return [one for one in found if one is not None]


def lead_table(
    rows: pd.DataFrame, measures: Iterable[str] = FIVE, with_warmup: bool = False
) -> pd.DataFrame:
    """One line a run, task-level and measure: what its curve does before acquisition.

    Args:
        rows: recorded runs.
        measures: columns of theirs.
        with_warmup: see `readable`.

    Returns:
        Columns seed, level, measure, acquired (step, NaN where never), outcome (one of
        `analysis.precursor.OUTCOMES`), leads, transient (fall and half-way recovery both before
        acquisition), lead (steps from the floor or peak to acquisition, NaN where one is missing),
        depth, fastest (step at which the curve moved most since the checkpoint before, in log),
        together (that step and acquisition are within `NEAR` checkpoints).
    """
    lines = []
    for _, row in rows.iterrows():
        for level in row["levels"]:
            for measure in measures:
                one = case(row, measure, level, with_warmup)
                if one is not None:
                    lines.append(
                        {"seed": row["seed"], "level": level, "measure": measure, **_line(one)}
                    )
    columns = ["seed", "level", "measure", "acquired", "outcome", "leads", "transient", "lead"]
    return pd.DataFrame(lines, columns=[*columns, "depth", "fastest", "together"])


def _line(one: Case) -> dict[str, object]:
    found = phases(one.rank, RULE)
    event = one.acquired
    fastest = int(np.argmax(np.abs(np.diff(np.log(one.rank))))) + 1
    at = int(one.rank.index.searchsorted(event.step))
    back = found.collapsed and found.recovery.observed and found.recovery.step < event.step
    verdict = outcome(one, RULE)
    return {
        "acquired": event.step if event.observed else np.nan,
        "outcome": verdict,
        "leads": verdict == "leads",
        "transient": bool(back),
        "lead": lead_steps(one, RULE),
        "depth": found.depth,
        "fastest": float(one.rank.index[fastest]),
        "together": bool(event.observed and abs(fastest - at) <= NEAR),
    }


def share(table: pd.DataFrame, column: str) -> Estimate:
    """Share of acquired task-levels with a property: mean over runs, interval over runs."""
    return mean_share(table[table.acquired.notna()], column)


def mean_share(table: pd.DataFrame, column: str) -> Estimate:
    """Mean over runs of a share, with Student's t interval over runs cut to 0 … 1."""
    return share_over_runs(table.groupby("seed")[column].mean())


def rates_by_level(rows: pd.DataFrame) -> pd.DataFrame:
    """How often each measure leads, a line a measure and task-level that was ever acquired.

    Returns:
        Columns measure, level, acquired (median step), n (runs that acquired it), leads (runs),
        the levels in order of their median acquisition: easy first.
    """
    table = lead_table(rows)
    table = table[table.acquired.notna()]
    grouped = table.groupby(["measure", "level"])
    found = grouped.agg(
        acquired=("acquired", "median"), n=("leads", "size"), leads=("leads", "sum")
    )
    return found.reset_index().sort_values(["acquired", "level", "measure"], ignore_index=True)


def sweep_table(rows: pd.DataFrame) -> pd.DataFrame:
    """How often each measure leads under each definition of the event.

    Returns:
        Columns measure, event ("onset", "floor", "recovery"), min_depth, n, leads, ties, rate.
    """
    found = []
    for measure in FIVE:
        swept = definition_sweep(
            cases(rows, measure), RULE, event=EVENTS, min_depth=(0.05, 0.1, 0.3, 0.5)
        )
        found.append(swept.assign(measure=measure))
    return pd.concat(found, ignore_index=True)


def chance_table(rows: pd.DataFrame) -> pd.DataFrame:
    """How often each measure leads, and how often it would if it had nothing to do with the task.

    Returns:
        One line a measure: rate, swapped (another task-level's curve in its place, mean over
        runs), shuffled and walk (`analysis.precursor.surrogates`), n (acquired cases).
    """
    lines = []
    for measure in FIVE:
        found = cases(rows, measure)
        learned = [one for one in found if one.acquired.observed]
        generator = np.random.default_rng(0)
        lines.append(
            {
                "measure": measure,
                "n": len(learned),
                "rate": np.mean([outcome(c, RULE) == "leads" for c in learned])
                if learned
                else np.nan,
                "swapped": swapped(rows, measure),
                "shuffled": surrogate_rate(found, RULE, generator),
                "walk": surrogate_rate(found, RULE, generator, "random walk"),
            }
        )
    return pd.DataFrame(lines)


def swapped(rows: pd.DataFrame, measure: str) -> float:
    """How often the curve of another task-level of the same run leads instead, mean over runs.

    NaN for the LLC, whose curves lack different checkpoints.
    """
    if measure == "llc":
        return np.nan
    runs = [cases(rows[rows.seed == seed], measure) for seed in rows.seed.unique()]
    whole = [
        [one for one in run if len(one.rank) == max(len(c.rank) for c in run)]
        for run in runs
        if run
    ]
    rates = [rate for run in whole if np.isfinite(rate := swapped_rate(run, RULE))]
    return float(np.mean(rates)) if rates else np.nan


def probe_table(rows: pd.DataFrame) -> pd.DataFrame:
    """When the probe reads the last answer token, and when the model says it.

    Both events ask for the same: accuracy of that token more than half-way from chance to 1, at
    three checkpoints in a row.

    Returns:
        One line a run and task-level: columns seed, level, read, said, acquired (exact match;
        steps, NaN where never), untrained (the probe reads it at step 0 already), first (read
        before said, and not untrained), shuffled (best accuracy of the probe fitted on shuffled
        answers), chance.
    """
    lines = []
    for _, row in rows.iterrows():
        for level, chance in zip(row["levels"], row["probe_chance"], strict=True):
            threshold = (1 + chance) / 2
            probe, said = (series(row, name, level) for name in ("probe", "said"))
            events = [acquisition(curve, threshold, SUSTAIN) for curve in (probe, said)]
            read_at, said_at = (e.step if e.observed else np.nan for e in events)
            exact = acquired(row, level)
            untrained = bool(probe.iloc[0] > threshold)
            known = np.isfinite(read_at)
            lines.append(
                {
                    "seed": row["seed"],
                    "level": level,
                    "read": read_at,
                    "said": said_at,
                    "acquired": exact.step if exact.observed else np.nan,
                    "untrained": untrained,
                    "first": bool(known and not untrained and not said_at <= read_at),
                    "shuffled": series(row, "probe_shuffled", level).max(),
                    "chance": chance,
                }
            )
    columns = ["seed", "level", "read", "said", "acquired", "untrained", "first", "shuffled"]
    return pd.DataFrame(lines, columns=[*columns, "chance"])


def panels(
    rows: pd.DataFrame, levels: Sequence[str]
) -> tuple[dict[str, dict[str, pd.Series]], dict[str, str], dict[str, float]]:
    """What `plotting.measure_panels` draws of the first run: curves, names, acquisition.

    The LLC is drawn with its warm-up, which does not count otherwise.
    """
    names = {"accuracy": "accuracy"} | {m: name.replace(" ", "\n", 1) for m, name in FIVE.items()}
    curves: dict[str, dict[str, pd.Series]] = {level: {} for level in levels}
    steps = dict.fromkeys(levels, np.nan)
    for _, row in rows[:1].iterrows():
        for level in levels:
            event = acquired(row, level)
            steps[level] = event.step if event.observed else np.nan
            accuracy = series(row, "accuracy", level)
            curves[level] = {"accuracy": accuracy} | {
                measure: readable(row, measure, level, with_warmup=True).reindex(accuracy.index)
                for measure in FIVE
            }
    return curves, names, steps


def probe_curves(
    rows: pd.DataFrame,
) -> tuple[dict[str, dict[str, pd.DataFrame]], dict[str, float]]:
    """What `plotting.probe_panels` draws: curves, a column a run, and chance by task-level."""
    curves: dict[str, dict[str, pd.DataFrame]] = {}
    chance: dict[str, float] = {}
    for level in dict.fromkeys(level for levels in rows["levels"] for level in levels):
        having = [row for _, row in rows.iterrows() if level in row["levels"]]
        curves[level] = {
            name: pd.concat([series(row, name, level) for row in having], axis=1)
            for name in ("probe", "said", "probe_shuffled")
        }
        at = [row["probe_chance"][list(row["levels"]).index(level)] for row in having]
        chance[level] = float(np.mean(at))
    return curves, chance
