"""One style, and one function a kind of figure.

White opaque face in both themes; Okabe–Ito colours for categories, cividis for magnitudes, centred
RdBu for signed values. A profile, a state size and what a run waits for keep their colour through
the whole book. Steps are on a symlog axis, so that 0 stays visible. The paper's values are grey
markers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from cycler import cycler
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import Estimate, kaplan_meier

OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
PROFILE_COLOURS = {
    "smoke": OKABE_ITO["black"],
    "quick": OKABE_ITO["orange"],
    "cpu": OKABE_ITO["blue"],
    "paper": OKABE_ITO["purple"],
}
STATE_SIZE_COLOURS = {
    8: OKABE_ITO["sky"],
    16: OKABE_ITO["blue"],
    32: OKABE_ITO["vermillion"],
}
WAIT_COLOURS = {
    "first half row": OKABE_ITO["blue"],
    "all rows": OKABE_ITO["vermillion"],
}
PAPER_GREY = "#8A8A8A"
GUIDE: dict[str, Any] = {"color": "#555555", "linewidth": 0.9, "linestyle": "--", "zorder": 0}


def use_style() -> None:
    """Set matplotlib's defaults for every figure of the book."""
    sns.set_theme(
        style="ticks",
        rc={
            "axes.prop_cycle": cycler(color=[c for n, c in OKABE_ITO.items() if n != "yellow"]),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "figure.constrained_layout.use": True,
            "figure.dpi": 110,
            "figure.facecolor": "white",
            "axes.facecolor": "white",
            "savefig.facecolor": "white",
            "savefig.dpi": 160,
            "font.size": 10,
            "axes.titlesize": 10.5,
            "legend.frameon": False,
            "image.cmap": "cividis",
            "lines.linewidth": 1.6,
            "svg.hashsalt": "emergence",
        },
    )


def step_axis(ax: Axes, first: float) -> None:
    """Training steps on a symlog axis that is linear up to `first`."""
    ax.set_xscale("symlog", linthresh=first)
    ax.set_xlim(left=0)
    ax.set_xlabel("training step")


def loss_curves(
    groups: Mapping[str, Sequence[pd.Series]],
    colours: Mapping[str, str],
    guides: Mapping[str, float],
) -> Figure:
    """Loss over training: every run thin, the median and the 25–75 % band of each group bold.

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
    for name, value in guides.items():
        ax.axhline(value, **GUIDE)
        ax.annotate(
            name, (0.995, value), xycoords=("axes fraction", "data"), ha="right", va="bottom",
            fontsize=8.5, color=GUIDE["color"],
        )  # fmt: skip
    step_axis(ax, 100)
    ax.set_ylabel("held-out loss (nats)")
    ax.legend(loc="lower left")
    return fig


def watched_run(
    loss: pd.Series, row_losses: pd.DataFrame, moving: pd.DataFrame, entropy: pd.DataFrame
) -> Figure:
    """One run on three aligned panels: total loss, loss of each row, entropy of its moving head.

    Args:
        loss: nats, indexed by step.
        row_losses: nats, index step, one column a row.
        moving: columns row, step, layer, head as `analysis.attention.head_that_moves` gives.
        entropy: nats, index step, columns (layer, head, row).
    """
    order = [*moving["row"], *(r for r in row_losses if r not in set(moving["row"]))]
    edges = _edges(loss.index)
    fig, axes = plt.subplots(
        3, 1, figsize=(7, 7.2), sharex=True, gridspec_kw={"height_ratios": [1.1, 1, 1]}
    )
    axes[0].plot(loss.index, loss, color=OKABE_ITO["blue"])
    for step in moving["step"]:
        axes[0].axvline(step, color=OKABE_ITO["orange"], linewidth=0.8, alpha=0.8, zorder=0)
    axes[0].set_ylabel("total loss (nats)")
    axes[0].set_title("A vertical line marks the step at which a row's loss falls below ln 2 / 2")
    images = (
        (axes[1], row_losses[order], "loss of the row (nats)"),
        (axes[2], _entropy_of_moving_head(moving, entropy, order), "entropy of its head (nats)"),
    )
    for ax, table, label in images:
        values = table.to_numpy().T
        top = np.nanquantile(values, 0.98) if np.isfinite(values).any() else 1.0
        # Not the maximum: an untrained model's first loss would dim all others.
        mesh = ax.pcolormesh(
            edges, np.arange(len(order) + 1), values, vmin=0, vmax=top, rasterized=True
        )
        fig.colorbar(mesh, ax=ax, label=label, pad=0.01)
        ax.invert_yaxis()
        ax.set_yticks(np.arange(len(order)) + 0.5, order, fontsize=7.5)
        ax.set_ylabel("output row")
    step_axis(axes[2], 100)
    return fig


def survival_curves(
    groups: Mapping[str, Sequence[Event]], colours: Mapping[str, str], ylabel: str
) -> Figure:
    """Kaplan–Meier curves with 95 % bands: the share of runs still waiting for an event.

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
    ax.legend(loc="center left")
    return fig


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


