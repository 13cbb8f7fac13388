"""Which lens moves first: when each measure moves at a query, against when that query is learned.

    query loss   ───────╮              learned   half of the way from a guess to the end
                        ╰──────
    a measure    ─────╭────────        moves   half of its way from the first value to the last:
                      half-way                 attention, rank, share of the gradient
    rank         ╮ ╭───────────        collapse   the share of the peak lost at the floor, by
                 ╰─╯ floor                        `analysis.precursor`

A lead is the step at which the query is learned minus the step at which the measure moves; above 0
the measure moves first. The control pairs each query's measure with another query of the same run:
a measure that says something about *its* query lies nearer to it than to the others.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import Event, acquisition, plateau_length
from emergence_lib.analysis.precursor import Rule, phases
from emergence_lib.analysis.survival import Estimate, mean_interval
from emergence_lib.experiments.evidence import over_runs, with_interval
from emergence_lib.experiments.lenses import CONDITIONS

LEARNED_SHARE = 0.9
"""A query counts as learned if it ends below this share of the loss of a guess."""

SUSTAIN = 2
"""Evaluations in a row that a measure has to stay beyond half-way."""


def curve(row: pd.Series, measure: str, query: int | None = None) -> pd.Series:
    """A measure over training steps; of one query, or of the whole model where `query` is None."""
    values = row[measure] if query is None else row[measure][query]
    return pd.Series(np.asarray(values, dtype=float), index=[int(s) for s in row["eval_steps"]])


def guess_loss(condition: str) -> float:
    """Loss in nats of a uniform guess on the condition's task."""
    return math.log(CONDITIONS[condition].task(0).vocab_size)


def learned(row: pd.Series, query: int) -> Event:
    """When a query was learned; censored where it ends above `LEARNED_SHARE` of a guess."""
    loss, guess = curve(row, "query_loss", query), guess_loss(row["condition"])
    end = _end(loss)
    if end > LEARNED_SHARE * guess:
        return Event(float(loss.index[-1]), False)
    return plateau_length(loss, (guess + end) / 2, SUSTAIN)


def _half_way(values: pd.Series) -> float:
    start, end = values.iloc[0], _end(values)
    if start == end:
        return math.nan
    event = acquisition((values - start) / (end - start), 0.5, SUSTAIN)
    return event.step if event.observed else math.nan


MOVES = {
    "attention points at the keys": "alignment",
    "attention sharpens": "entropy",
    "rank moves": "rankme",
    "centred rank moves": "rankme_centred",
    "later predictions send gradient": "precached",
}
"""What a lens sees → the measure that moves half of its way; the last is the whole model's."""


def moves(rows: pd.DataFrame) -> pd.DataFrame:
    """Every learned query of every run: when it was learned and when each measure moved.

    Returns:
        Columns condition, seed, query, learned (step), and one a key of `MOVES` (step or NaN).
    """
    lines = []
    for _, row in rows.iterrows():
        for query in range(len(row["query_loss"])):
            event = learned(row, query)
            if event.observed:
                steps = {
                    name: _half_way(curve(row, m, None if m == "precached" else query))
                    for name, m in MOVES.items()
                }
                where = {"condition": row["condition"], "seed": row["seed"], "query": query}
                lines.append(where | {"learned": event.step} | steps)
    return pd.DataFrame(lines, columns=["condition", "seed", "query", "learned", *MOVES])


def lead_table(found: pd.DataFrame) -> pd.DataFrame:
    """How far ahead of learning each measure moves, a condition.

    Args:
        found: from `moves`.

    Returns:
        One line a condition and move: n_runs, n_queries (in which it happens), missing (learned
        queries in which it does not), lead (`Estimate` over runs of the mean lead in steps),
        first (share of the queries in which it comes before), nearer (share of the queries whose
        own learning is nearer to the move than that of the run's other queries is on average:
        one half for a measure that knows nothing of its query; NaN where no run has two).
    """
    lines = []
    for condition, cell in found.groupby("condition", sort=False):
        for name in MOVES:
            seen = cell.dropna(subset=[name])
            lead = seen["learned"] - seen[name]
            lines.append(
                {
                    "condition": condition,
                    "move": name,
                    "n_runs": seen["seed"].nunique(),
                    "n_queries": len(seen),
                    "missing": len(cell) - len(seen),
                    "lead": over_runs(lead.groupby(seen["seed"]).mean(), mean_interval),
                    "first": float((lead > 0).mean()) if len(seen) else math.nan,
                    "nearer": _nearer(seen, name),
                }
            )
    columns = ["condition", "move", "n_runs", "n_queries", "missing", "lead", "first", "nearer"]
    return pd.DataFrame(lines, columns=columns)


def _nearer(seen: pd.DataFrame, name: str) -> float:
    shares = []
    for _, run in seen.groupby("seed"):
        at, step = run["learned"].to_numpy(float), run[name].to_numpy(float)
        distance = np.abs(at[None, :] - step[:, None])  # [move, query]
        for i, own in enumerate(np.diag(distance)):
            others = np.delete(distance[i], i)
            if len(others):
                shares.append((others > own).mean() + (others == own).mean() / 2)
    return float(np.mean(shares)) if shares else math.nan


