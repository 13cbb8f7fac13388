"""Rows and heads of one watched run, read from the row that experiment `plateau` records of it.

loss of row 0   ln 2 ────┐               Each output bit of the map has its own loss, which
                         └────────── 0   falls once, when the inputs of that bit are found.
loss of row 1   ln 2 ──────────┐         Its fall is half-way down, its width lies between
                               └──── 0   10 % and 90 % of the way.
total loss           ────┐               Each abrupt drop of the total is compared with the
                         └─────┐         rows that fall during it: by its size, and by how
                               └────     many they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import (
    Event,
    Jump,
    loss_jumps,
    plateau_length,
    transition_width,
)
from emergence_lib.experiments.linear_map_cell import UNIFORM_LOSS


def loss_curve(row: pd.Series) -> pd.Series:
    """Held-out loss in nats over steps."""
    return pd.Series(np.asarray(row["eval_loss"]), index=list(row["eval_steps"]), name="loss")


def row_losses(row: pd.Series) -> pd.DataFrame:
    """Loss in nats of each output row: index step, columns row."""
    return pd.DataFrame(np.stack(row["row_loss"]), index=list(row["eval_steps"])).rename_axis(
        columns="row"
    )


def head_table(row: pd.Series, name: str) -> pd.DataFrame:
    """`name` "row_entropy" (nats) or "row_alignment" (share): index step, columns layer, head, row.

    The heads of one layer, as `analysis.attention.unpack` gives them for a run.
    """
    heads, rows = range(int(row["n_heads"])), range(int(row["state_size"]))
    columns = pd.MultiIndex.from_product([[0], heads, rows], names=["layer", "head", "row"])
    return pd.DataFrame(np.stack(row[name]), index=list(row["eval_steps"]), columns=columns)


def row_falls(row: pd.Series) -> dict[int, Event]:
    """Output row → when its loss fell below ln 2 / 2 for two evaluations in a row."""
    losses = row_losses(row)
    return {i: plateau_length(losses[i], UNIFORM_LOSS / 2, sustain=2) for i in losses}


def row_width(row: pd.Series, output: int) -> float | None:
    """Steps from 10 % to 90 % of one output row's way down; None if it never got there."""
    return transition_width(row_losses(row)[output], UNIFORM_LOSS, 0.0)


def row_widths(rows: pd.DataFrame) -> pd.DataFrame:
    """Every learned output row: seed, row, step of its fall, width in steps (NaN: not over)."""
    lines = [
        (row.seed, i, event.step, row_width(row, i))
        for _, row in rows.iterrows()
        for i, event in row_falls(row).items()
        if event.observed
    ]
    return pd.DataFrame(lines, columns=["seed", "row", "step", "width"])


def one_row(row: pd.Series) -> float:
    """What one learned output row takes off the total loss, ln 2 / (2S-1) nats."""
    return UNIFORM_LOSS / (2 * int(row["state_size"]) - 1)


def jumps(row: pd.Series) -> list[tuple[Jump, int]]:
    """Abrupt drops of the total loss, each with the number of rows that fell during it.

    Losses above ln 2 count as ln 2: an untrained model is worse than a guess, and its way down to
    the plateau is no row.
    """
    below = loss_curve(row).clip(upper=UNIFORM_LOSS)
    found = loss_jumps(below, min_drop=one_row(row) / 2)
    falls = [event.step for event in row_falls(row).values() if event.observed]
    return [(jump, sum(jump.start < step <= jump.end for step in falls)) for jump in found]


def learning_runs(rows: pd.DataFrame) -> Iterator[pd.Series]:
    """Runs in which at least two rows were learned: others have no staircase to look at."""
    for _, row in rows.iterrows():
        if sum(event.observed for event in row_falls(row).values()) >= 2:
            yield row