def attention_maps(
    patterns: Mapping[str, Float[Tensor, "query key"]], target: Bool[Tensor, "query key"]
) -> Figure:
    """Attention of some heads over the queries that have a true answer, the truth first.

    Args:
        patterns: title → attention pattern, mean over a batch.
        target: ground truth; only its queries with a true key are shown, and keys up to the last
            true one.
    """
    rows = target.any(-1).nonzero().squeeze(-1)
    keys = int(target.any(0).nonzero().max()) + 1
    shown = {"truth (A / s)": target / target.sum(-1, keepdim=True).clamp(min=1), **patterns}
    columns = min(len(shown), 5)
    lines = -(-len(shown) // columns)
    fig, axes = plt.subplots(
        lines, columns, figsize=(1.45 * columns + 0.8, 1.7 * lines), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    for ax, (title, pattern) in zip(axes.flat, shown.items(), strict=False):
        mesh = ax.imshow(pattern[rows][:, :keys].numpy(), vmin=0, vmax=1, aspect="auto")
        ax.set_title(title, fontsize=8.5)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    for ax in axes[-1]:
        ax.set_xlabel("input bit", fontsize=8.5)
    for ax in axes[:, 0]:
        ax.set_ylabel("output bit", fontsize=8.5)
    fig.colorbar(mesh, ax=axes.ravel().tolist(), label="attention", pad=0.01)
    return fig


def dose_response(
    table: pd.DataFrame, x: str, *, xlabel: str, ylabel: str, horizon: float
) -> Figure:
    """Median times with their intervals against a dose; what was never seen is a cross at the top.

    Args:
        table: columns wait (a key of `WAIT_COLOURS`), `x`, n, median, low, high (steps; infinite
            where not seen).
        horizon: steps watched.
    """
    fig, ax = plt.subplots(figsize=(6, 3.6))
    doses = table.drop_duplicates(x)
    waits = table["wait"].unique()
    for i, wait in enumerate(waits):
        lines = table[table["wait"] == wait]
        colour = WAIT_COLOURS[wait]
        at = doses[x].searchsorted(lines[x]) + 0.16 * (i - (len(waits) - 1) / 2)
        seen = np.isfinite(lines["median"].to_numpy())
        middle = lines["median"].clip(upper=horizon).to_numpy()
        ax.vlines(at, lines["low"].clip(upper=horizon), lines["high"].clip(upper=horizon),
                  color=colour)  # fmt: skip
        for some, marker, label in (
            (seen, "o", wait),
            (~seen, "x", f"{wait}: not in half of runs"),
        ):
            if some.any():
                ax.plot(at[some], middle[some], marker, color=colour, label=label)
    labels = [f"{v:g}\nn = {n}" for v, n in zip(doses[x], doses["n"], strict=True)]
    ax.set_xticks(np.arange(len(doses)), labels)
    ax.set_yscale("log")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.legend()
    return fig


def loss_by_sparsity(
    tables: Mapping[str, pd.DataFrame],
    colours: Mapping[str, str],
    *,
    guides: Mapping[str, float],
    paper: Mapping[int, float],
) -> Figure:
    """Final loss against s: mean, with the range of the seeds, a line a state size.

    Args:
        tables: label → columns row_weight, n, mean_loss, min_loss, max_loss (nats).
        colours: label → colour.
        guides: name → a loss drawn as a dashed line.
        paper: s → the paper's loss, grey diamonds.
    """
    fig, ax = plt.subplots(figsize=(7, 3.9))
    for label, table in tables.items():
        spread = np.stack(
            [table.mean_loss - table.min_loss, table.max_loss - table.mean_loss]
        ).clip(min=0)
        ax.errorbar(table.row_weight, table.mean_loss, spread, marker="o", markersize=4,
                    color=colours[label], elinewidth=1,
                    label=f"{label} (n = {_span(table.n)} a cell)")  # fmt: skip
    if paper:
        ax.plot(list(paper), list(paper.values()), "D", color=PAPER_GREY, markersize=5,
                label="paper, S = 16 (n = 3)", zorder=0)  # fmt: skip
    for name, value in guides.items():
        ax.axhline(value, **GUIDE)
        ax.annotate(name, (0.995, value), xycoords=("axes fraction", "data"), ha="right",
                    va="bottom", fontsize=8, color=GUIDE["color"])  # fmt: skip
    ax.set_xlabel("ones in a row of the map, s")
    ax.set_ylabel("final loss (nats)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(tables) + bool(paper))
    return fig


def rates(
    groups: Mapping[str, tuple[Sequence[float], Sequence[Estimate]]],
    colours: Mapping[str, str],
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Shares with exact intervals against a number, a line a group.

    Args:
        groups: label → (x, one `Estimate` each).
    """
    fig, ax = plt.subplots(figsize=(7, 3.4))
    for i, (label, (x, estimates)) in enumerate(groups.items()):
        at = np.asarray(x) + 0.12 * (i - (len(groups) - 1) / 2)  # intervals do not hide each other
        ax.vlines(at, [e.low for e in estimates], [e.high for e in estimates],
                  color=colours[label], alpha=0.5)  # fmt: skip
        ax.plot(at, [e.value for e in estimates], "o-", color=colours[label], markersize=4,
                linewidth=1, label=label)  # fmt: skip
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(groups))
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
    ax.legend()
    return fig


def bit_accuracy(
    groups: Mapping[str, Sequence[Sequence[float]]], colours: Mapping[str, str]
) -> Figure:
    """Final accuracy of each output bit, a dot a run and the mean as a line, a panel a group.

    Without a group, one empty panel that says so: a page is built before its runs are recorded.
    """
    panels = max(len(groups), 1)
    fig, axes = plt.subplots(1, panels, figsize=(3.4 * panels, 2.9), sharey=True, squeeze=False)
    if not groups:
        axes[0][0].set_title("not recorded yet")
        axes[0][0].set_xlabel("output bit")
        axes[0][0].set_xticks([])
    for ax, (label, runs) in zip(axes[0], groups.items(), strict=False):
        bits = np.arange(len(runs[0]))
        for accuracy in runs:
            ax.plot(bits, accuracy, "o", color=colours[label], alpha=0.5, markersize=4)
        ax.plot(bits, np.mean(runs, axis=0), color=colours[label])
        ax.axhline(0.5, **GUIDE)
        ax.set_title(f"{label} (n = {len(runs)})")
        ax.set_xlabel("output bit")
    axes[0][0].set_ylabel("accuracy")
    axes[0][0].set_ylim(0.4, 1.03)
    return fig


def _entropy_of_moving_head(
    moving: pd.DataFrame, entropy: pd.DataFrame, order: Sequence[int]
) -> pd.DataFrame:
    """Entropy of each row's moving head at that row's query; NaN for rows that never fell."""
    heads = {line.row: (line.layer, line.head) for line in moving.itertuples()}
    return pd.DataFrame(
        {row: entropy[(*heads[row], row)] if row in heads else np.nan for row in order},
        index=entropy.index,
    )


def _edges(steps: pd.Index) -> np.ndarray:
    """Cell borders halfway between evaluations."""
    steps = np.asarray(steps, dtype=float)
    middle = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([steps[:1], middle, steps[-1:]])


def _span(counts: pd.Series) -> str:
    """ "5" or "2–5"."""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low}–{high}"
