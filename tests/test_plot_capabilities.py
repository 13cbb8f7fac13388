"""Figures of capabilities: what is drawn is what was measured."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from emergence_lib import plotting


@pytest.fixture(autouse=True)
def style():
    plotting.use_style()
    yield
    plt.close("all")


def emergences():
    lines = [
        ("98k", 0, "ioi", 500.0, True, 1000), ("98k", 1, "ioi", 1000.0, False, 1000),
        ("98k", 2, "ioi", 300.0, True, 1000), ("1.2m", 0, "ioi", 100.0, True, 1000),
        ("1.2m", 1, "ioi", 1000.0, False, 1000), ("1.2m", 2, "ioi", 1000.0, False, 1000),
    ]  # fmt: skip
    return pd.DataFrame(
        lines, columns=["size", "seed", "capability", "step", "observed", "horizon"]
    )


def test_emergence_steps_are_shares_crosses_and_medians():
    figure = plotting.emergence_steps(emergences(), {"ioi": "indirect object"}, {"14m": 0.55})
    ax = figure.axes[0]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert sorted(y for line in dots for y in line.get_ydata()) == [0.1, 0.3, 0.5]
    crosses = [y for line in ax.lines if line.get_marker() == "x" for y in line.get_ydata()]
    assert len(crosses) == 3
    assert all(y > 1 for y in crosses)
    (bar,) = [s for c in ax.collections for s in c.get_segments()]  # 1.2m has no median
    assert bar[:, 1].tolist() == [0.5, 0.5]
    (diamond,) = [line for line in ax.lines if line.get_marker() == "D"]
    assert diamond.get_ydata().tolist() == [0.55]
    assert diamond.get_color() == plotting.PAPER_GREY
    assert [label.get_text() for label in ax.get_xticklabels()] == ["98k", "1.2m", "14m"]


@pytest.mark.parametrize(
    ("n_panels", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2))]
)
def test_panels_over_checkpoints(n_panels, shape):
    steps = [0, 10, 20]
    curves = [pd.Series([0.0, v, 2 * v], index=steps) for v in (1.0, 2.0, 6.0)]
    panels = {f"p{i}": {"98k": curves} for i in range(n_panels)}
    figure = plotting.over_checkpoints(panels, plotting.MODEL_SIZE_COLOURS, "y", first=10)
    assert figure.axes[0].get_gridspec().get_geometry() == shape
    median = next(line for line in figure.axes[0].lines if line.get_label() == "98k (n = 3)")
    assert median.get_ydata().tolist() == [0, 2, 4]
    assert [ax.get_title() for ax in figure.axes[:n_panels]] == list(panels)


def test_recovered_fractions_of_models_of_different_size_share_an_axis():
    runs = [[0, 1], [0, 0.5, 1.0], [0, 0, 0, 0, 2.0]]
    ax = plotting.recovered_by_heads({"patterns": runs}).axes[0]
    (median,) = [line for line in ax.lines if line.get_label() == "patterns (n = 3)"]
    x, y = median.get_data()
    assert (y[0], y[-1]) == (0, 1)
    assert y[np.searchsorted(x, 0.5)] == pytest.approx(0.5, abs=0.03)


def test_effects_of_heads_have_one_centred_scale():
    values = {"a": np.array([[0.1, -0.3]]), "b": np.array([[0.0, 0.2]])}
    figure = plotting.head_effects(values, "Δp")
    limits = {ax.images[0].get_clim() for ax in figure.axes if ax.images}
    assert limits == {(-0.3, 0.3)}
    nothing = plotting.head_effects({"a": np.zeros((2, 2))}, "Δp")
    assert nothing.axes[0].images[0].get_clim() == (-1, 1)


def test_token_attention_names_every_token():
    pattern = torch.eye(3)
    figure = plotting.token_attention(dict.fromkeys("abc", pattern), ["x", "y", "⏎"], columns=2)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["x", "y", "⏎"]
    assert [bool(ax.images) for ax in figure.axes[:4]] == [True, True, True, False]


def test_one_emergence_marks_the_head_that_ends_highest():
    steps = [0, 20, 40]
    p = pd.Series([0, 0.5, 1.0], index=steps)
    scores = np.array([[0.9, 0.0], [0.5, 0.2], [0.1, 0.8]])
    figure = plotting.one_emergence(p, p, p * 0, {"induction": scores}, emerged=30)
    top, heads = figure.axes
    assert {line.get_label() for line in top.lines[:3]} == {
        "many prompts", "single prompt", "control prompts",
    }  # fmt: skip
    marked = [x for x in heads.lines if x.get_color() == plotting.OKABE_ITO["vermillion"]]
    assert [line.get_ydata().tolist() for line in marked] == [[0.0, 0.2, 0.8]]
    assert any(line.get_xdata()[0] == 30 for line in top.lines)
