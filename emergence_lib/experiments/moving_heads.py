"""Which head moves when a row is learned, and whether it moves more than heads do anyway.

    step          …   s - margin        s         s + margin   …
    row i             entropy high      falls     entropy low        its drop: the largest of a head
    row j, waiting    entropy           -         entropy            the drop beside it

The head that moves most at a row is a maximum over heads, and entropy falls at every query in early
training, so some drop is always found. A row is therefore compared with the rows that *wait*: those
learned at least two margins later, or never. They share the moment, the heads and the maximum, and
have all their entropy left to lose; only the row's own fall sets it apart.

Another comparison stands beside it: the same row while an *earlier* one was learned. It shares the
row and not the moment. Rows that wait lose some 1.8 nats around step 1,000 and .4 after step 4,000,
so an earlier time has more to lose, and the more so the wider the margin (`gains_by_margin`).

Source: paper A shows the entropies of one run (fact sheet A2). The comparisons are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from emergence_lib.analysis.attention import change_around, head_that_moves, uniform_alignment
from emergence_lib.analysis.survival import Estimate
from emergence_lib.experiments.evidence import over_runs, with_interval
from emergence_lib.experiments.watched_rows import head_table, learning_runs, row_falls
from emergence_lib.tasks import LinearMap

MARGIN = 300
"""Steps before and after a row's fall between which heads are compared.

A window of two margins has to hold a fall from its beginning to its end, and little else. In the
recorded runs the median fall takes about 240 steps, a quarter take over 350, and 600 hold six of
seven whole; half that margin would cut many short. `gains_by_margin` shows what hangs on it.
"""


def head_moves(row: pd.Series, margin: int = MARGIN) -> pd.DataFrame:
    """The head that moves most at the fall of each learned row, beside both comparisons.

    Args:
        row: a recorded run of experiment `plateau`.
        margin: steps on either side of a fall.

    Returns:
        One line a learned row, in order of `step`: columns row, step, layer, head, drop (of its
        entropy, nats) and other_drop as `head_that_moves` gives them; rise (of its attention on the
        row's true inputs, share); waiting_drop and waiting_rise, the same of rows that wait, mean;
        earlier_drop, that of the same row at the last fall at least two margins before. NaN where
        there is no such row.
    """
    falls = {i: event.step for i, event in row_falls(row).items() if event.observed}
    entropy, alignment = head_table(row, "row_entropy"), head_table(row, "row_alignment")
    moved = head_that_moves(entropy, falls, margin)
    lines = []
    for line in moved.itertuples():
        drops = -change_around(entropy, line.step, margin).unstack("row")
        rises = change_around(alignment, line.step, margin).unstack("row")
        apart = 2 * margin
        waiting = [j for j in drops if falls.get(j, np.inf) >= line.step + apart]
        earlier = [step for step in falls.values() if step <= line.step - apart]
        at_earlier = np.nan
        if earlier:
            before = change_around(entropy, max(earlier), margin).xs(line.row, level="row")
            at_earlier = -before.min()
        lines.append(
            {
                "rise": rises.at[(line.layer, line.head), line.row],
                "waiting_drop": drops[waiting].max().mean(),
                "waiting_rise": np.mean(
                    [rises.at[drops[j].idxmax(), j] for j in waiting] or np.nan
                ),
                "earlier_drop": at_earlier,
            }
        )
    columns = ["rise", "waiting_drop", "waiting_rise", "earlier_drop"]
    return moved.join(pd.DataFrame(lines, columns=columns, dtype=float))


def chance_alignment(row: pd.Series) -> pd.Series:
    """What attention spread evenly has on each output row's true inputs (share, indexed by row).

    The query of output i may read S + i positions, so s / (S + i).
    """
    task = LinearMap(int(row["state_size"]), int(row["row_weight"]), matrix_seed=int(row["seed"]))
    chance = uniform_alignment(task.attention_target())
    return pd.Series(chance[~chance.isnan()].tolist(), name="chance").rename_axis("row")


@dataclass(frozen=True)
class HeadEvidence:
    """What heads do at a row's fall beyond what they do elsewhere, over all runs.

    Gains are means over runs with Student's t interval.

    Attributes:
        entropy_gain: drop of the moving head's entropy minus that of rows that wait (nats).
        alignment_gain: rise of its attention on the row's true inputs minus that of rows that wait
            (share).
        compared: learned rows beside which another row waits.
        more: those of them whose entropy drops more.
        earlier_gain: drop of the moving head's entropy minus that of the same row while an earlier
            one was learned (nats).
        with_earlier: rows that have such an earlier one.
    """

    entropy_gain: Estimate
    alignment_gain: Estimate
    compared: int
    more: int
    earlier_gain: Estimate
    with_earlier: int


def head_evidence(runs: Iterable[pd.Series], margin: int = MARGIN) -> HeadEvidence:
    """Pool the runs, each with at least one learned row."""
    moves = [head_moves(row, margin) for row in runs]
    pooled = pd.concat(moves)
    return HeadEvidence(
        entropy_gain=over_runs((m["drop"] - m.waiting_drop).mean() for m in moves),
        alignment_gain=over_runs((m.rise - m.waiting_rise).mean() for m in moves),
        compared=int(pooled.waiting_drop.notna().sum()),
        more=int((pooled["drop"] > pooled.waiting_drop).sum()),
        earlier_gain=over_runs((m["drop"] - m.earlier_drop).mean() for m in moves),
        with_earlier=int(pooled.earlier_drop.notna().sum()),
    )


def gains_by_margin(rows: pd.DataFrame, margins: Sequence[int]) -> pd.DataFrame:
    """The gains of `HeadEvidence` at several margins, in words, one line a margin.

    Returns:
        Columns margin (steps), entropy against waiting rows (nats), attention on the true inputs
        against waiting rows (share), rows compared, entropy against an earlier time (nats), rows
        with such a time.
    """
    runs = list(learning_runs(rows))
    lines = []
    for margin in margins if runs else ():
        found = head_evidence(runs, margin)
        lines.append(
            (
                margin,
                with_interval(found.entropy_gain, ".2f"),
                with_interval(found.alignment_gain, ".2f"),
                found.compared,
                with_interval(found.earlier_gain, ".2f"),
                found.with_earlier,
            )
        )
    columns = [
        "margin",
        "entropy gain (nats)",
        "attention gain",
        "rows",
        "entropy gain over an earlier time (nats)",
        "rows with one",
    ]
    return pd.DataFrame(lines, columns=columns)
