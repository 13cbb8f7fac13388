"""Colours, type and axes that every figure shares.

White opaque face in both themes; Okabe–Ito colours for categories, cividis for magnitudes, centred
RdBu for signed values. A profile, a state size and what a run waits for keep their colour through
the whole book. Steps are on a symlog axis, so that 0 stays visible.
"""

from __future__ import annotations

from typing import Any

import seaborn as sns
from cycler import cycler
from matplotlib.axes import Axes

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
TASK_COLOURS = {
    "linear map": OKABE_ITO["blue"],
    "linear map, s = 2": OKABE_ITO["sky"],
    "linear map, s = 4": OKABE_ITO["purple"],
    "linear map, bias": OKABE_ITO["green"],
    "cellular automata": OKABE_ITO["vermillion"],
}
MODEL_SIZE_COLOURS = {
    "405k": OKABE_ITO["sky"],
    "1m": OKABE_ITO["green"],
    "3.2m": OKABE_ITO["blue"],
    "10.6m": OKABE_ITO["orange"],
    "85m": OKABE_ITO["purple"],
    "151m": OKABE_ITO["vermillion"],
    "98k": OKABE_ITO["sky"],
    "442k": OKABE_ITO["green"],
    "1.2m": OKABE_ITO["blue"],
    "14m": OKABE_ITO["sky"],
    "31m": OKABE_ITO["green"],
    "70m": OKABE_ITO["blue"],
    "160m": OKABE_ITO["purple"],
    "410m": OKABE_ITO["vermillion"],
}
MIXER_COLOURS = {
    "attention": OKABE_ITO["blue"],
    "MLP-Mixer": OKABE_ITO["vermillion"],
    "Mamba": OKABE_ITO["green"],
    "Gated DeltaNet": OKABE_ITO["purple"],
    "RWKV": OKABE_ITO["orange"],
    "xLSTM (mLSTM)": OKABE_ITO["sky"],
    "linear RNN": OKABE_ITO["black"],
}
SOURCE_COLOURS = {
    "no source": OKABE_ITO["black"],
    "Dyck": OKABE_ITO["blue"],
    "neural automata": OKABE_ITO["vermillion"],
    "unigram tokens": "#8A8A8A",
}
MOVE_COLOURS = {
    "post into pre": OKABE_ITO["blue"],
    "pre into post": OKABE_ITO["purple"],
    "earlier into pre": "#8A8A8A",
}
COMPONENT_COLOURS = {
    "patterns": OKABE_ITO["blue"],
    "values": OKABE_ITO["green"],
    "head outputs": OKABE_ITO["vermillion"],
    "patterns, random order": "#8A8A8A",
    "patterns put back": OKABE_ITO["purple"],
}
USEFULNESS_COLOURS = {
    "useful": OKABE_ITO["blue"],
    "useless": OKABE_ITO["vermillion"],
}
FORECAST_COLOURS = {
    "loss": OKABE_ITO["black"],
    "three lenses": OKABE_ITO["blue"],
    "lenses and loss": OKABE_ITO["vermillion"],
}
GRADIENT_COLOURS = {
    "direct": OKABE_ITO["blue"],
    "precached": OKABE_ITO["vermillion"],
    "shared": OKABE_ITO["green"],
}
TRAINING_COLOURS = {
    "plain": OKABE_ITO["black"],
    "no pre-caching": OKABE_ITO["green"],
    "no sharing": OKABE_ITO["vermillion"],
    "neither": OKABE_ITO["purple"],
    "untrained": "#8A8A8A",
}
DOMAIN_COLOURS = {
    "code": OKABE_ITO["blue"],
    "prose": OKABE_ITO["orange"],
    "story": OKABE_ITO["green"],
}
PAPER_GREY = "#8A8A8A"
PROMPT_COLOURS = {
    "its own prompts": OKABE_ITO["blue"],
    "control prompts": PAPER_GREY,
}
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
