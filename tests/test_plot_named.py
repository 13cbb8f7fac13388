"""Measures of named things: what is drawn, and an empty panel before anything is recorded."""

from __future__ import annotations

import io
import math
import warnings

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from emergence_lib import plotting
from emergence_lib.analysis.survival import Estimate

COLOURS = {"a": plotting.OKABE_ITO["blue"], "b": plotting.OKABE_ITO["vermillion"]}


@pytest.fixture(autouse=True)
def _style():
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("error")
        plt.switch_backend("agg")
        plotting.use_style()
        yield
        plt.close("all")


def draw(groups=None):
    unknown = Estimate(math.nan, math.nan, math.nan)
    some = ["patterns", "MLP"], [Estimate(0.1, 0.0, 0.2), unknown], [[0.05, 0.15], []]
    whole = ["patterns", "MLP"], [Estimate(0.9, 0.8, 1.0), Estimate(1, 1, 1)], [[0.9], [1.0]]
    groups = {"a": some, "b": whole} if groups is None else groups
    return plotting.named_estimates(groups, COLOURS, "share", guides={"post": 1.0})


def test_every_name_has_a_line_every_run_a_dot_and_every_group_its_colour_and_n():
    (ax,) = draw().axes
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["patterns", "MLP"]
    assert ax.yaxis_inverted()  # the first name on top
    handles, labels = ax.get_legend_handles_labels()
    assert labels == ["a (n = 0–2)", "b (n = 1)"]
    assert [to_hex(h.get_color()).upper() for h in handles] == list(COLOURS.values())
    pale = [line for line in ax.lines if line.get_alpha() == 0.3]
    assert sorted(x for line in pale for x in line.get_xdata()) == [0.05, 0.15, 0.9, 1.0]
    spans = {tuple(s[:, 0]) for c in ax.collections for s in c.get_segments() if len(s)}
    assert {(0.0, 0.2), (0.8, 1.0)} <= spans
    assert [text.get_text() for text in ax.texts] == ["post"]
    assert ax.get_xlabel() == "share"


def test_the_papers_values_are_grey_diamonds_at_their_names():
    estimate = [Estimate(0.1, 0.0, 0.2)] * 2
    groups = {"a": (["H = 1", "H = 2"], estimate, [[0.1], [0.1]])}
    paper = {"H = 2": 0.3, "H = 64": 0.9}
    (ax,) = plotting.named_estimates(groups, COLOURS, "loss", guides={}, paper=paper).axes
    (grey,) = [line for line in ax.lines if line.get_color() == plotting.PAPER_GREY]
    assert grey.get_xdata() == pytest.approx([0.3])
    assert 1 < grey.get_ydata()[0] < 1.5
    assert "paper" in ax.get_legend_handles_labels()[1]


def test_nothing_recorded_is_said():
    for groups in ({}, {"a": ([], [], [])}):
        (ax,) = draw(groups).axes
        assert ax.get_title() == "not recorded yet"


def test_the_figure_has_the_same_bytes_twice():
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        draw().savefig(file, format="svg", metadata={"Date": None})
    assert files[0].getvalue() == files[1].getvalue()
