"""Othello by the book, one square and one direction at a time: what the bitboards are tested by.

A board is a dict (row, column) → "mine" | "theirs"; an empty square has no entry.
"""

from __future__ import annotations

Square = tuple[int, int]
Position = dict[Square, str]
DIRECTIONS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]


def start(size: int) -> Position:
    middle = size // 2
    return {
        (middle - 1, middle - 1): "theirs",
        (middle, middle): "theirs",
        (middle - 1, middle): "mine",
        (middle, middle - 1): "mine",
    }


def flips(position: Position, square: Square) -> list[Square]:
    """The opposing discs that a disc on `square` would enclose. Off the board nothing lies."""
    if square in position:
        return []
    turned = []
    for down, right in DIRECTIONS:
        run = []
        row, column = square[0] + down, square[1] + right
        while position.get((row, column)) == "theirs":
            run.append((row, column))
            row, column = row + down, column + right
        if position.get((row, column)) == "mine":
            turned += run
    return turned


def legal(position: Position, size: int) -> list[Square]:
    return [(i, j) for i in range(size) for j in range(size) if flips(position, (i, j))]


def play(position: Position, square: Square | None) -> Position:
    """The board as the next player sees it; None is a pass."""
    after = dict(position)
    if square is not None:
        for turned in flips(position, square):
            after[turned] = "mine"
        after[square] = "mine"
    other = {"mine": "theirs", "theirs": "mine"}
    return {where: other[whose] for where, whose in after.items()}


def perft(position: Position, size: int, depth: int, passed: bool = False) -> int:
    """Leaves of the game tree at `depth`; a pass is a ply, the end of a game a leaf."""
    if depth == 0:
        return 1
    moves = legal(position, size)
    if moves:
        return sum(perft(play(position, move), size, depth - 1) for move in moves)
    return 1 if passed else perft(play(position, None), size, depth - 1, True)


def useful(position: Position, size: int) -> set[Square]:
    """The occupied squares whose turning changes the set of legal moves."""
    other = {"mine": "theirs", "theirs": "mine"}
    moves = legal(position, size)
    return {
        where
        for where, whose in position.items()
        if legal({**position, where: other[whose]}, size) != moves
    }
