"""Toy pre-caching: which mechanism builds a feature where it is of no use (claims C-1 … C-4).

Majority and Conditioned Majority are trained in four ways: plain, with myopic gradients (no
pre-caching), with two models split at the outputs (no sharing) and with both. Probes read the
feature at every layer and position, beside those of the model before training; for some plain runs
the integrated influence of each part of the gradient is followed.

Source: paper C (arXiv 2603.14087), section on toy tasks; fact sheet C2, C3. The `cpu` profile is
smaller than the paper (d_model 64 for 128, batch 64 for 256, 800 steps for 3,000, 5 seeds for 10;
initial weights and rate larger, which shortens Conditioned Majority's plateau to fit) and
follows influences at four positions of the plain runs of two seeds; the `paper` profile has its
sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.toy_precaching_cell import (
    ABLATIONS,
    SCHEMA,
    TASK_TYPES,
    ToyCell,
    run_toy,
)
from emergence_lib.experiments.toy_precaching_evidence import (
    judge_identity,
    judge_precaching_needed,
    judge_sharing_carries,
    judge_useless_needs_either,
)
from emergence_lib.tasks.base import require_int

NAME = "toy_precaching"
TRACKED = (4, 8, 12, 16)
"""Two positions at which the feature is useless for the next token, and two of outputs."""


@dataclass(frozen=True)
class ToyPrecachingGrid(Grid):
    """Tasks and ablations, each with several seeds.

    Args:
        tasks, ablations: see `ToyCell`.
        seeds: runs of each, seeded 0, 1, …
        tracked: positions whose influences are followed in plain runs of the first `tracked_seeds`.
        The others are `ToyCell`'s.

    Raises:
        UnknownNameError: an unknown task or ablation.
        ParameterError: a value of the wrong type or out of range.
    """

    tasks: tuple[str, ...] = tuple(TASK_TYPES)
    ablations: tuple[str, ...] = ABLATIONS
    seeds: int = 5
    d_model: int = ToyCell.d_model
    steps: int = ToyCell.steps
    batch_size: int = ToyCell.batch_size
    lr: float = ToyCell.lr
    init_std: float = ToyCell.init_std
    embed_std: float = ToyCell.embed_std
    probe_sequences: int = ToyCell.probe_sequences
    tracked: tuple[int, ...] = TRACKED
    tracked_seeds: int = 2

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        require_int("tracked_seeds", self.tracked_seeds, 0)
        require_int("probe_sequences", self.probe_sequences, 100)
        for name in ("tasks", "ablations", "tracked"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ParameterError(name, given, "a list")
            object.__setattr__(self, name, tuple(dict.fromkeys(given)))
        for position in self.tracked:
            require_int("tracked", position, 0, 19)
        for task in self.tasks:
            for ablation in self.ablations:
                self.cell(task, ablation, 0).validate()

    def cell(self, task: str, ablation: str, seed: int) -> ToyCell:
        """The run of one task and ablation."""
        followed = ablation == "plain" and seed < self.tracked_seeds
        return ToyCell(
            task=task,
            ablation=ablation,
            d_model=self.d_model,
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            init_std=self.init_std,
            embed_std=self.embed_std,
            probe_sequences=self.probe_sequences,
            tracked=self.tracked if followed else (),
        )

    def points(self) -> list[Point]:
        """Seed by seed, so that the first seeds alone are every cell."""
        return [
            Point(NAME, 1, self.cell(task, ablation, seed).params(), seed)
            for seed in range(self.seeds)
            for task in self.tasks
            for ablation in self.ablations
        ]


SMOKE = ToyPrecachingGrid(
    tasks=("majority",),
    ablations=("plain", "both"),
    seeds=1,
    d_model=8,
    steps=3,
    batch_size=4,
    probe_sequences=100,
    tracked=(2, 12),
    tracked_seeds=1,
)

TOY_PRECACHING = Experiment(
    name=NAME,
    version=1,
    question="Where do features that are useless for the next token come from?",
    grid=ToyPrecachingGrid,
    profiles={
        "smoke": (SMOKE,),
        "quick": (
            ToyPrecachingGrid(
                tasks=("majority",),
                seeds=1,
                d_model=32,
                steps=250,
                probe_sequences=1_000,
                tracked_seeds=0,
            ),
        ),
        "cpu": (ToyPrecachingGrid(),),
        "paper": (
            replace(
                ToyPrecachingGrid(),
                seeds=10,
                d_model=128,
                steps=3_000,
                batch_size=256,
                lr=1e-3,
                init_std=0.02,
                embed_std=0.02,
                tracked=tuple(range(20)),
                tracked_seeds=10,
            ),
        ),
    },
    run=run_toy,
    schema=SCHEMA,
    judges={
        "C-1": judge_identity,
        "C-2": judge_useless_needs_either,
        "C-3": judge_precaching_needed,
        "C-4": judge_sharing_carries,
    },
    seconds={"smoke": 0.2, "quick": 4, "cpu": 45, "paper": 3_000},
)
