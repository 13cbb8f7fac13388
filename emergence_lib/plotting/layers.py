"""Layers side by side: their ranks over training, how deep each falls, and which falls first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from emergence_lib.plotting.style import GUIDE, MODEL_SIZE_COLOURS, OKABE_ITO, step_axis

END_COLOURS = {
    "last layer": OKABE_ITO["vermillion"],
    "together": "#BDBDBD",
    "first layer": OKABE_ITO["blue"],
}


def rank_by_layer(panels: Mapping[str, Mapping[int, Sequence[pd.Series]]]) -> Figure:
    """RankMe over training, a line a layer (median over runs), a panel a task-level.

    Dark is the first layer, light the last.

    Args:
        panels: title → layer → one curve a run, as a share of its peak up to the floor or in ranks.
            Without any run, the panels say so.
    """
    fig, axes = plt.subplots(
        1, len(panels), figsize=(2.5 * len(panels), 2.7), sharex=True, sharey=True, squeeze=False
    )
    for ax, (title, layers) in zip(axes[0], panels.items(), strict=True):
        if not layers:
            ax.set_title(f"{title}\nnot recorded yet", fontsize=9)
            continue
        colours = plt.get_cmap("cividis")(np.linspace(0, 0.9, len(layers)))
        for colour, (layer, curves) in zip(colours, layers.items(), strict=True):
            middle = pd.concat(curves, axis=1).median(axis=1)
            ax.plot(middle.index, middle, color=colour, label=f"layer {layer}")
        ax.set_title(f"{title} (n = {len(curves)})", fontsize=9)
        ax.set_ylim(bottom=0)
        step_axis(ax, 4)
    axes[0][0].set_ylabel("RankMe / highest so far")
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        fig.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    return fig


def falls_by_layer(table: pd.DataFrame) -> Figure:
    """How deep and when each layer collapses, a line a size: mean, with interval or range.

    Args:
        table: columns size, layer, n, quantity ("depth", "half_way"), mean, low, high (NaN below
            three runs), lowest, highest.
    """
    fig, axes = plt.subplots(1, 2, figsize=(7.4, 3))
    names = {"depth": "share of the peak lost", "half_way": "step half-way down"}
    for ax, (quantity, name) in zip(axes, names.items(), strict=True):
        for size in [size for size in MODEL_SIZE_COLOURS if size in set(table["size"])]:
            mine = table[(table["size"] == size) & (table.quantity == quantity)]
            colour = MODEL_SIZE_COLOURS[size]
            low, high = mine.low.fillna(mine.lowest), mine.high.fillna(mine.highest)
            ax.vlines(mine.layer, low.clip(lower=0), high, color=colour, alpha=0.6)
            ax.plot(mine.layer, mine["mean"], "o-", color=colour, markersize=4,
                    label=f"{size} (n = {mine.n.max()})")  # fmt: skip
        ax.set_xlabel("layer (the output is on the right)")
        ax.set_ylabel(name)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_ylim(bottom=0)
    if len(table):
        axes[0].legend(loc="best", fontsize=8.5)
    else:
        axes[0].set_title("not recorded yet")
    return fig


def which_end_first(table: pd.DataFrame) -> Figure:
    """Which end of the model is half-way down first: shares of the task-levels, a bar a kind.

    Args:
        table: one line a run and task-level: columns kind (the bar's label) and first (a key of
            `END_COLOURS`).
    """
    kinds = list(dict.fromkeys(table.kind))
    fig, ax = plt.subplots(figsize=(7.4, 1.3 + 0.42 * len(kinds)))
    for y, kind in enumerate(kinds):
        mine = table[table.kind == kind]
        left = 0.0
        for end, colour in END_COLOURS.items():
            n = int((mine["first"] == end).sum())
            ax.barh(y, n / len(mine), left=left, color=colour, label=end if y == 0 else None)
            if n:
                ax.text(left + n / len(mine) / 2, y, str(n), ha="center", va="center", fontsize=8.5)
            left += n / len(mine)
    ax.axvline(0.5, **GUIDE | {"zorder": 3})
    ax.set_yticks(range(len(kinds)), kinds)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of run and task-level pairs (number on the bar)")
    if kinds:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    else:
        ax.set_title("not recorded yet")
    return fig
