"""What geometry predicts: larger models from small ones, classes of difficulty, and timing."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from emergence_lib.plotting.style import GUIDE, OKABE_ITO

GROUP_COLOURS = {"hard for both": OKABE_ITO["vermillion"], "others": OKABE_ITO["sky"]}
KIND_COLOURS = {
    "measured": OKABE_ITO["black"],
    "another task-level's rank": OKABE_ITO["orange"],
    "its own moves, shuffled": OKABE_ITO["green"],
}
PAIR_COLOURS = {
    "easy": OKABE_ITO["sky"],
    "hard": OKABE_ITO["vermillion"],
    "between": OKABE_ITO["purple"],
}


def small_for_large(table: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """The larger model against the smallest, a dot a task-level, a row a larger size.

    Log axes; the dashed line is equality. What is not known for both is left out.

    Args:
        table: columns large, task_level, group (a key of `GROUP_COLOURS`), and for each quantity
            its _small and _large.
        names: quantity → title.
    """
    sizes = list(dict.fromkeys(table.large))
    rows = max(1, len(sizes))
    fig, axes = plt.subplots(
        rows, len(names), figsize=(3.6 * len(names), 3.1 * rows), squeeze=False
    )
    for row, size in zip(axes, sizes, strict=False):
        for ax, (quantity, title) in zip(row, names.items(), strict=True):
            known = table[table.large == size].replace(np.inf, np.nan)
            known = known.dropna(subset=[f"{quantity}_small", f"{quantity}_large"])
            for group, colour in GROUP_COLOURS.items():
                mine = known[known.group == group]
                ax.plot(mine[f"{quantity}_small"], mine[f"{quantity}_large"], "o", color=colour,
                        alpha=0.75, markersize=5, label=f"{group} ({len(mine)})")  # fmt: skip
            ax.set_xscale("log")
            ax.set_yscale("log")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter(NullFormatter())
            if len(known):
                both = known[[f"{quantity}_small", f"{quantity}_large"]].to_numpy()
                ax.plot(*[[both.min(), both.max()]] * 2, **GUIDE)
                ax.legend(fontsize=8)
            ax.set_title(title)
            ax.set_xlabel("smallest model")
            ax.set_ylabel(size)
    if not sizes:
        for ax in axes.flat:
            ax.set_title("not recorded yet")
    return fig


def led_by_chance(table: pd.DataFrame) -> Figure:
    """How often the rank leads, beside what chance gives, by event; a panel a class.

    Args:
        table: columns event, class, kind (a key of `KIND_COLOURS`), value, low, high, n (runs).
    """
    fig, axes = plt.subplots(1, 2, figsize=(7.6, 3), sharey=True)
    events = list(dict.fromkeys(table.event))
    for ax, name in zip(axes, ("easy", "hard"), strict=True):
        mine = table[(table["class"] == name) & table.value.notna()]
        for i, (kind, colour) in enumerate(KIND_COLOURS.items()):
            lines = mine[mine.kind == kind]
            at = np.array([events.index(event) for event in lines.event]) + 0.16 * (i - 1)
            ax.vlines(at, lines.low.clip(0, 1), lines.high.clip(0, 1), color=colour, alpha=0.6)
            ax.plot(at, lines.value, "o", color=colour, markersize=5, label=kind)
        count = f" (n = {mine.n.max()} runs)" if len(mine) else ": not recorded yet"
        ax.set_title(f"{name} task-levels{count}")
        ax.set_xticks(range(len(events)), events)
        ax.set_xlim(-0.5, len(events) - 0.5)
        ax.set_ylim(-0.03, 1.05)
    axes[0].set_ylabel("share led by the rank")
    handles, labels = axes[1].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3)
    return fig


def concordances(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """How well the time of an event orders acquisition, a dot a run, the bar their mean.

    Args:
        tables: title of a panel → columns pairs (a key of `PAIR_COLOURS`) and index.
    """
    fig, axes = plt.subplots(1, len(tables), figsize=(3.7 * len(tables), 2.9), sharey=True)
    for ax, (title, table) in zip(np.atleast_1d(axes), tables.items(), strict=True):
        for x, (pairs, colour) in enumerate(PAIR_COLOURS.items()):
            values = table["index"][table.pairs == pairs].dropna().to_numpy(float)
            if len(values):
                spread = x + np.linspace(-0.15, 0.15, len(values))
                ax.plot(spread, np.sort(values), "o", color=colour, alpha=0.7, markersize=4)
                ax.hlines(values.mean(), x - 0.25, x + 0.25, color=colour, linewidth=2)
        n = table[["size", "seed"]].drop_duplicates().shape[0]
        ax.set_title(f"{title} (n = {n} runs)" if n else f"{title}: not recorded yet")
        ax.axhline(0.5, **GUIDE)
        ax.set_xticks(range(3), ["easy", "hard", "one of each"])
        ax.set_xlim(-0.5, 2.5)
        ax.set_ylim(-0.03, 1.03)
    np.atleast_1d(axes)[0].set_ylabel("concordance (dashed: chance)")
    return fig
