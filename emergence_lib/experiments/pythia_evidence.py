"""What rows of `pythia` say: emergence points, their spread, and what moves with them.

A row may be a full scan (pocket suite) or hold only the checkpoints that a bisection looked at
(Hub). `emergence_table` reads both; what needs the checkpoints in between leaves the Hub's out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import Event, emergence_point, scan
from emergence_lib.analysis.survival import (
    bootstrap_interval,
    logrank,
    mean_interval,
    solve_rate,
)
from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import with_interval
from emergence_lib.models.pythia import STEPS
from emergence_lib.tasks.prompts import CAPABILITIES

PROMPTS = ("single", "many")
"""Solved on the paper's one prompt, or on many: see `solves`."""

WIDE = 0.25
"""A-1: a spread over seeds, interquartile range over median, from which times differ "widely"."""

WINDOW = 0.05
"""A-3: share of training in which most of an abrupt rise happens; an even rise has 5 % there."""

MIN_RISE = 0.2
"""A-3: a smaller rise of p(target) over training is nothing to call abrupt or gradual."""

MIN_HEAD_RISE = 0.1
"""A-4: likewise for a head score."""


def solves(metrics: Mapping[str, float], capability: str, prompts: str) -> bool:
    """Whether a checkpoint with these metrics of `CapabilityObserver` has the capability.

    "single": the greedy token is right, the paper's criterion. "many": the share of prompts solved
    is at least half-way from the controls' share to all. A model that guesses one of IOI's two
    names solves half of the prompts and half of the controls, and has not got the capability.
    """
    if prompts == "single":
        return metrics[f"single_rank.{capability}"] == 0
    chance = metrics[f"control_solved.{capability}"]
    return metrics[f"solved.{capability}"] >= (1 + chance) / 2


def curve(row: pd.Series, column: str) -> pd.Series:
    """A column of a row over its evaluated steps; of a head measure the best head's."""
    values = row[column]
    if len(values) and np.ndim(values[0]):
        values = np.stack(values).max(axis=1)
    return pd.Series(np.asarray(values, float), index=list(row["eval_steps"]), name=column)


def by_size(
    rows: pd.DataFrame, columns: Mapping[str, str]
) -> dict[str, dict[str, list[pd.Series]]]:
    """`curve`s for `plotting.over_checkpoints`: title → size → one curve a run.

    Args:
        columns: title → column.
    """
    sizes = list(rows.groupby("size", sort=False))
    return {
        title: {str(size): [curve(row, name) for _, row in runs.iterrows()] for size, runs in sizes}
        for title, name in columns.items()
    }


def passes(row: pd.Series, capability: str, prompts: str) -> dict[int, bool]:
    """Evaluated step → whether that checkpoint has the capability."""
    names = ("single_rank", "solved", "control_solved")
    metrics = [f"{name}.{capability}" for name in names]
    columns = [row[f"{name}_{capability}"] for name in names]
    return {
        int(step): bool(solves(dict(zip(metrics, values, strict=True)), capability, prompts))
        for step, *values in zip(row["eval_steps"], *columns, strict=True)
    }


def emergence_table(rows: pd.DataFrame, prompts: str) -> pd.DataFrame:
    """One line a run and capability.

    Returns:
        Columns size, seed, capability; bisected (step by the paper's bisection: the midpoint
        between the last failing and the first passing checkpoint it saw), bisected_observed,
        evaluations; step (the first passing checkpoint of the full scan, as a midpoint too; the
        bisection's where there is no scan), observed, reversals (passing checkpoints followed by a
        failing one; NaN without a scan) and horizon, the last step.
    """
    lines = []
    for _, row in rows.iterrows():
        steps = STEPS if row.source == "hub" else tuple(int(step) for step in row.eval_steps)
        for capability in CAPABILITIES:
            seen = passes(row, capability, prompts)
            bisected = emergence_point(seen.__getitem__, steps)
            found, reversals = bisected, math.nan
            if row.source != "hub":
                scanned = scan(seen.__getitem__, steps)
                found, reversals = scanned.emergence, scanned.reversals
            lines.append(
                {
                    "size": row["size"],
                    "seed": row.seed,
                    "capability": capability,
                    "bisected": bisected.midpoint,
                    "bisected_observed": not bisected.censored,
                    "evaluations": bisected.evaluations,
                    "step": found.midpoint,
                    "observed": not found.censored,
                    "reversals": reversals,
                    "horizon": steps[-1],
                }
            )
    return pd.DataFrame(lines)


