"""Over training: the loss of runs, and the share of runs that still wait for something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import kaplan_meier
from emergence_lib.plotting.style import GUIDE, step_axis


def loss_curves(
    groups: Mapping[str, Sequence[pd.Series]],
    colours: Mapping[str, str],
    guides: Mapping[str, float],
) -> Figure:
    """Loss over training: every run thin, the median and the 25–75 % band of each group bold.

    Without a group, an empty panel that says so: a page is built before its runs are recorded.

    Args:
        groups: label → loss curves in nats, indexed by step. A run that stopped early keeps its
            last value.
        colours: label → colour.
        guides: name → a loss drawn as a dashed line (floor, plateau).
    """
    fig, ax = plt.subplots(figsize=(7, 3.8))
    for label, curves in groups.items():
        table = pd.concat(curves, axis=1, ignore_index=True).sort_index().ffill()
        colour = colours[label]
        for run in table:
            ax.plot(table.index, table[run], color=colour, alpha=0.25, linewidth=0.8)
        middle = table.median(axis=1)
        ax.fill_between(
            table.index, table.quantile(0.25, axis=1), table.quantile(0.75, axis=1),
            color=colour, alpha=0.2, linewidth=0,
        )  # fmt: skip
        ax.plot(table.index, middle, color=colour, label=f"{label} (n = {table.shape[1]})")
    for name, value in guides.items() if groups else ():
        ax.axhline(value, **GUIDE)
        ax.annotate(
            name, (0.995, value), xycoords=("axes fraction", "data"), ha="right", va="bottom",
            fontsize=8.5, color=GUIDE["color"],
        )  # fmt: skip
    step_axis(ax, 100)
    ax.set_ylabel("held-out loss (nats)")
    if groups:
        ax.legend(loc="lower left")
    else:
        ax.set_title("not recorded yet")
    return fig


def survival_curves(
    groups: Mapping[str, Sequence[Event]], colours: Mapping[str, str], ylabel: str
) -> Figure:
    """Kaplan–Meier curves with 95 % bands: the share of runs still waiting for an event.

    Without a group, an empty panel that says so.

    Args:
        groups: label → one event a run; censored runs are ticks on the curve.
        colours: label → colour.
        ylabel: what they wait for, "share of runs still on the plateau".
    """
    fig, ax = plt.subplots(figsize=(7, 3.6))
    for label, events in groups.items():
        curve = kaplan_meier(events)
        colour = colours[label]
        ax.step(curve.index, curve.unsolved, where="post", color=colour,
                label=f"{label} (n = {len(events)})")  # fmt: skip
        ax.fill_between(curve.index, curve.low, curve.high, step="post", color=colour, alpha=0.15,
                        linewidth=0)  # fmt: skip
        censored = [event.step for event in events if not event.observed]
        at = [curve.unsolved.loc[:step].iloc[-1] for step in censored]
        ax.plot(censored, at, "|", color=colour, markersize=9)
    step_axis(ax, 100)
    ax.set_ylim(0, 1.02)
    ax.set_ylabel(ylabel)
    if groups:
        ax.legend(loc="center left")
    else:
        ax.set_title("not recorded yet")
    return fig
