"""The plateau and what ends it, row by row (claim A-7).

Source: paper A, linear map, S = 16 and s = 3 (fact sheet A2): each abrupt drop of the loss is one
output row of the map being learned, and the attention entropy of one or two heads falls at that
step. The paper shows one run; here every seed is watched: the loss of each row, and each head's
entropy and alignment at each row's query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from emergence_lib.analysis.attention import (
    AttentionObserver,
    RowLossObserver,
    head_that_moves,
    unpack,
)
from emergence_lib.analysis.emergence import (
    Event,
    Jump,
    loss_jumps,
    plateau_length,
    transition_width,
)
from emergence_lib.analysis.survival import (
    Estimate,
    bootstrap_interval,
    mean_interval,
    median_time,
    solve_rate,
)
from emergence_lib.experiments.base import Experiment, Grid, Point, Verdict
from emergence_lib.experiments.evidence import steps_in_words, with_interval
from emergence_lib.experiments.linear_map_cell import (
    CURVE_SCHEMA,
    UNIFORM_LOSS,
    LinearMapCell,
    as_rate,
    curve_row,
    plateau_event,
    rounded,
    solve_event,
)
from emergence_lib.tasks.base import require_int

UNKNOWN = Estimate(math.nan, math.nan, math.nan)
MARGIN = 150
"""Steps before and after a row's fall between which a head's entropy is compared."""


@dataclass(frozen=True)
class PlateauGrid(Grid):
    """One linear-map cell, watched over many seeds.

    Args:
        state_size, row_weight: the cell, S and s.
        seeds: runs, seeded 0, 1, …
        steps, batch_size, muon_lr: training, see `TrainConfig`.

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    state_size: int = 16
    row_weight: int = 3
    seeds: int = 16
    steps: int = LinearMapCell.steps
    batch_size: int = LinearMapCell.batch_size
    muon_lr: float | None = LinearMapCell.muon_lr

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        object.__setattr__(self, "muon_lr", as_rate("muon_lr", self.muon_lr))
        self.cell().validate()

    def cell(self) -> LinearMapCell:
        """The run of every seed."""
        return LinearMapCell(
            state_size=self.state_size,
            row_weight=self.row_weight,
            steps=self.steps,
            batch_size=self.batch_size,
            muon_lr=self.muon_lr,
            eval_every=50,
        )

    def points(self) -> list[Point]:
        return [Point("plateau", 1, self.cell().params(), seed) for seed in range(self.seeds)]


def run(point: Point, device: str) -> dict[str, Any]:
    """Train one seed and keep what its rows and heads did."""
    cell = LinearMapCell(**point.params)
    task = cell.task(point.seed)
    observers = (RowLossObserver(task), AttentionObserver(task, n_layers=1))
    trained = cell.train(point.seed, device, observers)
    return curve_row(cell, trained, point.seed) | {
        "row_loss": rounded(unpack(trained.trajectory, "row_loss").to_numpy(), 4),
        "row_entropy": rounded(unpack(trained.trajectory, "row_entropy").to_numpy(), 3),
        "row_alignment": rounded(unpack(trained.trajectory, "row_alignment").to_numpy(), 3),
    }


def loss_curve(row: pd.Series) -> pd.Series:
    """Held-out loss in nats over steps."""
    return pd.Series(np.asarray(row["eval_loss"]), index=list(row["eval_steps"]), name="loss")


def row_losses(row: pd.Series) -> pd.DataFrame:
    """Loss in nats of each output row: index step, columns row."""
    return pd.DataFrame(np.stack(row["row_loss"]), index=list(row["eval_steps"])).rename_axis(
        columns="row"
    )


def head_table(row: pd.Series, name: str) -> pd.DataFrame:
    """`name` "row_entropy" (nats) or "row_alignment" (share): index step, columns layer, head, row.

    The heads of one layer, as `analysis.attention.unpack` gives them for a run.
    """
    heads, rows = range(int(row["n_heads"])), range(int(row["state_size"]))
    columns = pd.MultiIndex.from_product([[0], heads, rows], names=["layer", "head", "row"])
    return pd.DataFrame(np.stack(row[name]), index=list(row["eval_steps"]), columns=columns)


