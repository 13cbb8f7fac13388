"""Every kind of figure, drawn from small data: what is on it, in which colour, with which unit."""

from __future__ import annotations

import importlib
import io
import math
import pkgutil
import warnings
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import to_hex

from emergence_lib import plotting
from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import Estimate, kaplan_meier

STEPS = list(range(0, 1_001, 100))
COLOURS = {"a": plotting.OKABE_ITO["blue"], "b": plotting.OKABE_ITO["vermillion"]}


@pytest.fixture(autouse=True)
def _style():
    """The book's style, no screen, and every warning an error."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("error")
        plt.switch_backend("agg")
        plotting.use_style()
        yield
        plt.close("all")


def curve(fall, stop=1_000, name="loss"):
    """Loss that falls from ln 2 to 0.34 at `fall` and ends at `stop`."""
    steps = [step for step in STEPS if step <= stop]
    return pd.Series([0.69 if step < fall else 0.34 for step in steps], index=steps, name=name)


def loss_curves(runs=3):
    groups = {"a": [curve(200 * (i + 1)) for i in range(runs)], "b": [curve(100, stop=400)]}
    return plotting.loss_curves(groups, COLOURS, {"floor": 0.335, "plateau: ln 2": 0.693})


def watched_run(rows_that_fall=(0, 2)):
    row_losses = pd.DataFrame({i: curve(300 * (i + 1)) for i in range(3)})
    columns = pd.MultiIndex.from_product([[0], [0, 1], range(3)], names=["layer", "head", "row"])
    entropy = pd.DataFrame(
        np.arange(len(STEPS) * 6).reshape(-1, 6) / 10, index=STEPS, columns=columns
    )
    chance = {0: 0.5, 1: 0.4, 2: 0.3}
    moving = pd.DataFrame(
        [(row, 300 * (row + 1), 0, row % 2) for row in reversed(rows_that_fall)],
        columns=["row", "step", "layer", "head"],
    )
    return plotting.watched_run(curve(300), row_losses, moving, entropy, entropy / 10, chance)


EVENTS = {
    "a": [Event(100, True), Event(300, True), Event(500, False), Event(900, False)],
    "b": [Event(200, True), Event(250, True)],
}


def survival_curves(events=EVENTS):
    return plotting.survival_curves(events, COLOURS, "share of runs still waiting")


def doses(**changes):
    lines = [
        ("first half row", 0.0, 5, 300.0, 200.0, 400.0),
        ("first half row", 4.0, 5, 100.0, 100.0, 150.0),
        ("all rows", 0.0, 5, math.inf, 4_000.0, math.inf),
        ("all rows", 4.0, 5, 600.0, 500.0, math.inf),
    ]
    return pd.DataFrame(lines, columns=["wait", "c", "n", "median", "low", "high"]).assign(
        **changes
    )


def dose_response(table=None):
    table = doses() if table is None else table
    return plotting.dose_response(table, "c", xlabel="c", ylabel="steps", horizon=10_000)


def cells(n=(3, 3, 3)):
    return pd.DataFrame(
        {
            "row_weight": [1, 2, 4],
            "n": n,
            "mean_loss": [0.1, 0.3, 0.2],
            "min_loss": [0.1, 0.2, 0.2],
            "max_loss": [0.1, 0.4, 0.2],
        }
    )


def loss_by_sparsity(tables=None, paper=None):
    return plotting.loss_by_sparsity(
        tables or {"a": cells(), "b": cells(n=(2, 5, 5))},
        COLOURS,
        guides={"floor": 0.0},
        paper={1: 0.1, 4: 0.4} if paper is None else paper,
    )


def rates(labels=("a", "b")):
    shares = [Estimate(0.0, 0.0, 0.5), Estimate(1.0, 0.4, 1.0)]
    return plotting.rates({label: ([1, 2], shares) for label in labels}, COLOURS, "s", "solved")


def scatter_groups():
    groups = {"a": ([1, 2, 3], [0.1, 0.2, 0.3]), "b": ([1], [0.4])}
    return plotting.scatter_groups(groups, COLOURS, "ln C(S, s)", "excess (nats)")


def scatter():
    return plotting.scatter([1, 2, 3], [2, 2, 4], "placebo (nats)", "drop (nats)", diagonal=True)


def bit_accuracy():
    groups = {"a": [[0.5, 1, 1], [0.52, 1, 0.98]], "b": [[1, 1, 1, 1]]}
    return plotting.bit_accuracy(groups, COLOURS)


TARGET = torch.tensor([[0, 0, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)


def attention_maps():
    patterns = {f"head {h}": torch.full((4, 4), 0.25) for h in range(2)}
    return plotting.attention_maps(patterns, TARGET)


FIGURES = (
    loss_curves, watched_run, survival_curves, dose_response, loss_by_sparsity, rates, scatter,
    scatter_groups, bit_accuracy, attention_maps,
)  # fmt: skip


def svg(figure):
    """The bytes that a build would write."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def legend(ax):
    """label → colour of its handle."""
    handles, labels = ax.get_legend_handles_labels()
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == labels
    assert shown
    colours = [h.lines[0] if hasattr(h, "lines") else h for h in handles]
    return {label: to_hex(h.get_color()).upper() for label, h in zip(shown, colours, strict=True)}


