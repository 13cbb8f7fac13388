"""A measure of things that have names rather than sizes: mixers, parts of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from emergence_lib.analysis.survival import Estimate
from emergence_lib.plotting.style import GUIDE, PAPER_GREY


def named_estimates(
    groups: Mapping[str, tuple[Sequence[str], Sequence[Estimate], Sequence[Sequence[float]]]],
    colours: Mapping[str, str],
    xlabel: str,
    *,
    guides: Mapping[str, float],
    paper: Mapping[str, float] | None = None,
) -> Figure:
    """A line a name: mean and 95 % interval of each group, and its runs as pale dots.

    Without a name, one empty panel that says so: a page is built before its runs are recorded.

    Args:
        groups: label → (names, one `Estimate` each, the runs of each). All have the same names.
        colours: label → colour.
        guides: text → a value drawn as a dashed line.
        paper: name → the paper's value, a grey diamond below the line of that name; names that are
            not drawn are left out.
    """
    names = next((list(names) for names, _, _ in groups.values()), [])
    fig, ax = plt.subplots(figsize=(7, 1.2 + 0.42 * max(len(names), 3)))
    for i, (label, (_, estimates, runs)) in enumerate(groups.items()):
        at = np.arange(len(names)) + 0.22 * (i - (len(groups) - 1) / 2)
        colour = colours[label]
        for y, of in zip(at, runs, strict=True):
            ax.plot(of, [y] * len(of), "o", color=colour, alpha=0.3, markersize=4,
                    markeredgewidth=0)  # fmt: skip
        ax.hlines(at, [e.low for e in estimates], [e.high for e in estimates], color=colour)
        counts = {len(of) for of in runs}
        n = f"{min(counts)}–{max(counts)}" if len(counts) > 1 else str(*counts)
        ax.plot([e.value for e in estimates], at, "D", color=colour, markersize=5,
                label=f"{label} (n = {n})")  # fmt: skip
    known = {name: value for name, value in (paper or {}).items() if name in names}
    if known:
        below = [names.index(name) + 0.3 for name in known]
        ax.plot(list(known.values()), below, "D", color=PAPER_GREY, markersize=5, label="paper")
    ax.set_yticks(np.arange(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel(xlabel)
    if not names:
        ax.set_title("not recorded yet")
        return fig
    for text, value in guides.items():
        ax.axvline(value, **GUIDE)
        ax.annotate(text, (value, 1), xytext=(3, 2), xycoords=("data", "axes fraction"),
                    textcoords="offset points", ha="left", va="bottom", fontsize=8,
                    color=GUIDE["color"])  # fmt: skip
    fig.legend(loc="outside upper center", ncols=len(groups) + bool(known))  # the names are wide
    return fig
