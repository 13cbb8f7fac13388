"""The Othello experiment: its measures against cases worked out apart, judges on made-up rows."""

from __future__ import annotations

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import slow_othello as slow
import torch

from emergence_lib import plotting
from emergence_lib.analysis.gradients import backward_passes
from emergence_lib.analysis.probes import Probe
from emergence_lib.errors import ParameterError
from emergence_lib.experiments import othello_evidence as found
from emergence_lib.experiments.othello import OTHELLO
from emergence_lib.experiments.othello_cell import (
    Boards,
    OthelloCell,
    boards_at,
    halves,
    mean_accuracy,
    residuals_at,
)
from emergence_lib.experiments.othello_influence import (
    SecondMoment,
    averages,
    central_squares,
    mismatch_removed,
)
from emergence_lib.experiments.othello_intervention import (
    Turned,
    followed,
    intervention_columns,
    turn_discs,
)
from emergence_lib.training.train import step_generator

torch.set_num_threads(1)

SMALL = OthelloCell(
    size=4, n_layers=2, d_model=8, n_heads=2, steps=4, batch_size=8, probe_games=60, track_every=2
)


@pytest.fixture(scope="module")
def smoke():
    [point] = OTHELLO.points("smoke")
    return point, OTHELLO.run(point, "cpu")


def test_the_smoke_profile_leaves_a_row_of_the_schema(smoke):
    point, row = smoke
    OTHELLO.check_row(row)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    layers, positions, games = point.params["n_layers"] + 1, 2, point.params["batch_size"]
    for name in ("probe_useful", "probe_useless", "untrained_useful", "untrained_useless"):
        assert np.shape(row[name]) == (layers, positions)
    assert np.shape(row["influence_by_layer"]) == (3, 2, layers)
    assert np.shape(row["influence_by_position"]) == (3, 2, positions)
    assert np.shape(row["influence_by_square"]) == (3, 2, 16)
    assert np.shape(row["influence_by_game"]) == (3, 2, games)
    pre_cached = row["influence_by_layer"][1]
    assert pre_cached[0][-1] == pre_cached[1][-1] == 0  # nothing follows the last block
    assert len(row["legal_by_position"]) == 12
    assert 0 <= row["legal_accuracy"] <= 1
    assert row["floor"] < row["eval_loss"][-1]
    assert len(row["example_state"]) == len(row["example_readout"]) == 16


def test_the_same_point_gives_the_same_row(smoke):
    point, row = smoke
    assert OTHELLO.run(point, "cpu") == row


def test_judges_do_not_judge_one_unschooled_run(smoke):
    point, row = smoke
    rows = pd.DataFrame([{"seed": 0, **point.params, **row}])
    for judge in OTHELLO.judges.values():
        assert judge(rows).status == "not tested here"
    assert set(found.influence_table(rows).unit) == set(found.UNITS)
    assert len(found.accuracy_table(rows)) == 2 * 2 * 2
    assert "(n = 1 runs)" in found.intervention_sentence(rows)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"size": 5}, r"size=5 .* one of 4, 6, 8"),
        ({"seeds": 0}, r"seeds=0"),
        ({"n_heads": 3}, r"n_heads=3"),
        ({"track_every": 0}, r"track_every=0"),
        ({"probe_games": 3}, r"probe_games=3"),
        ({"lr": -1.0}, r"lr=-1.0"),
    ],
)
def test_impossible_parameters_are_refused(changes, says):
    with pytest.raises(ParameterError, match=says):
        OTHELLO.block("quick", **changes)


def test_the_paper_s_sites():
    assert OthelloCell(size=8).positions() == list(range(4, 57, 4))
    assert OthelloCell(size=6).positions() == [4, 8, 12, 16, 20, 24, 28]
    assert central_squares(8) == [8 * i + j for i in range(2, 6) for j in range(2, 6)]
    assert central_squares(6) == [6 * i + j for i in range(1, 5) for j in range(1, 5)]
    assert central_squares(4) == list(range(16))