# --- all of them ------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", FIGURES, ids=lambda f: f.__name__)
def test_every_figure_is_white_labelled_and_the_same_bytes_twice(draw):
    first = draw()
    assert to_hex(first.get_facecolor()) == "#ffffff"
    assert first.get_facecolor()[3] == 1  # opaque: readable in the dark theme
    assert any(ax.get_xlabel() for ax in first.axes)
    for ax in first.axes:
        assert to_hex(ax.get_facecolor()) == "#ffffff"
        if ax.get_legend():
            legend(ax)  # never empty
    assert any(ax.get_ylabel() for ax in first.axes)
    assert svg(first) == svg(draw())


def test_every_kind_of_figure_is_tested():
    public = {
        name
        for name, thing in vars(plotting).items()
        if callable(thing) and getattr(thing, "__module__", "").startswith(plotting.__name__)
    }
    figures = {name for name in public if not name.startswith("_")} - {"use_style", "step_axis"}
    assert {draw.__name__ for draw in FIGURES} <= figures
    # A family that one experiment alone draws is tested with it.
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert [name for name in sorted(figures) if f"plotting.{name}(" not in tests] == []


def test_every_figure_of_a_family_is_reached_through_the_package():
    for family in pkgutil.iter_modules(plotting.__path__, f"{plotting.__name__}."):
        module = importlib.import_module(family.name)
        own = {
            name
            for name, thing in vars(module).items()
            if getattr(thing, "__module__", "") == family.name and not name.startswith("_")
        }
        assert own
        assert own <= set(plotting.__all__)


def test_colours_do_not_change():
    assert plotting.PROFILE_COLOURS == {
        "smoke": "#000000",
        "quick": "#E69F00",
        "cpu": "#0072B2",
        "paper": "#CC79A7",
    }
    assert plotting.STATE_SIZE_COLOURS == {8: "#56B4E9", 16: "#0072B2", 32: "#D55E00"}
    assert plotting.WAIT_COLOURS == {"first half row": "#0072B2", "all rows": "#D55E00"}
    for colours in (plotting.PROFILE_COLOURS, plotting.STATE_SIZE_COLOURS, plotting.WAIT_COLOURS):
        assert len(set(colours.values())) == len(colours)
        assert set(colours.values()) <= set(plotting.OKABE_ITO.values())
        assert plotting.OKABE_ITO["yellow"] not in colours.values()  # too pale on white


# --- each of them -----------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [1, 3])
def test_loss_curves_have_a_thin_line_a_run_and_a_bold_median(runs):
    ax = loss_curves(runs).axes[0]
    thin = [line for line in ax.lines if line.get_alpha() == 0.25]
    assert len(thin) == runs + 1
    assert len(ax.lines) == (runs + 1) + 2 + 2  # medians, guides
    assert len(ax.collections) == 2  # bands
    assert legend(ax) == {f"a (n = {runs})": COLOURS["a"], "b (n = 1)": COLOURS["b"]}
    assert {"floor", "plateau: ln 2"} == {text.get_text() for text in ax.texts}
    assert ax.get_xlabel() == "training step"
    assert "nats" in ax.get_ylabel()
    assert ax.get_xscale() == "symlog"
    assert ax.get_xlim()[0] == 0
    median = next(line for line in ax.lines if line.get_label() == f"a (n = {runs})")
    fall = {1: 200, 3: 400}[runs]
    assert median.get_ydata().tolist() == curve(fall).tolist()


def test_a_run_that_stopped_early_keeps_its_last_loss_in_the_median():
    groups = {"a": [curve(100, stop=300), curve(200, stop=400), curve(2_000)]}
    ax = plotting.loss_curves(groups, COLOURS, {}).axes[0]
    median = next(line for line in ax.lines if line.get_label() == "a (n = 3)")
    assert median.get_xdata().tolist() == STEPS
    assert median.get_ydata().tolist() == curve(200).tolist()


