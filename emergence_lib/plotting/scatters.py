"""Two measures of the same things against each other, a dot an observation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from emergence_lib.plotting.style import GUIDE, OKABE_ITO


def scatter(
    x: Sequence[float], y: Sequence[float], xlabel: str, ylabel: str, *, diagonal: bool = False
) -> Figure:
    """One dot an observation; `diagonal` draws y = x for two measures in the same unit."""
    fig, ax = plt.subplots(figsize=(5.2, 4))
    ax.plot(x, y, "o", color=OKABE_ITO["blue"], alpha=0.6, markersize=5, markeredgewidth=0)
    if diagonal:
        ax.axline((0, 0), slope=1, **GUIDE)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.set_title(f"n = {len(x)}", loc="right", fontsize=9)
    return fig


def scatter_groups(
    groups: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    colours: Mapping[str, str],
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Dots of several groups in one plane, label → (x, y)."""
    fig, ax = plt.subplots(figsize=(6, 3.8))
    for label, (x, y) in groups.items():
        ax.plot(x, y, "o", color=colours[label], markersize=5, alpha=0.8, label=label)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if any(len(x) for x, _ in groups.values()):
        ax.legend()
    else:  # a page is built before its runs are recorded
        ax.set_title("not recorded yet")
    return fig
