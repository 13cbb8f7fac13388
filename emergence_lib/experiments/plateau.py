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
from scipy.stats import spearmanr

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
from emergence_lib.analysis.survival import Estimate, bootstrap_interval, solve_rate
from emergence_lib.experiments.base import Experiment, Grid, Point, Verdict
from emergence_lib.experiments.evidence import with_interval
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
    """Every learned output row of all runs: seed, row, step of its fall and its width in steps."""
    lines = [
        (row.seed, i, event.step, row_width(row, i))
        for _, row in rows.iterrows()
        for i, event in row_falls(row).items()
        if event.observed
    ]
    return pd.DataFrame(lines, columns=["seed", "row", "step", "width"]).dropna()


def width_sentence(widths: pd.DataFrame) -> str:
    """Whether rows that are learned late fall more slowly, from `row_widths`."""
    if len(widths) < 4:
        return "Too few rows were learned to tell."
    rho = spearmanr(widths.step, widths.width).statistic
    early = widths.width[widths.step <= widths.step.median()].median()
    late = widths.width[widths.step > widths.step.median()].median()
    return (
        f"Rank correlation of width and step: {rho:.2f} over {len(widths)} rows of "
        f"{widths.seed.nunique()} runs. The median width is {early:.0f} steps in the earlier half "
        f"of the rows and {late:.0f} in the later half."
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
        entropy_gain: mean drop of the moving head's entropy minus the placebo's (nats), over runs.
    """

    n_runs: int
    n_rows: int
    n_jumps: int
    matching: Estimate
    single: Estimate
    width: Estimate
    onset: Estimate
    entropy_gain: Estimate


def row_evidence(rows: pd.DataFrame) -> RowEvidence:
    """Pool the runs.

    Intervals of times and entropies resample runs, whose rows are not independent of one another;
    those of shares are exact for independent drops (resampling a share of 1 has no width).
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
    gains = [drops["drop"].sub(drops.placebo_drop).mean() for drops in map(entropy_drops, runs)]
    return RowEvidence(
        n_runs=len(runs),
        n_rows=sum(map(len, falls)),
        n_jumps=n_jumps,
        matching=solve_rate(matching, n_jumps) if n_jumps else UNKNOWN,
        single=solve_rate(single, n_jumps) if n_jumps else UNKNOWN,
        width=_over_runs([float(np.median(ws)) for ws in widths if ws], np.median),
        onset=_over_runs([min(steps) for steps in falls], np.median),
        entropy_gain=_over_runs([gain for gain in gains if np.isfinite(gain)], np.mean),
    )


def _over_runs(values: list[float], statistic: Callable[..., np.ndarray]) -> Estimate:
    """Bootstrap over runs, always from the same generator so that a page is the same twice."""
    if not values:
        return UNKNOWN
    return bootstrap_interval(values, np.random.default_rng(0), statistic)


def _learning_runs(rows: pd.DataFrame) -> Iterator[pd.Series]:
    """Runs in which at least two rows were learned: others have no staircase to look at."""
    for _, row in rows.iterrows():
        if sum(event.observed for event in row_falls(row).values()) >= 2:
            yield row


def judge_drops_are_rows(rows: pd.DataFrame) -> Verdict:
    """A-7: drops of the loss are rows of A, and a head's entropy falls when its row is learned.

    "reproduced": the lower ends of the intervals are at least 0.8 for drops that match their rows
    and above 0 for the entropy's drop against its placebo; "partly": one of the two. An interval
    over runs needs two of them: fewer test nothing.
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
    checks = (found.matching.low >= 0.8, found.entropy_gain.low > 0)
    status = "reproduced" if all(checks) else "partly" if any(checks) else "not reproduced"
    drops = "No abrupt drop of the loss was found"
    if found.n_jumps:
        drops = (
            f"{with_interval(found.matching, '.0%')} of {found.n_jumps} abrupt drops have the size "
            f"of the rows that fall in them ({found.single.value:.0%} are single rows)"
        )
    evidence = (
        f"{drops}; a row falls within {with_interval(found.width, ',.0f')} steps (median); at its "
        f"fall a head's entropy drops {with_interval(found.entropy_gain, '.2f')} nats more than at "
        "another row's."
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
