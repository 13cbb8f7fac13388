"""One run through the lenses of three papers, panel under panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from emergence_lib.plotting.style import GUIDE, OKABE_ITO


def lens_panels(
    tables: Mapping[str, pd.DataFrame], learned: Mapping[int, float], precached: pd.Series
) -> Figure:
    """Measures over training, a line a query in the order in which the queries are learned.

    A tick on the upper edge of each panel is the step at which the query of that colour is learned;
    grey lines are queries that are not.

    Args:
        tables: label of the axis → index step, one column a query; one panel each.
        learned: query → step.
        precached: share of the gradient that later predictions send, index step; the last panel.
    """
    order = sorted(learned, key=lambda query: learned[query])
    shades = plt.get_cmap("cividis")(np.linspace(0, 0.9, max(len(order), 1)))
    colour = dict(zip(order, shades, strict=False))
    fig, axes = plt.subplots(
        len(tables) + 1, 1, figsize=(7, 1.75 * (len(tables) + 1)), sharex=True
    )  # fmt: skip
    for ax, (label, table) in zip(axes, tables.items(), strict=False):
        for query in table:
            ax.plot(table.index, table[query], color=colour.get(query, "#BBBBBB"), linewidth=1.1,
                    zorder=2 if query in colour else 1)  # fmt: skip
        ax.set_ylabel(label)
    axes[-1].plot(precached.index, precached, color=OKABE_ITO["vermillion"])
    axes[-1].set_ylabel("pre-cached,\nshare of gradient")
    for ax in axes:
        for query in order:
            ax.plot([learned[query]] * 2, [0.93, 1.0], color=colour[query], linewidth=2.2,
                    transform=ax.get_xaxis_transform(), clip_on=False)  # fmt: skip
    queries = table.shape[1]
    learned_of = f"{len(order)} of {queries} queries learned, dark ones first"
    axes[0].set_title(learned_of if queries else "not recorded yet")
    axes[-1].set_xlabel("training step")
    axes[-1].set_xlim(left=0)
    return fig


def before_at_after(table: pd.DataFrame, colours: Mapping[str, str], ylabel: str) -> Figure:
    """A number at three moments of each run: every run a line, a panel a condition.

    Args:
        table: columns condition, before, at, after; a run a line.
        colours: condition → colour.
    """
    conditions: Sequence[str] = list(table["condition"].unique())
    panels = max(len(conditions), 1)
    fig, axes = plt.subplots(1, panels, figsize=(2.9 * panels, 2.7), sharey=True, squeeze=False)
    if not conditions:
        axes[0][0].set_title("not recorded yet")
    for ax, condition in zip(axes[0], conditions, strict=False):
        runs = table.loc[table["condition"] == condition, ["before", "at", "after"]]
        for values in runs.to_numpy():
            ax.plot(range(3), values, "o-", color=colours[condition], alpha=0.5, linewidth=1)
        ax.plot(range(3), runs.mean(), color="black", linewidth=2)
        ax.set_title(f"{condition} (n = {len(runs)})", fontsize=9)
        ax.axhline(0, **GUIDE)
    for ax in axes[0]:
        ax.set_xticks(range(3), ["untrained", "when\nlearned", "at the end"])
    axes[0][0].set_ylabel(ylabel)
    return fig
