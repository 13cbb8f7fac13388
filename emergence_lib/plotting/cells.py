"""Cells of a grid compared: a time, a loss, a share or an accuracy against what was varied.

The paper's values are grey markers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from emergence_lib.analysis.survival import Estimate
from emergence_lib.plotting.style import GUIDE, PAPER_GREY, WAIT_COLOURS


def dose_response(
    table: pd.DataFrame, x: str, *, xlabel: str, ylabel: str, horizon: float
) -> Figure:
    """Median times with their intervals against a dose; what was never seen is a cross at the top.

    Args:
        table: columns wait (a key of `WAIT_COLOURS`), `x`, n, median, low, high (steps; infinite
            where not seen).
        horizon: steps watched.
    """
    fig, ax = plt.subplots(figsize=(6, 3.6))
    doses = table.drop_duplicates(x)
    waits = table["wait"].unique()
    for i, wait in enumerate(waits):
        lines = table[table["wait"] == wait]
        colour = WAIT_COLOURS[wait]
        at = doses[x].searchsorted(lines[x]) + 0.16 * (i - (len(waits) - 1) / 2)
        seen = np.isfinite(lines["median"].to_numpy())
        middle = lines["median"].clip(upper=horizon).to_numpy()
        ax.vlines(at, lines["low"].clip(upper=horizon), lines["high"].clip(upper=horizon),
                  color=colour)  # fmt: skip
        for some, marker, label in (
            (seen, "o", wait),
            (~seen, "x", f"{wait}: not in half of runs"),
        ):
            if some.any():
                ax.plot(at[some], middle[some], marker, color=colour, label=label)
    labels = [f"{v:g}\nn = {n}" for v, n in zip(doses[x], doses["n"], strict=True)]
    ax.set_xticks(np.arange(len(doses)), labels)
    ax.set_yscale("log")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.legend()
    return fig


def loss_by_sparsity(
    tables: Mapping[str, pd.DataFrame],
    colours: Mapping[str, str],
    *,
    guides: Mapping[str, float],
    paper: Mapping[int, float],
) -> Figure:
    """Final loss against s: mean, with the range of the seeds, a line a state size.

    Args:
        tables: label → columns row_weight, n, mean_loss, min_loss, max_loss (nats).
        colours: label → colour.
        guides: name → a loss drawn as a dashed line.
        paper: s → the paper's loss, grey diamonds.
    """
    fig, ax = plt.subplots(figsize=(7, 3.9))
    for label, table in tables.items():
        spread = np.stack(
            [table.mean_loss - table.min_loss, table.max_loss - table.mean_loss]
        ).clip(min=0)
        ax.errorbar(table.row_weight, table.mean_loss, spread, marker="o", markersize=4,
                    color=colours[label], elinewidth=1,
                    label=f"{label} (n = {_span(table.n)} a cell)")  # fmt: skip
    if paper:
        ax.plot(list(paper), list(paper.values()), "D", color=PAPER_GREY, markersize=5,
                label="paper, S = 16 (n = 3)", zorder=0)  # fmt: skip
    for name, value in guides.items():
        ax.axhline(value, **GUIDE)
        # Below the line: no loss lies under the floor, and few under the other guides.
        ax.annotate(name, (0.995, value), xytext=(0, -2), xycoords=("axes fraction", "data"),
                    textcoords="offset points", ha="right", va="top", fontsize=8,
                    color=GUIDE["color"])  # fmt: skip
    ax.margins(y=0.08)  # room for the lowest name
    ax.set_xlabel("ones in a row of the map, s")
    ax.set_ylabel("final loss (nats)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(tables) + bool(paper))
    return fig


def rates(
    groups: Mapping[str, tuple[Sequence[float], Sequence[Estimate]]],
    colours: Mapping[str, str],
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Shares with exact intervals against a number, a line a group.

    Args:
        groups: label → (x, one `Estimate` each).
    """
    fig, ax = plt.subplots(figsize=(7, 3.4))
    for i, (label, (x, estimates)) in enumerate(groups.items()):
        at = np.asarray(x) + 0.12 * (i - (len(groups) - 1) / 2)  # intervals do not hide each other
        ax.vlines(at, [e.low for e in estimates], [e.high for e in estimates],
                  color=colours[label], alpha=0.5)  # fmt: skip
        ax.plot(at, [e.value for e in estimates], "o-", color=colours[label], markersize=4,
                linewidth=1, label=label)  # fmt: skip
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(groups))
    return fig


def bit_accuracy(
    groups: Mapping[str, Sequence[Sequence[float]]], colours: Mapping[str, str]
) -> Figure:
    """Final accuracy of each output bit, a dot a run and the mean as a line, a panel a group.

    Without a group, one empty panel that says so: a page is built before its runs are recorded.
    """
    panels = max(len(groups), 1)
    fig, axes = plt.subplots(1, panels, figsize=(3.4 * panels, 2.9), sharey=True, squeeze=False)
    if not groups:
        axes[0][0].set_title("not recorded yet")
        axes[0][0].set_xlabel("output bit")
        axes[0][0].set_xticks([])
    for ax, (label, runs) in zip(axes[0], groups.items(), strict=False):
        bits = np.arange(len(runs[0]))
        for accuracy in runs:
            ax.plot(bits, accuracy, "o", color=colours[label], alpha=0.5, markersize=4)
        ax.plot(bits, np.mean(runs, axis=0), color=colours[label])
        ax.axhline(0.5, **GUIDE)
        ax.set_title(f"{label} (n = {len(runs)})")
        ax.set_xlabel("output bit")
    axes[0][0].set_ylabel("accuracy")
    axes[0][0].set_ylim(0.4, 1.03)
    return fig


def _span(counts: pd.Series) -> str:
    """ "5" or "2–5"."""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low}–{high}"
