"""The bitboards against a slow implementation that follows the rules square by square, and against
the known counts of the game tree; the sequences against a replay of their own moves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import slow_othello as slow
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.tasks import TASKS, Othello
from emergence_lib.tasks.othello_board import SIZES, Board
from emergence_lib.training import masked_loss

torch.set_num_threads(1)


def draw(size, batch_size=40, seed=0):
    task = Othello(size)
    return task, task.sample(batch_size, torch.Generator().manual_seed(seed))


def squares_of(bits, size):
    """Sorted (row, column) of the set bits of a non-negative Python integer."""
    return [divmod(s, size) for s in range(size**2) if bits >> s & 1]


def unsigned(label):
    return label.numpy().view(np.uint64).tolist()


# --- the rules --------------------------------------------------------------------------------


def fast_perft(size, depth):
    """Leaves of the game tree at each depth, level by level: all positions of a level at once."""
    board = Board(size)
    mine, theirs = (np.array([discs]) for discs in board.start)
    counts = []
    for _ in range(depth):
        legal = board.legal_moves(mine, theirs)
        assert (legal != 0).all(), "no pass this early"
        parent, square = board.squares(legal).nonzero()
        move = np.uint64(1) << square.astype(np.uint64)
        mine, theirs = board.play(mine[parent], theirs[parent], move)
        counts.append(len(mine))
    return counts


def test_the_tree_of_the_8_by_8_game_has_the_known_size():
    assert fast_perft(8, 8) == [4, 12, 56, 244, 1396, 8200, 55092, 390216]


@pytest.mark.parametrize(("size", "depth"), [(4, 4), (6, 5), (8, 5)])
def test_the_slow_game_has_the_same_tree(size, depth):
    counts = [slow.perft(slow.start(size), size, d + 1) for d in range(depth)]
    assert fast_perft(size, depth) == counts


@pytest.mark.parametrize("size", SIZES)
def test_random_boards_have_the_moves_flips_and_useful_discs_of_the_slow_game(size):
    """Boards no game reaches: every square empty, mine or theirs at random, in all densities."""
    rng = np.random.default_rng(size)
    filled = np.linspace(0.1, 1, 30)[:, None]
    kind = np.where(rng.random((30, size**2)) < filled, rng.integers(1, 3, (30, size**2)), 0)
    bits = np.uint64(1) << np.arange(size**2, dtype=np.uint64)
    mine, theirs = ((kind == k) @ bits for k in (1, 2))
    board = Board(size)
    assert board.boards(kind == 1).tolist() == mine.tolist()
    assert (board.squares(mine) == (kind == 1)).all()
    legal, useful = board.legal_moves(mine, theirs), board.useful(mine, theirs)
    flips = board.flips(mine[:, None], theirs[:, None], bits)
    seen = 0
    for b in range(30):
        position = {
            divmod(s, size): "mine" if k == 1 else "theirs" for s, k in enumerate(kind[b]) if k
        }
        assert squares_of(int(legal[b]), size) == slow.legal(position, size)
        assert squares_of(int(useful[b]), size) == sorted(slow.useful(position, size))
        for s in np.flatnonzero(kind[b] == 0):
            turned = slow.flips(position, divmod(int(s), size))
            assert squares_of(int(flips[b, s]), size) == sorted(turned)
            seen += len(turned)
    assert seen > 20


def test_boards_of_any_shape_and_the_one_bit_that_is_a_sign_elsewhere():
    board = Board(8)
    row = [0x80 << 56, 0x40 << 56, 0x3F << 56]  # of the last row: its corner, the next, the rest
    mine, theirs = np.array([[row[0]]], np.uint64), np.array([[row[1]]], np.uint64)
    assert board.legal_moves(mine, theirs).tolist() == [[0x20 << 56]]
    theirs = np.array([[row[1] | 0x3E << 56]], np.uint64)
    assert board.legal_moves(mine, theirs).tolist() == [[0x01 << 56]]
    assert board.squares(mine).sum(axis=-1).tolist() == [[1]]
    assert board.squares(mine)[0, 0, 63] == 1


def test_an_empty_move_is_a_pass():
    board = Board(6)
    mine, theirs = (np.array([discs]) for discs in board.start)
    after = board.play(mine, theirs, np.zeros(1, np.uint64))
    assert [x.tolist() for x in after] == [theirs.tolist(), mine.tolist()]


# --- the sequences ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_every_game_replays_by_the_slow_rules(size):
    task, batch = draw(size, {4: 60, 6: 8, 8: 4}[size])
    assert batch.tokens.shape == (len(batch.tokens), task.seq_len)
    assert (task.vocab_size, task.seq_len) == (size**2 + 3, size**2 - 3)
    labels = {name: unsigned(label) for name, label in batch.labels.items()}
    tokens_allowed, state = task.legal_tokens(batch), task.board_state(batch)
    useful = task.useful_squares(batch)
    passes = ends = 0
    for b, tokens in enumerate(batch.tokens.tolist()):
        assert tokens[0] == 1
        position, over = slow.start(size), False
        for t, token in enumerate(tokens[1:]):
            moves = slow.legal(position, size)
            over = over or not (moves or slow.legal(slow.play(position, None), size))
            allowed = {3 + size * i + j for i, j in moves} or {2}
            assert bool(batch.loss_mask[b, t]) is not over
            if over:
                ends += 1
                assert token == 0
                assert not tokens_allowed[b, t].any()
                assert not state[b, t].any()
                continue
            assert token in allowed
            assert set(tokens_allowed[b, t].nonzero().flatten().tolist()) == allowed
            for name, discs in (("mine", 1), ("theirs", -1)):
                where = sorted(w for w, whose in position.items() if whose == name)
                assert squares_of(labels[name][b][t], size) == where
                assert [divmod(s, size) for s in range(size**2) if state[b, t, s] == discs] == where
            assert squares_of(labels["legal"][b][t], size) == moves
            assert {divmod(int(s), size) for s in useful[b, t].nonzero()} == slow.useful(
                position, size
            )
            passes += token == 2
            position = slow.play(position, divmod(token - 3, size) if token > 2 else None)
    if size == 4:
        assert passes > 10
        assert ends > 2


def test_moves_are_uniform_over_what_is_legal():
    """The first move and, given that, the second: χ² against equal shares (99.9 % points)."""
    _, batch = draw(6, 12_000)
    first, second = batch.tokens[:, 1].numpy(), batch.tokens[:, 2].numpy()
    moves, counts = np.unique(first, return_counts=True)
    assert moves.tolist() == [3 + s for s in (8, 13, 22, 27)]
    assert ((counts - 3_000) ** 2 / 3_000).sum() < 16.3
    for move in moves:
        counts = np.unique(second[first == move], return_counts=True)[1]
        expected = counts.sum() / 3
        assert len(counts) == 3
        assert ((counts - expected) ** 2 / expected).sum() < 13.9


def test_the_same_seed_draws_the_same_games():
    for name, label in draw(8, 3)[1].labels.items():
        assert torch.equal(label, draw(8, 3)[1].labels[name])
    assert torch.equal(draw(8, 3)[1].tokens, draw(8, 3)[1].tokens)
    assert not torch.equal(draw(8, 3)[1].tokens, draw(8, 3, seed=1)[1].tokens)


def test_accuracy_is_the_share_of_counted_predictions_that_are_legal():
    task, batch = draw(4, 200)
    right = task.legal_tokens(batch).float()
    assert task.accuracy(right, batch) == 1
    assert task.accuracy(-right, batch) == 0
    padded = ~batch.loss_mask
    assert padded.any()
    wrong = right.clone()
    wrong[:, 3] *= -1
    share = 1 - batch.loss_mask[:, 3].sum() / batch.loss_mask.sum()
    assert task.accuracy(wrong, batch) == pytest.approx(share.item())
    assert not task.legal_share(right, batch)[padded].any()


def test_the_floor_of_a_batch_is_the_loss_of_the_uniform_prediction():
    task, batch = draw(6, 100)
    uniform = torch.where(task.legal_tokens(batch), 0.0, -math.inf)
    assert masked_loss(uniform, batch).item() == pytest.approx(task.floor_of(batch), rel=1e-6)
    assert task.floor is None
    assert task.attention_target() is None


@pytest.mark.parametrize("size", [0, 5, 10, 8.0, "8", True])
def test_other_sizes_are_refused(size):
    with pytest.raises(ParameterError, match=r"size=.* one of 4, 6, 8"):
        Othello(size)


def test_the_task_is_registered_and_refuses_an_empty_batch():
    assert TASKS["othello"] is Othello
    with pytest.raises(ParameterError, match="batch_size=0"):
        draw(4, 0)