def row_falls(row: pd.Series) -> dict[int, Event]:
    """Output row → when its loss fell below ln 2 / 2 for two evaluations in a row."""
    losses = row_losses(row)
    return {i: plateau_length(losses[i], UNIFORM_LOSS / 2, sustain=2) for i in losses}


def row_width(row: pd.Series, output: int) -> float | None:
    """Steps from 10 % to 90 % of one output row's way down; None if it never got there."""
    return transition_width(row_losses(row)[output], UNIFORM_LOSS, 0.0)


def row_widths(rows: pd.DataFrame) -> pd.DataFrame:
    """Every learned output row: seed, row, step of its fall, width in steps (NaN: not over)."""
    lines = [
        (row.seed, i, event.step, row_width(row, i))
        for _, row in rows.iterrows()
        for i, event in row_falls(row).items()
        if event.observed
    ]
    return pd.DataFrame(lines, columns=["seed", "row", "step", "width"])


def headline_sentence(rows: pd.DataFrame) -> str:
    """How long the runs waited and what they had learned at the end."""
    waits = waiting_times(rows)[0]
    first, solved = waits["first half row"], waits["all rows"]
    watched = int(rows.steps.max())
    rate = solve_rate(sum(event.observed for event in solved), len(rows))
    learned = [sum(e.observed for e in row_falls(row).values()) for _, row in rows.iterrows()]
    return (
        f"The first half row is learned at {steps_in_words(median_time(first), watched)} (median); "
        f"{sum(event.observed for event in solved)} of {len(rows)} runs reach the floor within "
        f"{watched:,} steps ({with_interval(rate, '.0%')}). A run learns {np.median(learned):g} of "
        f"its {int(rows.state_size.iloc[0])} rows (median; {min(learned)} to {max(learned)})."
    )


def waiting_times(rows: pd.DataFrame) -> tuple[dict[str, list[Event]], dict[str, str]]:
    """Events of all runs by what they wait for, and colours, for `plotting.survival_curves`."""
    events = {
        "first half row": [plateau_event(row) for _, row in rows.iterrows()],
        "all rows": [solve_event(row) for _, row in rows.iterrows()],
    }
    return events, {"first half row": "#0072B2", "all rows": "#D55E00"}


def one_row(row: pd.Series) -> float:
    """What one learned output row takes off the total loss, ln 2 / (2S-1) nats."""
    return UNIFORM_LOSS / (2 * int(row["state_size"]) - 1)


def jumps(row: pd.Series) -> list[tuple[Jump, int]]:
    """Abrupt drops of the total loss, each with the number of rows that fell during it.

    Losses above ln 2 count as ln 2: an untrained model is worse than a guess, and its way down to
    the plateau is no row.
    """
    below = loss_curve(row).clip(upper=UNIFORM_LOSS)
    found = loss_jumps(below, min_drop=one_row(row) / 2)
    falls = [event.step for event in row_falls(row).values() if event.observed]
    return [(jump, sum(jump.start < step <= jump.end for step in falls)) for jump in found]


def entropy_drops(row: pd.Series) -> pd.DataFrame:
    """Each learned row's largest drop of a head's entropy at its fall, beside a placebo time.

    The placebo is the last fall of another row at least two margins *before* this one, so both
    numbers are maxima over the same heads and differ only in whether this row is being learned. A
    later time would flatter the claim: the head has settled by then and has no entropy to lose.

    Returns:
        `head_that_moves`' columns and placebo_drop (nats; NaN without such an earlier row).
    """
    falls = {i: event.step for i, event in row_falls(row).items() if event.observed}
    entropy = head_table(row, "row_entropy")
    moved = head_that_moves(entropy, falls, MARGIN)
    placebo = {}
    for i, step in falls.items():
        earlier = [other for other in falls.values() if other <= step - 2 * MARGIN]
        if earlier:
            placebo[i] = max(earlier)
    at_placebo = head_that_moves(entropy, placebo, MARGIN).set_index("row")["drop"]
    return moved.assign(placebo_drop=moved["row"].map(at_placebo))


