"""The plateau and what ends it, row by row (claim A-7).

Source: paper A, linear map, S = 16 and s = 3 (fact sheet A2): each abrupt drop of the loss is one
output row of the map being learned, and the attention entropy of one or two heads falls at that
step. The paper shows one run; here every seed is watched: the loss of each row, and each head's
entropy and alignment at each row's query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from emergence_lib.analysis.attention import AttentionObserver, RowLossObserver, unpack
from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import Estimate, bootstrap_interval, median_time, solve_rate
from emergence_lib.experiments.base import Experiment, Grid, Point, Verdict
from emergence_lib.experiments.evidence import UNKNOWN, over_runs, steps_in_words, with_interval
from emergence_lib.experiments.linear_map_cell import (
    CURVE_SCHEMA,
    LinearMapCell,
    as_rate,
    curve_row,
    plateau_event,
    rounded,
    solve_event,
)
from emergence_lib.experiments.moving_heads import MARGIN, HeadEvidence, head_evidence
from emergence_lib.experiments.watched_rows import (
    jumps,
    learning_runs,
    one_row,
    row_falls,
    row_width,
)
from emergence_lib.tasks.base import require_int


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


def headline_sentence(rows: pd.DataFrame) -> str:
    """How long the runs waited and what they had learned at the end."""
    if rows.empty:
        return "No run of this cell is recorded yet."
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


@dataclass(frozen=True)
class RowEvidence:
    """What the rows of all runs say about A-7, for the ledger and the notebook.

    Attributes:
        n_runs, n_rows: runs, and output rows learned in them.
        n_jumps: abrupt drops of the total loss.
        matching: share of the drops whose size is that of the rows that fell in them (±1/2 row).
        single: share of the drops in which exactly one row fell.
        width: median steps of a row's fall, over runs' medians, with interval.
        rows_in_jumps: learned rows that fell during an abrupt drop.
        heads: what heads do at a row's fall beyond what they do at rows that wait.
    """

    n_runs: int
    n_rows: int
    n_jumps: int
    matching: Estimate
    single: Estimate
    width: Estimate
    rows_in_jumps: int
    heads: HeadEvidence


def row_evidence(rows: pd.DataFrame) -> RowEvidence:
    """Pool the runs.

    Intervals of times resample runs, whose rows are not independent of one another; those of the
    heads' gains are Student's t over runs; those of shares are exact for independent drops.
    """
    runs = list(learning_runs(rows))
    all_jumps = [(row, *pair) for row in runs for pair in jumps(row)]
    n_jumps = len(all_jumps)
    matching = sum(
        n_rows > 0 and bool(abs(jump.drop / one_row(row) - n_rows) <= 0.5)
        for row, jump, n_rows in all_jumps
    )
    single = sum(n_rows == 1 for _, _, n_rows in all_jumps)
    learned = [sum(event.observed for event in row_falls(row).values()) for row in runs]
    widths = [
        [w for i in range(row.state_size) if (w := row_width(row, i)) is not None] for row in runs
    ]
    return RowEvidence(
        n_runs=len(runs),
        n_rows=sum(learned),
        n_jumps=n_jumps,
        matching=solve_rate(matching, n_jumps) if n_jumps else UNKNOWN,
        single=solve_rate(single, n_jumps) if n_jumps else UNKNOWN,
        width=over_runs([float(np.median(ws)) for ws in widths if ws], _median),
        rows_in_jumps=sum(n_rows for _, _, n_rows in all_jumps),
        heads=head_evidence(runs),
    )


def _median(values: list[float]) -> Estimate:
    """Bootstrapped from the same generator each time, so that a page is the same twice."""
    return bootstrap_interval(values, np.random.default_rng(0), np.median)


def judge_drops_are_rows(rows: pd.DataFrame) -> Verdict:
    """A-7: drops of the loss are rows of A, and a head's entropy falls when its row is learned.

    The claim has two halves. *Drops are rows*: the lower ends of the intervals are at least 0.8 for
    drops that match their rows and above 0.5 for drops of a single row, and at least 80 % of the
    learned rows fell in such a drop. *Heads turn sharp*: at a row's fall its moving head loses more
    entropy, and gains more attention on the true inputs, than heads do at that moment for rows that
    still wait, both with the whole interval above 0. "reproduced": both halves; "partly": one, or
    drops that match their rows without being single. Two runs are needed, and three for an
    interval of a mean.

    The comparison with an earlier time is reported and decides nothing: see `moving_heads`.
    """
    learning = sum(1 for _ in learning_runs(rows))
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
    heads = found.heads
    sharp = heads.entropy_gain.low > 0 and heads.alignment_gain.low > 0
    checks = (match and single, sharp)
    status = (
        "reproduced" if all(checks) else "partly" if any((match, *checks)) else "not reproduced"
    )
    drops = "No abrupt drop of the loss was found"
    if found.n_jumps:
        drops = (
            f"Of {found.n_jumps} abrupt drops {with_interval(found.matching, '.0%')} have the size "
            "of the rows that fall in them and "
            f"{with_interval(found.single, '.0%')} are single rows"
        )
    evidence = (
        f"{drops}; {found.rows_in_jumps} of {found.n_rows} learned rows fell in one. A row falls "
        f"within {with_interval(found.width, ',.0f')} steps (median). From {MARGIN} steps before "
        f"its fall to {MARGIN} after it a head's entropy drops "
        f"{with_interval(heads.entropy_gain, '.2f')} nats more, and its attention on the row's "
        f"true inputs rises {with_interval(heads.alignment_gain, '.2f')} more, than heads do at "
        "that moment for rows that still wait (entropy: in "
        f"{heads.more} of {heads.compared} rows). Over the same row at an earlier time the "
        f"entropy's gain is {with_interval(heads.earlier_gain, '.2f')} nats "
        f"({heads.with_earlier} rows)."
    )
    return Verdict(status, evidence, found.n_runs)


PLATEAU = Experiment(
    name="plateau",
    version=1,
    question="How long is the plateau over seeds, and is each drop of the loss one row of the map?",
    grid=PlateauGrid,
    profiles={
        "smoke": (PlateauGrid(state_size=4, row_weight=2, seeds=1, steps=50, batch_size=8),),
        "quick": (PlateauGrid(state_size=8, seeds=2, steps=1_000),),
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
    seconds={"smoke": 1, "quick": 9, "cpu": 120, "paper": 900},
)
