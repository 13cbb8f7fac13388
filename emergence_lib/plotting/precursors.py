"""Measures that may warn of a capability: their curves, who moves first, and by which definition.

The five measures keep their colours through all figures.
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from emergence_lib.analysis.survival import bootstrap_interval, solve_rate
from emergence_lib.plotting.style import GUIDE, OKABE_ITO, step_axis

MEASURE_COLOURS = {
    "accuracy": OKABE_ITO["black"],
    "rankme": OKABE_ITO["blue"],
    "fisher_rank": OKABE_ITO["green"],
    "covariance_rank": OKABE_ITO["sky"],
    "hessian": OKABE_ITO["vermillion"],
    "llc": OKABE_ITO["purple"],
}
NOTHING = "not recorded yet"

PROBE_LINES = {
    "probe": ("a probe reads it", OKABE_ITO["blue"], "-"),
    "said": ("the model says it", OKABE_ITO["black"], "-"),
    "probe_shuffled": ("probe on shuffled answers", OKABE_ITO["orange"], ":"),
}


def measure_panels(
    curves: Mapping[str, Mapping[str, pd.Series]],
    names: Mapping[str, str],
    acquired: Mapping[str, float],
) -> Figure:
    """Measures over training, a row a measure and a column a task-level, on one axis of steps.

    Args:
        curves: task-level → measure (a key of `MEASURE_COLOURS`) → curve; gaps where NaN.
        names: measure → what its axis says, top first; one without a curve says so.
        acquired: task-level → step, drawn as a dashed line; NaN where never.
    """
    measures = list(names)
    size = (1.6 + 2.7 * len(curves), 0.6 + 1.25 * len(measures))
    fig, axes = plt.subplots(len(measures), len(curves), figsize=size, sharex=True, squeeze=False)
    for column, (level, of_level) in zip(axes.T, curves.items(), strict=True):
        column[0].set_title(level)
        for ax, measure in zip(column, measures, strict=True):
            if measure not in of_level:
                ax.set_title(f"{level}\n{NOTHING}" if measure == measures[0] else "")
                continue
            curve = of_level[measure]
            ax.plot(curve.index, curve, "o-", color=MEASURE_COLOURS[measure], markersize=3)
            if np.isfinite(acquired[level]):
                ax.axvline(acquired[level], **GUIDE)
            step_axis(ax, 1)
            ax.set_xlabel("")
        column[-1].set_xlabel("training step")
    for ax, measure in zip(axes[:, 0], measures, strict=True):
        ax.set_ylabel(names[measure], fontsize=8.5)
    return fig


def lead_dots(table: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """How much later acquisition is than a measure's event, a dot a run and task-level.

    The axis is the ratio of the two steps; a black dot is the median over runs of their medians,
    with its bootstrap interval.

    Args:
        table: columns measure, seed, acquired and lead (steps), as `lead_table` gives them.
        names: measure → what the axis says, top first.
    """
    fig, ax = plt.subplots(figsize=(7, 0.9 + 0.62 * len(names)))
    known = table[table.lead.notna()]
    known = known.assign(ratio=known.acquired / (known.acquired - known.lead).clip(lower=0.5))
    jitter = np.random.default_rng(0)
    labels = []
    for y, (measure, name) in enumerate(names.items()):
        mine = known[known.measure == measure]
        labels.append(f"{name}\nn = {len(mine)}")
        if mine.empty:
            continue
        at = y + jitter.uniform(-0.18, 0.18, len(mine))
        ax.plot(mine.ratio, at, "o", color=MEASURE_COLOURS[measure], alpha=0.55, markersize=5,
                markeredgewidth=0)  # fmt: skip
        middle = bootstrap_interval(
            mine.groupby("seed").ratio.median().to_list(), np.random.default_rng(0)
        )
        ax.plot([middle.low, middle.high], [y, y], color="black", linewidth=1.2)
        ax.plot(middle.value, y, "o", color="black", markersize=5)
    if known.empty:
        ax.set_title(NOTHING)
    ax.axvline(1, **GUIDE)
    ax.set_xscale("log")
    ax.set_yticks(range(len(names)), labels)
    ax.invert_yaxis()
    ax.set_xlabel("step of acquisition / step of the event (above 1 it leads)")
    return fig


def rates_by_difficulty(table: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """How often each measure leads, by task-level from easy to hard, with exact 95 % intervals.

    Args:
        table: columns measure, level, acquired, n, leads, easy levels first, as `rates_by_level`
            gives them.
        names: measure → label.
    """
    fig, ax = plt.subplots(figsize=(7.6, 3.6))
    levels = list(dict.fromkeys(table.level))
    if not levels:
        ax.set_title(NOTHING)
    for i, (measure, name) in enumerate(names.items()):
        mine = table[table.measure == measure]
        rates = [solve_rate(int(k), int(n)) for k, n in zip(mine.leads, mine.n, strict=True)]
        at = [levels.index(level) + 0.13 * (i - (len(names) - 1) / 2) for level in mine.level]
        colour = MEASURE_COLOURS[measure]
        ax.vlines(at, [r.low for r in rates], [r.high for r in rates], color=colour, alpha=0.45)
        ax.plot(at, [r.value for r in rates], "o", color=colour, markersize=5, label=name)
    runs = table.groupby("level").n.max()
    steps = table.groupby("level").acquired.median()
    ax.set_xticks(
        range(len(levels)),
        [f"{level}\nstep {steps[level]:,.0f}\nn ≤ {runs[level]}" for level in levels],
        fontsize=8.5,
    )
    ax.set_ylim(-0.03, 1.03)
    ax.set_ylabel("share of runs in which it leads")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
    return fig


def definition_map(table: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """The rate at which each measure leads, under each definition of its event.

    Args:
        table: columns measure, event, min_depth, rate, as `sweep_table` gives them.
        names: measure → label, top first.
    """
    wide = table.pivot(index="measure", columns=["event", "min_depth"], values="rate")
    order = [key for event in table.event.unique() for key in wide.columns if key[0] == event]
    wide = wide.reindex(index=list(names))[order]
    fig, ax = plt.subplots(figsize=(8.2, 0.9 + 0.5 * len(names)))
    if not np.isfinite(wide.to_numpy(float)).any():
        ax.set_title(NOTHING, pad=26)
    image = ax.imshow(wide, vmin=0, vmax=1, aspect="auto")
    for (y, x), rate in np.ndenumerate(wide.to_numpy()):
        if np.isfinite(rate):
            ax.text(x, y, f"{rate:.0%}", ha="center", va="center", fontsize=8,
                    color="black" if rate > 0.55 else "white")  # fmt: skip
    depths = len(wide.columns.get_level_values(1).unique())
    ax.set_xticks(range(len(order)), [f"{depth:.0%}" for _, depth in order], fontsize=8.5)
    for i, event in enumerate(dict.fromkeys(event for event, _ in order)):
        ax.text((i + 0.5) * depths - 0.5, -0.7, event, ha="center", va="bottom", fontsize=9.5)
        ax.axvline((i + 1) * depths - 0.5, color="white", linewidth=2)
    ax.set_yticks(range(len(names)), list(names.values()), fontsize=9)
    ax.tick_params(length=0)
    ax.set_xlabel("least depth that counts")
    fig.colorbar(image, ax=ax, label="share that leads")
    return fig


def against_chance(table: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """The rate at which each measure leads beside what chance alone gives.

    Args:
        table: columns measure, rate, swapped, shuffled, walk, n, as `chance_table` gives them.
        names: measure → label, top first.
    """
    markers = {
        "swapped": ("another task's curve", "D", OKABE_ITO["orange"]),
        "shuffled": ("its own moves, shuffled", "s", OKABE_ITO["sky"]),
        "walk": ("random walk", "^", OKABE_ITO["green"]),
    }  # measured: a ring around what coincides with it
    fig, ax = plt.subplots(figsize=(8.4, 0.9 + 0.5 * len(names)))
    lines = table.set_index("measure").reindex(list(names))
    for column, (label, marker, colour) in markers.items():
        ax.plot(lines[column], range(len(names)), marker, color=colour, label=label, markersize=6)
    ax.plot(lines["rate"], range(len(names)), "o", color="black", fillstyle="none", markersize=11,
            label="measured")  # fmt: skip
    counts = lines["n"].fillna(0)
    if not counts.any():
        ax.set_title(NOTHING)
    ax.set_yticks(
        range(len(names)),
        [f"{name} (n = {n:.0f})" for name, n in zip(names.values(), counts, strict=True)],
    )
    ax.invert_yaxis()
    ax.set_xlim(-0.03, 1.03)
    ax.set_xlabel("share of acquired task-levels in which it leads")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
    return fig


def probe_panels(
    curves: Mapping[str, Mapping[str, pd.DataFrame]], chance: Mapping[str, float]
) -> Figure:
    """What a probe reads and what the model says, a panel a task-level: medians and range of runs.

    Args:
        curves: task-level → key of `PROBE_LINES` → a column a run, indexed by step.
        chance: task-level → share of the most frequent answer, dashed.
    """
    if not curves:
        fig, ax = plt.subplots(figsize=(7, 3))
        ax.set_title(NOTHING)
        return fig
    columns = min(4, len(curves))
    rows = -(-len(curves) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(0.6 + 2.2 * columns, 0.7 + 1.8 * rows),
                             sharex=True, sharey=True, squeeze=False)  # fmt: skip
    for ax in axes.flat[len(curves) :]:
        ax.set_axis_off()
    for ax, (level, of_level) in zip(axes.flat, curves.items(), strict=False):
        for name, (label, colour, style) in PROBE_LINES.items():
            runs = of_level[name]
            ax.fill_between(runs.index, runs.min(axis=1), runs.max(axis=1), color=colour,
                            alpha=0.15, linewidth=0)  # fmt: skip
            ax.plot(runs.index, runs.median(axis=1), style, color=colour, label=label)
        ax.axhline(chance[level], **GUIDE)
        ax.set_title(f"{level} (n = {runs.shape[1]})", fontsize=9.5)
        step_axis(ax, 1)
        ax.set_xlabel("")
        ax.set_ylim(0, 1.03)
    for i, ax in enumerate(axes.flat[: len(curves)]):
        if i + columns >= len(curves):  # the lowest of its column
            ax.set_xlabel("training step")
            ax.tick_params(labelbottom=True)
    for ax in axes[:, 0]:
        ax.set_ylabel("accuracy", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8.5)
    return fig
