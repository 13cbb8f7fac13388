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
    loss: pd.Series, row_losses: pd.DataFrame, moving: pd.DataFrame, entropy: pd.DataFrame
) -> Figure:
    """One run on three aligned panels: total loss, loss of each row, entropy of its moving head.

    Args:
        loss: nats, indexed by step.
        row_losses: nats, index step, one column a row.
        moving: columns row, step, layer, head as `analysis.attention.head_that_moves` gives.
        entropy: nats, index step, columns (layer, head, row).
    """
    order = [*moving["row"], *(r for r in row_losses if r not in set(moving["row"]))]
    edges = _edges(loss.index)
    fig, axes = plt.subplots(
        3, 1, figsize=(7, 7.2), sharex=True, gridspec_kw={"height_ratios": [1.1, 1, 1]}
    )
    axes[0].plot(loss.index, loss, color=OKABE_ITO["blue"])
    for step in moving["step"]:
        axes[0].axvline(step, color=OKABE_ITO["orange"], linewidth=0.8, alpha=0.8, zorder=0)
    axes[0].set_ylabel("total loss (nats)")
    axes[0].set_title("A vertical line marks the step at which a row's loss falls below ln 2 / 2")
    images = (
        (axes[1], row_losses[order], "loss of the row (nats)"),
        (axes[2], _entropy_of_moving_head(moving, entropy, order), "entropy of its head (nats)"),
    )
    for ax, table, label in images:
        values = table.to_numpy().T
        top = np.nanquantile(values, 0.98) if np.isfinite(values).any() else 1.0
        # Not the maximum: an untrained model's first loss would dim all others.
        mesh = ax.pcolormesh(
            edges, np.arange(len(order) + 1), values, vmin=0, vmax=top, rasterized=True
        )
        fig.colorbar(mesh, ax=ax, label=label, pad=0.01)
        ax.invert_yaxis()
        ax.set_yticks(np.arange(len(order)) + 0.5, order, fontsize=7.5)
        ax.set_ylabel("output row")
    step_axis(axes[2], 100)
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


def _entropy_of_moving_head(
    moving: pd.DataFrame, entropy: pd.DataFrame, order: Sequence[int]
) -> pd.DataFrame:
    """Entropy of each row's moving head at that row's query; NaN for rows that never fell."""
    heads = {line.row: (line.layer, line.head) for line in moving.itertuples()}
    return pd.DataFrame(
        {row: entropy[(*heads[row], row)] if row in heads else np.nan for row in order},
        index=entropy.index,
    )


def _edges(steps: pd.Index) -> np.ndarray:
    """Cell borders halfway between evaluations."""
    steps = np.asarray(steps, dtype=float)
    middle = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([steps[:1], middle, steps[-1:]])
