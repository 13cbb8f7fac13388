"""Heads: their number and their size, on the linear map and on cellular automata (A-11, A-12).

Source: paper A, section on architecture (fact sheet A5). Three ways through the grid of heads H and
head size d:

    fixed size     H grows, d stays          the model grows: "more heads help on both tasks"
    fixed width    H · d = width             on the linear map more heads help down to d = 1; on
                                             cellular automata too small a head hurts
    fixed number   H stays, d grows          up to which size do larger heads help?

Zucchet et al. 2025 report that more heads slightly lengthen the plateau, on a task that one head
solves. The linear map asks for several keys at once, so there heads may divide the work.

Reduced: the linear map has S = 8 instead of 16 and at most 3,000 steps; cellular automata are those
of `CellularAutomataCell`, and a run of theirs ends with its plateau.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import two_tasks
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.cellular_automata_cell import CellularAutomataCell
from emergence_lib.experiments.heads_evidence import (
    judge_larger_heads_saturate,
    judge_more_heads_help,
)
from emergence_lib.experiments.linear_map_cell import LinearMapCell, ShapedLinearMapCell
from emergence_lib.tasks.base import require_int

SHAPES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "linear_map": (
        *((8, 16), (1, 128), (2, 64), (4, 32), (16, 8), (128, 1)),
        *((1, 16), (2, 16), (4, 16), (16, 16)),
        *((8, 1), (8, 4), (8, 32)),
    ),
    "cellular_automata": (
        *((4, 16), (1, 64), (2, 32), (16, 4)),
        *((1, 16), (2, 16), (8, 16)),
        *((4, 2), (4, 4), (4, 64)),
    ),
}
"""Task → the (H, d) of a laptop: fixed width, fixed size, fixed number, each through the first."""


@dataclass(frozen=True)
class HeadsGrid(Grid):
    """One task, several shapes, several seeds.

    Args:
        task: "linear_map" or "cellular_automata".
        shapes: pairs (H, d); None means those of `SHAPES`.
        seeds: runs a shape, seeded 0, 1, …
        state_size: S, the size of a state.
        row_weight: s, of the linear map.
        n_rules, n_states, n_layers, tokens: of cellular automata, see `CellularAutomataCell`.
        d_model: width of the residual stream, whatever H · d is.
        steps: training steps at most.
        batch_size: sequences of the linear map.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such task.
    """

    task: str = "linear_map"
    shapes: tuple[tuple[int, int], ...] | None = None
    seeds: int = 3
    state_size: int = 8
    row_weight: int = 3
    n_rules: int = 64
    n_states: int = CellularAutomataCell.n_states
    n_layers: int = CellularAutomataCell.n_layers
    tokens: int = CellularAutomataCell.tokens
    d_model: int = LinearMapCell.d_model
    steps: int = 3_000
    batch_size: int = LinearMapCell.batch_size

    def __post_init__(self) -> None:
        if self.task not in SHAPES:
            raise UnknownNameError("task", self.task, SHAPES)
        require_int("seeds", self.seeds, 1)
        if self.shapes is not None:
            object.__setattr__(self, "shapes", _pairs(self.shapes))
        for n_heads, d_head in self.all_shapes():
            self.cell(n_heads, d_head).validate()

    def all_shapes(self) -> tuple[tuple[int, int], ...]:
        """The pairs (H, d) to train."""
        return SHAPES[self.task] if self.shapes is None else self.shapes

    def cell(self, n_heads: int, d_head: int) -> two_tasks.Cell:
        """The run of one shape."""
        if self.task == "linear_map":
            return ShapedLinearMapCell(
                state_size=self.state_size,
                row_weight=self.row_weight,
                d_model=self.d_model,
                n_heads=n_heads,
                d_head=d_head,
                steps=self.steps,
                batch_size=self.batch_size,
                eval_every=50,
            )
        return CellularAutomataCell(
            state_size=self.state_size,
            n_rules=self.n_rules,
            n_states=self.n_states,
            n_layers=self.n_layers,
            tokens=self.tokens,
            d_model=self.d_model,
            n_heads=n_heads,
            d_head=d_head,
            steps=self.steps,
            stop_after_plateau=True,
        )

    def points(self) -> list[Point]:
        """Seed by seed, so that an interrupted sweep has every shape."""
        return [
            Point("heads", 1, two_tasks.params(self.cell(n_heads, d_head)), seed)
            for seed in range(self.seeds)
            for n_heads, d_head in self.all_shapes()
        ]


def _pairs(values: object) -> tuple[tuple[int, int], ...]:
    """Pairs (H, d) of positive integers, in the order given."""
    allowed = "a list of pairs [heads, head size] of positive integers"
    if not isinstance(values, list | tuple) or not values:
        raise ParameterError("shapes", values, allowed, "For example [[8, 16], [1, 128]].")
    for pair in values:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ParameterError("shapes", values, allowed, "For example [[8, 16], [1, 128]].")
        for value in pair:
            require_int("shapes", value, 1)
    return tuple(dict.fromkeys((int(n), int(d)) for n, d in values))


HEADS = Experiment(
    name="heads",
    version=1,
    question="Do more heads, or larger ones, shorten the wait, and does it hold on both tasks?",
    grid=HeadsGrid,
    profiles={
        "smoke": (
            HeadsGrid(shapes=((2, 4),), seeds=1, state_size=3, d_model=8, steps=20, batch_size=8),
            HeadsGrid("cellular_automata", ((2, 4),), seeds=1, state_size=4, d_model=8, steps=20),
        ),
        "quick": (HeadsGrid(shapes=((1, 16), (8, 16), (1, 128)), seeds=1, steps=800),),
        "cpu": (
            HeadsGrid(seeds=5),
            HeadsGrid(
                "cellular_automata", seeds=3, d_model=CellularAutomataCell.d_model, steps=3_000
            ),
        ),
        "paper": (
            HeadsGrid(
                shapes=(
                    *((1, 128), (2, 64), (4, 32), (8, 16), (16, 8), (32, 4), (64, 2), (128, 1)),
                    *((1, 16), (2, 16), (4, 16), (16, 16), (32, 16)),
                    *((8, 1), (8, 4), (8, 32), (8, 64)),
                ),
                state_size=16,
                steps=10_000,
                batch_size=256,
            ),
            HeadsGrid(
                "cellular_automata",
                shapes=(
                    *((1, 128), (2, 64), (4, 32), (8, 16), (16, 8), (32, 4), (64, 2)),
                    *((1, 16), (2, 16), (4, 16), (16, 16), (32, 16)),
                    *((8, 2), (8, 4), (8, 32), (8, 64)),
                ),
                state_size=16,
                n_rules=256,
                n_states=16,
                n_layers=4,
                tokens=65_536,
                d_model=128,
                steps=10_000,
            ),
        ),
    },
    run=two_tasks.run_cell,
    schema=two_tasks.CURVE_SCHEMA,
    judges={"A-11": judge_more_heads_help, "A-12": judge_larger_heads_saturate},
    seconds={"smoke": 1, "quick": 8, "cpu": 30, "paper": 600},
)
