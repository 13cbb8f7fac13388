"""What a forecast may look at, and what is still to come, once a run's first part has been seen.

    run      0 ──── window ────────── a query is learned ──── end
             features of every        what is forecast: steps
             lens at each query       from the window's end

The window is a share of the task's plateau, or a number of steps. Rows are those of the experiment
`lenses`; nothing is trained here.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import median_time
from emergence_lib.experiments.lenses_evidence import curve, guess_loss, learned

LOSS = ("loss", "loss change", "run's loss")
ATTENTION = ("alignment", "alignment change", "entropy", "entropy change")
RANK = ("rank", "rank change", "centred rank", "rank lost")
GRADIENT = ("direct", "direct change", "pre-cached", "pre-cached change")
LENSES = (*ATTENTION, *RANK, *GRADIENT)

SETS: dict[str, tuple[str, ...]] = {
    "mean": (),
    "position": ("position",),
    "loss": LOSS,
    "attention (A)": ATTENTION,
    "rank (B)": RANK,
    "gradient (C)": GRADIENT,
    "three lenses": LENSES,
    "lenses and loss": (*LENSES, *LOSS),
}
"""What a forecast may look at. The first three are baselines; position is a query's number, which
tells when it is learned where later positions have more context."""

TASKS = ("linear map, s = 2", "linear map", "linear map, s = 4", "cellular automata")
"""Conditions forecast. With attention bias all queries are learned at once: nothing to tell."""

SHARES = (0.25, 0.5, 1.0)
"""Windows in plateaus."""

MAIN_SHARE = 0.5

STEPS = (100, 200, 400)
"""Windows in steps."""

ALL = ("position", *LOSS, *LENSES)
"""Every feature, a column of `at_risk`."""


def plateau(rows: pd.DataFrame) -> float:
    """The task's plateau: median over its runs of the step at which the first query is learned."""
    first = []
    for _, row in rows.iterrows():
        events = [learned(row, query) for query in range(len(row["query_loss"]))]
        seen = [event for event in events if event.observed] or events
        first.append(min(seen, key=lambda event: event.step))
    return median_time(first).value if first else math.inf


def features(row: pd.Series, window: float) -> list[dict[str, float]]:
    """What the first `window` steps of a run show at each query, in numbers without a task's units.

    A level is the median of the last three looks in the window, a change the level minus the one at
    half the window. Losses are shares of a guess; ranks and gradient norms are logarithms.
    """

    def seen(measure: str, query: int | None) -> pd.Series:
        values = curve(row, measure, query)
        return values[values.index <= window]

    queries = range(len(row["query_loss"]))
    guess = guess_loss(row["condition"])
    losses = [_level_and_change(seen("query_loss", query) / guess, window) for query in queries]
    run_loss = float(np.mean([level for level, _ in losses]))
    precached = _level_and_change(seen("precached", None), window)
    return [
        {"position": float(query), "loss": losses[query][0], "loss change": losses[query][1]}
        | {"run's loss": run_loss, "pre-cached": precached[0], "pre-cached change": precached[1]}
        | _lens_features({m: seen(m, query) for m in _MEASURES}, window)
        for query in queries
    ]


_MEASURES = ("alignment", "entropy", "rankme", "rankme_centred", "direct")


def _lens_features(seen: dict[str, pd.Series], window: float) -> dict[str, float]:
    rank = np.log(seen["rankme"])
    found = {
        "centred rank": _level_and_change(np.log(seen["rankme_centred"]), window)[0],
        "rank lost": float(rank.max() - rank.min()),
    }
    for name, values in (
        ("alignment", seen["alignment"]),
        ("entropy", seen["entropy"]),
        ("rank", rank),
        ("direct", np.log(np.maximum(seen["direct"], 1e-5))),  # stored with five decimals
    ):
        found[name], found[f"{name} change"] = _level_and_change(values, window)
    return found


def _level_and_change(values: pd.Series, window: float) -> tuple[float, float]:
    half = values[values.index <= window / 2]
    level = float(values.iloc[-3:].median())
    return level, level - float(half.iloc[-3:].median())


def at_risk(rows: pd.DataFrame, window: float) -> pd.DataFrame:
    """The queries that are not learned when the window ends, one line each.

    Returns:
        Columns seed, query, time (steps from the window's end until learned or no longer watched),
        observed, and the features.
    """
    lines = []
    for _, row in rows.iterrows():
        for query, seen in enumerate(features(row, window)):
            event = learned(row, query)
            if event.step > window:
                where = {"seed": row["seed"], "query": query}
                when = {"time": event.step - window, "observed": event.observed}
                lines.append(where | when | seen)
    return pd.DataFrame(lines, columns=["seed", "query", "time", "observed", *ALL])


def runs_at_risk(rows: pd.DataFrame, window: float) -> pd.DataFrame:
    """Whole runs of which less than half of the queries are learned when the window ends.

    What is forecast is the step at which half of the queries are learned; features are means over
    the queries. Columns as of `at_risk`.
    """
    lines = []
    for _, row in rows.iterrows():
        event = half_learned([learned(row, query) for query in range(len(row["query_loss"]))])
        if event.step > window:
            mean = pd.DataFrame(features(row, window)).mean()
            when = {"time": event.step - window, "observed": event.observed}
            lines.append({"seed": row["seed"], "query": -1} | when | mean.to_dict())
    return pd.DataFrame(lines, columns=["seed", "query", "time", "observed", *ALL])


def half_learned(events: list[Event]) -> Event:
    """When half of the queries, rounded up, are learned."""
    steps = sorted(event.step for event in events if event.observed)
    needed = (len(events) + 1) // 2
    if len(steps) >= needed:
        return Event(steps[needed - 1], True)
    return Event(max(event.step for event in events), False)


def share_name(share: float) -> str:
    """A window's name: "0.5 plateau"."""
    return f"{share:g} plateau"


def windows(rows: pd.DataFrame) -> dict[str, float]:
    """Every window of a task in steps: "½ plateau" and "200 steps" alike."""
    length = plateau(rows)
    shares = {share_name(share): share * length for share in SHARES}
    return shares | {f"{steps} steps": float(steps) for steps in STEPS}
