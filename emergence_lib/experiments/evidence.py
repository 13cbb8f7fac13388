"""Estimates over runs, and in words: an unknown or endless number reads as such in a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import Estimate, mean_interval, median_time

UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def over_runs(
    values: Iterable[float], interval: Callable[[list[float]], Estimate] = mean_interval
) -> Estimate:
    """The interval over the runs that have the value; `UNKNOWN` where none has it."""
    known = [value for value in values if np.isfinite(value)]
    return interval(known) if known else UNKNOWN


def share_over_runs(shares: Iterable[float]) -> Estimate:
    """`over_runs` of shares, one a run, with the interval cut to what a share can be: 0 to 1."""
    value, low, high = over_runs(float(share) for share in shares)
    return Estimate(value, *np.clip([low, high], 0, 1).tolist())


def waits_by(rows: pd.DataFrame, column: str, event: Callable[[pd.Series], Event]) -> pd.DataFrame:
    """One line a value of a column, in increasing order: how long its runs wait.

    Args:
        rows: one a run, or none.
        column: what was varied.
        event: what a run waits for.

    Returns:
        Columns x (the value), n, observed (runs whose wait ended), median, low, high (steps by
        Kaplan–Meier with 95 % interval; infinite where not seen, and no interval for one run),
        events (one a run).
    """
    lines = []
    for x, cell in rows.groupby(column) if len(rows) else ():
        events = [event(row) for _, row in cell.iterrows()]
        observed = sum(e.observed for e in events)
        median, low, high = median_time(events)
        if len(events) == 1:
            low = high = math.nan
        lines.append((x, len(cell), observed, median, low, high, events))
    names = ["x", "n", "observed", "median", "low", "high", "events"]
    return pd.DataFrame(lines, columns=names)


Groups = dict[str, tuple[list[str], list[Estimate], list[list[float]]]]
"""Label → names, one estimate each, and the runs of each: what `plotting.named_estimates` draws."""


def named_groups(table: pd.DataFrame, label: str, name: str) -> Groups:
    """A table of estimates as groups of named ones; none where no line has a known run.

    Args:
        table: columns `label`, `name`, value, low, high, and runs, a list of numbers.
    """
    known = [[run for run in runs if np.isfinite(run)] for runs in table["runs"]]
    if not any(known):
        return {}
    table = table.assign(runs=known)
    return {
        str(group): (
            [str(n) for n in lines[name]],
            [Estimate(*e) for e in lines[["value", "low", "high"]].itertuples(index=False)],
            lines["runs"].tolist(),
        )
        for group, lines in table.groupby(label, sort=False)
    }


def steps_in_words(estimate: Estimate, watched: float) -> str:
    """A median time, "600 [550, 700] steps", or "not within the 10,000 steps watched".

    Args:
        estimate: steps, infinite where the event was not seen.
        watched: steps that the runs were watched for.
    """
    if math.isinf(estimate.value):
        bound = f" (at least {estimate.low:,.0f})" if math.isfinite(estimate.low) else ""
        return f"not within the {watched:,.0f} steps watched{bound}"
    return f"{with_interval(estimate, ',.0f')} steps"


def with_interval(estimate: Estimate, spec: str) -> str:
    """A number and its interval, each in the format `spec`: "0.06 [0.05, 0.14]"."""
    if math.isnan(estimate.value):
        return "unknown"
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return f"{estimate.value:{spec}} (no interval)"
    high = "not seen" if math.isinf(estimate.high) else f"{estimate.high:{spec}}"
    return f"{estimate.value:{spec}} [{estimate.low:{spec}}, {high}]"


def width_sentence(widths: pd.DataFrame) -> str:
    """Whether rows that are learned late fall more slowly, from `watched_rows.row_widths`."""
    unfinished = int(widths.width.isna().sum())
    widths = widths.dropna()
    if len(widths) < 4:
        return "Too few rows were learned to tell."
    rho = spearmanr(widths.step, widths.width).statistic
    early = widths.width[widths.step <= widths.step.median()].median()
    late = widths.width[widths.step > widths.step.median()].median()
    left_out = ""
    if unfinished:
        left_out = (
            f"; {unfinished} more rows fell half-way but were still falling at the end, so the "
            "later number is a lower bound"
        )
    return (
        f"Rank correlation of width and step: {rho:.2f} over {len(widths)} rows of "
        f"{widths.seed.nunique()} runs. The median width is {early:.0f} steps in the earlier half "
        f"of the rows and {late:.0f} in the later half{left_out}."
    )
