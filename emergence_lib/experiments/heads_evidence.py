"""What the recorded runs of `heads` say: waits along each family of shapes, trends and verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pandas as pd

from emergence_lib.analysis.power_law import PowerLaw, fit_power_law
from emergence_lib.analysis.survival import Estimate, logrank, solve_rate
from emergence_lib.errors import ParameterError
from emergence_lib.experiments import two_tasks
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import (
    Groups,
    over_runs,
    steps_in_words,
    waits_by,
    with_interval,
)
from emergence_lib.experiments.two_tasks import NAMES
from emergence_lib.tasks import LinearMap

HEAD_SIZE = 16
"""The head size of the family in which only the number of heads grows, and the middle of sizes."""

N_HEADS: Mapping[str, int] = {"linear_map": 8, "cellular_automata": 4}
"""Task → the number of heads of the family in which only their size grows."""

FAMILIES: Mapping[str, tuple[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "fixed size": ("n_heads", lambda rows: rows.d_head == HEAD_SIZE),
    "fixed width": ("n_heads", lambda rows: rows.n_heads * rows.d_head == rows.d_model),
    "fixed number": ("d_head", lambda rows: rows.n_heads == rows.task.map(N_HEADS)),
}
"""Family → what grows in it (a column), and which rows belong to it."""

PAPER_FINAL_LOSS = {1: 0.626, 2: 0.493, 4: 0.464, 8: 0.343, 16: 0.336}
"""H → final loss in nats of the linear map with S = 16 at width 128, off the paper's figure."""

PAPER_EXCESS = {f"H = {n}": loss - LinearMap(16, 3).floor for n, loss in PAPER_FINAL_LOSS.items()}
"""The same above that map's floor."""

ENOUGH_HEADS = 4
"""From so many heads on a layer has one for each of the three inputs of a row, or of a window."""


def family(rows: pd.DataFrame, task: str, name: str) -> pd.DataFrame:
    """The runs of one task along one family of shapes."""
    if rows.empty:
        return rows
    rows = rows[rows.task == task]
    return rows[FAMILIES[name][1](rows)]


def by_shape(rows: pd.DataFrame, name: str) -> dict[str, pd.DataFrame]:
    """Task → how long runs wait along a family: `waits_by`, x being what grows in it."""
    return {
        title: waits_by(family(rows, task, name), FAMILIES[name][0], two_tasks.event)
        for task, title in NAMES.items()
    }


def trend(rows: pd.DataFrame, grows: str) -> PowerLaw | None:
    """How the wait goes with the column `grows`, as a power; below 0 is sooner.

    None where fewer than two shapes have two runs, or too few waits ended.
    """
    if rows.empty or (rows[grows].value_counts() >= 2).sum() < 2:
        return None
    try:
        return fit_power_law(
            rows[grows].astype(float).tolist(), [two_tasks.event(row) for _, row in rows.iterrows()]
        )
    except ParameterError:
        return None


def judge_more_heads_help(rows: pd.DataFrame) -> Verdict:
    """A-11: at a fixed head size the wait falls with the number of heads, on both tasks.

    "reproduced": on both tasks the whole interval of the exponent (wait ~ H^exponent) is below 0;
    "partly": on one. The waits at fixed width, where the weights stay as many, are given too.
    """
    trends = {task: trend(family(rows, task, "fixed size"), "n_heads") for task in NAMES}
    found = {task: law for task, law in trends.items() if law is not None}
    if not found:
        need = "Two numbers of heads of one size with two runs each, three ended, are needed."
        return Verdict("not tested here", need, 0)
    helps = sum(law.exponent.high < 0 for law in found.values())
    status = "reproduced" if helps == 2 else "partly" if helps else "not reproduced"
    parts = [_power_in_words(task, law, "H") for task, law in found.items()]
    missing = "".join(f" {NAMES[t].capitalize()}: not tested." for t in NAMES if t not in found)
    evidence = (
        f"Heads of size {HEAD_SIZE}: {'; '.join(parts)}.{missing} {width_sentence(rows)}".rstrip()
    )
    return Verdict(status, evidence, sum(law.n for law in found.values()))


def width_sentence(rows: pd.DataFrame) -> str:
    """The median waits with H heads of size width/H; "" without runs.

    No exponent here: the line goes down and up again.
    """
    if rows.empty:
        return ""
    watched = float(rows.steps.max())
    parts = []
    for title, table in by_shape(rows, "fixed width").items():
        waits = [
            f"H = {line.x} {steps_in_words(Estimate(line.median, line.low, line.high), watched)}"
            for line in table.itertuples()
        ]
        if waits:
            parts.append(f" {title.capitalize()}: {'; '.join(waits)}.")
    head = "The median wait at a fixed width, where more heads are smaller."
    return head + "".join(parts) if parts else ""


def excess_at_fixed_width(rows: pd.DataFrame) -> Groups:
    """The linear map's final loss above its floor, nats, at each number of heads of a fixed width.

    Returns:
        For `plotting.named_estimates`, with names as in `PAPER_EXCESS`; none without runs.
    """
    runs = family(rows, "linear_map", "fixed width")
    excess = {
        f"H = {n_heads}": [
            float(row.final_loss) - LinearMap(int(row.state_size), int(row.row_weight)).floor
            for _, row in cell.iterrows()
        ]
        for n_heads, cell in (runs.groupby("n_heads") if len(runs) else ())
    }
    if not excess:
        return {}
    means = [over_runs(values) for values in excess.values()]
    return {NAMES["linear_map"]: (list(excess), means, list(excess.values()))}


