"""Collapse, recovery, acquisition: the geometry of a model that learns 24 task-levels.

Claims B-1 to B-5, B-9, B-10, B-12 and B-14.

Source: paper B (arXiv 2602.15997; fact sheet B1), which trains one model a size on eight tasks in
three levels and finds that the effective rank of its representations falls early, rises again, and
that capabilities appear only then. Here: several seeds a size, and beside them models trained on
shuffled answers, on one task alone, and with the paper's AdamW instead of Muon. Reduced for two
cores: 5,000 steps of 64 short sequences (2,000 for 10.6M, 1,000 for one task alone).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.collapse_cell import (
    ALL,
    COLLAPSE_SCHEMA,
    CollapseCell,
    run_collapse,
)
from emergence_lib.experiments.collapse_evidence import (
    judge_nearly_all_acquired,
    judge_sizes_agree,
    judge_task_specific_floors,
    judge_three_phases,
)
from emergence_lib.experiments.difficulty_evidence import (
    judge_easy_tasks_are_not_led,
    judge_fine_timing,
    judge_hard_tasks_are_led,
)
from emergence_lib.experiments.linear_map_cell import as_rate
from emergence_lib.experiments.proxies_evidence import judge_proxies
from emergence_lib.experiments.top_down_evidence import judge_top_down
from emergence_lib.models.shapes import ALGORITHMIC_SIZES
from emergence_lib.tasks.algorithmic import ALGORITHMS
from emergence_lib.tasks.base import require_int


@dataclass(frozen=True)
class CollapseGrid(Grid):
    """Some sizes on some sets of tasks, over several seeds.

    Args:
        sizes: keys of `models.shapes.ALGORITHMIC_SIZES`, one or several.
        tasks: a model each: "all", or names joined by "+", one or several.
        shuffled, steps, batch_size, muon_lr, n_checkpoints, samples: see `CollapseCell`.
        seeds: runs a cell, seeded 0, 1, …

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such size or task.
    """

    sizes: tuple[str, ...] = (CollapseCell.size,)
    tasks: tuple[str, ...] = (ALL,)
    shuffled: bool = CollapseCell.shuffled
    seeds: int = 5
    steps: int = CollapseCell.steps
    batch_size: int = CollapseCell.batch_size
    muon_lr: float | None = CollapseCell.muon_lr
    n_checkpoints: int = CollapseCell.n_checkpoints
    samples: int = CollapseCell.samples

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        object.__setattr__(self, "muon_lr", as_rate("muon_lr", self.muon_lr))
        for name in ("sizes", "tasks"):
            given: str | Iterable[str] = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        for cell in self.cells():
            cell.validate()

    def cells(self) -> list[CollapseCell]:
        """One for every size and set of tasks."""
        return [
            CollapseCell(
                size=size,
                tasks=tasks,
                shuffled=self.shuffled,
                steps=self.steps,
                batch_size=self.batch_size,
                muon_lr=self.muon_lr,
                n_checkpoints=self.n_checkpoints,
                samples=self.samples,
            )
            for size in self.sizes
            for tasks in self.tasks
        ]

    def points(self) -> list[Point]:
        """Seed by seed, so that an interrupted sweep has every cell."""
        return [
            Point("collapse", 1, cell.params(), seed)
            for seed in range(self.seeds)
            for cell in self.cells()
        ]


COLLAPSE = Experiment(
    name="collapse",
    version=1,
    question="Does the rank of the representations collapse and recover before a capability is "
    "acquired, how deep, and does it so at every size?",
    grid=CollapseGrid,
    profiles={
        "smoke": (
            CollapseGrid(
                tasks=("mod",), seeds=1, steps=4, batch_size=4, n_checkpoints=3, samples=3
            ),
        ),
        "quick": (
            CollapseGrid(tasks=("copy+mod+mul",), seeds=1, steps=300, n_checkpoints=40, samples=60),
        ),
        "cpu": (
            CollapseGrid(),
            CollapseGrid(sizes=("1m", "3.2m"), seeds=1),
            CollapseGrid(shuffled=True, seeds=2),
            CollapseGrid(tasks=ALGORITHMS, steps=1_000, seeds=1),
            CollapseGrid(muon_lr=None, seeds=2),
            CollapseGrid(sizes=("1m",), seeds=3),
            CollapseGrid(sizes=("3.2m",), seeds=2),
            CollapseGrid(sizes=("10.6m",), steps=2_000, seeds=1),
        ),
        "paper": (
            CollapseGrid(
                sizes=tuple(ALGORITHMIC_SIZES),
                seeds=3,
                steps=20_000,
                batch_size=256,
                n_checkpoints=340,
            ),
            CollapseGrid(shuffled=True, seeds=3, steps=20_000, batch_size=256, n_checkpoints=340),
        ),
    },
    run=run_collapse,
    schema=COLLAPSE_SCHEMA,
    judges={
        "B-1": judge_three_phases,
        "B-2": judge_task_specific_floors,
        "B-3": judge_sizes_agree,
        "B-4": judge_top_down,
        "B-5": judge_hard_tasks_are_led,
        "B-9": judge_nearly_all_acquired,
        "B-10": judge_fine_timing,
        "B-12": judge_easy_tasks_are_not_led,
        "B-14": judge_proxies,
    },
    seconds={"smoke": 1, "quick": 25, "cpu": 480, "paper": 3_600},
)
