"""Sparsity: what is left of the loss after training, by the number of ones in a row (claim A-9).

Source: paper A, linear map, figure of the final loss against s for S = 8, 16, 32 (fact sheet A2).
The paper reads: medium sparsity is hardest. Two things it does not show are measured beside it:
whether difficulty follows the number of subsets to choose from, C(S, s), and the dense end, where
a model comes within one coin toss of the floor by copying the first output bit.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import comb
from scipy.stats import spearmanr, ttest_ind

from emergence_lib.analysis.survival import Estimate, solve_rate
from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Experiment, Grid, Point, Verdict
from emergence_lib.experiments.evidence import with_interval
from emergence_lib.experiments.linear_map_cell import (
    CURVE_SCHEMA,
    LinearMapCell,
    as_rate,
    int_tuple,
    run_cell,
)
from emergence_lib.tasks import LinearMap
from emergence_lib.tasks.base import require_int

PAPER_FINAL_LOSS = {
    1: 0.336, 2: 0.336, 3: 0.366, 4: 0.507, 5: 0.604, 8: 0.670,
    13: 0.493, 14: 0.380, 15: 0.358, 16: 0.358,
}  # fmt: skip
"""S = 16: s → mean final loss of 3 seeds in nats, measured off the paper's figure (±0.005)."""

PAPER_EXCESS = {s: loss - LinearMap(16, s).floor for s, loss in PAPER_FINAL_LOSS.items()}
"""The same above the floor."""


@dataclass(frozen=True)
class SparsityGrid(Grid):
    """One state size, several row weights, several seeds.

    Args:
        state_size: S, the size of a state.
        row_weights: the s to train; None means every s from 1 to S.
        seeds: runs a cell, seeded 0, 1, …
        steps, batch_size, muon_lr: training, see `TrainConfig`.

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    state_size: int = 16
    row_weights: tuple[int, ...] | None = None
    seeds: int = 3
    steps: int = LinearMapCell.steps
    batch_size: int = LinearMapCell.batch_size
    muon_lr: float | None = LinearMapCell.muon_lr

    def __post_init__(self) -> None:
        require_int("state_size", self.state_size, 2)
        require_int("seeds", self.seeds, 1)
        object.__setattr__(self, "muon_lr", as_rate("muon_lr", self.muon_lr))
        if self.row_weights is not None:
            object.__setattr__(self, "row_weights", self.weights())
        self.cell(self.weights()[0]).validate()

    def weights(self) -> tuple[int, ...]:
        """The s to train; `row_weights` stays None, so that another state size has every s too."""
        every = range(1, self.state_size + 1)
        given = every if self.row_weights is None else self.row_weights
        return int_tuple("row_weights", given, 1, self.state_size)

    def cell(self, row_weight: int) -> LinearMapCell:
        """The run of one row weight."""
        return LinearMapCell(
            state_size=self.state_size,
            row_weight=row_weight,
            steps=self.steps,
            batch_size=self.batch_size,
            muon_lr=self.muon_lr,
        )

    def points(self) -> list[Point]:
        """Seed by seed, so that an interrupted sweep has whole curves over s."""
        return [
            Point("sparsity", 1, self.cell(row_weight).params(), seed)
            for seed in range(self.seeds)
            for row_weight in self.weights()
        ]


def by_row_weight(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a cell: how the runs of each (state_size, row_weight) ended.

    Returns:
        Columns state_size, row_weight, n, mean_loss, min_loss, max_loss (nats), excess (mean loss
        above the floor), solve_rate, solve_low, solve_high (exact 95 %), log_subsets (ln C(S, s)).
    """
    lines = []
    for (state_size, row_weight), cell in rows.groupby(["state_size", "row_weight"]):
        task = LinearMap(int(state_size), int(row_weight))
        rate = solve_rate(int(cell.solved.sum()), len(cell))
        lines.append(
            {
                "state_size": task.state_size,
                "row_weight": task.row_weight,
                "n": len(cell),
                "mean_loss": cell.final_loss.mean(),
                "min_loss": cell.final_loss.min(),
                "max_loss": cell.final_loss.max(),
                "excess": cell.final_loss.mean() - task.floor,
                "solve_rate": rate.value,
                "solve_low": rate.low,
                "solve_high": rate.high,
                "log_subsets": float(np.log(comb(task.state_size, task.row_weight))),
            }
        )
    return pd.DataFrame(lines)


