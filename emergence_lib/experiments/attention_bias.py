"""Attention bias: adding c · (ground truth) to the attention logits (claim A-8).

Source: paper A, section on attention bias (fact sheet A4): with the bias the plateau vanishes. The
paper does not give c or the layers; here the bias acts in every head of the one layer and c is
swept. The hard cell (s = 8) asks whether knowing where to look is enough when the parity itself is
long, at the common learning rate, there with its own control, and at others.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from emergence_lib.analysis.survival import (
    Estimate,
    logrank,
    median_time,
    restricted_mean,
    solve_rate,
)
from emergence_lib.experiments.base import Experiment, Grid, Point, Verdict
from emergence_lib.experiments.evidence import steps_in_words, with_interval
from emergence_lib.experiments.linear_map_cell import (
    CURVE_SCHEMA,
    LinearMapCell,
    float_tuple,
    plateau_event,
    rate_tuple,
    run_cell,
    solve_event,
)
from emergence_lib.tasks.base import require_int

WAITS = {"first half row": plateau_event, "all rows": solve_event}
"""What a run waits for: the end of the plateau, and the floor."""

SOON = 1_000
"""Steps: the paper's "almost immediate" (fact sheet A4)."""


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
        object.__setattr__(self, "strengths", float_tuple("strengths", self.strengths))
        object.__setattr__(self, "muon_lrs", rate_tuple("muon_lrs", self.muon_lrs))
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


