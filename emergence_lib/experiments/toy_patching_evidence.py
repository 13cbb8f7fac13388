"""What the runs of `toy_patching` say: how much of a jump each part carries, in words and tables.

No claim of the ledger is judged here: A-5 is about Pythia. The sentence says whether its result
carries over to a toy model.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from emergence_lib.analysis.survival import Estimate, mean_interval
from emergence_lib.experiments.evidence import over_runs, with_interval

DIRECTIONS = {
    "forward": "post into pre",
    "reverse": "pre into post",
    "control": "earlier into pre",
}
"""Column of the rows → what it is called."""
TASK_NAMES = {"linear_map": "linear map", "cellular_automata": "cellular automata"}
MOST = 0.5
"""Share of a jump above which a part carries most of it."""


def shares(rows: pd.DataFrame, task: str, direction: str, part: str) -> list[float]:
    """Share of the jump that moving `part` carries: one a run, the mean over its jumps.

    Args:
        rows: recorded runs.
        direction: a key of `DIRECTIONS`.
        part: one of `analysis.moved_parts.PARTS`.
    """
    found = []
    for _, row in rows[rows.task == task].iterrows():
        column = list(row.parts).index(part)
        values = [jump[column] for jump in row[direction] if jump is not None]
        if values:
            found.append(float(np.mean(values)))
    return found


def share(rows: pd.DataFrame, task: str, direction: str, part: str) -> Estimate:
    """Mean of `shares` over runs with its t interval; unknown where nothing is recorded."""
    return over_runs(shares(rows, task, direction, part), mean_interval)


def n_jumps(rows: pd.DataFrame, task: str) -> tuple[int, int]:
    """Jumps looked at, and the runs they are of."""
    jumps = rows[rows.task == task].jumps.map(len)
    return int(jumps.sum()), int((jumps > 0).sum())


def parts_table(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    """One line a part: mean share over runs with interval, in words, a column a direction."""
    parts = next((list(row.parts) for _, row in rows[rows.task == task].iterrows()), [])
    lines = [
        {"part moved": part}
        | {
            name: with_interval(share(rows, task, direction, part), ".2f")
            for direction, name in DIRECTIONS.items()
        }
        for part in parts
    ]
    return pd.DataFrame(lines, columns=["part moved", *DIRECTIONS.values()])


def share_groups(
    rows: pd.DataFrame, task: str
) -> dict[str, tuple[list[str], list[Estimate], list[list[float]]]]:
    """Name of a direction → (parts, mean share of each, shares of the runs): for the figure."""
    parts = next((list(row.parts) for _, row in rows[rows.task == task].iterrows()), [])
    return {
        name: (
            parts,
            [share(rows, task, direction, part) for part in parts],
            [shares(rows, task, direction, part) for part in parts],
        )
        for direction, name in DIRECTIONS.items()
    }


def carries_over(patterns: Estimate) -> str:
    """Whether patterns alone recover most of a jump, as in A-5: decided by the whole interval."""
    if patterns.low > MOST:
        return "A-5's result carries over: the patterns alone recover most of the jump"
    if patterns.high < MOST:
        return "A-5's result does not carry over: the patterns alone recover less than half"
    return "Whether A-5's result carries over is not decided"


def toy_sentence(rows: pd.DataFrame, task: str) -> str:
    """What moving each part around the jumps of a task does, with n and 95 % intervals."""
    name = TASK_NAMES[task]
    jumps, runs = n_jumps(rows, task) if len(rows) else (0, 0)
    if runs < 3:
        return f"{name.capitalize()}: not tested here; three runs with a jump are needed."

    def said(direction: str, part: str) -> str:
        return with_interval(share(rows, task, direction, part), ".2f")

    control = said("control", "patterns")
    if control == "unknown":
        control = "none, since no checkpoint lies so far before"
    needed = share(rows, task, "reverse", "patterns")
    if needed.low > MOST:
        removal = "so the new patterns are needed for most of it"
    elif needed.high < MOST:
        removal = "so most of it is kept without the new patterns"
    else:
        removal = "which does not decide whether they are needed for most of it"
    return (
        f"{name.capitalize()} ({jumps} jump{'s' if jumps > 1 else ''} of {runs} runs). Moved into "
        f"the model before the jump, the patterns recover {said('forward', 'patterns')} of it, "
        f"patterns and values {said('forward', 'patterns and values')}, the attention block "
        f"{said('forward', 'attention block')}, and block and MLP "
        f"{said('forward', 'attention block and MLP')}. "
        f"{carries_over(share(rows, task, 'forward', 'patterns'))}. The old patterns, moved into "
        f"the model after the jump, undo {said('reverse', 'patterns')} of it, {removal}. Control, "
        f"patterns from as long before the jump: {control}."
    )