def labels(rows: pd.DataFrame) -> list[tuple[str, int]]:
    """A label and the state size of every size in the rows, smallest first."""
    return [(f"S = {size}", int(size)) for size in sorted(rows.state_size.unique())]


def excess_tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """`by_row_weight` a state size, its losses measured from the floor of that size."""
    table = by_row_weight(rows)
    floor = table.mean_loss - table.excess
    for column in ("mean_loss", "min_loss", "max_loss"):
        table[column] -= floor
    return {label: table[table.state_size == size] for label, size in labels(rows)}


def solve_rates(rows: pd.DataFrame) -> dict[str, tuple[list[int], list[Estimate]]]:
    """The solved share of every cell, label → (s, share with its exact interval)."""
    rates = {}
    for label, table in excess_tables(rows).items():
        columns = table[["solve_rate", "solve_low", "solve_high"]].to_numpy()
        rates[label] = (table.row_weight.tolist(), [Estimate(*row) for row in columns])
    return rates


def against_subsets(rows: pd.DataFrame) -> dict[str, tuple[pd.Series, pd.Series]]:
    """Difficulty against choice, label → (ln C(S, s), excess loss in nats) of its cells."""
    return {
        label: (table.log_subsets, table.excess) for label, table in excess_tables(rows).items()
    }


def dense_end(rows: pd.DataFrame) -> dict[str, list[list[float]]]:
    """Accuracy of each output bit at s = S, label → one list a run."""
    parity = rows[rows.row_weight == rows.state_size]
    return {
        label: parity.row_accuracy[parity.state_size == size].tolist()
        for label, size in labels(parity)
    }