@dataclass(frozen=True)
class RowEvidence:
    """What the rows of all runs say about A-7, for the ledger and the notebook.

    Attributes:
        n_runs, n_rows: runs, and output rows learned in them.
        n_jumps: abrupt drops of the total loss.
        matching: share of the drops whose size is that of the rows that fell in them (±1/2 row).
        single: share of the drops in which exactly one row fell.
        width: median steps of a row's fall, over runs' medians, with interval.
        onset: median step of the first row's fall, likewise.
        rows_in_jumps: learned rows that fell during an abrupt drop.
        above_placebo, with_placebo: rows whose entropy drop exceeds the placebo's, of those that
            have one.
        entropy_gain: mean drop of the moving head's entropy minus the placebo's (nats), over runs.
        alignment_gain: mean rise of the moving head's attention on the row's true inputs across
            the fall (share), over runs.
    """

    n_runs: int
    n_rows: int
    n_jumps: int
    matching: Estimate
    single: Estimate
    width: Estimate
    onset: Estimate
    rows_in_jumps: int
    above_placebo: int
    with_placebo: int
    entropy_gain: Estimate
    alignment_gain: Estimate


def row_evidence(rows: pd.DataFrame) -> RowEvidence:
    """Pool the runs.

    Intervals of times resample runs, whose rows are not independent of one another; those of mean
    gains are Student's t over runs; those of shares are exact for independent drops.
    """
    runs = list(_learning_runs(rows))
    all_jumps = [(row, *pair) for row in runs for pair in jumps(row)]
    n_jumps = len(all_jumps)
    matching = sum(
        n_rows > 0 and bool(abs(jump.drop / one_row(row) - n_rows) <= 0.5)
        for row, jump, n_rows in all_jumps
    )
    single = sum(n_rows == 1 for _, _, n_rows in all_jumps)
    falls = [[e.step for e in row_falls(row).values() if e.observed] for row in runs]
    widths = [
        [w for i in range(row.state_size) if (w := row_width(row, i)) is not None] for row in runs
    ]
    moved = [entropy_drops(row) for row in runs]
    gains = [drops["drop"].sub(drops.placebo_drop).mean() for drops in moved]
    compared = pd.concat(moved).dropna(subset="placebo_drop")
    rises = [alignment_rise(row, drops).mean() for row, drops in zip(runs, moved, strict=True)]
    return RowEvidence(
        n_runs=len(runs),
        n_rows=sum(map(len, falls)),
        n_jumps=n_jumps,
        matching=solve_rate(matching, n_jumps) if n_jumps else UNKNOWN,
        single=solve_rate(single, n_jumps) if n_jumps else UNKNOWN,
        width=_over_runs([float(np.median(ws)) for ws in widths if ws], _median),
        onset=_over_runs([min(steps) for steps in falls], _median),
        rows_in_jumps=sum(n_rows for _, _, n_rows in all_jumps),
        above_placebo=int((compared["drop"] > compared.placebo_drop).sum()),
        with_placebo=len(compared),
        entropy_gain=_over_runs(gains),
        alignment_gain=_over_runs(rises),
    )


def alignment_rise(row: pd.Series, moved: pd.DataFrame) -> pd.Series:
    """Rise of each moving head's attention on its row's true inputs, `MARGIN` before to after.

    Args:
        moved: columns row, step, layer, head as `entropy_drops` gives.

    Returns:
        Share from -1 to 1, one a learned row.
    """
    alignment = head_table(row, "row_alignment")
    steps = alignment.index
    rises = []
    for line in moved.itertuples():
        before = max(steps.searchsorted(line.step - MARGIN, side="right") - 1, 0)
        after = min(steps.searchsorted(line.step + MARGIN, side="left"), len(steps) - 1)
        at_row = alignment[(line.layer, line.head, line.row)]
        rises.append(at_row.iloc[after] - at_row.iloc[before])
    return pd.Series(rises, dtype=float)


