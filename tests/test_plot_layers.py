"""Figures of layers and proxies: what they draw of known tables, and what of empty ones."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from emergence_lib import plotting
from emergence_lib.plotting.layers import END_COLOURS
from emergence_lib.plotting.proxies import GROUP_COLOURS, KIND_COLOURS, PAIR_COLOURS


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def lines_with(ax, label):
    return [line for line in ax.lines if str(line.get_label()).startswith(label)]


def test_ranks_by_layer_are_medians_over_runs():
    steps = [0, 1, 10, 100]
    runs = [pd.Series([1.0, share, 0.5, 1.0], index=steps) for share in (0.2, 0.4, 0.9)]
    fig = plotting.rank_by_layer({"COPY 1": {1: runs, 2: runs[:1]}, "MUL 1": {}})
    first, second = fig.axes
    assert first.get_title() == "COPY 1 (n = 1)"
    assert lines_with(first, "layer 1")[0].get_ydata()[1] == 0.4
    assert lines_with(first, "layer 2")[0].get_ydata()[1] == 0.2
    assert "not recorded yet" in second.get_title()


def falls():
    lines = [
        ("1m", layer, n, quantity, 10.0 * layer, low, high, 9.0 * layer, 12.0 * layer)
        for layer in (1, 2)
        for quantity in ("depth", "half_way")
        for n, low, high in [(2, np.nan, np.nan)]
    ]
    columns = ["size", "layer", "n", "quantity", "mean", "low", "high", "lowest", "highest"]
    return pd.DataFrame(lines, columns=columns)


def test_falls_by_layer_show_the_range_where_there_is_no_interval():
    left, right = plotting.falls_by_layer(falls()).axes
    for ax in (left, right):
        assert lines_with(ax, "1m (n = 2)")[0].get_ydata().tolist() == [10, 20]
        (bars,) = ax.collections
        assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[9, 12], [18, 24]]
    empty = plotting.falls_by_layer(falls().iloc[:0])
    assert empty.axes[0].get_title() == "not recorded yet"


def test_shares_of_who_is_first_fill_the_bar():
    table = pd.DataFrame({"kind": "3.2m", "first": ["last layer"] * 6 + ["together"] * 2})
    (ax,) = plotting.which_end_first(table).axes
    assert [bar.get_width() for bar in ax.patches] == [0.75, 0.25, 0]
    assert {text.get_text() for text in ax.texts} == {"6", "2"}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(END_COLOURS)
    (ax,) = plotting.which_end_first(table.iloc[:0]).axes
    assert ax.get_title() == "not recorded yet"


def test_a_proxy_figure_leaves_out_what_is_not_known_for_both():
    table = pd.DataFrame(
        {
            "large": "1m",
            "task_level": ["a", "b", "c"],
            "group": ["hard for both", "others", "others"],
            "floor_small": [2.0, 3.0, 4.0],
            "floor_large": [2.5, 3.0, np.inf],
        }
    )
    (ax,) = plotting.small_for_large(table, {"floor": "floors"}).axes
    assert [line.get_label() for line in ax.lines[:2]] == ["hard for both (1)", "others (1)"]
    assert lines_with(ax, "others")[0].get_ydata().tolist() == [3.0]
    diagonal = ax.lines[2]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [2.0, 3.0]
    assert list(GROUP_COLOURS) == ["hard for both", "others"]
    empty = plotting.small_for_large(table.iloc[:0], {"floor": "floors"})
    assert empty.axes[0].get_title() == "not recorded yet"


def test_rates_stand_beside_chance_and_within_the_axes():
    table = pd.DataFrame(
        [
            ("floor", "hard", kind, value, value - 0.5, value + 0.5, 4)
            for kind, value in zip(KIND_COLOURS, (1.0, 0.75, 0.25), strict=True)
        ],
        columns=["event", "class", "kind", "value", "low", "high", "n"],
    )
    easy, hard = plotting.led_by_chance(table).axes
    assert easy.get_title() == "easy task-levels: not recorded yet"
    assert hard.get_title() == "hard task-levels (n = 4 runs)"
    assert [line.get_ydata().tolist() for line in hard.lines] == [[1.0], [0.75], [0.25]]
    ends = [bars.get_segments()[0][:, 1].tolist() for bars in hard.collections]
    assert ends == [[0.5, 1], [0.25, 1], [0, 0.75]]


def test_concordances_show_every_run_and_their_mean():
    table = pd.DataFrame(
        {
            "size": "405k",
            "seed": [0, 1, 0],
            "pairs": ["easy", "easy", "hard"],
            "index": [0.4, 0.8, np.nan],
        }
    )
    first, second = plotting.concordances({"floor": table, "none": table.iloc[:0]}).axes
    assert first.get_title() == "floor (n = 2 runs)"
    assert first.lines[0].get_ydata().tolist() == [0.4, 0.8]
    assert first.collections[0].get_segments()[0][0, 1] == pytest.approx(0.6)
    assert len(first.collections) == 1  # hard has no concordance
    assert second.get_title() == "none: not recorded yet"
    assert list(PAIR_COLOURS) == ["easy", "hard", "between"]
