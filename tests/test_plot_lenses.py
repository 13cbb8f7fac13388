"""The figures of the three lenses: which line is which query, and what stands at each moment."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from emergence_lib import plotting

STEPS = [0, 100, 200, 300]


@pytest.fixture(autouse=True)
def _screenless():
    plt.switch_backend("agg")
    yield
    plt.close("all")


def test_a_query_has_one_colour_in_all_panels_and_the_unlearned_one_is_grey():
    loss = pd.DataFrame({0: [3.0, 2, 1, 0], 1: [3.0, 1, 0, 0], 2: [3.0, 3, 3, 3]}, index=STEPS)
    share = pd.Series([0.0, 0.2, 0.4, 0.3], index=STEPS)
    fig = plotting.lens_panels({"loss": loss, "rank": 10 - loss}, {0: 300.0, 1: 200.0}, share)
    assert [ax.get_ylabel() for ax in fig.axes[:2]] == ["loss", "rank"]
    assert fig.axes[0].get_title().startswith("2 of 3 queries learned")
    colours = []
    for ax, table in zip(fig.axes, (loss, 10 - loss), strict=False):
        curves = [line for line in ax.lines if len(line.get_xdata()) == len(STEPS)]
        assert [list(line.get_ydata()) for line in curves] == [list(table[q]) for q in range(3)]
        colours.append([to_hex(line.get_color()) for line in curves])
    assert colours[0] == colours[1]
    assert colours[0][2] == "#bbbbbb"
    brightness = [sum(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in colours[0]]
    assert brightness[1] < brightness[0]  # query 1 is learned first: the darker one
    for ax in fig.axes:  # the ticks of what was learned, in every panel, the share's too
        ticks = [line for line in ax.lines if len(line.get_xdata()) == 2]
        assert [(line.get_xdata()[0], to_hex(line.get_color())) for line in ticks] == [
            (200.0, colours[0][1]),
            (300.0, colours[0][0]),
        ]
    assert list(fig.axes[-1].lines[0].get_ydata()) == list(share)


def test_nothing_recorded_is_said_on_both_figures():
    fig = plotting.lens_panels({"loss": pd.DataFrame()}, {}, pd.Series(dtype=float))
    assert fig.axes[0].get_title() == "not recorded yet"
    empty = pd.DataFrame(columns=["condition", "before", "at", "after"])
    assert plotting.before_at_after(empty, {}, "share").axes[0].get_title() == "not recorded yet"


def test_three_moments_of_every_run_and_their_mean():
    table = pd.DataFrame(
        [("map", 0.0, 0.2, 0.5), ("map", 0.0, 0.4, 0.7), ("automata", 0.1, 0.9, 0.9)],
        columns=["condition", "before", "at", "after"],
    )
    fig = plotting.before_at_after(table, {"map": "#0072B2", "automata": "#D55E00"}, "share")
    left, right = fig.axes
    assert (left.get_title(), right.get_title()) == ("map (n = 2)", "automata (n = 1)")
    assert left.get_ylabel() == "share"
    runs = [line.get_ydata() for line in left.lines if to_hex(line.get_color()) == "#0072b2"]
    np.testing.assert_array_equal(runs, [[0.0, 0.2, 0.5], [0.0, 0.4, 0.7]])
    mean = next(line for line in left.lines if to_hex(line.get_color()) == "#000000")
    np.testing.assert_allclose(mean.get_ydata(), [0.0, 0.3, 0.6])