def dense_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs at s = S beside the two losses they may end at.

    Returns:
        Columns S, n, final loss, floor, floor + ln 2/(2S-1) (mean, nats), accuracy of the first
        output bit and of the others (mean).
    """
    lines = []
    for label, runs in dense_end(rows).items():
        size = len(runs[0])
        task = LinearMap(size, size)
        cell = rows[(rows.state_size == size) & (rows.row_weight == size)]
        accuracy = np.array(runs)
        lines.append(
            {
                "map": f"{label}, s = S",
                "n": len(runs),
                "final loss": cell.final_loss.mean(),
                "floor": task.floor,
                "floor + ln 2/(2S-1)": task.dense_copy_loss,
                "accuracy of the first bit": accuracy[:, 0].mean(),
                "of the others": accuracy[:, 1:].mean(),
            }
        )
    return pd.DataFrame(lines)


def region(state_size: int, row_weight: int) -> str:
    """ "sparse" (s ≤ 2), "dense" (s ≥ S-1) or "medium" (the middle third); else ""."""
    if row_weight <= 2:
        return "sparse"
    if row_weight >= state_size - 1:
        return "dense"
    return "medium" if 1 / 3 <= row_weight / state_size <= 2 / 3 else ""


def _regions(rows: pd.DataFrame) -> pd.Series:
    """The `region` of every row."""
    keys = zip(rows.state_size, rows.row_weight, strict=True)
    return pd.Series([region(*key) for key in keys], index=rows.index, dtype=str)


def medium_minus(rows: pd.DataFrame, other: str) -> Estimate:
    """Mean final loss of the medium runs minus that of the `other` region's, nats, one state size.

    The interval is Welch's (1947) t: the regions differ in spread and have few runs. Where no
    region has any spread, it is the difference itself for three runs each, and NaN for two, whose
    agreement says too little.

    Raises:
        ParameterError: fewer than two runs in a region.
    """
    names = _regions(rows)
    medium, end = (rows.final_loss[names == name].to_numpy() for name in ("medium", other))
    fewest = min(len(medium), len(end))
    if fewest < 2:
        given = {"medium": len(medium), other: len(end)}
        raise ParameterError("rows", given, "at least two runs in each region")
    difference = float(medium.mean() - end.mean())
    if np.ptp(medium) == 0 == np.ptp(end):
        bound = difference if fewest >= 3 else math.nan
        return Estimate(difference, bound, bound)
    with warnings.catch_warnings():
        # scipy warns where one group is constant; the other's spread still gives the interval.
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        interval = ttest_ind(medium, end, equal_var=False).confidence_interval()
    return Estimate(difference, float(interval.low), float(interval.high))


def first_bit_learned(rows: pd.DataFrame, state_size: int) -> tuple[int, int]:
    """Runs at s = S whose first output bit is above 90 % accuracy, and all runs there.

    The others may have copied that bit into all later ones without learning any parity.
    """
    runs = dense_end(rows[rows.state_size == state_size]).get(f"S = {state_size}", [])
    return sum(accuracy[0] > 0.9 for accuracy in runs), len(runs)


def judge_medium_is_hardest(rows: pd.DataFrame) -> Verdict:
    """A-9: at the paper's default S = 16, medium runs end higher than both ends; S = 32 if there.

    "reproduced" asks for both differences, at every recorded S ≥ 16, with the whole interval above
    0, and that the dense end is learned and not copied: at s = S the first output bit in more than
    half of the runs (`first_bit_learned`). "partly": one of the differences at some S. A state size
    counts once all three regions have two runs.
    """
    results = {}
    for state_size in sorted(rows.state_size.unique()):
        of_size = rows[rows.state_size == state_size]
        runs = _regions(of_size).value_counts()
        if state_size >= 16 and all(runs.get(r, 0) >= 2 for r in ("sparse", "medium", "dense")):
            results[state_size] = [medium_minus(of_size, end) for end in ("sparse", "dense")]
    if not results:
        return Verdict(
            "not tested here", "No state size ≥ 16 has two sparse, medium and dense runs each.", 0
        )
    above = [difference.low > 0 for pair in results.values() for difference in pair]
    learned = {size: first_bit_learned(rows, size) for size in results}
    parity = all(k > n / 2 for k, n in learned.values())
    status = "partly" if any(above) else "not reproduced"
    if all(above) and parity:
        status = "reproduced"
    parts = [
        f"S = {size}: final loss of medium s minus that of s ≤ 2 {with_interval(sparse, '.3f')} "
        f"nats, minus that of s ≥ S-1 {with_interval(dense, '.3f')} nats; "
        f"{_first_bit_in_words(int(size), *learned[size])}"
        for size, (sparse, dense) in results.items()
    ]
    n = int(rows.state_size.isin(list(results)).sum())
    return Verdict(status, f"{'; '.join(parts)}. {difficulty_sentence(rows)}".rstrip(), n)


def _first_bit_in_words(state_size: int, learned: int, runs: int) -> str:
    """Whether the dense end is parity: its runs, and what a run that only copies would end at."""
    if not runs:
        return "no run at s = S is recorded that could tell the parity from copying its first bit"
    copied = LinearMap(state_size, state_size).dense_copy_loss
    return (
        f"at s = S the first output bit is learned in {learned} of {runs} runs (guessing it and "
        f"copying it into all others ends at {copied:.3f} nats)"
    )


def difficulty_sentence(rows: pd.DataFrame) -> str:
    """Rank correlation of the excess loss with ln C(S, s) over all cells of the largest S.

    "" for fewer than four cells, or where all ended alike or all have as many subsets.
    """
    table = by_row_weight(rows)
    table = table[table.state_size == table.state_size.max()]
    if len(table) < 4 or table.excess.nunique() < 2 or table.log_subsets.nunique() < 2:
        return ""
    rho = spearmanr(table.log_subsets, table.excess).statistic
    return (
        f"Rank correlation of excess loss with ln C(S, s) at S = {table.state_size.iloc[0]}: "
        f"{rho:.2f} over {len(table)} cells."
    )


SPARSITY = Experiment(
    name="sparsity",
    version=1,
    question="Which sparsity of the map is hardest to learn, and does it follow C(S, s)?",
    grid=SparsityGrid,
    profiles={
        "smoke": (SparsityGrid(state_size=3, seeds=1, steps=20, batch_size=8),),
        # Stopped while medium maps are still being learned: 1,500 steps solve S = 8 up to s = 5.
        "quick": (SparsityGrid(state_size=8, seeds=1, steps=300),),
        "cpu": (
            SparsityGrid(state_size=8, seeds=5),
            SparsityGrid(state_size=16, seeds=3),
            SparsityGrid(
                state_size=32, row_weights=(1, 2, 3, 4, 8, 16, 24, 28, 30, 31, 32), seeds=3
            ),
        ),
        "paper": tuple(
            SparsityGrid(state_size=size, seeds=3, batch_size=256) for size in (8, 16, 32)
        ),
    },
    run=run_cell,
    schema=CURVE_SCHEMA,
    judges={"A-9": judge_medium_is_hardest},
    seconds={"smoke": 1, "quick": 4, "cpu": 300, "paper": 600},
)
