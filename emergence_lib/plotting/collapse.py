"""Geometry beside behaviour: the three phases of a collapse, floors, and how sizes agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from emergence_lib.experiments.collapse_phases import PhaseRun
from emergence_lib.plotting.style import GUIDE, MODEL_SIZE_COLOURS, OKABE_ITO, PAPER_GREY, step_axis

ACCURACY_COLOUR = OKABE_ITO["vermillion"]
CONVENTION_COLOURS = {"uncentred": OKABE_ITO["blue"], "centred": OKABE_ITO["green"]}
RANK_COLOUR = CONVENTION_COLOURS["uncentred"]
PHASE_SHADES = {"collapse": "#F3D9D2", "recovery": "#E3EDF7", "acquired": "#FFFFFF"}


def three_phases(panels: Mapping[str, Sequence[PhaseRun]], columns: int = 4) -> Figure:
    """RankMe, its centred twin and accuracy over training, with the phases shaded.

    Red up to the floor of RankMe, blue from there to acquisition, white after it, each at the
    median over runs. Runs are thin; medians are bold where there are several.

    Args:
        panels: task-level → one `PhaseRun` a run. Without any run, the panels say so.
        columns: panels in a row.
    """
    n_rows = -(-len(panels) // columns)
    fig, axes = plt.subplots(
        n_rows, columns, figsize=(2.3 * columns, 2.2 * n_rows), sharex=True, squeeze=False
    )
    for ax in axes.flat[len(panels) :]:
        ax.axis("off")
    for i, (ax, (title, runs)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        if not runs:
            ax.set_title(f"{title}\nnot recorded yet")
            continue
        right = ax.twinx()
        last = runs[0].rank.index[-1]
        floor = float(np.median([run.floor for run in runs]))
        acquired = float(np.median([run.acquired for run in runs]))
        ax.axvspan(0, floor, color=PHASE_SHADES["collapse"], linewidth=0, zorder=0)
        ax.axvspan(floor, min(acquired, last), color=PHASE_SHADES["recovery"], linewidth=0,
                   zorder=0)  # fmt: skip
        _runs(ax, [run.rank for run in runs], RANK_COLOUR)
        _runs(ax, [run.centred for run in runs], CONVENTION_COLOURS["centred"])
        _runs(right, [run.accuracy for run in runs], ACCURACY_COLOUR)
        right.set_ylim(-0.03, 1.05)
        right.tick_params(colors=ACCURACY_COLOUR, labelsize=8)
        ax.tick_params(axis="y", colors=RANK_COLOUR, labelsize=8)
        ax.set_ylim(bottom=0)
        right.spines["right"].set_visible(True)
        step_axis(ax, 4)
        ax.set_xticks([tick for tick in (0, 10, 100, 1_000, 10_000) if tick <= last])
        ax.set_xlabel("training step" if i >= len(panels) - columns else "")
        ax.set_title(f"{title} (n = {len(runs)})", fontsize=9)
        if i % columns == 0:
            ax.set_ylabel("rank", color=RANK_COLOUR)
        if i % columns == columns - 1 or i == len(panels) - 1:
            right.set_ylabel("accuracy", color=ACCURACY_COLOUR)
    names = {"RankMe": RANK_COLOUR, "centred": CONVENTION_COLOURS["centred"],
             "accuracy": ACCURACY_COLOUR}  # fmt: skip
    fig.legend([Line2D([], [], color=colour) for colour in names.values()], list(names),
               loc="outside upper center", ncols=len(names))  # fmt: skip
    return fig


def _runs(ax: Axes, curves: Sequence[pd.Series], colour: str) -> None:
    if len(curves) > 1:
        for one in curves:
            ax.plot(one.index, one, color=colour, alpha=0.25, linewidth=0.7)
    middle = pd.concat(curves, axis=1).median(axis=1)
    ax.plot(middle.index, middle, color=colour)


def floors_by_task(table: pd.DataFrame, paper: Mapping[str, float]) -> Figure:
    """The floor of every task-level, a colour a size: mean, with interval or range over runs.

    Args:
        table: columns task_level, size, n, mean, low, high (NaN below three runs), lowest, highest,
            untrained.
        paper: name of a task ("MOD") → the paper's floor, a grey line at its task-levels.
    """
    fig, ax = plt.subplots(figsize=(8.4, 3.6))
    levels = list(dict.fromkeys(table.task_level))
    sizes = [size for size in MODEL_SIZE_COLOURS if size in set(table["size"])]
    for i, size in enumerate(sizes):
        lines = table[table["size"] == size].set_index("task_level").reindex(levels)
        at = np.arange(len(levels)) + 0.16 * (i - (len(sizes) - 1) / 2)
        low, high = lines.low.fillna(lines.lowest), lines.high.fillna(lines.highest)
        colour = MODEL_SIZE_COLOURS[size]
        ax.vlines(at, low.clip(lower=1), high, color=colour)
        ax.plot(
            at, lines["mean"], "o", ms=4, color=colour, label=f"{size} (n = {lines.n.max():.0f})"
        )
        ax.plot(at, lines.untrained, "_", ms=6, color=colour, alpha=0.6)
    for name, value in paper.items():
        at_levels = [i for i, level in enumerate(levels) if level.split()[0] == name]
        if at_levels:
            ax.hlines(value, at_levels[0] - 0.4, at_levels[-1] + 0.4, color=PAPER_GREY, linewidth=2,
                      zorder=0, label=f"paper, {name}")  # fmt: skip
    if levels:
        ax.set_yscale("log", subs=[])
        ax.yaxis.set_major_locator(FixedLocator([1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50]))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(sizes) + len(paper))
    else:
        ax.set_title("not recorded yet")
    ax.set_xticks(range(len(levels)), levels, rotation=90, fontsize=8)
    ax.set_ylabel("RankMe (dash: untrained)")
    return fig


def agreement_of_sizes(table: pd.DataFrame, names: Mapping[str, str], bar: float) -> Figure:
    """Rank correlations between sizes with their intervals, a panel a quantity.

    Args:
        table: columns small, large, quantity, rho, low, high.
        names: quantity → title.
        bar: the paper's correlation, a grey line.
    """
    fig, axes = plt.subplots(1, len(names), figsize=(7.4, 2.8), sharey=True, squeeze=False)
    for ax, (quantity, title) in zip(axes[0], names.items(), strict=True):
        lines = table[table.quantity == quantity].reset_index(drop=True)
        ax.vlines(lines.index, lines.low, lines.high, color=OKABE_ITO["blue"])
        ax.plot(lines.index, lines.rho, "o", color=OKABE_ITO["blue"])
        pairs = [f"{small}\n{large}" for small, large in zip(lines.small, lines.large, strict=True)]
        ax.set_xticks(range(len(pairs)), pairs, fontsize=8)
        ax.axhline(bar, color=PAPER_GREY, linewidth=1.5, zorder=0)
        ax.axhline(0, **GUIDE)
        ax.set_title(title if len(lines) else f"{title}: not recorded yet")
        ax.set_xlim(-0.6, max(len(lines), 1) - 0.4)
    axes[0][0].set_ylim(-1.05, 1.05)
    axes[0][0].set_ylabel("Spearman's ρ (grey: paper)")
    return fig


def collapse_depths(groups: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Share of the peak rank lost, a dot a task-level, in both conventions, a group a kind of run.

    Args:
        groups: kind of run → "uncentred" or "centred" → depths.
    """
    fig, ax = plt.subplots(figsize=(7.4, 3.2))
    for i, depths in enumerate(groups.values()):
        for k, (name, values) in enumerate(depths.items()):
            at = i + 0.3 * (k - 0.5)
            spread = np.linspace(-0.1, 0.1, len(values))
            colour = CONVENTION_COLOURS[name]
            ax.plot(at + spread, np.sort(values), "o", ms=3, alpha=0.6, color=colour,
                    label=name if i == 0 else None)  # fmt: skip
            ax.hlines(np.median(values), at - 0.12, at + 0.12, color=colour, linewidth=2)
    ax.set_xticks(range(len(groups)), list(groups), fontsize=8.5)
    ax.set_xlim(-0.6, max(len(groups), 3) - 0.4)
    ax.set_ylim(-0.03, 1.03)
    ax.set_ylabel("share of the peak lost")
    if groups:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    else:
        ax.set_title("not recorded yet")
    return fig
