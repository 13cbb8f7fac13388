"""Forecasts: how well they order what is to come, by window, and carried over between tasks."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from emergence_lib.plotting.style import GUIDE


def order_by_window(table: pd.DataFrame, colours: Mapping[str, str]) -> Figure:
    """Within-run concordance over the length of what was seen, a panel a task.

    Args:
        table: columns task, steps (the window), set, within (an `Estimate`); of each task and set
            one line a window.
        colours: set → colour; other sets are left out.
    """
    tasks = list(table["task"].unique())
    columns = min(max(len(tasks), 1), 2)
    rows = max(-(-len(tasks) // columns), 1)
    fig, axes = plt.subplots(
        rows, columns, figsize=(3.6 * columns, 0.5 + 2.3 * rows), sharey=True, squeeze=False
    )
    if not tasks:
        axes[0][0].set_title("not recorded yet")
    for ax in axes.flat[len(tasks) :]:
        ax.set_visible(bool(not tasks))
    for ax, task in zip(axes.flat, tasks, strict=False):
        ax.axhline(0.5, **GUIDE)
        for i, (name, colour) in enumerate(colours.items()):
            own = table[(table["task"] == task) & (table["set"] == name)].sort_values("steps")
            at = own["steps"] * 1.035 ** (i - (len(colours) - 1) / 2)  # side by side
            ax.plot(at, [e.value for e in own["within"]], "o-", color=colour, markersize=4,
                    label=name)  # fmt: skip
            ax.vlines(at, [e.low for e in own["within"]], [e.high for e in own["within"]],
                      color=colour, alpha=0.5, linewidth=1.2)  # fmt: skip
        ax.set_xscale("log")
        ticks = _apart(table.loc[table["task"] == task, "steps"])
        ax.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks], fontsize=8, rotation=45)
        ax.minorticks_off()
        n = table.loc[table["task"] == task, "n_runs"].max()
        ax.set_title(f"{task} (n = {n} runs)", fontsize=9)
        ax.set_ylim(0, 1.02)
    if tasks:
        axes[0][0].legend(loc="lower left", fontsize=8)
        fig.supxlabel("window in steps", fontsize=10)
    fig.supylabel("pairs in the right order", fontsize=10)
    return fig


def carried_over(table: pd.DataFrame) -> Figure:
    """Within-run concordance of forecasts carried from a task (row) to another (column).

    A panel a set and unit; the second line of a cell is its 95 % interval.

    Args:
        table: columns source, target, set, unit, within (an `Estimate`).
    """
    tasks = list(dict.fromkeys([*table["source"], *table["target"]]))
    panels = list(table.groupby(["set", "unit"], sort=False))
    columns = min(max(len(panels), 1), 2)
    rows = max(-(-len(panels) // 2), 1)
    fig, axes = plt.subplots(
        rows, columns, figsize=(4.3 * columns, 3.1 * rows), sharex=True, sharey=True, squeeze=False
    )
    if not panels:
        axes[0][0].set_title("not recorded yet")
    for ax, ((name, unit), lines) in zip(axes.flat, panels, strict=False):
        grid = np.full((len(tasks), len(tasks)), np.nan)
        for _, line in lines.iterrows():
            i, j = tasks.index(line["source"]), tasks.index(line["target"])
            grid[i, j] = line["within"].value
            low, high = line["within"].low, line["within"].high
            ax.text(j, i, f"{grid[i, j]:.2f}\n{low:.2f}–{high:.2f}", ha="center", va="center",
                    fontsize=7.5)  # fmt: skip
        ax.imshow(grid, cmap="RdBu", vmin=0, vmax=1, aspect="auto", alpha=0.75)
        ax.set_xticks(range(len(tasks)), tasks, rotation=30, ha="right", fontsize=8)
        ax.set_yticks(range(len(tasks)), tasks, fontsize=8)
        ax.set_title(f"{name}, in {unit}", fontsize=9)
    fig.supxlabel("tested on", fontsize=10)
    fig.supylabel("fitted on", fontsize=10)
    return fig


def _apart(steps: pd.Series) -> list[float]:
    """Windows to be named on the axis: none that would be written over the one before."""
    kept: list[float] = []
    for step in sorted(set(steps.round())):
        if not kept or step > 1.15 * kept[-1]:
            kept.append(step)
    return kept
