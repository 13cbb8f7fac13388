"""Othello: a board and what a model makes of it, probes over layers, the parts of the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from emergence_lib.plotting.style import GUIDE, OKABE_ITO, PAPER_GREY, USEFULNESS_COLOURS

NOTHING = "not recorded yet"


def othello_board(
    state: np.ndarray,
    useful: np.ndarray,
    readout: np.ndarray,
    legal: np.ndarray,
    probability: np.ndarray,
) -> Figure:
    """A board, what probes read of it, and the next move that the model expects.

    Args:
        state: of each square, 1 a disc of the player to move, -1 of the other player, 0 none.
        useful: squares whose disc matters for the next move.
        readout: what the probes give for `state`.
        legal: squares on which the player may move.
        probability: that the model gives to each square.
    """
    size = math.isqrt(len(state))
    fig, axes = plt.subplots(1, 3, figsize=(9, 3.5))
    _discs(axes[0], state, size)
    _frames(axes[0], useful & (state != 0), size, USEFULNESS_COLOURS["useful"])
    _frames(axes[0], ~useful & (state != 0), size, USEFULNESS_COLOURS["useless"])
    axes[0].set_title("the board: useful, useless")
    image = axes[1].imshow(readout.reshape(size, size), cmap="RdBu", vmin=-1.5, vmax=1.5)
    fig.colorbar(image, ax=axes[1], shrink=0.7, label="read-out (mine 1, theirs -1)")
    wrong = (state != 0) & (readout * state <= 0)
    rows, columns = np.divmod(np.flatnonzero(wrong), size)
    axes[1].plot(columns, rows, "x", color=OKABE_ITO["black"], markersize=8)
    right = int(((state != 0) & ~wrong).sum())
    axes[1].set_title(f"the probes: {right} of {int((state != 0).sum())} owners")
    image = axes[2].imshow(probability.reshape(size, size), cmap="cividis", vmin=0)
    fig.colorbar(image, ax=axes[2], shrink=0.7, label="probability of the move")
    _frames(axes[2], legal, size, "white")
    axes[2].set_title("the next move: legal framed")
    for ax in axes:
        ax.set_xticks(range(size), [chr(ord("a") + i) for i in range(size)])
        ax.set_yticks(range(size), range(1, size + 1))
        ax.tick_params(length=0)
        ax.set_aspect("equal")
    return fig


def _discs(ax: Axes, state: np.ndarray, size: int) -> None:
    """The player to move is black."""
    ax.set_facecolor("#DDE8DD")
    ax.set_xlim(-0.5, size - 0.5)
    ax.set_ylim(size - 0.5, -0.5)
    for edge in range(1, size):
        ax.axhline(edge - 0.5, color="white", linewidth=0.8)
        ax.axvline(edge - 0.5, color="white", linewidth=0.8)
    for owner, face in ((1, "black"), (-1, "white")):
        rows, columns = np.divmod(np.flatnonzero(state == owner), size)
        ax.plot(columns, rows, "o", color=face, markeredgecolor="black", markersize=64 / size)


def _frames(ax: Axes, squares: np.ndarray, size: int, colour: str) -> None:
    for row, column in zip(*np.divmod(np.flatnonzero(squares), size), strict=True):
        corner = (column - 0.44, row - 0.44)
        ax.add_patch(Rectangle(corner, 0.88, 0.88, fill=False, edgecolor=colour, linewidth=2))


def probe_accuracy(table: pd.DataFrame, guess: Mapping[str, float]) -> Figure:
    """Accuracy of probes over layers, useful and useless squares apart.

    Args:
        table: columns model ("trained", "untrained"), kind (a key of `USEFULNESS_COLOURS`), layer,
            n, value, low, high.
        guess: kind → accuracy without any model.
    """
    fig, ax = plt.subplots(figsize=(7.4, 3.6))
    for (model, kind), lines in table.groupby(["model", "kind"], sort=False):
        colour, trained = USEFULNESS_COLOURS[kind], model == "trained"
        ax.errorbar(
            lines.layer + (0.04 if trained else -0.04), lines.value,
            yerr=_reach(lines), color=colour, marker="o", markersize=4,
            linestyle="-" if trained else "--", alpha=1 if trained else 0.6,
            label=f"{kind}, {model} (n = {lines.n.iloc[0]})",
        )  # fmt: skip
    for kind, value in guess.items():
        style: dict[str, Any] = {
            "color": USEFULNESS_COLOURS[kind],
            "linewidth": 0.9,
            "linestyle": ":",
        }
        ax.axhline(value, label=f"{kind}, likelier owner", **style)
    ax.set_xticks(sorted(table.layer.unique()))
    ax.set_xlabel("residual stream after block")
    ax.set_ylabel("owners read rightly")
    _finish(ax, table, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def influence_by_part(table: pd.DataFrame, names: Mapping[str, str]) -> Figure:
    """Influence of each part of the gradient, a panel a unit that the interval is over.

    Args:
        table: columns unit, part, kind (a key of `USEFULNESS_COLOURS`), n, value, low, high.
        names: part → its name on the axis.
    """
    units = list(table.unit.unique())
    fig, axes = plt.subplots(1, len(units), figsize=(2.5 * len(units), 3.4), sharey=True)
    for ax, unit in zip(axes, units, strict=True):
        for shift, kind in ((-0.12, "useful"), (0.12, "useless")):
            lines = table[(table.unit == unit) & (table.kind == kind)].set_index("part")
            lines = lines.loc[list(names)]
            ax.errorbar(
                np.arange(len(names)) + shift, lines.value, yerr=_reach(lines), fmt="o",
                color=USEFULNESS_COLOURS[kind], label=f"{kind} squares",
            )  # fmt: skip
        ax.axhline(0, **GUIDE)
        ax.set_xticks(range(len(names)), list(names.values()), rotation=20)
        ax.set_xlim(-0.5, len(names) - 0.5)
        ax.set_title(f"over {unit} (n = {lines.n.iloc[0]})" if lines.n.any() else NOTHING)
    axes[0].set_ylabel("integrated influence\n(squared units of the board)")
    axes[0].legend(fontsize=8.5)
    return fig


def turned_discs(table: pd.DataFrame, n: int) -> Figure:
    """How far predictions follow a disc that is turned over inside the model, by layer.

    Args:
        table: columns layer, unedited, edited, random (shares of the moves that change).
        n: runs that it is the mean of.
    """
    fig, ax = plt.subplots(figsize=(6.4, 3.2))
    styles: dict[str, Any] = {
        "edited": {"color": OKABE_ITO["blue"], "marker": "o"},
        "random": {"color": PAPER_GREY, "marker": "s", "markersize": 4},
    }
    labels = {"edited": "along the probe's direction", "random": "as far in a random direction"}
    for name, style in styles.items():
        ax.plot(table.layer, table[name], label=f"{labels[name]} (n = {n})", **style)
    ax.plot(table.layer, table.unedited, label="unedited", **GUIDE)
    ax.set_xticks(table.layer)
    ax.set_ylim(0, 1)
    ax.set_xlabel("edited after block")
    ax.set_ylabel("changed moves predicted\nas on the turned board")
    _finish(ax, table)
    return fig


def _finish(ax: Axes, table: pd.DataFrame, **place: Any) -> None:
    """A legend, or word that there is nothing to explain."""
    if len(table):
        ax.legend(fontsize=8.5, **place)
    else:
        ax.set_title(NOTHING)


def _reach(lines: pd.DataFrame) -> np.ndarray:
    """Lengths of the error bars; 0 where there is no interval."""
    reach = np.stack([lines.value - lines.low, lines.high - lines.value])
    return np.nan_to_num(reach)
