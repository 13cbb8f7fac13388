"""Othello: sequences of random legal moves, which hide a board that nobody shows the model.

    size 4        board after five moves         tokens   1  7  9 17 15  6 …
    .  X  O  .    X moves first                  means  bos  4  6 14 12  3     (square = token - 3)
    X  X  O  .                                   player      X  O  X  O  X
    .  O  X  .    squares 0 1 2 3 in the first   position 0  1  2  3  4  5
    O  .  X  .    row, 4 … 7 in the second       predicts 1  2  3  4  5  …

The move at position t+1 is predicted at position t, from the moves alone. Every legal move is as
likely as any other, so the best prediction is uniform over them, and to know them is to know the
board. Which discs matter for it can be computed: turn one over, and see whether the set of legal
moves changes (`useful_squares`).

Source: paper C (arXiv 2603.14087), section on Othello, after Li et al. 2023 (arXiv 2210.13382): 60
moves after the beginning-of-sequence token, uniformly random legal games, a token for a pass, 67
tokens on the 8 × 8 board. That a sequence has as many tokens as the board has squares to fill,
passes included, so that few games are cut short; that padding follows the end of a game and does
not count; the order of the tokens; and the boards of 4 × 4 and 6 × 6 are our choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from numpy.typing import NDArray
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import Batch, Task, register, require_int
from emergence_lib.tasks.othello_board import SIZES, Board

PAD, BOS, PASS, FIRST_SQUARE = 0, 1, 2, 3
"""Token ids; square s is token ``FIRST_SQUARE + s``."""


@register("othello")
@dataclass(frozen=True)
class Othello(Task):
    """Uniformly random legal games of Othello.

    Args:
        size: side of the board: 4, 6 or 8.

    Raises:
        ParameterError: another size.
    """

    size: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size not in SIZES:
            raise ParameterError("size", self.size, f"one of {', '.join(map(str, SIZES))}")

    @property
    def board(self) -> Board:
        """The rules."""
        return Board(self.size)

    @property
    def vocab_size(self) -> int:
        return FIRST_SQUARE + self.size**2

    @property
    def seq_len(self) -> int:
        return 1 + self.n_moves

    @property
    def n_moves(self) -> int:
        """Tokens after the first: the squares that are empty at the start."""
        return self.size**2 - 4

    @property
    def floor(self) -> None:
        """Not known in closed form; `floor_of` gives that of a batch."""
        return None

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Random games, with the boards that they pass through.

        Returns:
            Labels "mine", "theirs" and "legal", int64 ``[batch, pos - 1]``: at position t the
            discs of the player who makes the move that is predicted there, the opponent's, and
            where that player may move, as bitboards (see `tasks.othello_board`; bit 63 is the
            sign). `board_state` and `legal_tokens` unfold them. Predictions from the end of a game
            on do not count, and their labels are 0.
        """
        require_int("batch_size", batch_size, 1)
        luck = torch.rand(
            self.n_moves, batch_size, dtype=torch.float64,
            generator=generator, device=generator.device,
        )  # fmt: skip
        board = self.board
        mine, theirs = (np.full(batch_size, discs) for discs in board.start)
        legal = board.legal_moves(mine, theirs)
        shape = (batch_size, self.n_moves)
        tokens = np.full((batch_size, self.seq_len), BOS)
        labels = {name: np.zeros(shape, np.uint64) for name in ("mine", "theirs", "legal")}
        counted = np.zeros(shape, bool)
        for t, u in enumerate(luck.cpu().numpy()):
            chosen, n_legal = _nth_square(board.squares(legal), u)
            can_move = n_legal > 0
            move = can_move.astype(np.uint64) << chosen
            after = board.play(mine, theirs, move)
            legal_after = board.legal_moves(*after)
            playing = can_move | (legal_after != 0)  # else neither can move
            tokens[:, t + 1] = np.where(can_move, FIRST_SQUARE + chosen, np.where(playing, PASS, 0))
            counted[:, t] = playing
            for name, now in (("mine", mine), ("theirs", theirs), ("legal", legal)):
                labels[name][:, t] = now * playing
            (mine, theirs), legal = after, legal_after
        return Batch(
            torch.from_numpy(tokens),
            torch.from_numpy(counted),
            {name: _to_torch(boards) for name, boards in labels.items()},
        ).to(generator.device)

    def attention_target(self) -> None:
        """Every earlier move may matter, and which ones do changes from game to game."""
        return None

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Share of the counted predictions whose likeliest token is legal."""
        return self.legal_share(logits, batch)[batch.loss_mask].float().mean().item()

    def legal_share(
        self, logits: Float[Tensor, "batch pos vocab"], batch: Batch
    ) -> Bool[Tensor, "batch pos"]:
        """Whether the likeliest token at each position is legal."""
        predicted = logits.argmax(-1, keepdim=True)
        return self.legal_tokens(batch).gather(-1, predicted).squeeze(-1)

    def legal_tokens(self, batch: Batch) -> Bool[Tensor, "batch pos vocab"]:
        """The tokens that may come next: legal squares, or the pass where there is none.

        None is legal where the prediction does not count.
        """
        squares = self._squares(batch, "legal").bool()
        passes = (batch.loss_mask & ~squares.any(-1))[..., None]
        no = torch.zeros_like(passes)
        return torch.cat([no, no, passes, squares], dim=-1)

    def floor_of(self, batch: Batch) -> float:
        """Mean loss in nats on a batch of the perfect predictor, uniform over what is legal."""
        return self.legal_tokens(batch).sum(-1)[batch.loss_mask].double().log().mean().item()

    def board_state(self, batch: Batch) -> Int8[Tensor, "batch pos square"]:
        """+1 where the player to move has a disc, -1 where the opponent has one, 0 elsewhere."""
        return self._squares(batch, "mine") - self._squares(batch, "theirs")

    def useful_squares(self, batch: Batch) -> Bool[Tensor, "batch pos square"]:
        """The occupied squares that matter for the next move (`Board.useful`)."""
        boards = (_to_numpy(batch.labels[name]) for name in ("mine", "theirs"))
        squares = self.board.squares(self.board.useful(*boards))
        return torch.from_numpy(squares).bool().to(batch.tokens.device)

    def _squares(self, batch: Batch, label: str) -> Int8[Tensor, "batch pos square"]:
        squares = self.board.squares(_to_numpy(batch.labels[label])).view(np.int8)
        return torch.from_numpy(squares).to(batch.tokens.device)


def _nth_square(
    squares: NDArray[np.uint8], u: NDArray[np.float64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """A uniformly random one of the set squares of each board, and how many are set.

    Args:
        squares: ``[board, square]``, 0 or 1.
        u: uniform in [0, 1), one a board.
    """
    up_to_here = squares.cumsum(axis=1, dtype=np.uint8)
    n_set = up_to_here[:, -1]
    wanted = (u * n_set).astype(np.uint8)
    return (up_to_here > wanted[:, None]).argmax(axis=1).astype(np.uint64), n_set


def _to_torch(boards: NDArray[np.uint64]) -> Int[Tensor, "batch pos"]:
    """Bit for bit: torch shifts and compares signed words only."""
    return torch.from_numpy(boards.view(np.int64))


def _to_numpy(boards: Int[Tensor, "batch pos"]) -> NDArray[Any]:
    return boards.cpu().numpy().view(np.uint64)
