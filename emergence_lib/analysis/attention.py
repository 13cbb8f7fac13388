"""Attention of a head: how spread it is, how much of it lies where the answer is, and when.

    entropy     −Σ_j a_tj log a_tj        0 on one key … ln(t+1) spread over all keys of query t
    alignment   Σ_{j needed} a_tj         1 on nothing but needed keys; uniform attention has
                                          (number needed) / (t+1)

A head that attends evenly to exactly the s needed keys has entropy ln s and alignment 1. Entropy is
the measure of paper A (linear-map section: it falls when a row is learned); alignment is ours.

Observers for `training.train` write, where l is the layer, h the head, i the output row (the
queries that `Task.attention_target` gives keys to, in order):

    entropy.l.h        row_entropy.l.h.i       nats, mean over the evaluation batch
    alignment.l.h      row_alignment.l.h.i     share from 0 to 1, mean over the evaluation batch
                       row_loss.i              cross entropy in nats

and `unpack` gives them back as a table.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import Batch, Task, require_int


def entropy(pattern: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query"]:
    """Entropy of each query's attention in nats; a weight of 0 contributes 0."""
    return torch.special.entr(pattern).sum(-1)


def alignment(
    pattern: Float[Tensor, "*batch query key"], target: Bool[Tensor, "query key"]
) -> Float[Tensor, "*batch query"]:
    """Share of each query's attention on the keys it needs; NaN for queries that need none."""
    mass = (pattern * target).sum(-1)
    return mass.masked_fill(~target.any(-1), torch.nan)


def uniform_alignment(target: Bool[Tensor, "query key"]) -> Float[Tensor, " query"]:
    """`alignment` of uniform causal attention: what chance gives. NaN for queries without keys."""
    uniform = torch.ones(target.shape, device=target.device).tril()
    return alignment(uniform / uniform.sum(-1, keepdim=True), target)


class AttentionObserver:
    """Records entropy and alignment of every head, overall and for each output row.

    Args:
        task: gives the needed keys.
        n_layers: layers to watch, from the first on; those whose mixer has no attention pattern
            are left out.

    Raises:
        ParameterError: the task has no fixed attention target.
    """

    def __init__(self, task: Task, n_layers: int = 1) -> None:
        require_int("n_layers", n_layers, 1)
        self.target, self.rows = _target_and_rows(task)
        self.taps = tuple(f"pattern.{layer}" for layer in range(n_layers))

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Float[Tensor, "batch pos vocab"],
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for layer, tap in enumerate(self.taps):
            pattern = tapped[tap]
            if pattern is None:
                continue
            rows = self.rows.to(pattern.device)
            pattern = pattern[:, :, rows]
            target = self.target.to(pattern.device)[rows]
            for name, value in (
                ("entropy", entropy(pattern)),
                ("alignment", alignment(pattern, target)),
            ):
                for head, by_row in enumerate(value.mean(0).tolist()):
                    metrics[f"{name}.{layer}.{head}"] = sum(by_row) / len(by_row)
                    for row, number in enumerate(by_row):
                        metrics[f"row_{name}.{layer}.{head}.{row}"] = number
        return metrics


class RowLossObserver:
    """Records the loss of each output row, over the sequences in which it counts.

    Args:
        task: gives the queries that have something to predict from.

    Raises:
        ParameterError: the task has no fixed attention target.
    """

    def __init__(self, task: Task) -> None:
        _, self.rows = _target_and_rows(task)

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Float[Tensor, "batch pos vocab"],
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        rows = self.rows.to(logits.device)
        loss = F.cross_entropy(
            logits[:, rows].transpose(1, 2), batch.tokens[:, rows + 1], reduction="none"
        )
        counted = batch.loss_mask[:, rows]
        by_row = (loss * counted).sum(0) / counted.sum(0)
        return {f"row_loss.{row}": number for row, number in enumerate(by_row.tolist())}


def unpack(trajectory: pd.DataFrame, name: str) -> pd.DataFrame:
    """All metrics ``name.a.b…`` of `Run.trajectory` as a table.

    Returns:
        Index: step. Columns: the integers behind the name, as a MultiIndex where there are several:
        row for "row_loss"; layer, head for "entropy"; layer, head, row for "row_entropy".

    Raises:
        UnknownNameError: the trajectory has no such metric.
    """
    rows = trajectory[trajectory.metric.str.startswith(f"{name}.")]
    if rows.empty:
        known = {metric.split(".")[0] for metric in trajectory.metric.unique()}
        raise UnknownNameError("metric", name, known)
    wide = rows.pivot(index="step", columns="metric", values="value")
    keys = [tuple(int(part) for part in metric.split(".")[1:]) for metric in wide.columns]
    if len(keys[0]) == 1:
        wide.columns = pd.Index([key[0] for key in keys], name="row")
    else:
        wide.columns = pd.MultiIndex.from_tuples(
            keys, names=["layer", "head", "row"][: len(keys[0])]
        )
    return wide.sort_index(axis=1)


def change_around(table: pd.DataFrame, step: float, margin: int) -> pd.Series:
    """How much every column changes across a step: `margin` steps after it minus `margin` before.

    Both at the nearest evaluations at or beyond these steps, or at the ends of the table.

    Args:
        table: index step, any columns.

    Raises:
        ParameterError: `margin` is not a positive integer.
    """
    require_int("margin", margin, 1)
    steps = table.index
    before = max(steps.searchsorted(step - margin, side="right") - 1, 0)
    after = min(steps.searchsorted(step + margin, side="left"), len(steps) - 1)
    return table.iloc[after] - table.iloc[before]


def head_that_moves(
    row_entropy: pd.DataFrame, falls: Mapping[int, float], margin: int
) -> pd.DataFrame:
    """For each row, the head whose entropy at that row's query drops most when the row is learned.

    A drop is the entropy `margin` steps before the fall minus that `margin` steps after it
    (`change_around`).

    Args:
        row_entropy: ``unpack(run.trajectory, "row_entropy")``, nats.
        falls: row → the step at which its loss falls; leave out rows that are never learned.
        margin: steps on either side, at least the width of the fall.

    Returns:
        One line a row, in order of `step`: columns row, step, layer, head, drop (nats) and
        other_drop, the median of the other heads at the same query (NaN for a single head).

    Raises:
        ParameterError: `margin` is not a positive integer or a row is not in the table.
    """
    require_int("margin", margin, 1)
    known = set(row_entropy.columns.get_level_values("row"))
    lines = []
    for row, step in falls.items():
        if row not in known:
            raise ParameterError("falls", row, f"keyed by rows 0 to {max(known)}")
        drop = -change_around(row_entropy, step, margin).xs(row, level="row")
        layer, head = drop.idxmax()
        others = drop.drop((layer, head)).median()
        lines.append((row, step, layer, head, drop.max(), others))
    columns = ["row", "step", "layer", "head", "drop", "other_drop"]
    return pd.DataFrame(lines, columns=columns).sort_values("step", ignore_index=True)


def _target_and_rows(task: Task) -> tuple[Bool[Tensor, "query key"], Int[Tensor, " row"]]:
    """The task's attention target and the queries that it gives keys to."""
    target = task.attention_target()
    if target is None:
        raise ParameterError(
            "task",
            task.name,
            "a task with a fixed attention target",
            "Tasks whose needed keys differ between sequences cannot be observed this way.",
        )
    return target, target.any(-1).nonzero().squeeze(-1)
