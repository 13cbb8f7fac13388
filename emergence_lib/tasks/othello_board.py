"""The rules of Othello on bitboards: many positions at once, all directions at once.

    size 4, square = 4 row + column = bit of the board        X to move: . are its legal moves

        0  1  2  3        mover's discs     bits 6, 9             · . · ·
        4  5  6  7        opponent's discs  bits 5, 10            . O X ·
        8  9 10 11        legal moves       bits 1, 4, 11, 14     · X O .
       12 13 14 15                                                · · . ·

A player places a disc so that it and another disc of theirs enclose a straight run of opposing
discs, which turn over. Who has no such move passes; the game ends when neither has one. Boards are
uint64 arrays of any shape, seen from the player to move: `mine` and `theirs`.

A run is followed by shifting whole boards, the "dumb7" fill of computer chess. A step to the right
would come back in at the left edge of the next row, so that runs are kept off the edge columns, in
which an opposing disc cannot be enclosed sideways.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, UInt8, UInt64

Boards = UInt64[np.ndarray, "*boards"]

SIZES = (4, 6, 8)
"""Sides of a board: even, so that it has a centre, and at most 64 squares, the bits of a word."""


@dataclass(frozen=True)
class Board:
    """The rules for a board of `size` × `size` squares; every method works on whole arrays.

    Args:
        size: one of `SIZES`; who takes it from a user checks it.
    """

    size: int

    @property
    def n_squares(self) -> int:
        return self.size**2

    @property
    def full(self) -> np.uint64:
        """All squares."""
        return np.uint64((1 << self.n_squares) - 1)

    @property
    def start(self) -> tuple[np.uint64, np.uint64]:
        """(mine, theirs) before the first move: the four central discs, crosswise."""
        up_left = (self.size // 2 - 1) * (self.size + 1)
        mine = 1 << up_left + 1 | 1 << up_left + self.size
        theirs = 1 << up_left | 1 << up_left + self.size + 1
        return np.uint64(mine), np.uint64(theirs)

    @cached_property
    def _directions(
        self,
    ) -> tuple[UInt64[np.ndarray, " direction"], UInt64[np.ndarray, " direction"]]:
        """Steps in squares (right, down-left, down, down-right; the others are their opposites),
        and the squares on which a disc can be enclosed along each."""
        n = self.size
        row = ((1 << n) - 1) ^ 1 ^ (1 << n - 1)  # without the edge columns
        inner = sum(row << n * i for i in range(n))
        masks = [inner, inner, int(self.full), inner]
        return np.array([1, n - 1, n, n + 1], np.uint64), np.array(masks, np.uint64)

    @cached_property
    def _bits(self) -> UInt64[np.ndarray, " square"]:
        """The board with only one square, for each square."""
        return np.uint64(1) << np.arange(self.n_squares, dtype=np.uint64)

    def legal_moves(self, mine: Boards, theirs: Boards) -> Boards:
        """The squares on which the player to move may place a disc."""
        steps, masks = self._each_direction(mine)
        enclosable = theirs & masks
        empty = self.full & ~(mine | theirs)
        legal = mine & np.uint64(0)
        for shift in (np.left_shift, np.right_shift):
            run = self._run(shift, steps, mine, enclosable)
            legal = legal | np.bitwise_or.reduce(shift(run, steps), axis=0)
        return legal & empty

    def flips(self, mine: Boards, theirs: Boards, move: Boards) -> Boards:
        """The discs that turn over when the player to move takes the one square in `move`.

        An empty `move` turns over nothing.
        """
        steps, masks = self._each_direction(mine & move)
        enclosable = theirs & masks
        turned = mine & np.uint64(0)
        for shift in (np.left_shift, np.right_shift):
            run = self._run(shift, steps, move, enclosable)
            run *= (shift(run, steps) & mine) != 0  # closed off by a disc of one's own
            turned = turned | np.bitwise_or.reduce(run, axis=0)
        return turned

    def play(self, mine: Boards, theirs: Boards, move: Boards) -> tuple[Boards, Boards]:
        """(mine, theirs) of the next player; an empty `move` is a pass."""
        turned = self.flips(mine, theirs, move)
        return theirs ^ turned, mine | turned | move

    def useful(self, mine: Boards, theirs: Boards) -> Boards:
        """The occupied squares whose disc matters to the next move (fact sheet C4, Othello).

        A square is useful where turning over that one disc changes the set of legal moves of the
        player to move, useless where it does not.
        """
        mine, theirs = mine[..., None], theirs[..., None]
        disc = self._bits & (mine | theirs)  # an empty square changes nothing
        changed = self.legal_moves(mine ^ disc, theirs ^ disc) != self.legal_moves(mine, theirs)
        return self.boards(changed)

    def _each_direction(
        self, like: Boards
    ) -> tuple[UInt64[np.ndarray, " direction *_"], UInt64[np.ndarray, " direction *_"]]:
        """`_directions` with axes to broadcast over boards of the shape of `like`."""
        steps, masks = self._directions
        shape = (4,) + (1,) * np.ndim(like)
        return steps.reshape(shape), masks.reshape(shape)

    def _run(
        self,
        shift: np.ufunc,
        steps: UInt64[np.ndarray, " direction *_"],
        start: Boards,
        enclosable: UInt64[np.ndarray, " direction *boards"],
    ) -> UInt64[np.ndarray, " direction *boards"]:
        """The unbroken runs of enclosable discs that begin next to `start`, a direction a row."""
        run = shift(start, steps) & enclosable
        for _ in range(self.size - 3):  # at most size - 2 discs lie between two others
            run |= shift(run, steps) & enclosable
        return run

    def squares(self, boards: Boards) -> UInt8[np.ndarray, "*boards square"]:
        """The bits of each board, 0 or 1 a square."""
        octets = np.ascontiguousarray(boards).astype("<u8")[..., None].view(np.uint8)
        return np.unpackbits(octets, axis=-1, count=self.n_squares, bitorder="little")

    def boards(self, squares: Bool[np.ndarray, "*boards square"]) -> Boards:
        """The other way round: one bit a square."""
        return np.bitwise_or.reduce(squares * self._bits, axis=-1)
