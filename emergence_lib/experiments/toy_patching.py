"""Toy patching: parts of the model from after a jump, put into the model from before it.

Paper A moves attention patterns of Pythia from after an emergence into the checkpoint before it and
recovers most of the gain (claim A-5). Independent replications report that the same move recovers
nothing in a toy model, where values and MLP must move too (fact sheet A, related results). Here the
move is made around every jump of one run:

    p(target) of output row i   ──── pre ╮            pre   last checkpoint below 10 % of the way
                                         ╰ post ────  post  first checkpoint above 90 %

On the linear map a jump is one output row, and p(target) is that row's alone, so that other rows
learned meanwhile do not count. On cellular automata, two layers deep, all predictable cells of the
third state and later are one. Control: the same move from a checkpoint that lies as far *before*
pre, and the reverse, from pre into post.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emergence_lib.analysis.moved_parts import PARTS, logits_with, target_probability
from emergence_lib.analysis.patching import recovered_fraction
from emergence_lib.errors import UnknownNameError
from emergence_lib.experiments.architectures import SHAPES
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.cellular_automata_cell import CellularAutomataCell
from emergence_lib.experiments.linear_map_cell import LinearMapCell
from emergence_lib.models import Transformer
from emergence_lib.tasks import CellularAutomata, LinearMap
from emergence_lib.tasks.base import Batch, require_int
from emergence_lib.training import train
from emergence_lib.training.schedule import linear_schedule
from emergence_lib.training.train import step_generator

Cell = LinearMapCell | CellularAutomataCell
CELLS: Mapping[str, type[LinearMapCell] | type[CellularAutomataCell]] = {
    "linear_map": LinearMapCell,
    "cellular_automata": CellularAutomataCell,
}

BELOW, ABOVE = 0.1, 0.9
"""Shares of the way from chance to the end that bound a jump."""

LEARNED = {"linear_map": 0.5, "cellular_automata": 0.1}
"""A jump is looked at if p(target) ends at least this share of the way from chance to 1. On the
automata the rise is still going on at the end: what is looked at is the rise so far."""

N_SEQUENCES = 256
"""Held-out sequences on which parts are moved."""

SCHEMA = {
    "jumps": "list of int: output rows whose jump was seen; [0] for the cells of an automaton",
    "pre_steps": "list of int: step of the last checkpoint before each jump",
    "post_steps": "list of int: step of the first checkpoint after each jump",
    "p_pre": "list of float: mean p(target) of the jump's own tokens at pre",
    "p_post": "list of float: the same at post",
    "parts": "list of str: what is moved, see `analysis.moved_parts`",
    "forward": "list of list of float: [jump, part] share of the rise recovered by moving post's "
    "part into pre; 0 is pre, 1 is post, below 0 is worse than pre",
    "reverse": "list of list of float: [jump, part] share of the rise lost by moving pre's part "
    "into post; 1 is pre",
    "control": "list of list of float or null: [jump, part] as forward with a checkpoint that lies "
    "as far before pre as post lies after it; null where there is none",
}


@dataclass(frozen=True)
class ToyPatchingGrid(Grid):
    """One task, several seeds.

    Args:
        task: "linear_map" (1 layer) or "cellular_automata" (2 layers).
        seeds: runs, seeded 0, 1, …
        state_size: S, the size of a state.
        row_weight: s; the linear map's only.
        d_model: width.
        steps: training steps at most.
        every: steps between checkpoints.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such task.
    """

    task: str = "linear_map"
    seeds: int = 5
    state_size: int = 8
    row_weight: int = 3
    d_model: int = 64
    steps: int = 1_500
    every: int = 25

    def __post_init__(self) -> None:
        if self.task not in CELLS:
            raise UnknownNameError("task", self.task, CELLS)
        require_int("seeds", self.seeds, 1)
        require_int("every", self.every, 1)
        self.cell().validate()

    def cell(self) -> Cell:
        """What every seed trains."""
        if self.task == "linear_map":
            return LinearMapCell(
                state_size=self.state_size,
                row_weight=self.row_weight,
                d_model=self.d_model,
                steps=self.steps,
                eval_every=self.every,
            )
        return CellularAutomataCell(
            state_size=self.state_size,
            d_model=self.d_model,
            steps=self.steps,
            eval_every=self.every,
            **SHAPES["small"],
        )

    def points(self) -> list[Point]:
        params = {"task": self.task, **self.cell().params()}
        return [Point("toy_patching", 1, params, seed) for seed in range(self.seeds)]


def p_by_jump(
    logits: Float[Tensor, "batch pos vocab"], batch: Batch, task: LinearMap | CellularAutomata
) -> Float[Tensor, "jump batch"]:
    """p(target) of what jumps: each output row of the map, or the automaton's later states."""
    p = target_probability(logits, batch.tokens)
    if isinstance(task, LinearMap):
        return p[:, task.state_size - 1 :].T
    return p[:, 2 * task.state_size - 1 :].mean(1, keepdim=True).T


