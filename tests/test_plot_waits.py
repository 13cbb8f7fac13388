"""The figure of waiting times: what is drawn for runs, medians and waits that did not end."""

from __future__ import annotations

import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest

from emergence_lib import plotting
from emergence_lib.analysis.emergence import Event

COLOURS = {"a": "#E69F00", "b": "#009E73"}


@pytest.fixture(autouse=True)
def _style():
    mpl.use("Agg")
    plotting.use_style()
    yield
    plt.close("all")


def table(ends):
    """size → steps at which waits ended, negative for one that was watched so long."""
    return pd.DataFrame(
        [
            (size, sorted(abs(s) for s in steps)[1] if steps[1] > 0 else math.inf,
             [Event(abs(s), s > 0) for s in steps])
            for size, steps in ends.items()
        ],
        columns=["x", "median", "events"],
    )  # fmt: skip


GROUPS = {
    "a": table({4: [50, 60, 70], 8: [400, 500, 700], 16: [900, -4000, -4000]}),
    "b": table({4: [40, 50, 55], 8: [100, 120, 130]}),
}


def draw():
    panels = {"one": ("state size S", GROUPS), "two": ("heads", {"a": GROUPS["a"]})}
    fits = {"a": pd.Series([240, 480], index=[8, 16])}
    return plotting.waits(panels, COLOURS, "steps", fits=fits, paper={4: 61, 32: 653})


def test_runs_are_dots_open_triangles_are_still_waiting_and_lines_are_medians():
    left, right = draw().axes
    dots = [line for line in left.lines if line.get_marker() == "o"]
    open_ = [line for line in left.lines if line.get_marker() == "^"]
    assert (len(dots), len(open_)) == (13, 2)
    assert [line.get_ydata()[0] for line in open_] == [4000, 4000]
    assert all(line.get_markerfacecolor() == "w" for line in open_)
    medians = next(line for line in left.lines if line.get_label().startswith("a")).get_ydata()
    assert list(medians[:2]) == [60, 500]
    assert math.isnan(medians[2])
    fit = [line for line in left.lines if line.get_linestyle() == ":"]
    assert len(fit) == 1
    assert (list(fit[0].get_xdata()), list(fit[0].get_ydata())) == ([8, 16], [240, 480])
    paper = [line for line in left.lines if line.get_marker() == "D"]
    assert list(paper[0].get_xdata()) == [4, 32]
    assert len([line for line in right.lines if line.get_marker() == "o"]) == 7


def test_axes_are_labelled_and_one_legend_counts_the_runs():
    figure = draw()
    left, right = figure.axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("state size S", "heads")
    assert left.get_ylabel() == "steps"
    assert [t.get_text() for t in left.get_xticklabels()] == ["4", "8", "16", "32"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["a (n = 3 a size)", "b (n = 3 a size)", "paper (mean of 3)"]


def test_a_panel_without_runs_says_so():
    figure = plotting.waits({"heads": ("H", {"a": GROUPS["a"].iloc[:0]})}, COLOURS, "steps")
    assert "not recorded yet" in figure.axes[0].get_title()
    assert not figure.legends