def one_run(rows: pd.DataFrame, size: str, seed: int) -> pd.DataFrame:
    """The line of one recorded run.

    Raises:
        ParameterError: it is not among `rows`; the message says which seeds of its size are.
    """
    found = rows[(rows["size"] == size) & (rows.seed == seed)]
    if found.empty:
        known = sorted(rows.seed[rows["size"] == size])
        allowed = f"one of the recorded seeds of size {size!r}: {known}"
        advice = "Record more with: emergence sweep pythia --profile cpu"
        raise ParameterError("seeds", seed, allowed, advice)
    return found


def events(table: pd.DataFrame) -> list[Event]:
    """Lines of an `emergence_table` as possibly censored events."""
    return [Event(line.step, bool(line.observed)) for line in table.itertuples()]


def solve_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a size and capability: how many runs get there, and whether bisection sees it.

    Returns:
        Columns size, capability, n, solved, low, high (share that acquire it on many prompts, exact
        95 %), single (share on the single prompt), reversals (mean number), bisection_error (median
        distance of bisection from the scan's first passing checkpoint, share of training).
    """
    many, single = (emergence_table(rows, prompts) for prompts in ("many", "single"))
    lines = []
    for (size, capability), group in many.groupby(["size", "capability"], sort=False):
        alone = single[(single["size"] == size) & (single.capability == capability)]
        rate = solve_rate(int(group.observed.sum()), len(group))
        both = group[group.observed & group.bisected_observed]
        error = ((both.bisected - both.step).abs() / both.horizon).median()
        line = (
            size, str(capability).replace("_", " "), len(group), *rate, alone.observed.mean(),
            group.reversals.mean(), error,
        )  # fmt: skip
        lines.append(line)
    columns = [
        "size", "capability", "n", "solved", "low", "high", "single", "reversals",
        "bisection_error",
    ]  # fmt: skip
    return pd.DataFrame(lines, columns=columns)


def cells(table: pd.DataFrame, min_runs: int) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(size, capability, lines) with at least `min_runs` runs of which one got there."""
    for (size, capability), lines in table.groupby(["size", "capability"], sort=False):
        if len(lines) >= min_runs and lines.observed.any():
            yield str(size), str(capability), lines


def spread(lines: pd.DataFrame) -> float:
    """Interquartile range over median of the emergence steps; infinite where a quarter never do."""
    steps = lines.step.where(lines.observed, math.inf)
    low, middle, high = steps.quantile([0.25, 0.5, 0.75], interpolation="higher")
    return (high - low) / middle if math.isfinite(high) else math.inf


def loss_spread(rows: pd.DataFrame, lines: pd.DataFrame) -> float:
    """`spread` of the step at which the loss gets to where it is at the median emergence.

    The control of A-1: if seeds differ as much in the loss itself, a capability adds no luck.
    """
    runs = rows[rows["size"] == lines["size"].iloc[0]]
    curves = [curve(row, "loss") for _, row in runs.iterrows() if len(row["loss"])]
    observed = lines.step[lines.observed]
    if not curves or not len(observed):
        return math.nan
    level = np.median([np.interp(observed.median(), c.index, c) for c in curves])
    reached = [c.index[(c <= level).to_numpy()] for c in curves]
    steps = [float(steps[0]) if len(steps) else math.inf for steps in reached]
    return spread(pd.DataFrame({"step": steps, "observed": np.isfinite(steps)}))


def judge_random(rows: pd.DataFrame) -> Verdict:
    """A-1: at one size, seeds acquire a capability at widely different times, or not at all.

    A cell is a size and a capability with five seeds or more of which one got there (many prompts).
    Its times differ widely if their interquartile range is at least a quarter of their median, or a
    quarter of the runs never get there. "reproduced": more than half of the cells; "partly": some.
    """
    found = list(cells(emergence_table(rows, "many"), min_runs=5))
    if not found:
        return Verdict(
            "not tested here", f"Five seeds of a size are needed.{of_models(rows)}", len(rows)
        )
    wide = [spread(lines) >= WIDE for _, _, lines in found]
    status = "reproduced" if sum(wide) > len(found) / 2 else "partly" if any(wide) else None
    told = "; ".join(
        f"{size} {capability.replace('_', ' ')} {lines.observed.sum()} of {len(lines)} runs, "
        f"spread {_share(spread(lines))} (of the loss {_share(loss_spread(rows, lines))})"
        for size, capability, lines in found
    )
    evidence = (
        f"Emergence steps differ widely over seeds in {sum(wide)} of the {len(found)} cells with "
        f"five seeds or more: {told}.{of_models(rows)}"
    )
    return Verdict(status or "not reproduced", evidence, len(rows))


def judge_larger_earlier(rows: pd.DataFrame) -> Verdict:
    """A-2: larger models acquire earlier on average.

    The largest size against the smallest, a capability at a time (many prompts): ratio of
    restricted mean times and log-rank test. "reproduced": earlier with p < .05 in every capability
    that either size acquires; "partly": in one or more, and in none later; else "not reproduced".
    """
    table = emergence_table(rows, "many")
    sizes = list(dict.fromkeys(table["size"]))
    enough = [size for size in sizes if (rows["size"] == size).sum() >= 3]
    if len(enough) < 2:
        return Verdict(
            "not tested here", f"Three seeds of two sizes are needed.{of_models(rows)}", 0
        )
    small, large = enough[0], enough[-1]
    horizon = float(table.horizon.min())
    parts, earlier, later = [], 0, 0
    for capability, lines in table.groupby("capability", sort=False):
        groups = {size: events(lines[lines["size"] == size]) for size in (small, large)}
        if not any(event.observed for group in groups.values() for event in group):
            continue
        test = logrank(groups, horizon)
        ratio = test.ratios[large]
        earlier += test.p_value < 0.05 and ratio.value < 1
        later += test.p_value < 0.05 and ratio.value > 1
        parts.append(
            f"{str(capability).replace('_', ' ')} {with_interval(ratio, '.2f')}, log-rank "
            f"p = {test.p_value:.2g}"
        )
    if not parts:
        return Verdict(
            "not tested here", f"Neither size acquired anything.{of_models(rows)}", len(rows)
        )
    status = "not reproduced"
    if earlier and not later:
        status = "reproduced" if earlier == len(parts) else "partly"
    evidence = (
        f"Mean steps without the capability, size {large} (n = {(rows['size'] == large).sum()}) "
        f"over {small} (n = {(rows['size'] == small).sum()}): {'; '.join(parts)}.{of_models(rows)}"
    )
    return Verdict(status, evidence, int(rows["size"].isin([small, large]).sum()))


def rise_share(p: pd.Series, window: float = WINDOW) -> float | None:
    """Largest share of the whole rise of a curve that happens within a window of the training.

    Args:
        p: curve over steps, evaluated at regular steps but for the first few.
        window: share of the last step.

    Returns:
        From 0 to 1; None where the curve rises by less than `MIN_RISE` in all. The whole rise is
        from the first value to the median of the last five.
    """
    total = p.iloc[-5:].median() - p.iloc[0]
    if total < MIN_RISE:
        return None
    width = window * p.index[-1]
    later = np.interp(np.minimum(p.index + width, p.index[-1]), p.index, p)
    return float(min((later - p.to_numpy()).max() / total, 1.0))


def judge_abrupt(rows: pd.DataFrame) -> Verdict:
    """A-3: the jump is abrupt in p(target) too, not only in whether the greedy token is right.

    For every run and capability whose mean p(target) over many prompts rises by 0.2 or more: the
    largest share of that rise within 5 % of training. "reproduced": the median over runs (each the
    mean of its capabilities) is above one half with its whole interval; "partly": above one
    quarter; else "not reproduced".
    """
    shares = []
    for _, row in rows[rows.source != "hub"].iterrows():
        found = [rise_share(curve(row, f"p_{capability}")) for capability in CAPABILITIES]
        known = [share for share in found if share is not None]
        if known:
            shares.append(float(np.mean(known)))
    if len(shares) < 5:
        return Verdict(
            "not tested here", f"Five runs that acquire something are needed.{of_models(rows)}", 0
        )
    middle = bootstrap_interval(shares, np.random.default_rng(0), np.median)
    status = "reproduced" if middle.low > 0.5 else "partly" if middle.low > 0.25 else None
    evidence = (
        f"{with_interval(middle, '.0%')} of the rise of p(target) happens within 5 % of training "
        f"(median of {len(shares)} runs; 5 % for an even rise).{of_models(rows)}"
    )
    return Verdict(status or "not reproduced", evidence, len(shares))


def head_time(row: pd.Series, measure: str) -> float | None:
    """The step at which the best head's score first is half-way up; None if it hardly rises."""
    score = curve(row, measure)
    low, high = score.iloc[0], score.iloc[-5:].median()
    if high - low < MIN_HEAD_RISE:
        return None
    return float(score.index[(score >= (low + high) / 2).to_numpy()][0])


def head_gaps(rows: pd.DataFrame, capability: str, measure: str) -> pd.DataFrame:
    """How far emergence is from the rise of a head score, in the run and in other seeds' runs.

    Returns:
        One line a run that shows both: size, seed, step (of emergence), head_step, gap and
        other_gap (mean over the size's other seeds), as shares of training.
    """
    table = emergence_table(rows, "many")
    times = {
        (row["size"], row.seed): time
        for _, row in rows.iterrows()
        if (time := head_time(row, measure)) is not None
    }
    lines = []
    for line in table[(table.capability == capability) & table.observed].itertuples():
        size, seed = line.size, line.seed
        others = [t for (s, k), t in times.items() if s == size and k != seed]
        if (size, seed) in times and others:
            own = times[size, seed]
            gap = abs(line.step - own) / line.horizon
            other = float(np.mean([abs(line.step - t) for t in others])) / line.horizon
            lines.append((size, seed, line.step, own, gap, other))
    columns = ["size", "seed", "step", "head_step", "gap", "other_gap"]
    return pd.DataFrame(lines, columns=columns)


def judge_attention(rows: pd.DataFrame) -> Verdict:
    """A-4: emergence coincides with attention becoming interpretable.

    Interpretable: the best head's induction score on repeated random tokens. Coincides: emergence
    of string repetition is nearer to the score's half-way step in the same run than to that of
    other seeds of its size, with the whole interval of the mean difference. "reproduced": that, and
    the score rises in at least nine tenths of the runs that acquire it; "partly": one of both;
    "not reproduced": neither, or it rises in fewer than three of five or more such runs.
    """
    scans = rows[rows.source != "hub"]
    gaps = head_gaps(scans, "string_repetition", "induction")
    table = emergence_table(scans, "many") if len(scans) else pd.DataFrame()
    acquired = 0
    if len(table):
        acquired = int(table.observed[table.capability == "string_repetition"].sum())
    if len(gaps) < 3:
        few = acquired < 5
        evidence = (
            f"{acquired} runs acquire string repetition; in {len(gaps)} of them the best head's "
            f"induction score rises by {MIN_HEAD_RISE} or more"
            f"{' (five that acquire it are needed)' if few else ''}.{of_models(rows)}"
        )
        return Verdict("not tested here" if few else "not reproduced", evidence, acquired)
    nearer = mean_interval((gaps.other_gap - gaps.gap).tolist())
    checks = (nearer.low > 0, len(gaps) / acquired >= 0.9)
    status = "reproduced" if all(checks) else "partly" if any(checks) else "not reproduced"
    evidence = (
        f"The induction score rises in {len(gaps)} of {acquired} runs that acquire string "
        f"repetition. Emergence is {gaps.gap.median():.1%} of training from the rise in the same "
        f"run (median), {gaps.other_gap.median():.1%} from that of another seed; difference "
        f"{with_interval(nearer, '.1%')}.{of_models(rows)}"
    )
    return Verdict(status, evidence, len(gaps))


def _share(value: float) -> str:
    return f"{value:.0%}" if math.isfinite(value) else "unbounded"


def of_models(rows: pd.DataFrame) -> str:
    """Which models a verdict is about: one source is never passed off as the other."""
    if len(rows) and (rows.source == "hub").all():
        return " Models: Pythia and PolyPythias."
    return " Models: the pocket suite; real Pythia is not tested here."
