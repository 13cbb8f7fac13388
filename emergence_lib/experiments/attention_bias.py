"""Attention bias: adding c · (ground truth) to the attention logits (claim A-8).

Source: paper A, section on attention bias (fact sheet A4): with the bias the plateau vanishes. The
paper does not give c or the layers; here the bias acts in every head of the one layer and c is
swept. The hard cell (s = 8) asks whether knowing where to look is enough when the parity itself is
long, at the common learning rate and at others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from emergence_lib.analysis.survival import LogRank, logrank, median_time, solve_rate
from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Experiment, Grid, Point, Verdict
from emergence_lib.experiments.linear_map_cell import (
    CURVE_SCHEMA,
    LinearMapCell,
    curve_row,
    plateau_event,
)
from emergence_lib.tasks.base import require_int


@dataclass(frozen=True)
class AttentionBiasGrid(Grid):
    """One linear-map cell trained at several bias strengths and learning rates.

    Args:
        state_size, row_weight: the cell, S and s.
        strengths: the values of c; 0 is the control without bias.
        seeds: runs a strength, seeded 0, 1, …
        steps, batch_size: training, see `TrainConfig`.
        muon_lrs: learning rates of Muon, each with every strength.

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    state_size: int = 16
    row_weight: int = 3
    strengths: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
    seeds: int = 5
    steps: int = LinearMapCell.steps
    batch_size: int = LinearMapCell.batch_size
    muon_lrs: tuple[float | None, ...] = (LinearMapCell.muon_lr,)

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        for name in ("strengths", "muon_lrs"):
            values = tuple(float(value) for value in getattr(self, name))
            if not values:
                raise ParameterError(name, values, "at least one number")
            object.__setattr__(self, name, values)
        for strength in self.strengths:
            for muon_lr in self.muon_lrs:
                self.cell(strength, muon_lr).validate()

    def cell(self, strength: float, muon_lr: float | None) -> LinearMapCell:
        """The run of one strength and learning rate."""
        return LinearMapCell(
            state_size=self.state_size,
            row_weight=self.row_weight,
            attention_bias=strength,
            steps=self.steps,
            batch_size=self.batch_size,
            muon_lr=muon_lr,
            eval_every=50,
        )

    def points(self) -> list[Point]:
        """Strong bias first: those runs end soonest."""
        return [
            Point("attention_bias", 1, self.cell(strength, muon_lr).params(), seed)
            for strength in sorted(self.strengths, reverse=True)
            for muon_lr in self.muon_lrs
            for seed in range(self.seeds)
        ]


def run(point: Point, device: str) -> dict[str, Any]:
    """Train one cell with one seed."""
    cell = LinearMapCell(**point.params)
    return curve_row(cell, cell.train(point.seed, device), point.seed)