def test_the_probes_games_are_held_out_from_each_other():
    fit, test = halves(OthelloCell(size=6, probe_games=100), 0, "cpu")
    assert (len(fit.tokens), len(test.tokens)) == (70, 30)
    assert not set(map(tuple, fit.tokens.tolist())) & set(map(tuple, test.tokens.tolist()))


# --- what is averaged over what ---------------------------------------------------------------


def test_accuracy_compares_both_kinds_on_the_same_squares():
    """Three squares at one position in 40 games: 0 is useful in 20 and useless in 20, 1 always
    useful, 2 useful in 30 and useless in 10. Square 1 must not count."""
    useful = torch.zeros(1, 40, 3, dtype=torch.bool)
    useful[0, :20, 0] = useful[0, :, 1] = useful[0, :30, 2] = True
    boards = Boards(torch.ones(1, 40, 3, dtype=torch.int8), useful, ~useful)
    right = torch.zeros(2, 1, 40, 3, dtype=torch.bool)
    right[0, 0, :15, 0] = True  # 15 of 20 useful, 0 of 20 useless
    right[0, 0, :, 1] = True
    right[0, 0, 25:35, 2] = True  # 5 of 30 useful, 5 of 10 useless
    measured = mean_accuracy(right, boards)
    assert measured["useful"] == [[pytest.approx((15 / 20 + 5 / 30) / 2, abs=1e-4)], [0.0]]
    assert measured["useless"] == [[pytest.approx((0 + 5 / 10) / 2, abs=1e-4)], [0.0]]


def test_a_position_without_a_square_to_compare_is_not_known():
    useful = torch.ones(1, 40, 3, dtype=torch.bool)
    boards = Boards(torch.ones(1, 40, 3, dtype=torch.int8), useful, ~useful)
    assert mean_accuracy(useful[None], boards) == {"useful": [[None]], "useless": [[None]]}


def test_influence_is_averaged_over_cells_that_have_both_kinds():
    """One part matters: 2 layers, 2 positions, 4 games, 2 squares; each instance of useful squares
    at (layer, position, square) has influence v, useless ones -v; one cell has no useless ones."""
    total = torch.zeros(3, 2, 2, 2, 4, 2, dtype=torch.float64)
    seen = torch.zeros(2, 2, 4, 2, dtype=torch.float64)
    seen[0], seen[1] = 6, 2
    seen[1, 1, :, 1] = 0
    value = torch.arange(8.0).view(2, 2, 1, 2).expand(2, 2, 4, 2)
    total[0, 0] = value * seen[0]
    total[0, 1] = -value * seen[1]
    measured = averages(total, seen, n_measured=8, steps=10)
    cells = {(0, 0): (0, 4), (0, 1): (1, 5), (1, 0): (2, 6)}  # (position, square) → both layers
    by_layer = [10 * np.mean([v[layer] for v in cells.values()]) for layer in (0, 1)]
    assert measured["influence_by_layer"][0][0] == pytest.approx(by_layer, abs=1e-4)
    assert measured["influence_by_layer"][0][1] == pytest.approx([-v for v in by_layer], abs=1e-4)
    assert measured["influence_by_position"][0][0] == pytest.approx([10 * 2.5, 10 * 4], abs=1e-4)
    assert measured["influence_by_square"][0][0] == pytest.approx([10 * 3, 10 * 3], abs=1e-4)
    assert measured["influence_by_game"][0][0] == pytest.approx([np.mean(by_layer)] * 4, abs=1e-3)
    assert measured["influence_by_layer"][2] == [[0, 0], [0, 0]]


# --- influence --------------------------------------------------------------------------------