def dose_response(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a wait and strength: how long runs wait for it.

    Returns:
        Columns wait ("first half row": the end of the plateau, "all rows": the floor),
        attention_bias, n, observed (runs that got there), median, low, high (steps by Kaplan–Meier
        with 95 % interval; infinite where not seen).
    """
    lines = []
    for wait, event in WAITS.items():
        for strength, cell in rows.groupby("attention_bias"):
            events = [event(row) for _, row in cell.iterrows()]
            observed = sum(e.observed for e in events)
            lines.append((wait, strength, len(cell), observed, *median_time(events)))
    columns = ["wait", "attention_bias", "n", "observed", "median", "low", "high"]
    return pd.DataFrame(lines, columns=columns)


def headline(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the paper's default cell, S = 16 and s = 3, at the common learning rate."""
    return rows[
        (rows.state_size == 16) & (rows.row_weight == 3) & (rows.muon_lr == LinearMapCell.muon_lr)
    ]


def hard_cell(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the cell in which the parity itself is long, S = 16 and s = 8."""
    return rows[(rows.state_size == 16) & (rows.row_weight == 8)]


def hard_cell_table(rows: pd.DataFrame, profile: str) -> pd.DataFrame:
    """The hard cell, one line a strength and learning rate that `profile` asks for.

    Returns:
        Columns attention_bias, muon_lr, n (runs recorded), missing (runs of the profile that are
        not), solved (runs at the floor), plateaus_ended (runs), median_loss (final, nats),
        rows_learned (mean number of output bits above 90 % accuracy); NaN where n is 0.
    """
    points = pd.DataFrame([point.params for point in ATTENTION_BIAS.points(profile)])
    recorded = hard_cell(rows)
    lines = []
    for (strength, muon_lr), asked in hard_cell(points).groupby(["attention_bias", "muon_lr"]):
        cell = recorded[(recorded.attention_bias == strength) & (recorded.muon_lr == muon_lr)]
        lines.append(
            {
                "attention_bias": strength,
                "muon_lr": muon_lr,
                "n": len(cell),
                "missing": len(asked) - len(cell),
                "solved": int(cell.solved.sum()),
                "plateaus_ended": int(cell.plateau_end.notna().sum()),
                "median_loss": cell.final_loss.median(),
                "rows_learned": _rows_learned(cell).mean(),
            }
        )
    return pd.DataFrame(lines)


def hard_cell_sentence(rows: pd.DataFrame) -> str:
    """Whether knowing where to look is enough in the hard cell, at the common learning rate."""
    cell = hard_cell(rows)
    cell = cell[cell.muon_lr == LinearMapCell.muon_lr]
    strongest = cell.attention_bias.max()
    if not strongest > 0:
        return "The harder cell, s = 8, is not recorded with bias at this rate."
    with_bias, without = (cell[cell.attention_bias == strength] for strength in (strongest, 0.0))
    return (
        f"In the harder cell, s = 8, with c = {strongest:g} {_ends_in_words(with_bias)}; without "
        f"bias {_ends_in_words(without) if len(without) else 'no run is recorded'}."
    )


def _ends_in_words(cell: pd.DataFrame) -> str:
    """ "2 of 5 runs reach the floor (40% [5%, 85%]), 9.4 of 16 rows learned on average"."""
    solved = int(cell.solved.sum())
    rate = with_interval(solve_rate(solved, len(cell)), ".0%")
    learned = _rows_learned(cell).mean()
    return (
        f"{solved} of {len(cell)} runs reach the floor ({rate}) and {learned:.1f} of "
        f"{int(cell.state_size.iloc[0])} rows are learned on average"
    )


def _rows_learned(cell: pd.DataFrame) -> pd.Series:
    """Output bits above 90 % accuracy at the end of each run."""
    return cell.row_accuracy.map(lambda accuracy: sum(a > 0.9 for a in accuracy)).astype(float)


@dataclass(frozen=True)
class BiasEffect:
    """How much sooner runs get there with the strongest bias than with none.

    Attributes:
        ratio: restricted mean wait with the bias divided by that without; below 1 is sooner.
        p_value: of the log-rank test.
    """

    ratio: Estimate
    p_value: float

    def below(self, bound: float) -> bool:
        """The whole interval lies below `bound`, and the log-rank test agrees (p < 0.05)."""
        return self.ratio.high < bound and self.p_value < 0.05


def bias_effect(rows: pd.DataFrame, wait: str) -> BiasEffect:
    """Strongest bias against none.

    Where no run without bias gets there, its mean has no interval, but the exact interval of its
    rate bounds it: had a share as large as that interval's upper end got there at once, the mean
    would still be (1 - share) times the steps watched. That gives the ratio its upper end.

    Args:
        rows: one cell at several strengths, 0 among them.
        wait: a key of `WAITS`.
    """
    strongest = rows.attention_bias.max()
    without, with_bias = (
        [WAITS[wait](row) for _, row in rows[rows.attention_bias == strength].iterrows()]
        for strength in (0.0, strongest)
    )
    watched = int(rows.steps.max())
    test = logrank({"without": without, "with": with_bias}, watched)
    ratio = test.ratios["with"]
    if not any(event.observed and event.step < watched for event in without):
        mean = restricted_mean(with_bias, watched)
        least = watched * (1 - solve_rate(0, len(without)).high)
        ratio = Estimate(ratio.value, mean.low / watched, mean.high / least)
    return BiasEffect(ratio, test.p_value)


def judge_bias_removes_plateau(rows: pd.DataFrame) -> Verdict:
    """A-8: with the strongest bias there is next to no wait, for the first row or for all.

    The paper says "almost immediate", under 1,000 steps. A plateau can be over in two senses, and
    a bias that removes it should shorten both: until half a row is learned, where the loss first
    moves, and until all rows are, since each row waits on a plateau of its own. "reproduced":

    1. the median time to the floor with bias is at most 1,000 steps,
    2. the mean time to the floor is less than half of that without bias, and
    3. so is the mean time to the first half row;

    2 and 3 with the whole interval of the ratio (`bias_effect`) and a log-rank p below 0.05.
    "partly": one of the two waits is shorter (ratio below 1 in the same way). Fewer than two runs
    with or without bias test nothing.
    """
    every_cell, rows = rows, headline(rows)
    runs = rows.attention_bias.value_counts()
    strongest = rows.attention_bias.max()
    if not strongest > 0 or min(runs[strongest], runs.get(0.0, 0)) < 2:
        return Verdict("not tested here", "Two runs with and two without bias are needed.", 0)
    table = dose_response(rows).set_index(["wait", "attention_bias"])
    floor, first = (bias_effect(rows, wait) for wait in ("all rows", "first half row"))
    soon = table.loc[("all rows", strongest), "median"] <= SOON
    if soon and floor.below(0.5) and first.below(0.5):
        status = "reproduced"
    else:
        status = "partly" if floor.below(1) or first.below(1) else "not reproduced"
    lines = {
        (wait, strength): _wait_in_words(table.loc[(wait, strength)], int(rows.steps.max()))
        for wait in WAITS
        for strength in (0.0, strongest)
    }
    evidence = (
        f"S = 16, s = 3, bias c = {strongest:g}. Median time until all rows are learned: "
        f"{lines['all rows', strongest]}; without bias {lines['all rows', 0.0]}; ratio of mean "
        f"times {_effect_in_words(floor)}. Until the first half row is learned: "
        f"{lines['first half row', strongest]}; without bias {lines['first half row', 0.0]}; ratio "
        f"{_effect_in_words(first)}: {_plateau_in_words(first)}. {hard_cell_sentence(every_cell)}"
    )
    return Verdict(status, evidence, int(runs[strongest] + runs[0.0]))


def _wait_in_words(line: pd.Series, watched: int) -> str:
    """ "600 [550, 700] steps (5 of 5 runs)"."""
    time = steps_in_words(Estimate(line["median"], line["low"], line["high"]), watched)
    return f"{time} ({line['observed']:.0f} of {line['n']:.0f} runs)"


def _effect_in_words(effect: BiasEffect) -> str:
    """ "0.06 [0.05, 0.14], log-rank p = 0.002"."""
    return f"{with_interval(effect.ratio, '.2f')}, log-rank p = {effect.p_value:.2g}"


def _plateau_in_words(first: BiasEffect) -> str:
    """What the bias does to the plateau before the first row."""
    if first.below(0.5):
        return "the plateau before the first row is less than half as long with bias"
    if first.below(1):
        return "the plateau before the first row is shorter with bias, not shown to be halved"
    return "the plateau before the first row is not shown to be shorter with bias"


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
        "quick": (AttentionBiasGrid(state_size=8, strengths=(0, 4), seeds=2, steps=1_000),),
        "cpu": (
            AttentionBiasGrid(),
            AttentionBiasGrid(row_weight=8, strengths=(0, 4)),
            AttentionBiasGrid(row_weight=8, strengths=(4,), muon_lrs=(0.0025, 0.01), seeds=3),
        ),
        "paper": (
            AttentionBiasGrid(batch_size=256),
            AttentionBiasGrid(
                row_weight=8, strengths=(0, 4), muon_lrs=(0.0025, 0.005, 0.01), batch_size=256
            ),
        ),
    },
    run=run_cell,
    schema=CURVE_SCHEMA,
    judges={"A-8": judge_bias_removes_plateau},
    seconds={"smoke": 1, "quick": 7, "cpu": 200, "paper": 600},
)
