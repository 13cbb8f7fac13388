"""Where heads look: attention maps, and one run with its rows and heads step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from emergence_lib.plotting.style import OKABE_ITO, step_axis


def watched_run(
    loss: pd.Series,
    row_losses: pd.DataFrame,
    moving: pd.DataFrame,
    entropy: pd.DataFrame,
    alignment: pd.DataFrame,
    chance: Mapping[int, float],
) -> Figure:
    """One run on four aligned panels: total loss; each row's loss; two measures of its moving head.

    A mark in the lower three is the row's fall. A row that never fell has no moving head: grey.

    Args:
        loss: nats, indexed by step.
        row_losses: nats, index step, one column a row.
        moving: columns row, step, layer, head as `analysis.attention.head_that_moves` gives.
        entropy: nats, index step, columns (layer, head, row).
        alignment: attention on the row's true inputs, 0 to 1, likewise.
        chance: row → `alignment` of attention that is spread evenly; it is drawn white.
    """
    order = [*moving["row"], *(r for r in row_losses if r not in set(moving["row"]))]
    edges = _edges(loss.index)
    fig, axes = plt.subplots(
        4, 1, figsize=(7, 9), sharex=True, gridspec_kw={"height_ratios": [1.1, 1, 1, 1]}
    )
    axes[0].plot(loss.index, loss, color=OKABE_ITO["blue"])
    for step in moving["step"]:
        axes[0].axvline(step, color=OKABE_ITO["orange"], linewidth=0.8, alpha=0.8, zorder=0)
    axes[0].set_ylabel("total loss (nats)")
    axes[0].set_title("A vertical line marks the step at which a row's loss falls below ln 2 / 2")
    above_chance = _of_moving_head(moving, alignment, order) - pd.Series(chance)[order]
    images = (
        (row_losses[order], "row's loss (nats)", "cividis", (0.0, None)),
        (
            _of_moving_head(moving, entropy, order),
            "head's entropy (nats)",
            "cividis",
            (0.0, None),
        ),
        (above_chance, "on the true inputs,\nminus chance", "RdBu", (-1.0, 1.0)),
    )
    for ax, (table, label, colours, (low, high)) in zip(axes[1:], images, strict=True):
        values = table.to_numpy().T
        if high is None:
            # Not the maximum: an untrained model's first loss would dim all others.
            high = np.nanquantile(values, 0.98) if np.isfinite(values).any() else 1.0
        mesh = ax.pcolormesh(
            edges, np.arange(len(order) + 1), values, vmin=low, vmax=high, rasterized=True,
            cmap=plt.get_cmap(colours).with_extremes(bad="#DDDDDD"),
        )  # fmt: skip
        ax.vlines(moving["step"], np.arange(len(moving)), np.arange(len(moving)) + 1,
                  color=OKABE_ITO["orange"], linewidth=1.4)  # fmt: skip
        fig.colorbar(mesh, ax=ax, label=label, pad=0.01)
        ax.invert_yaxis()
        ax.set_yticks(np.arange(len(order)) + 0.5, order, fontsize=7.5)
        ax.set_ylabel("output row")
    step_axis(axes[-1], 100)
    return fig


def attention_maps(
    patterns: Mapping[str, Float[Tensor, "query key"]], target: Bool[Tensor, "query key"]
) -> Figure:
    """Attention of some heads over the queries that have a true answer, the truth first.

    Args:
        patterns: title → attention pattern, mean over a batch.
        target: ground truth; only its queries with a true key are shown, and keys up to the last
            true one.
    """
    rows = target.any(-1).nonzero().squeeze(-1)
    keys = int(target.any(0).nonzero().max()) + 1
    shown = {"truth (A / s)": target / target.sum(-1, keepdim=True).clamp(min=1), **patterns}
    columns = min(len(shown), 5)
    lines = -(-len(shown) // columns)
    fig, axes = plt.subplots(
        lines, columns, figsize=(1.45 * columns + 0.8, 1.7 * lines), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    for ax, (title, pattern) in zip(axes.flat, shown.items(), strict=False):
        mesh = ax.imshow(pattern[rows][:, :keys].numpy(), vmin=0, vmax=1, aspect="auto")
        ax.set_title(title, fontsize=8.5)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    for ax in axes[-1]:
        ax.set_xlabel("input bit", fontsize=8.5)
    for ax in axes[:, 0]:
        ax.set_ylabel("output bit", fontsize=8.5)
    fig.colorbar(mesh, ax=axes.ravel().tolist(), label="attention", pad=0.01)
    return fig


def _of_moving_head(
    moving: pd.DataFrame, measure: pd.DataFrame, order: Sequence[int]
) -> pd.DataFrame:
    """What each row's moving head does at that row's query; NaN for rows that never fell."""
    heads = {line.row: (line.layer, line.head) for line in moving.itertuples()}
    return pd.DataFrame(
        {row: measure[(*heads[row], row)] if row in heads else np.nan for row in order},
        index=measure.index,
    )


def _edges(steps: pd.Index) -> np.ndarray:
    """Cell borders halfway between evaluations."""
    steps = np.asarray(steps, dtype=float)
    middle = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([steps[:1], middle, steps[-1:]])