def test_the_second_moment_is_adam_s():
    """With every step measured and no first moment, the step is torch's Adam with β = (0, 0.9)."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    adam = torch.optim.Adam([weight], lr=0.1, betas=(0.0, 0.9))
    moment = SecondMoment(0.9, every=1)
    for gradient in ([1.0, 2.0], [0.5, -3.0], [0.0, 1.0]):
        before = weight.detach().clone()
        weight.grad = torch.tensor(gradient)
        adam.step()
        moment.update({"w": weight.grad})
        step = moment.step({"w": weight.grad}, 0.1)["w"]
        assert (before - weight).tolist() == pytest.approx(step.tolist(), rel=1e-5)
    assert SecondMoment(0.9, every=3).decay == pytest.approx(0.729)


def test_the_parts_together_remove_what_the_whole_step_removes():
    """Against a central difference of the mismatch along the step, game by game, in float64."""
    task, positions = SMALL.task(), SMALL.positions()
    model, final = (
        SMALL.model_config().build(step_generator(s, "weights")).double() for s in (0, 1)
    )
    batch = task.sample(5, step_generator(0, "train"))
    sites = [(k, i) for k in range(3) for i in positions]
    w = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions = dict.fromkeys(sites, w)

    def error(net):
        streams = residuals_at(net, batch, positions) - residuals_at(final, batch, positions)
        return streams @ w.T  # [layer, pos, game, feature]

    learned_from = task.sample(6, step_generator(1, "train"))
    errors = dict(zip(sites, error(model).flatten(0, 1), strict=True))
    moment = SecondMoment(0.999, every=2)
    measured = mismatch_removed(
        model, learned_from, batch.tokens, directions, errors, moment, lr=0.01
    )
    passes = backward_passes(model, learned_from.tokens, learned_from.loss_mask, myopic=False)
    step = moment.step(passes.full, 1.0)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    ends = []
    for h in (-1e-6, 1e-6):
        model.load_state_dict({n: v - h * step[n] if n in step else v for n, v in start.items()})
        ends.append(error(model) ** 2 / 2)
    slope = 0.01 * (ends[0] - ends[1]).flatten(0, 1) / 2e-6
    for expected, site in zip(slope, sites, strict=True):
        whole = measured[site].sum(0)
        assert whole.numpy() == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-8)
        assert measured[site][0].abs().max() > 1e-6
        assert (measured[site][1].abs().max() == 0) == (site[0] == 2)


# --- turning a disc ---------------------------------------------------------------------------


def test_a_turned_disc_is_useful_and_changes_the_moves_as_the_slow_game_says():
    task = SMALL.task()
    batch = task.sample(20, step_generator(0, "games"))
    boards = boards_at(task, batch, SMALL.positions())
    turned = turn_discs(SMALL, boards, 1, step_generator(0, "turned"))
    assert len(turned.game) == int(boards.useful[1].any(-1).sum())
    other = {"mine": "theirs", "theirs": "mine"}
    for n, (game, square) in enumerate(zip(turned.game, turned.square, strict=True)):
        assert boards.useful[1, game, square]
        position = {
            divmod(s, 4): "mine" if owner > 0 else "theirs"
            for s, owner in enumerate(boards.state[1, game].tolist())
            if owner
        }
        where = divmod(int(square), 4)
        changed = {**position, where: other[position[where]]}
        for legal, discs in ((turned.before[n], position), (turned.after[n], changed)):
            assert [divmod(int(s), 4) for s in legal.nonzero()] == slow.legal(discs, 4)


def test_followed_counts_changed_moves_only():
    """4 squares; legal before: 0, 1; after: 1, 2. So 0 and 2 change, and two squares are likely."""
    one = torch.tensor([0]), torch.tensor([0])
    before = torch.tensor([[True, True, False, False]])
    after = torch.tensor([[False, True, True, False]])
    turned = Turned(*one, before, after)

    def share(*likely):
        logits = torch.zeros(1, 3 + 4)
        logits[0, :3] = 9  # what is no square does not count
        for rank, square in enumerate(likely):
            logits[0, 3 + square] = 5 - rank
        return followed(logits, turned).item()

    assert share(0, 1) == 0  # as on the true board
    assert share(1, 2) == 1  # as on the other
    assert share(0, 2) == 0.5
    assert share(1, 3) == 0.5  # 0 is gone, 2 not there


def test_the_edit_moves_the_read_out_to_the_other_owner():
    """Read off the stream itself: the last layer's edited logits are those of the moved stream."""
    task = SMALL.task()
    model = SMALL.model_config().build(step_generator(0, "weights"))
    test = task.sample(30, step_generator(0, "games"))
    weight = torch.randn(3, 2, 8, 16, generator=torch.Generator().manual_seed(1))
    probes = Probe(weight, torch.zeros(3, 2, 16))
    measured = intervention_columns(SMALL, model, probes, test, step_generator(0, "turned"))
    boards = boards_at(task, test, SMALL.positions())
    generator = step_generator(0, "turned")
    shares = []
    for where in range(len(SMALL.positions())):
        turned = turn_discs(SMALL, boards, where, generator)
        for _ in range(3):
            torch.randn(len(turned.game), 8, generator=generator)
        stream = residuals_at(model, test, SMALL.positions())[2, where, turned.game]
        w = weight[2, where][:, turned.square].T
        owner = boards.state[where, turned.game, turned.square]
        moved = stream - (8 * owner / w.norm(dim=1) ** 2)[:, None] * w
        change = ((moved - stream) * w).sum(1)
        assert change.tolist() == pytest.approx((-8 * owner).tolist(), rel=1e-3)
        shares.append(followed(model.unembed(model.final_norm(moved)), turned))
    expected = torch.cat(shares).mean().item()
    assert measured["followed_edited"][2] == pytest.approx(expected, abs=1e-3)
    assert measured["turned_games"] == sum(map(len, shares))