def _over_runs(
    values: list[float], interval: Callable[[list[float]], Estimate] = mean_interval
) -> Estimate:
    """The interval over the runs that have the value."""
    known = [value for value in values if np.isfinite(value)]
    return interval(known) if known else UNKNOWN


def _median(values: list[float]) -> Estimate:
    """Bootstrapped from the same generator each time, so that a page is the same twice."""
    return bootstrap_interval(values, np.random.default_rng(0), np.median)


def _learning_runs(rows: pd.DataFrame) -> Iterator[pd.Series]:
    """Runs in which at least two rows were learned: others have no staircase to look at."""
    for _, row in rows.iterrows():
        if sum(event.observed for event in row_falls(row).values()) >= 2:
            yield row


def judge_drops_are_rows(rows: pd.DataFrame) -> Verdict:
    """A-7: drops of the loss are rows of A, and a head's entropy falls when its row is learned.

    The claim has two halves. *Drops are rows*: the lower ends of the intervals are at least 0.8 for
    drops that match their rows and above 0.5 for drops of a single row, and at least 80 % of the
    learned rows fell in such a drop. *Heads turn sharp*: both the entropy's drop against its
    placebo and the rise of attention on the true inputs are above 0 with their whole interval.
    "reproduced": both halves; "partly": one, or drops that match their rows without being single.
    Two runs are needed, and three for an interval of a mean.
    """
    learning = sum(1 for _ in _learning_runs(rows))
    if learning < 2:
        return Verdict(
            "not tested here",
            f"Two runs that each learn two rows are needed; of {len(rows)} recorded {learning} did "
            "so.",
            learning,
        )
    found = row_evidence(rows)
    match = found.matching.low >= 0.8
    single = found.single.low > 0.5 and found.rows_in_jumps >= 0.8 * found.n_rows
    sharp = found.entropy_gain.low > 0 and found.alignment_gain.low > 0
    checks = (match and single, sharp)
    status = (
        "reproduced" if all(checks) else "partly" if any((match, *checks)) else "not reproduced"
    )
    drops = "No abrupt drop of the loss was found"
    if found.n_jumps:
        drops = (
            f"{with_interval(found.matching, '.0%')} of {found.n_jumps} abrupt drops have the size "
            f"of the rows that fall in them ({found.single.value:.0%} are single rows)"
        )
    evidence = (
        f"{drops}; {found.rows_in_jumps} of {found.n_rows} learned rows fell in one. A row falls "
        f"within {with_interval(found.width, ',.0f')} steps (median). At its fall a head's entropy "
        f"drops {with_interval(found.entropy_gain, '.2f')} nats more than at an earlier row's "
        f"(more in {found.above_placebo} of {found.with_placebo} rows), and its attention on the "
        f"row's true inputs rises by {with_interval(found.alignment_gain, '.2f')}."
    )
    return Verdict(status, evidence, found.n_runs)


PLATEAU = Experiment(
    name="plateau",
    version=1,
    question="How long is the plateau over seeds, and is each drop of the loss one row of the map?",
    grid=PlateauGrid,
    profiles={
        "smoke": (PlateauGrid(state_size=4, row_weight=2, seeds=1, steps=50, batch_size=8),),
        "quick": (PlateauGrid(state_size=8, seeds=2, steps=2_000),),
        "cpu": (PlateauGrid(),),
        "paper": (PlateauGrid(batch_size=256),),
    },
    run=run,
    schema=CURVE_SCHEMA
    | {
        "row_loss": "list [eval][row] of float: held-out loss of each output bit in nats",
        "row_entropy": "list [eval][head·S + row] of float: attention entropy in nats",
        "row_alignment": "list [eval][head·S + row] of float: attention on the true keys, 0 to 1",
    },
    judges={"A-7": judge_drops_are_rows},
    seconds={"smoke": 1, "quick": 20, "cpu": 120, "paper": 900},
)
