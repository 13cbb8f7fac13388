"""How long runs wait, against a size that was varied: runs, medians, and what was never seen."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from emergence_lib.plotting.style import PAPER_GREY

Groups = Mapping[str, pd.DataFrame]


def waits(
    panels: Mapping[str, tuple[str, Groups]],
    colours: Mapping[str, str],
    ylabel: str,
    *,
    fits: Mapping[str, pd.Series] | None = None,
    paper: Mapping[int, float] | None = None,
) -> Figure:
    """Steps against a size on doubled axes, a panel a question and a line a group.

    A dot is a run whose wait ended, an open triangle one that was watched up to there and still
    waited. The line joins the medians that were reached.

    Args:
        panels: title → the label of the size, and label → columns x, median (steps, infinite where
            not reached) and events (a list of `Event`, one a run).
        colours: label → colour.
        fits: label → fitted steps by size, drawn dotted.
        paper: size → the paper's steps, grey diamonds.
    """
    fig, axes = plt.subplots(
        1, len(panels), figsize=(1.2 + 2.4 * max(len(panels), 2.3), 3.8), sharey=True, squeeze=False
    )
    for ax, (title, (xlabel, groups)) in zip(axes[0], panels.items(), strict=True):
        groups = {label: table for label, table in groups.items() if len(table)}
        for i, (label, table) in enumerate(groups.items()):
            at = table.x.to_numpy(float) * 1.05 ** (i - (len(groups) - 1) / 2)
            _runs(ax, at, table, colours[label])
            _medians(ax, at, table, colours[label], label)
            if fits and label in fits:
                ax.plot(fits[label], ":", color=colours[label], linewidth=1.2)
        if paper:
            ax.plot(list(paper), list(paper.values()), "D", color=PAPER_GREY, markersize=5,
                    label="paper (mean of 3)", zorder=0)  # fmt: skip
        ax.set_title(title if groups else f"{title}\nnot recorded yet".strip())
        ax.set_xlabel(xlabel)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ticks = sorted({float(x) for table in groups.values() for x in table.x} | set(paper or ()))
        ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        ax.yaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
        ax.minorticks_off()
    axes[0][0].set_ylabel(ylabel)
    named = {
        label: handle
        for ax in axes[0]
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if named:
        columns = min(len(named), 2 if len(panels) == 1 else 4)  # one panel is no wider than two
        fig.legend(named.values(), named.keys(), loc="outside upper center", ncols=columns)
    return fig


def _runs(ax: Axes, at: np.ndarray, table: pd.DataFrame, colour: str) -> None:
    """A mark a run: a dot where its wait ended, an open triangle where it did not."""
    for x, events in zip(at, table.events, strict=True):
        for event in events:
            mark = {"marker": "o", "alpha": 0.45} if event.observed else {"marker": "^", "mfc": "w"}
            ax.plot(x, event.step, color=colour, markersize=5, linestyle="", **mark)


def _medians(ax: Axes, at: np.ndarray, table: pd.DataFrame, colour: str, label: str) -> None:
    """A line through the medians, with the number of runs a size in its label."""
    counts = sorted({len(events) for events in table.events})
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    median = table["median"].where(np.isfinite(table["median"]))
    ax.plot(at, median, "-", color=colour, label=f"{label} (n = {span} a size)")