def test_a_watched_run_has_four_panels_and_a_line_a_fall():
    figure = watched_run()
    loss, rows, heads, inputs = figure.axes[:4]
    assert [line.get_xdata()[0] for line in loss.lines[1:]] == [900, 300]
    assert all(len(ax.findobj(QuadMesh)) == 1 for ax in (rows, heads, inputs))
    for ax in (rows, heads, inputs):  # a mark at each row's own fall, in its own line
        [marks] = ax.findobj(LineCollection)
        ends = [segment.tolist() for segment in marks.get_segments()]
        assert ends == [[[900, 0], [900, 1]], [[300, 1], [300, 2]]]
    # In the order in which `moving` has them, rows that never fell last.
    assert [label.get_text() for label in rows.get_yticklabels()] == ["2", "0", "1"]
    assert rows.get_ylim()[0] > rows.get_ylim()[1]  # the first on top
    shown = np.ma.asarray(heads.findobj(QuadMesh)[0].get_array()).reshape(3, len(STEPS))
    first = np.arange(len(STEPS)) * 0.6  # of head 0 at row 0; the entry of row 2 is .2 higher
    assert shown[0].tolist() == pytest.approx((first + 0.2).tolist())
    assert shown[1].tolist() == pytest.approx(first.tolist())
    assert np.ma.getmaskarray(shown)[2].all()  # row 1 never fell: no head to show
    [mesh] = inputs.findobj(QuadMesh)
    shown = np.ma.asarray(mesh.get_array()).reshape(3, len(STEPS))
    assert shown[0].tolist() == pytest.approx(((first + 0.2) / 10 - 0.3).tolist())
    assert shown[1].tolist() == pytest.approx((first / 10 - 0.5).tolist())
    assert np.ma.getmaskarray(shown)[2].all()
    assert mesh.get_clim() == (-1, 1)  # so that chance is in the middle, white
    assert min(mesh.cmap(mesh.norm(0.0))[:3]) > 0.95
    assert to_hex(mesh.cmap.get_bad()) == "#dddddd"
    assert inputs.get_xlabel() == "training step"
    labels = [ax.get_ylabel() for ax in figure.axes]
    assert sum("(nats)" in label for label in labels) == 3
    assert "minus chance" in labels[-1]


def test_a_watched_run_in_which_nothing_was_learned_is_drawn_too():
    figure = watched_run(rows_that_fall=())
    figure.canvas.draw()
    assert len(figure.axes[0].lines) == 1


def test_survival_curves_tick_the_censored_runs_on_the_curve():
    ax = survival_curves().axes[0]
    assert legend(ax) == {"a (n = 4)": COLOURS["a"], "b (n = 2)": COLOURS["b"]}
    curves = {line.get_label(): line for line in ax.lines if line.get_marker() == "None"}
    table = kaplan_meier(EVENTS["a"])
    assert curves["a (n = 4)"].get_ydata().tolist() == table.unsolved.tolist()
    assert curves["a (n = 4)"].get_drawstyle() == "steps-post"
    ticks = [line for line in ax.lines if line.get_marker() == "|"]
    found = [(x, y) for line in ticks for x, y in zip(*line.get_data(), strict=True)]
    assert found == [(500, 0.5), (900, 0.5)]  # half of the four are left, both unsolved
    assert ax.get_ylim() == (0, 1.02)
    assert ax.get_xscale() == "symlog"


@pytest.mark.parametrize(
    "events", [[Event(500, False)], [Event(500, True)], [Event(500, False)] * 3]
)
def test_survival_of_one_run_or_of_runs_that_all_wait(events):
    figure = survival_curves({"a": events})
    figure.canvas.draw()
    assert legend(figure.axes[0]) == {f"a (n = {len(events)})": COLOURS["a"]}


def test_dose_response_shows_both_waits_and_crosses_for_what_was_never_seen():
    ax = dose_response().axes[0]
    assert legend(ax) == {
        "first half row": plotting.WAIT_COLOURS["first half row"],
        "all rows": plotting.WAIT_COLOURS["all rows"],
        "all rows: not in half of runs": plotting.WAIT_COLOURS["all rows"],
    }
    dots = {line.get_label(): line for line in ax.lines}
    assert dots["first half row"].get_ydata().tolist() == [300, 100]
    assert dots["all rows"].get_ydata().tolist() == [600]
    assert dots["all rows"].get_xdata() == pytest.approx([1.08])
    crosses = dots["all rows: not in half of runs"]
    assert (crosses.get_marker(), crosses.get_ydata().tolist()) == ("x", [10_000])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0\nn = 5", "4\nn = 5"]
    assert ax.get_yscale() == "log"
    intervals = [segment for c in ax.findobj(LineCollection) for segment in c.get_segments()]
    ends = sorted(tuple(segment[:, 1]) for segment in intervals)
    assert ends == [(100, 150), (200, 400), (500, 10_000), (4_000, 10_000)]