def dose_response(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a strength: when the plateau ended and how many runs solved.

    Returns:
        Columns attention_bias, n, median, low, high (steps to the end of the plateau by
        Kaplan–Meier with 95 % interval; infinite where not seen), solve_rate, solve_low,
        solve_high (exact 95 %).
    """
    lines = []
    for strength, cell in rows.groupby("attention_bias"):
        median = median_time([plateau_event(row) for _, row in cell.iterrows()])
        rate = solve_rate(int(cell.solved.sum()), len(cell))
        lines.append((strength, len(cell), *median, *rate))
    columns = ["attention_bias", "n", "median", "low", "high"]
    return pd.DataFrame(lines, columns=[*columns, "solve_rate", "solve_low", "solve_high"])


def headline(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the paper's default cell, S = 16 and s = 3, at the common learning rate."""
    return rows[
        (rows.state_size == 16) & (rows.row_weight == 3) & (rows.muon_lr == LinearMapCell.muon_lr)
    ]


def hard_cell_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The cell S = 16, s = 8 with bias, one line a strength and learning rate.

    Returns:
        Columns attention_bias, muon_lr, n, solved (runs at the floor), plateaus_ended (runs),
        median_loss (final, nats), rows_learned (mean number of output bits above 90 % accuracy).
    """
    lines = []
    hard = rows[rows.row_weight == 8]
    for (strength, muon_lr), cell in hard.groupby(["attention_bias", "muon_lr"]):
        learned = [sum(a > 0.9 for a in accuracy) for accuracy in cell.row_accuracy]
        lines.append(
            {
                "attention_bias": strength,
                "muon_lr": muon_lr,
                "n": len(cell),
                "solved": int(cell.solved.sum()),
                "plateaus_ended": int(cell.plateau_end.notna().sum()),
                "median_loss": cell.final_loss.median(),
                "rows_learned": sum(learned) / len(learned),
            }
        )
    return pd.DataFrame(lines)


def bias_effect(rows: pd.DataFrame) -> LogRank:
    """Log-rank test and ratio of restricted mean plateaus: strongest bias against none.

    Raises:
        ParameterError: the rows lack one of the two strengths.
    """
    strongest = rows.attention_bias.max()
    groups = {
        name: [plateau_event(row) for _, row in rows[rows.attention_bias == c].iterrows()]
        for name, c in (("none", 0.0), ("strongest", strongest))
    }
    horizon = rows[rows.attention_bias == 0].stopped_at.max()
    return logrank(groups, horizon)


def judge_bias_removes_plateau(rows: pd.DataFrame) -> Verdict:
    """A-8: with the strongest bias the plateau is over within 1,000 steps and far sooner.

    "reproduced": the median with bias is below 1,000 steps and the ratio of restricted means lies
    below 1/2 with its whole interval; "partly": only the ratio's interval lies below 1.
    """
    rows = headline(rows)
    if not {0.0} < set(rows.attention_bias):
        return Verdict("not tested here", "Runs with and without bias are needed.", len(rows))
    table = dose_response(rows).set_index("attention_bias")
    strongest = table.index.max()
    ratio = bias_effect(rows).ratios["strongest"]
    without, with_bias = table.loc[0.0], table.loc[strongest]
    if with_bias["median"] < 1_000 and ratio.high < 0.5:
        status = "reproduced"
    else:
        status = "partly" if ratio.high < 1 else "not reproduced"
    evidence = (
        f"Median end of the plateau at S = 16, s = 3: {without['median']:.0f} steps without bias "
        f"[{without['low']:.0f}, {without['high']:.0f}], {with_bias['median']:.0f} "
        f"[{with_bias['low']:.0f}, {with_bias['high']:.0f}] at c = {strongest:g}; mean ratio "
        f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]."
    )
    return Verdict(status, evidence, int(without["n"] + with_bias["n"]))


ATTENTION_BIAS = Experiment(
    name="attention_bias",
    version=1,
    question="Does pointing attention at the right keys remove the plateau, and how strongly must "
    "it point?",
    grid=AttentionBiasGrid,
    profiles={
        "smoke": (
            AttentionBiasGrid(
                state_size=4, row_weight=2, strengths=(0, 4), seeds=1, steps=20, batch_size=8
            ),
        ),
        "quick": (AttentionBiasGrid(state_size=8, strengths=(0, 4), seeds=2, steps=1_500),),
        "cpu": (
            AttentionBiasGrid(),
            AttentionBiasGrid(
                row_weight=8, strengths=(4,), muon_lrs=(0.0025, 0.005, 0.01), seeds=3
            ),
        ),
        "paper": (
            AttentionBiasGrid(batch_size=256),
            AttentionBiasGrid(
                row_weight=8, strengths=(0, 4), muon_lrs=(0.0025, 0.005, 0.01), batch_size=256
            ),
        ),
    },
    run=run,
    schema=CURVE_SCHEMA,
    judges={"A-8": judge_bias_removes_plateau},
    seconds={"smoke": 1, "quick": 15, "cpu": 200, "paper": 600},
)