# --- judges -----------------------------------------------------------------------------------

SEEDS = 4


def made_up(**changes):
    """Rows of runs in which both claims hold, with `changes` in every row."""
    wobble = [-0.01, 0.0, 0.01, 0.005]
    rows = []
    for seed in range(SEEDS):
        w = wobble[seed]
        influence = [[[3 + w], [0 + 100 * w]], [[0 + w], [1 + w]], [[4 + w], [3 + w]]]
        rows.append(
            {
                "seed": seed, "size": 6, "steps": 100, "eval_loss": [3.0, 1.7 + w], "floor": 1.5,
                "legal_accuracy": 0.95 + w, "mismatch": [0.5, 0.5],
                "probe_useful": [[0.6, 0.6], [0.9 + w, 0.92]],
                "probe_useless": [[0.6, None], [0.8 - w, 0.82]],
                "untrained_useful": [[0.6, 0.6], [0.65 + w, 0.65]],
                "untrained_useless": [[0.59, 0.6], [0.64, 0.64]],
                "guess_useful": [0.5, 0.6], "guess_useless": [0.5, None],
                "followed_unedited": 0.1, "followed_edited": [0.2, 0.6 + w],
                "followed_random": [0.1, 0.2],
                **{f"influence_by_{unit}": influence for unit in
                   ("layer", "position", "square", "game")},
            }
            | changes
        )  # fmt: skip
    return pd.DataFrame(rows)


def test_useless_squares_represented_but_worse():
    verdict = found.judge_useless_squares(made_up())
    assert (verdict.status, verdict.n) == ("reproduced", SEEDS)
    assert "of 91.1% [" in verdict.evidence
    assert "95.1% [" in verdict.evidence


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        # Read no better than before training, but worse than useful ones.
        ({"untrained_useless": [[0.9, 0.9], [0.9, 0.9]]}, "partly"),
        # Read as well as useful ones.
        ({"probe_useful": [[0.8, 0.8], [0.8, 0.8]]}, "partly"),
        # Worse than useful ones, but so they were before training.
        ({"untrained_useful": [[0.8, 0.8], [0.8, 0.8]]}, "partly"),
        (
            {"probe_useful": [[0.5, 0.5], [0.5, 0.5]], "probe_useless": [[0.6, 0.6], [0.6, 0.6]]},
            "not reproduced",
        ),
        ({"legal_accuracy": 0.5}, "not tested here"),
    ],
)
def test_useless_squares_otherwise(changes, status):
    assert found.judge_useless_squares(made_up(**changes)).status == status


def parts(direct, precached, shared):
    nested = [[[a], [b]] for a, b in (direct, precached, shared)]
    return {f"influence_by_{unit}": nested for unit in ("layer", "position", "square", "game")}


