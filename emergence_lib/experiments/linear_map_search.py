"""The search behind the recipe: optimizer, rates, batch and initialisation on the headline cell.

The paper names none of them, and they decide whether a plateau ends on a laptop at all. Every
recipe gets the same number of training sequences, since on a CPU those are what costs time and
since a larger batch would otherwise win by seeing more; each varies one thing of the recipe that
the other experiments use. Batches are halves and doubles of a common one, so that at the paper's
size too no recipe is trained for more than twice the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.linear_map_cell import CURVE_SCHEMA, LinearMapCell, run_cell
from emergence_lib.tasks.base import require_int

ADAMW = {"muon_lr": None}
BATCH = "times the batch"
RECIPES: tuple[dict[str, Any], ...] = (
    {},
    {**ADAMW, "lr": 1e-3},
    {**ADAMW, "lr": 1e-3, BATCH: 2.0},
    {**ADAMW, "lr": 2e-3, BATCH: 2.0},
    {"muon_lr": 0.0025},
    {"muon_lr": 0.01},
    {"muon_lr": 0.02},
    {BATCH: 0.5},
    {BATCH: 2.0},
    {"init_std": 0.02},
    {"embed_std": 0.02},
    {**ADAMW, "lr": 5e-4},
    {**ADAMW, "lr": 4e-3},
    {**ADAMW, "lr": 1e-3, "init_std": 0.02},
)
"""Changes to `LinearMapCell`'s recipe, the first being none; `BATCH` multiplies the batch."""


@dataclass(frozen=True)
class SearchGrid(Grid):
    """Every recipe on one cell with a fixed number of sequences.

    Args:
        state_size, row_weight: the cell, S and s.
        seeds: runs a recipe, seeded 0, 1, …
        batch_size: the batch of most recipes; others halve or double it.
        sequences: training sequences of a run; its steps are this over its batch size.

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    state_size: int = 16
    row_weight: int = 3
    seeds: int = 2
    batch_size: int = LinearMapCell.batch_size
    sequences: int = 48_000

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        require_int("batch_size", self.batch_size, 2)
        if self.batch_size % 2:
            raise ParameterError("batch_size", self.batch_size, "even, since a recipe halves it")
        require_int("sequences", self.sequences, 4 * self.batch_size)
        for cell in self.cells():
            cell.validate()

    def cells(self) -> list[LinearMapCell]:
        """One a recipe."""
        base = LinearMapCell(state_size=self.state_size, row_weight=self.row_weight)
        cells = []
        for recipe in RECIPES:
            changes = dict(recipe)
            batch_size = int(changes.pop(BATCH, 1.0) * self.batch_size)
            steps = self.sequences // batch_size
            cells.append(replace(base, steps=steps, batch_size=batch_size, **changes))
        return cells

    def points(self) -> list[Point]:
        return [
            Point("linear_map_search", 1, cell.params(), seed)
            for seed in range(self.seeds)
            for cell in self.cells()
        ]


def search_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a recipe, best first.

    Returns:
        Columns optimizer, rate, batch_size, init_std, embed_std, n, rows_learned (mean number of
        output bits above 90 % accuracy), final_loss (mean, nats) and seconds (mean of a run).
    """
    lines = []
    keys = ["muon_lr", "lr", "batch_size", "init_std", "embed_std"]
    for (muon_lr, lr, *rest), runs in rows.groupby(keys, dropna=False):
        adamw = pd.isna(muon_lr)
        learned = [sum(a > 0.9 for a in accuracy) for accuracy in runs.row_accuracy]
        lines.append(
            (
                "AdamW" if adamw else "Muon",
                lr if adamw else muon_lr,
                *rest,
                len(runs),
                sum(learned) / len(learned),
                runs.final_loss.mean(),
                runs.seconds.mean(),
            )
        )
    columns = ["optimizer", "rate", *keys[2:], "n", "rows_learned", "final_loss", "seconds"]
    return pd.DataFrame(lines, columns=columns).sort_values("final_loss", ignore_index=True)


LINEAR_MAP_SEARCH = Experiment(
    name="linear_map_search",
    version=1,
    question="Which optimizer, rate, batch and initialisation end the plateau soonest?",
    grid=SearchGrid,
    profiles={
        "smoke": (SearchGrid(state_size=4, row_weight=2, seeds=1, sequences=640),),
        "quick": (SearchGrid(state_size=6, seeds=1, sequences=6_400),),
        "cpu": (SearchGrid(),),
        # The paper's 10,000 steps at the batch of the other experiments' paper profiles; half and
        # twice that batch are 20,000 and 5,000.
        "paper": (SearchGrid(seeds=3, batch_size=256, sequences=2_560_000),),
    },
    run=run_cell,
    schema=CURVE_SCHEMA,
    seconds={"smoke": 1, "quick": 10, "cpu": 90, "paper": 900},
)
