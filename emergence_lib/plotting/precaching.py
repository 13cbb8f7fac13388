"""By position: how well a feature is read, and which part of the gradient built it."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from emergence_lib.plotting.style import GRADIENT_COLOURS, GUIDE, TRAINING_COLOURS


def probes_by_position(tables: Mapping[str, pd.DataFrame], cut: int) -> Figure:
    """Probes' r against position: the mean of the runs with their range, a panel a layer.

    Args:
        tables: title of a row of panels → columns training (a key of `TRAINING_COLOURS`), seed,
            layer, position, r. Layers are those from 1 on.
        cut: the first position at which the feature can be useful for the next token.
    """
    layers = sorted({k for table in tables.values() for k in table.layer if k > 0}) or [1]
    fig, axes = _panels(len(tables), len(layers))
    for row, (title, table) in zip(axes, tables.items(), strict=True):
        for ax, layer in zip(row, layers, strict=True):
            of_layer = table[table.layer == layer]
            ax.set_title(f"{title}, layer {layer}" if len(of_layer) else f"{title}: not recorded")
            for training, colour in TRAINING_COLOURS.items():
                runs = of_layer[of_layer.training == training].groupby("position").r
                if runs.ngroups:
                    n = int(runs.size().max())
                    ax.fill_between(list(runs.groups), runs.min(), runs.max(), color=colour,
                                    alpha=0.2, linewidth=0)  # fmt: skip
                    ax.plot(list(runs.groups), runs.mean(), color=colour,
                            linestyle=":" if training == "untrained" else "-",
                            label=f"{training} (n = {n})")  # fmt: skip
            _cut(ax, cut)
            ax.set_ylim(-0.05, 1.05)
    _finish(fig, axes, "r of the probe, held out")
    return fig


def influence_by_position(tables: Mapping[str, pd.DataFrame], cut: int) -> Figure:
    """Integrated influence of each part against position: dots are runs, lines their means.

    Args:
        tables: title of a row of panels → columns seed, layer, position, part (a key of
            `GRADIENT_COLOURS`), share (of the mismatch at the start). Layers are those from 1 on.
        cut: as for `probes_by_position`.
    """
    layers = sorted({k for table in tables.values() for k in table.layer}) or [1]
    fig, axes = _panels(len(tables), len(layers))
    for row, (title, table) in zip(axes, tables.items(), strict=True):
        for ax, layer in zip(row, layers, strict=True):
            of_layer = table[table.layer == layer]
            ax.set_title(f"{title}, layer {layer}" if len(of_layer) else f"{title}: not recorded")
            for i, (part, colour) in enumerate(GRADIENT_COLOURS.items()):
                runs = of_layer[of_layer.part == part]
                if len(runs):
                    shift = 0.25 * (i - 1)
                    mean = runs.groupby("position").share.mean()
                    ax.plot(runs.position + shift, runs.share, "o", color=colour, alpha=0.45,
                            markersize=4, markeredgewidth=0)  # fmt: skip
                    ax.plot(mean.index + shift, mean, color=colour, linewidth=1,
                            label=f"{part} (n = {runs.seed.nunique()})")  # fmt: skip
            ax.axhline(0, **GUIDE)
            _cut(ax, cut)
    _finish(fig, axes, "integrated influence / mismatch at the start")
    return fig


def _panels(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    fig, axes = plt.subplots(
        rows, columns, figsize=(3.9 * columns, 2.5 * rows + 0.4), sharex=True, sharey="row",
        squeeze=False,
    )  # fmt: skip
    return fig, [list(row) for row in axes]


def _cut(ax: Axes, cut: int) -> None:
    """Where usefulness begins: positions from here on predict outputs."""
    ax.axvline(cut - 0.5, **GUIDE)


def _finish(fig: Figure, axes: list[list[Axes]], ylabel: str) -> None:
    """One legend and one name of the y axis for all panels, that of the x axis below the last."""
    for ax in axes[-1]:
        ax.set_xlabel("position")
    fig.supylabel(ylabel, fontsize="medium")
    entries = {
        label: handle
        for row in axes
        for ax in row
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    if entries:
        fig.legend(list(entries.values()), list(entries), loc="outside upper center",
                   ncols=min(len(entries), 5))  # fmt: skip