def test_direct_builds_useful_squares_only():
    verdict = found.judge_influence(made_up())
    assert (verdict.status, verdict.n) == ("reproduced", SEEDS)
    assert "direct 3.00 [" in verdict.evidence
    assert "shown to build useful squares only" in verdict.evidence


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        (parts((3, 2), (0, 1), (4, 3)), "partly", "builds useless squares too"),
        (parts((-1, 0), (0, 1), (4, 3)), "partly", "not shown to build useful squares"),
        (parts((3, 0), (0, -1), (4, 3)), "partly", "useful squares only"),
        (parts((3, 2), (0, -1), (4, -1)), "not reproduced", "builds useless squares too"),
        ({"legal_accuracy": 0.5}, "not tested here", "At least 3 runs"),
    ],
)
def test_influence_otherwise(changes, status, says):
    verdict = found.judge_influence(made_up(**changes))
    assert verdict.status == status
    assert says in verdict.evidence


def test_two_runs_test_nothing():
    for judge in OTHELLO.judges.values():
        assert judge(made_up()[:2]).status == "not tested here"


def test_intervals_over_each_unit():
    nested = [[[1, 2, None], [0, 0, 0]]] * 3
    rows = made_up(influence_by_square=nested, influence_by_game=[[[1, 2, 3], [0, 0, 0]]] * 3)
    table = found.influence_table(rows).set_index(["unit", "part", "kind"])
    assert table.loc[("squares", "direct", "useful"), ["n", "value"]].tolist() == [2, 1.5]
    assert table.loc[("games", "direct", "useful"), ["n", "value"]].tolist() == [12, 2]
    assert table.loc[("runs", "direct", "useful"), "n"] == SEEDS


# --- figures and words ------------------------------------------------------------------------


def drawn(rows):
    """The page's recorded figures."""
    return [
        plotting.probe_accuracy(found.accuracy_table(rows), found.guess_accuracy(rows)),
        plotting.influence_by_part(found.influence_table(rows), found.PART_WORDS),
        plotting.turned_discs(found.intervention_table(rows), len(rows)),
    ]


def test_the_figures_show_the_means_over_runs():
    probes, parts, turned = (figure.axes for figure in drawn(made_up()))
    lines = {c.get_label(): c.lines[0].get_ydata() for c in probes[0].containers}
    assert lines["useful, trained (n = 4)"] == pytest.approx([0.6, 0.910625], abs=1e-6)
    assert lines["useless, untrained (n = 4)"] == pytest.approx([0.595, 0.64], abs=1e-6)
    assert [ax.get_title() for ax in parts] == [
        f"over {unit} (n = {n})"
        for unit, n in (("runs", 4), ("squares", 1), ("positions", 1), ("games", 4))
    ]
    useful, useless = (c.lines[0].get_ydata() for c in parts[0].containers)
    assert useful == pytest.approx([3, 0, 4], abs=0.01)
    assert useless == pytest.approx([0.125, 1, 3], abs=0.01)
    assert turned[0].lines[0].get_ydata() == pytest.approx([0.2, 0.60125])
    plt.close("all")


def test_before_the_first_run_the_figures_say_so():
    for figure in drawn(made_up()[:0]):
        assert {ax.get_title() for ax in figure.axes} == {"not recorded yet"}
    assert found.legal_sentence(made_up()[:0]) == ""
    assert found.intervention_sentence(made_up()[:0]) == "Nothing is recorded yet."
    plt.close("all")


def test_the_board_shows_owners_read_wrongly(smoke):
    _, row = smoke
    example = found.example(pd.Series(row))
    board, probes, _ = plotting.othello_board(**example).axes[:3]
    wrong = (example["state"] != 0) & (example["readout"] * example["state"] <= 0)
    assert len(probes.lines[0].get_xdata()) == wrong.sum()
    occupied = int((example["state"] != 0).sum())
    assert probes.get_title() == f"the probes: {occupied - wrong.sum()} of {occupied} owners"
    assert len(board.patches) == occupied  # each framed once
    plt.close("all")


def test_the_sentences_carry_the_numbers():
    assert "after block 1 makes it 60.1% [" in found.intervention_sentence(made_up())
    assert "6 × 6 board, after 100 steps, 95.1% [" in found.legal_sentence(made_up())
