"""Toy pre-caching: which mechanism builds a feature where it is of no use (claims C-1 … C-4).

Majority and Conditioned Majority are trained in four ways: plain, with myopic gradients (no
pre-caching), with two models split at the outputs (no sharing) and with both. Probes read the
feature at every layer and position, beside those of the model before training. In other plain runs,
trained twice, the integrated influence of each part of the gradient is followed.

Source: paper C (arXiv 2603.14087), section on toy tasks; fact sheet C2, C3. The `cpu` profile is
smaller than the paper: d_model 64 for 128, batch 64 for 256, 600 steps for 3,000, 5 seeds for 10.
Majority is trained with Adam as in the paper, at twice its rate. Conditioned Majority would stay on
its plateau for longer than that, so Muon trains its mixers. Muon's steps do not split into parts:
the runs of Conditioned Majority whose influences are followed are Adam's, with larger initial
weights to the same end. Two seeds and four positions are followed. The `paper` profile has the
paper's sizes and its Adam throughout.
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
        tracked: positions whose influences are followed; Adam only, so `muon_lr` is None then.
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
    muon_lr: float | None = ToyCell.muon_lr
    init_std: float = ToyCell.init_std
    embed_std: float = ToyCell.embed_std
    probe_sequences: int = ToyCell.probe_sequences
    tracked: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        require_int("probe_sequences", self.probe_sequences, 100)
        for name in ("tasks", "ablations", "tracked"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ParameterError(name, given, "a list")
            object.__setattr__(self, name, tuple(dict.fromkeys(given)))
        for position in self.tracked:
            require_int("tracked", position, 0, 19)
        if self.tracked and self.muon_lr is not None:
            advice = "Muon's steps do not split into parts of the gradient."
            raise ParameterError(
                "muon_lr", self.muon_lr, "None where positions are tracked", advice
            )
        for task in self.tasks:
            for ablation in self.ablations:
                self.cell(task, ablation).validate()

    def cell(self, task: str, ablation: str) -> ToyCell:
        """The run of one task and ablation."""
        return ToyCell(
            task=task,
            ablation=ablation,
            d_model=self.d_model,
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            muon_lr=self.muon_lr,
            init_std=self.init_std,
            embed_std=self.embed_std,
            probe_sequences=self.probe_sequences,
            tracked=self.tracked,
        )

    def points(self) -> list[Point]:
        """Seed by seed, so that the first seeds alone are every cell."""
        return [
            Point(NAME, 1, self.cell(task, ablation).params(), seed)
            for seed in range(self.seeds)
            for task in self.tasks
            for ablation in self.ablations
        ]


MAJORITY = ToyPrecachingGrid(tasks=("majority",))
CONDITIONED = ToyPrecachingGrid(tasks=("conditioned_majority",), lr=1e-3, muon_lr=0.01)
FOLLOWED = (
    replace(MAJORITY, ablations=("plain",), seeds=2, tracked=TRACKED),
    ToyPrecachingGrid(
        tasks=("conditioned_majority",),
        ablations=("plain",),
        seeds=2,
        steps=800,
        init_std=0.15,
        embed_std=0.1,
        tracked=TRACKED,
    ),
)
SMOKE = ToyPrecachingGrid(
    tasks=("majority",),
    ablations=("both",),
    seeds=1,
    d_model=8,
    steps=3,
    batch_size=4,
    probe_sequences=100,
)
PAPER = ToyPrecachingGrid(seeds=10, d_model=128, steps=3_000, batch_size=256, lr=1e-3)

TOY_PRECACHING = Experiment(
    name=NAME,
    version=1,
    question="Where do features that are useless for the next token come from?",
    grid=ToyPrecachingGrid,
    profiles={
        "smoke": (
            SMOKE,
            replace(SMOKE, ablations=("plain",), steps=2, tracked=(2, 12)),
        ),
        "quick": (
            ToyPrecachingGrid(
                tasks=("majority",), seeds=1, d_model=32, steps=250, probe_sequences=1_000
            ),
        ),
        "cpu": (MAJORITY, CONDITIONED, *FOLLOWED),
        "paper": (PAPER, replace(PAPER, ablations=("plain",), tracked=tuple(range(20)))),
    },
    run=run_toy,
    schema=SCHEMA,
    judges={
        "C-1": judge_identity,
        "C-2": judge_useless_needs_either,
        "C-3": judge_precaching_needed,
        "C-4": judge_sharing_carries,
    },
    seconds={"smoke": 1, "quick": 4, "cpu": 45, "paper": 2_000},
)
