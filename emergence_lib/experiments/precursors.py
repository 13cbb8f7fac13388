"""Does any measure warn of a capability before it appears? Claims B-6, B-7, B-8 and B-11.

Source: paper B (arXiv 2602.15997; fact sheet B2 and B3), which follows five measures on its
smallest model: RankMe, the effective rank of gradients, the rank of their covariance, the largest
Hessian eigenvalue and the local learning coefficient. Here they are taken on the 405K model and
multi-task recipe of `collapse`. Reduced for two cores: 4,000 steps, 20 checkpoints, and 7 of the 24
task-levels, the middle level of every task but parity, of which the first runs of `collapse`
acquire no level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.collapse_cell import CollapseCell
from emergence_lib.experiments.precursor_measures import MEASURES, draw_sample, table
from emergence_lib.experiments.precursors_evidence import (
    judge_hessian,
    judge_llc,
    judge_others,
    judge_probes,
)
from emergence_lib.tasks.base import Batch, require_int
from emergence_lib.training import train
from emergence_lib.training.schedule import scaled_pythia_schedule
from emergence_lib.training.train import step_generator

RECIPE = ("size", "batch_size", "lr", "muon_lr", "warmup_steps", "samples")
"""Fields of `CollapseCell` that a point takes over."""

MIDDLE = ("COPY 2", "REV 2", "CMP 2", "ADD 2", "MOD 2", "SORT 2", "MUL 2")

PRECURSORS_SCHEMA = {
    "checkpoints": "list of int: training steps looked at; 0 is the untrained model",
    "probe_chance": "list of float [task-level]: share of the most frequent last answer token",
    **{
        name: f"list of list of float [task-level][checkpoint]: {meaning}"
        for name, meaning in MEASURES.items()
    },
}


@dataclass(frozen=True)
class PrecursorCell:
    """Parameters of one run and of what is measured on it.

    Args:
        steps: of the run; the rest of its recipe is `CollapseCell`'s.
        strides: checkpoints at equal distances, after powers of two up to the first of them
            (`scaled_pythia_schedule`): both an early transient and late events are resolved.
        levels: the task-levels measured, such as "MOD 2"; the model learns all 24.
        draws: Langevin steps averaged for the LLC, in each of two walks, after half as many.

    Raises (when used):
        ParameterError, UnknownNameError: a value out of range.
    """

    steps: int = 4_000
    strides: int = 10
    levels: tuple[str, ...] = MIDDLE
    draws: int = 20

    def run(self) -> CollapseCell:
        """The training run, as in `collapse` but for its length."""
        return CollapseCell(steps=self.steps)

    def checkpoints(self) -> tuple[int, ...]:
        """The steps measured."""
        return scaled_pythia_schedule(self.steps, self.strides)

    def validate(self) -> None:
        """Raise now rather than in the middle of a sweep."""
        self.run().validate()
        self.checkpoints()
        require_int("draws", self.draws, 4)
        known = [part.label for part in self.run().task().parts]
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise ParameterError("levels", self.levels, "at least one task-level, each once")
        for level in self.levels:
            if level not in known:
                raise UnknownNameError("task-level", level, known)

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`; the recipe is in them too."""
        recipe = self.run().params()
        return {
            **{name: recipe[name] for name in RECIPE},
            **asdict(self),
            "levels": list(self.levels),
        }

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> PrecursorCell:
        """The cell of a point's parameters."""
        names = ("steps", "strides", "draws")
        return cls(levels=tuple(params["levels"]), **{name: params[name] for name in names})


@dataclass(frozen=True)
class PrecursorGrid(Grid):
    """One cell over several seeds.

    Args:
        seeds: runs, seeded 0, 1, …
        steps, strides, levels, draws: see `PrecursorCell`.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such task-level.
    """

    seeds: int = 5
    steps: int = PrecursorCell.steps
    strides: int = PrecursorCell.strides
    levels: tuple[str, ...] = PrecursorCell.levels
    draws: int = PrecursorCell.draws

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        given: str | Iterable[str] = self.levels
        object.__setattr__(self, "levels", (given,) if isinstance(given, str) else tuple(given))
        self.cell().validate()

    def cell(self) -> PrecursorCell:
        """The run and its measures."""
        return PrecursorCell(self.steps, self.strides, self.levels, self.draws)

    def points(self) -> list[Point]:
        """Seed by seed."""
        return [Point("precursors", 1, self.cell().params(), seed) for seed in range(self.seeds)]


def run_precursors(point: Point, device: str) -> dict[str, Any]:
    """Train the cell of a point with its seed, then measure every kept checkpoint.

    Returns:
        The columns of `PRECURSORS_SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell = PrecursorCell.of(point.params)
    collapse, seed = cell.run(), point.seed
    task = collapse.task()
    steps = cell.checkpoints()
    held_out = task.balanced(collapse.samples, step_generator(seed, "eval"))
    samples = []
    for level, part in enumerate(task.parts):
        if part.label in cell.levels:
            own = held_out.labels["task_level"] == level
            mine = Batch(held_out.tokens[own], held_out.loss_mask[own])
            samples.append(draw_sample(part, mine, seed))
    samples.sort(key=lambda sample: cell.levels.index(sample.label))
    run = train(
        task,
        collapse.model_config(),
        collapse.train_config(seed),
        checkpoints=steps,
        evaluations=(cell.steps,),  # all that counts is measured below
        eval_batch=samples[0].held_out,
        device=device,
    )
    tables = []
    for step in steps:
        run.model.load_state_dict(run.checkpoint(step))
        tables.append(table(run.model, samples, cell.draws, seed))
    return {
        "checkpoints": list(steps),
        "probe_chance": [round(sample.probe_chance, 4) for sample in samples],
        **{
            name: [[_stored(at[name][i]) for at in tables] for i in range(len(samples))]
            for name in MEASURES
        },
    }


def _stored(value: float) -> float | None:
    """Six significant digits; null where there is no number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


PRECURSORS = Experiment(
    name="precursors",
    version=1,
    question="Does any of five measures warn of a capability before it appears, and do probes read "
    "it before behaviour shows it?",
    grid=PrecursorGrid,
    profiles={
        "smoke": (PrecursorGrid(seeds=1, steps=1, strides=1, levels=("CMP 1",), draws=4),),
        "quick": (PrecursorGrid(seeds=1, steps=300, strides=6, levels=("COPY 1",), draws=10),),
        "cpu": (PrecursorGrid(),),
        "paper": (
            PrecursorGrid(
                steps=20_000,
                strides=200,
                levels=tuple(part.label for part in CollapseCell().task().parts),
                draws=200,
            ),
        ),
    },
    run=run_precursors,
    schema=PRECURSORS_SCHEMA,
    judges={
        "B-6": judge_llc,
        "B-7": judge_hessian,
        "B-8": judge_others,
        "B-11": judge_probes,
    },
    seconds={"smoke": 2, "quick": 30, "cpu": 380, "paper": 30_000},
)
