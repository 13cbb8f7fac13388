"""Capabilities of language models: when they emerge, how they rise, which heads carry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from emergence_lib.plotting.style import (
    COMPONENT_COLOURS,
    GUIDE,
    MODEL_SIZE_COLOURS,
    OKABE_ITO,
    PAPER_GREY,
    step_axis,
)


def emergence_steps(
    table: pd.DataFrame, titles: Mapping[str, str], paper: Mapping[str, float]
) -> Figure:
    """When each seed acquires each capability, one column of dots a size, a panel a capability.

    A cross at the top is a run that did not get there. The bar is the median; where half of the
    runs never do, there is none.

    Args:
        table: columns size, seed, capability, step, observed, horizon.
        titles: capability → title of its panel, in order; the first panel gets the paper's marks.
        paper: size of the paper's models → mean emergence as a share of training, grey diamonds.
    """
    sizes = list(dict.fromkeys(table["size"]))
    fig, axes = plt.subplots(
        1, len(titles), figsize=(8.2, 3.7), sharey=True, squeeze=False,
        gridspec_kw={"width_ratios": [len(sizes) + len(paper)] + [len(sizes)] * (len(titles) - 1)},
    )  # fmt: skip
    for i, (ax, (capability, title)) in enumerate(zip(axes[0], titles.items(), strict=True)):
        for x, size in enumerate(sizes):
            lines = table[(table["size"] == size) & (table.capability == capability)]
            share = (lines.step / lines.horizon).to_numpy()
            observed = lines.observed.to_numpy(bool)
            jitter = np.linspace(-0.22, 0.22, len(lines)) if len(lines) > 1 else np.zeros(1)
            colour = MODEL_SIZE_COLOURS[size]
            ax.plot(x + jitter[observed], share[observed], "o", color=colour, ms=4.5, alpha=0.75)
            ax.plot(x + jitter[~observed], np.full((~observed).sum(), 1.04), "x", color=colour,
                    ms=5)  # fmt: skip
            middle = float(np.median(np.where(observed, share, np.inf)))
            if np.isfinite(middle):
                ax.hlines(middle, x - 0.32, x + 0.32, color=colour, linewidth=2)
        labels = list(sizes)
        if i == 0:
            for x, (size, share) in enumerate(paper.items(), start=len(sizes)):
                ax.plot(x, share, "D", color=PAPER_GREY, ms=5)
                labels.append(size)
        ax.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8)
        ax.set_xlim(-0.6, len(labels) - 0.4)
        ax.set_title(title.replace(" ", "\n"))
    axes[0, 0].set_ylim(-0.02, 1.09)
    axes[0, 0].set_ylabel("emergence (share of training)")
    return fig


def over_checkpoints(
    panels: Mapping[str, Mapping[str, Sequence[pd.Series]]],
    colours: Mapping[str, str],
    ylabel: str,
    first: float,
) -> Figure:
    """Curves over training, a panel a title: every run thin, median and 25–75 % band bold.

    Args:
        panels: title → label → curves indexed by step.
        colours: label → colour.
        ylabel: of all panels.
        first: the steps axis is linear up to this step.
    """
    columns = 3 if len(panels) == 3 else min(len(panels), 2)
    lines = -(-len(panels) // columns)
    fig, axes = plt.subplots(
        lines, columns, figsize=(7.2, 2.6 * lines), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    for ax, (title, groups) in zip(axes.flat, panels.items(), strict=False):
        for label, curves in groups.items():
            table = pd.concat(curves, axis=1, ignore_index=True).sort_index()
            for run in table:
                ax.plot(table.index, table[run], color=colours[label], alpha=0.2, linewidth=0.7)
            ax.fill_between(
                table.index, table.quantile(0.25, axis=1), table.quantile(0.75, axis=1),
                color=colours[label], alpha=0.2, linewidth=0,
            )  # fmt: skip
            ax.plot(table.index, table.median(axis=1), color=colours[label],
                    label=f"{label} (n = {table.shape[1]})")  # fmt: skip
        ax.set_title(title if groups else f"{title}: not recorded yet")
        step_axis(ax, first)
        ax.label_outer()
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    if axes[0, 0].lines:
        axes[0, 0].legend(fontsize=8)
    return fig


def recovered_by_heads(curves: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Share of the gap recovered against the share of heads patched, median and band over runs.

    Args:
        curves: name in `COMPONENT_COLOURS` → one list a run, from no head to all heads.
    """
    fig, ax = plt.subplots(figsize=(6.4, 3.8))
    grid = np.linspace(0, 1, 49)
    for name, runs in curves.items():
        table = np.stack(
            [np.interp(grid, np.linspace(0, 1, len(values)), values) for values in runs]
        )
        colour = COMPONENT_COLOURS[name]
        low, middle, high = np.quantile(table, [0.25, 0.5, 0.75], axis=0)
        ax.fill_between(grid, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.plot(grid, middle, color=colour, label=f"{name} (n = {len(runs)})")
    for value in (0, 1):
        ax.axhline(value, **GUIDE)
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of heads patched, best first")
    ax.set_ylabel("share of the gap recovered")
    ax.legend(fontsize=8.5)
    return fig


def head_effects(effects: Mapping[str, Float[np.ndarray, "layer head"]], label: str) -> Figure:
    """A signed number of every head, a panel a title, one colour scale centred on 0."""
    most = max(float(np.abs(values).max()) for values in effects.values()) or 1.0
    layers, heads = next(iter(effects.values())).shape
    fig, axes = plt.subplots(
        1, len(effects), figsize=(0.42 * heads * len(effects) + 2, 0.36 * layers + 1.3),
        sharey=True, squeeze=False,
    )  # fmt: skip
    for ax, (title, values) in zip(axes[0], effects.items(), strict=True):
        image = ax.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
        ax.set_title(title)
        ax.set_xticks(range(heads))
        ax.set_yticks(range(layers))
        ax.set_xlabel("head")
    axes[0, 0].set_ylabel("layer")
    fig.colorbar(image, ax=axes.ravel().tolist(), label=label, pad=0.02)
    return fig


def token_attention(
    patterns: Mapping[str, Float[Tensor, "query key"]], tokens: Sequence[str], columns: int = 2
) -> Figure:
    """Attention patterns over the tokens of one prompt, a panel a title, `columns` in a row."""
    n, lines = len(tokens), -(-len(patterns) // columns)
    side = max(0.13 * n, 1.7)
    fig, axes = plt.subplots(
        lines, columns, figsize=(side * columns + 1.4, (side + 0.35) * lines + 0.7), sharex=True,
        sharey=True, squeeze=False,
    )  # fmt: skip
    for ax, (title, pattern) in zip(axes.flat, patterns.items(), strict=False):
        image = ax.imshow(pattern.numpy(), vmin=0, vmax=1)
        ax.set_xticks(range(n), tokens, rotation=90, fontsize=6.5)
        ax.set_yticks(range(n), tokens, fontsize=6.5)
        ax.set_title(title, fontsize=8.5)
        ax.tick_params(length=2)
    for ax in axes.flat[len(patterns) :]:
        ax.set_axis_off()
    fig.colorbar(image, ax=axes.ravel().tolist(), label="attention", pad=0.01)
    return fig


def one_emergence(
    p: pd.Series,
    single_p: pd.Series,
    control: pd.Series,
    heads: Mapping[str, Float[np.ndarray, "eval head"]],
    emerged: float,
) -> Figure:
    """One run, step by step: probability of the answer, and every head's scores.

    Args:
        p, single_p, control: p(target) over steps of many prompts, of the single one and of the
            control prompts.
        heads: name of a score → its value at the same steps, one column a head.
        emerged: step of the emergence, a vertical line.
    """
    fig, axes = plt.subplots(1 + len(heads), 1, figsize=(7, 2.1 * (1 + len(heads))), sharex=True)
    for curve, label, colour in (
        (p, "many prompts", OKABE_ITO["blue"]),
        (single_p, "single prompt", OKABE_ITO["sky"]),
        (control, "control prompts", PAPER_GREY),
    ):
        axes[0].plot(curve.index, curve, color=colour, label=label)
    axes[0].set_ylabel("p(target)")
    axes[0].set_ylim(-0.02, 1.02)
    axes[0].legend(fontsize=8.5, loc="upper left")
    for ax, (name, values) in zip(axes[1:], heads.items(), strict=True):
        best = values[-1].argmax()
        ax.plot(p.index, values, color=PAPER_GREY, alpha=0.35, linewidth=0.8)
        ax.plot(p.index, values[:, best], color=OKABE_ITO["vermillion"])
        ax.set_ylabel(f"{name} score")
    for ax in axes:
        ax.axvline(emerged, **GUIDE)
        step_axis(ax, max(float(p.index[1]), 1.0))
        ax.label_outer()
    return fig