def more_than_enough_sentence(rows: pd.DataFrame) -> str:
    """Whether heads beyond `ENOUGH_HEADS` lengthen the wait, as Zucchet et al. report of theirs."""
    parts = []
    for name in ("fixed size", "fixed width"):
        for task, title in NAMES.items():
            runs = family(rows, task, name)
            law = trend(runs[runs.n_heads >= ENOUGH_HEADS], "n_heads") if len(runs) else None
            if law is not None:
                parts.append(
                    f"{title} at a {name} {with_interval(law.exponent, '.2f')} "
                    f"({law.observed} of {law.n} waits ended)"
                )
    if not parts:
        return "Too few waits are recorded to tell what more heads than enough do."
    return (
        f"From {ENOUGH_HEADS} heads on, the wait goes as their number to the power: "
        f"{'; '.join(parts)}. Above 0 is longer with more heads."
    )


def _power_in_words(task: str, law: PowerLaw, symbol: str) -> str:
    """ "on the linear map the wait goes as H to the power -0.40 [-0.60, -0.20] (14 of 15 …)"."""
    return (
        f"on the {NAMES[task]} the wait until {two_tasks.WAITS[task]} goes as {symbol} to the "
        f"power {with_interval(law.exponent, '.2f')} ({law.observed} of {law.n} waits ended)"
    )


def difference(larger: Estimate, smaller: Estimate) -> Estimate:
    """Larger minus smaller, of independent estimates with symmetric intervals."""
    value = larger.value - smaller.value
    half = math.hypot(larger.high - larger.value, smaller.high - smaller.value)
    return Estimate(value, value - half, value + half)


def judge_larger_heads_saturate(rows: pd.DataFrame) -> Verdict:
    """A-12: with the number of heads fixed, size helps up to `HEAD_SIZE` and then less.

    A task agrees if, up to that size, the whole interval of the exponent in the head size is below
    0, and from it on the exponent is larger, with the whole interval of the difference above 0.
    "reproduced": both tasks agree; "partly": one does, or a small head is slow on one, be it that
    its waits never end (`smaller_never_end`); the two
    halves of a task share the runs of the middle size, which makes the test a little conservative.
    """
    parts, agree, slow, n = [], 0, 0, 0
    for task in NAMES:
        runs = family(rows, task, "fixed number")
        halves = [runs, runs]
        if len(runs):
            halves = [runs[runs.d_head <= HEAD_SIZE], runs[runs.d_head >= HEAD_SIZE]]
        small, large = (trend(half, "d_head") for half in halves)
        if small is None or large is None:
            hindered, words = smaller_never_end(runs) if len(runs) else (False, "not tested")
            slow += hindered
            n += len(runs) * (words != "not tested")
            parts.append(f"{NAMES[task]}, {N_HEADS[task]} heads: {words}")
            continue
        less = difference(large.exponent, small.exponent)
        slow += small.exponent.high < 0
        agree += small.exponent.high < 0 < less.low
        n += len(runs)
        parts.append(
            f"{NAMES[task]}, {N_HEADS[task]} heads: the wait until {two_tasks.WAITS[task]} goes as "
            f"the head size to the power {with_interval(small.exponent, '.2f')} up to {HEAD_SIZE} "
            f"and {with_interval(large.exponent, '.2f')} from there on, a difference of "
            f"{with_interval(less, '.2f')}"
        )
    if not n:
        need = "Two head sizes on either side of the middle, with two runs each, are needed."
        return Verdict("not tested here", need, 0)
    status = "reproduced" if agree == 2 else "partly" if agree or slow else "not reproduced"
    evidence = f"{'; '.join(parts).capitalize()}. {smallest_sentence(rows)}".rstrip()
    return Verdict(status, evidence, n)


def smaller_never_end(runs: pd.DataFrame) -> tuple[bool, str]:
    """Whether heads below `HEAD_SIZE` wait longer, where too few of their waits end for a power.

    Args:
        runs: of one task and number of heads.

    Returns:
        Whether they do (log-rank test of all smaller ones together, p < 0.05), and the numbers in
        words: "not tested" with fewer than two runs on a side or without any wait that ended.
    """
    sides = {"smaller": runs[runs.d_head < HEAD_SIZE], "middle": runs[runs.d_head == HEAD_SIZE]}
    waits = {side: [two_tasks.event(row) for _, row in r.iterrows()] for side, r in sides.items()}
    ended = {side: sum(event.observed for event in events) for side, events in waits.items()}
    if min(map(len, waits.values())) < 2 or not any(ended.values()):
        return False, "not tested"
    test = logrank(waits, int(runs.steps.min()))
    return test.p_value < 0.05 and test.ratios["middle"].value < 1, (
        f"{ended['smaller']} of {len(waits['smaller'])} waits of smaller heads ended, with size "
        f"{HEAD_SIZE} {ended['middle']} of {len(waits['middle'])} (log-rank p = "
        f"{test.p_value:.2g}), too few for a power"
    )


def smallest_sentence(rows: pd.DataFrame) -> str:
    """Whether heads of one dimension at full width solve the linear map; "" where not recorded."""
    runs = family(rows, "linear_map", "fixed width")
    runs = runs[runs.d_head == 1] if len(runs) else runs
    if not len(runs):
        return ""
    solved = int(runs.solved.sum())
    rate = with_interval(solve_rate(solved, len(runs)), ".0%")
    return (
        f"With {int(runs.n_heads.iloc[0])} heads of one dimension, {solved} of {len(runs)} runs "
        f"learn the whole linear map ({rate})."
    )