def collapse_depth(rows: pd.DataFrame) -> dict[str, list[float]]:
    """Condition → each run's mean share of its rank lost at the floor, over all its queries."""
    depths: dict[str, list[float]] = {}
    for _, row in rows.iterrows():
        lost = [
            phases(curve(row, "rankme", query), Rule()).depth for query in range(len(row["rankme"]))
        ]
        depths.setdefault(row["condition"], []).append(float(np.mean(lost)))
    return depths


def precached_at_learning(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of the gradient that later predictions send: before, at and after learning.

    Returns:
        One line a run with a learned query: condition, seed, before (at the first evaluation),
        at (where half of the learned queries are learned), after (last three evaluations).
    """
    lines = []
    for _, row in rows.iterrows():
        events = [learned(row, query) for query in range(len(row["query_loss"]))]
        steps = [event.step for event in events if event.observed]
        if steps:
            share = curve(row, "precached")
            at = share[share.index <= np.median(steps)].iloc[-1]
            lines.append((row["condition"], row["seed"], share.iloc[0], at, _end(share)))
    return pd.DataFrame(lines, columns=["condition", "seed", "before", "at", "after"])


def _end(values: pd.Series) -> float:
    return float(values.iloc[-3:].median())


def answer(rows: pd.DataFrame) -> str:
    """What the three lenses say together, in sentences built from the rows."""
    if rows.empty:
        return "No run is recorded yet."
    found = moves(rows)
    table = lead_table(found)
    parts = []
    for condition, lines in table.groupby("condition", sort=False):
        known = lines[lines["n_queries"] > 0].sort_values(
            "lead", key=lambda leads: leads.map(lambda e: -e.value)
        )
        said = [
            f"{line['move']} {with_interval(line['lead'], ',.0f')} steps ahead "
            f"(in {line['first']:.0%} of {line['n_queries']} queries)"
            for _, line in known.iterrows()
        ]
        n = found[found.condition == condition].seed.nunique()
        parts.append(
            f"**{condition.capitalize()}** ({n} runs with a learned query): " + "; ".join(said)
        )
    return "\n".join(f"- {part}." for part in parts)


def bias_sentence(rows: pd.DataFrame) -> str:
    """Whether the bias that removes the plateau removes the collapse too."""
    depths = collapse_depth(rows)
    pair = ("linear map", "linear map, bias")
    if any(len(depths.get(name, [])) < 2 for name in pair):
        return "Two runs with and two without bias are needed."
    without, with_bias = (over_runs(depths[name], mean_interval) for name in pair)
    return (
        f"At its floor the rank has lost {with_interval(without, '.0%')} of its peak without bias "
        f"(n = {len(depths[pair[0]])}) and {with_interval(with_bias, '.0%')} with it "
        f"(n = {len(depths[pair[1]])})."
    )


Panels = tuple[dict[str, pd.DataFrame], dict[int, float], pd.Series]
"""What `plotting.lens_panels` draws: tables by axis label, query → learned, pre-cached share."""

PANELS = {
    "loss\n(nats)": "query_loss",
    "attention on\nneeded keys": "alignment",
    "entropy\n(nats)": "entropy",
    "effective rank": "rankme",
}


def first_run(rows: pd.DataFrame, condition: str) -> Panels:
    """`panels` of a condition's first recorded run, empty ones where none is recorded."""
    cell = rows[rows["condition"] == condition]
    if cell.empty:
        return {label: pd.DataFrame() for label in PANELS}, {}, pd.Series(dtype=float)
    return panels(cell.iloc[0])


def panels(row: pd.Series) -> Panels:
    """The panels of one run."""
    queries = range(len(row["query_loss"]))
    tables = {
        label: pd.DataFrame({query: curve(row, measure, query) for query in queries})
        for label, measure in PANELS.items()
    }
    events = {query: learned(row, query) for query in queries}
    steps = {query: event.step for query, event in events.items() if event.observed}
    return tables, steps, curve(row, "precached")


def lead_groups(
    rows: pd.DataFrame,
) -> dict[str, tuple[list[str], list[Estimate], list[list[float]]]]:
    """Condition → (moves, mean lead over runs with interval, each run's lead), to be drawn."""
    found = moves(rows)
    groups = {}
    for condition, cell in found.groupby("condition", sort=False):
        runs = [
            (cell["learned"] - cell[name]).groupby(cell["seed"]).mean().dropna().tolist()
            for name in MOVES
        ]
        groups[condition] = (list(MOVES), [over_runs(of, mean_interval) for of in runs], runs)
    return groups


def control_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`lead_table` in words: how early each measure moves, and whether it knows its query."""
    table = lead_table(moves(rows))
    return pd.DataFrame(
        {
            "condition": table["condition"],
            "measure": table["move"],
            "runs": table["n_runs"],
            "queries": table["n_queries"],
            "steps ahead": [with_interval(lead, ",.0f") for lead in table["lead"]],
            "comes first": [f"{share:.0%}" for share in table["first"]],
            "nearer to its own query": [f"{share:.0%}" for share in table["nearer"]],
        }
    )