def test_a_wait_that_no_run_ended_has_crosses_only():
    never = doses(median=math.inf, low=math.inf, high=math.inf)
    ax = dose_response(never).axes[0]
    assert set(legend(ax)) == {f"{wait}: not in half of runs" for wait in plotting.WAIT_COLOURS}
    assert "median" not in legend(dose_response(doses()[:2]).axes[0])


def test_loss_by_sparsity_has_ranges_and_the_paper_s_diamonds():
    ax = loss_by_sparsity().axes[0]
    found = legend(ax)
    paper = "paper, S = 16 (n = 3)"
    assert set(found) == {"a (n = 3 a cell)", "b (n = 2–5 a cell)", paper}
    assert found[paper] == plotting.PAPER_GREY
    assert found["a (n = 3 a cell)"] == COLOURS["a"]
    diamonds = next(line for line in ax.lines if line.get_marker() == "D")
    assert diamonds.get_data()[1].tolist() == [0.1, 0.4]
    bars = ax.findobj(LineCollection)[0].get_segments()
    ends = np.array([bar[:, 1] for bar in bars])
    assert ends == pytest.approx(np.array([(0.1, 0.1), (0.2, 0.4), (0.2, 0.2)]))
    assert "nats" in ax.get_ylabel()


def test_loss_by_sparsity_of_one_seed_without_the_paper():
    table = cells(n=(1, 1, 1)).assign(min_loss=cells().mean_loss, max_loss=cells().mean_loss)
    figure = loss_by_sparsity({"a": table}, paper={})
    figure.canvas.draw()
    assert legend(figure.axes[0]) == {"a (n = 1 a cell)": COLOURS["a"]}


def test_rates_lie_beside_each_other_and_a_single_one_in_its_place():
    ax = rates().axes[0]
    assert legend(ax) == COLOURS
    assert [line.get_xdata().tolist() for line in ax.lines] == [
        pytest.approx([0.94, 1.94]),
        pytest.approx([1.06, 2.06]),
    ]
    assert ax.lines[0].get_ydata().tolist() == [0, 1]
    bars = ax.findobj(LineCollection)[0].get_segments()
    assert [tuple(bar[:, 1]) for bar in bars] == [(0, 0.5), (0.4, 1)]
    assert rates(["a"]).axes[0].lines[0].get_xdata().tolist() == [1, 2]


def test_scatters_have_a_dot_an_observation():
    ax = scatter().axes[0]
    assert ax.lines[0].get_xydata().tolist() == [[1, 2], [2, 2], [3, 4]]
    assert ax.lines[1].get_slope() == 1
    assert ax.get_title(loc="right") == "n = 3"
    assert len(plotting.scatter([1], [2], "x", "y").axes[0].lines) == 1
    ax = scatter_groups().axes[0]
    assert legend(ax) == COLOURS
    assert [len(line.get_xdata()) for line in ax.lines] == [3, 1]


def test_bit_accuracy_has_a_panel_a_group_with_dots_mean_and_chance():
    figure = bit_accuracy()
    assert [ax.get_title() for ax in figure.axes] == ["a (n = 2)", "b (n = 1)"]
    lines = figure.axes[0].lines
    assert len(lines) == 2 + 1 + 1
    assert lines[2].get_ydata().tolist() == pytest.approx([0.51, 1, 0.99])
    assert set(lines[3].get_ydata()) == {0.5}
    assert to_hex(figure.axes[1].lines[0].get_color()).upper() == COLOURS["b"]


def test_attention_maps_show_the_truth_first_and_only_what_it_covers():
    figure = attention_maps()
    images = [ax.images[0].get_array() for ax in figure.axes if ax.images]
    assert [ax.get_title() for ax in figure.axes if ax.images] == [
        "truth (A / s)",
        "head 0",
        "head 1",
    ]
    assert images[0].tolist() == [[0.5, 0, 0.5], [0, 1, 0], [1, 0, 0]]
    assert images[1].tolist() == np.full((3, 3), 0.25).tolist()
    assert all(ax.images[0].get_clim() == (0, 1) for ax in figure.axes if ax.images)


def test_without_a_run_curves_say_so():
    for figure in (
        plotting.loss_curves({}, COLOURS, {"floor": math.nan}),
        plotting.survival_curves({}, COLOURS, "share"),
    ):
        (ax,) = figure.axes
        assert ax.get_title() == "not recorded yet"
        assert ax.get_legend() is None
        assert not ax.texts