def find_jump(
    p: Float[Tensor, " checkpoint"], chance: float, learned: float
) -> tuple[int, int] | None:
    """Indices of pre and post in a curve of p(target), None where too little was learned.

    Less than the share `learned` of the way from chance to 1 at the end is too little. Post is the
    first checkpoint at or above 90 % of the way from chance to the last checkpoint's p, pre the
    last one before it at or below 10 %.
    """
    rise = float(p[-1]) - chance
    if rise < learned * (1 - chance):
        return None
    post = int((p >= chance + ABOVE * rise).nonzero()[0])
    low = (p[:post] <= chance + BELOW * rise).nonzero()
    return (int(low[-1]), post) if len(low) else None


def run_jumps(point: Point, device: str) -> dict[str, Any]:
    """Train once, then move parts around every jump: a row of `SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    params = dict(point.params)
    cell = CELLS[params.pop("task")](**params)
    task = cell.task(point.seed)
    steps = linear_schedule(cell.steps, cell.eval_every)
    run = train(
        task, cell.model_config(), cell.train_config(point.seed), checkpoints=steps, device=device
    )
    kept = run.checkpoint_steps
    batch = task.sample(N_SEQUENCES, step_generator(point.seed, "patching")).to(device)

    def model(checkpoint: int) -> Transformer:
        loaded = Transformer(cell.model_config()).to(device)
        loaded.load_state_dict(run.checkpoint(kept[checkpoint]))
        return loaded

    with torch.no_grad():
        curves = torch.stack(
            [p_by_jump(model(i)(batch.tokens[:, :-1]), batch, task) for i in range(len(kept))]
        )  # [checkpoint, jump, batch]

    def moved(receiver: int, donor: int, jump: int, pre: int, post: int) -> list[float]:
        """Share of the way from checkpoint `pre` to `post`, for every part moved."""
        pair = model(receiver), model(donor)
        p = [
            p_by_jump(logits_with(*pair, batch.tokens[:, :-1], part), batch, task)[jump]
            for part in PARTS
        ]
        ends = curves[pre, jump], curves[post, jump]
        return [round(x, 4) for x in recovered_fraction(torch.stack(p), *ends).tolist()]

    row: dict[str, Any] = {name: [] for name in SCHEMA} | {"parts": list(PARTS)}
    for jump in range(curves.shape[1]):
        found = find_jump(curves[:, jump].mean(1), 1 / task.vocab_size, LEARNED[task.name])
        if found is None:
            continue
        pre, post = found
        earlier = 2 * pre - post
        row["jumps"].append(jump)
        row["pre_steps"].append(kept[pre])
        row["post_steps"].append(kept[post])
        row["p_pre"].append(curves[pre, jump].mean().item())
        row["p_post"].append(curves[post, jump].mean().item())
        row["forward"].append(moved(pre, post, jump, pre, post))
        row["reverse"].append(moved(post, pre, jump, post, pre))
        row["control"].append(moved(pre, earlier, jump, pre, post) if earlier >= 0 else None)
    return row


TOY_PATCHING = Experiment(
    name="toy_patching",
    version=1,
    question="Which parts of a toy model carry a jump: patterns, values, attention, or the MLP?",
    grid=ToyPatchingGrid,
    profiles={
        "smoke": (
            ToyPatchingGrid(seeds=1, state_size=4, row_weight=1, d_model=32, steps=200, every=40),
        ),
        "quick": (ToyPatchingGrid(seeds=2, steps=1_000),),
        "cpu": (
            ToyPatchingGrid(seeds=8),
            ToyPatchingGrid("cellular_automata", every=50),
        ),
        "paper": (
            ToyPatchingGrid(seeds=8, state_size=16, d_model=128, steps=10_000),
            ToyPatchingGrid(
                "cellular_automata", seeds=8, state_size=16, d_model=128, steps=10_000, every=50
            ),
        ),
    },
    run=run_jumps,
    schema=SCHEMA,
    seconds={"smoke": 1, "quick": 9, "cpu": 20, "paper": 600},
)
