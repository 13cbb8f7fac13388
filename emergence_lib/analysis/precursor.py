"""Does the geometry move before behaviour does? Every word of that question as a parameter.

    rank   peak ╮                          accuracy
                 ╲ ◄ onset                          ╭─────
                  ╲        ╭─ recovery       .5 ····╯◄ acquired
                   ╰─ floor╯

    floor      the lowest rank up to a given share of the checkpoints, the first one if several
    peak       the highest rank up to the floor, the last one if several
    onset      first checkpoint after the peak with `onset` of the way down to the floor done
    recovery   first checkpoint after the floor with `recovery` of the way back to the peak done
    collapse   the floor lies at least `min_depth` of the peak below it
    leads      there is a collapse, and its `event` comes at least `lead` checkpoints before
               acquisition (`emergence.acquisition`)

Paper B (arXiv 2602.15997; fact sheet B3) reports how often the rank leads acquisition. Its
definitions are not known to us and its counts moved between versions, so these are ours, and
`definition_sweep` says how much hangs on them.

An early transient comes before any late event, whatever the two have to do with each other. Two
tests say how much of a rate is that: `swapped_rate` pairs the geometry of one task with the
acquisition of another, and `surrogate_rate` replaces each curve by random ones with its increments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from emergence_lib.analysis.emergence import Event
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.tasks.base import require_int

EVENTS = ("onset", "floor", "recovery")
OUTCOMES = ("leads", "ties", "lags", "no collapse", "not acquired")
SURROGATES = ("shuffled differences", "random walk")


@dataclass(frozen=True)
class Rule:
    """What counts as a collapse and as a precursor; the words are those of the module.

    Args:
        onset: share of the way down, above 0 and at most 1.
        recovery: share of the way back up, above 0 and at most 1.
        min_depth: share of the peak that a collapse loses at least, 0 to 1.
        within: share of the checkpoints among which the floor is sought, above 0 and at most 1.
        event: "onset", "floor" or "recovery": what has to come before acquisition.
        lead: checkpoints that it comes before at least; 1 is "strictly before". A smaller distance
            is a tie, after which it lags.

    Raises:
        ParameterError: a value out of range.
        UnknownNameError: no such event.
    """

    onset: float = 0.1
    recovery: float = 0.5
    min_depth: float = 0.1
    within: float = 1.0
    event: str = "floor"
    lead: int = 1

    def __post_init__(self) -> None:
        for name in ("onset", "recovery", "within"):
            if not 0 < getattr(self, name) <= 1:
                raise ParameterError(name, getattr(self, name), "above 0 and at most 1")
        if not 0 <= self.min_depth <= 1:
            raise ParameterError("min_depth", self.min_depth, "from 0 to 1")
        if self.event not in EVENTS:
            raise UnknownNameError("event", self.event, EVENTS)
        require_int("lead", self.lead, 1)


@dataclass(frozen=True)
class Phases:
    """The phases of one curve.

    Attributes:
        peak, floor: rank there.
        peak_step, floor_step: steps.
        onset, recovery: when they happened, or censored at the last checkpoint (the onset where
            there is no way down).
        depth: share of the peak lost at the floor, 0 to 1.
        collapsed: whether `depth` suffices.
    """

    peak: float
    peak_step: float
    floor: float
    floor_step: float
    onset: Event
    recovery: Event
    depth: float
    collapsed: bool


class Case(NamedTuple):
    """One task-level of one run: its rank over training, and when it was acquired."""

    rank: pd.Series
    acquired: Event


@dataclass(frozen=True)
class Concordance:
    """How often two orders agree, over the pairs whose order in the outcome is known.

    Attributes:
        concordant, discordant: pairs in the same and in the opposite order.
        ties: pairs that the predictor does not order.
    """

    concordant: int
    discordant: int
    ties: int

    @property
    def index(self) -> float:
        """Harrell's C: a tie counts half; 0.5 is no relation. NaN without pairs."""
        pairs = self.concordant + self.discordant + self.ties
        return (self.concordant + self.ties / 2) / pairs if pairs else math.nan


def phases(rank: pd.Series, rule: Rule) -> Phases:
    """Peak, onset, floor and recovery of one curve.

    Args:
        rank: positive numbers indexed by step.

    Raises:
        ParameterError: an empty curve, steps that do not increase, or a rank that is not positive
            and finite.
    """
    values = _require_rank(rank)
    found = _locate(values[None], rule)
    steps = rank.index.to_numpy()
    peak, floor = (float(values[at[0]]) for at in (found.peak, found.floor))
    return Phases(
        peak=peak,
        peak_step=steps[found.peak[0]].item(),
        floor=floor,
        floor_step=steps[found.floor[0]].item(),
        onset=_event(steps, found.onset[0]),
        recovery=_event(steps, found.recovery[0]),
        depth=1 - floor / peak,
        collapsed=bool(found.collapsed[0]),
    )


def outcome(case: Case, rule: Rule) -> str:
    """One of `OUTCOMES`: whether the rank leads acquisition, counted in checkpoints of the curve.

    "not acquired" is said first, then "no collapse". With ``event="recovery"`` a collapse whose
    recovery is not seen lags.
    """
    values = _require_rank(case.rank)
    return OUTCOMES[_outcomes(values[None], _acquired_at(case), rule)[0]]


def outcomes(cases: Sequence[Case], rule: Rule) -> pd.Series:
    """How many cases have each of `OUTCOMES`, all of them listed."""
    found = pd.Series([outcome(case, rule) for case in cases], dtype="object")
    return found.value_counts().reindex(OUTCOMES, fill_value=0)


def lead_steps(case: Case, rule: Rule) -> float:
    """Steps from the rule's event to acquisition; NaN where one of them is missing."""
    found = phases(case.rank, rule)
    at = {"onset": found.onset, "floor": Event(found.floor_step, True), "recovery": found.recovery}
    event = at[rule.event]
    if not (found.collapsed and event.observed and case.acquired.observed):
        return math.nan
    return case.acquired.step - event.step


def definition_sweep(
    cases: Sequence[Case], rule: Rule, **values: Sequence[float | int | str]
) -> pd.DataFrame:
    """The share of acquired cases that the rank leads, for every combination of definitions.

    Args:
        cases: of any runs.
        rule: what is not swept.
        values: field of `Rule` → its values, in the order of the result's first columns.

    Returns:
        One line a combination: the swept fields, n (acquired cases), leads, ties (counts) and
        rate (leads / n).

    Raises:
        UnknownNameError: no such field.
    """
    known = [field.name for field in fields(Rule)]
    for name in values:
        if name not in known:
            raise UnknownNameError("field of a rule called", name, known)
    lines = []
    for combination in product(*values.values()):
        changes: dict[str, Any] = dict(zip(values, combination, strict=True))
        counts = outcomes(cases, replace(rule, **changes))
        n = len(cases) - counts["not acquired"]
        rate = counts["leads"] / n if n else math.nan
        found = {"n": n, "leads": counts["leads"], "ties": counts["ties"], "rate": rate}
        lines.append(changes | found)
    return pd.DataFrame(lines)


def concordance(predictor: Sequence[float], acquired: Sequence[Event]) -> Concordance:
    """Whether what happens earlier in the geometry is acquired earlier.

    A pair counts where the order of acquisition is known: two different steps, the earlier one
    observed (Harrell et al. 1982). Pairs acquired at the same checkpoint do not count.

    Args:
        predictor: a number a case, small for "soon"; NaN leaves the case out.
        acquired: one event a case.

    Raises:
        ParameterError: not one event a number.
    """
    if len(predictor) != len(acquired):
        raise ParameterError("acquired", len(acquired), f"one event a predictor, {len(predictor)}")
    score = np.asarray(predictor, dtype=float)
    known = np.isfinite(score)
    score = score[known]
    step = np.array([event.step for event in acquired], dtype=float)[known]
    observed = np.array([event.observed for event in acquired], dtype=bool)[known]
    gap = step[None, :] - step[:, None]  # [earlier, later]
    # What is censored at the step at which another is acquired comes later.
    counted = observed[:, None] & ((gap > 0) | ((gap == 0) & ~observed[None, :]))
    difference = score[None, :] - score[:, None]
    return Concordance(
        int((counted & (difference > 0)).sum()),
        int((counted & (difference < 0)).sum()),
        int((counted & (difference == 0)).sum()),
    )


def swapped_rate(cases: Sequence[Case], rule: Rule) -> float:
    """The rate at which the rank of one case leads the acquisition of another.

    The exact mean over all permutations of the acquisition times among the cases, among those that
    are acquired: what the rate would be if a task's geometry had nothing to do with that task.

    Args:
        cases: the task-levels of one run, on the same checkpoints.

    Returns:
        NaN with fewer than two acquired cases.

    Raises:
        ParameterError: curves on different checkpoints.
    """
    cases = [case for case in cases if case.acquired.observed]
    if len(cases) < 2:
        return math.nan
    if any(not case.rank.index.equals(cases[0].rank.index) for case in cases):
        raise ParameterError("cases", "curves on different checkpoints", "one run's cases")
    values = np.stack([_require_rank(case.rank) for case in cases])
    leads = [
        np.delete(_outcomes(values, np.full(len(cases), at), rule) == 0, i).mean()
        for i, at in enumerate(map(_index_of_acquisition, cases))
    ]
    return float(np.mean(leads))


def surrogate_rate(
    cases: Sequence[Case],
    rule: Rule,
    generator: np.random.Generator,
    kind: str = "shuffled differences",
    n: int = 200,
) -> float:
    """The rate at which a random curve in the place of the rank leads the same acquisitions.

    Args:
        cases: those that are not acquired are left out.
        generator: source of the surrogates.
        kind: see `surrogates`.
        n: surrogates a case.

    Returns:
        NaN without an acquired case.
    """
    rates = []
    for case in cases:
        if case.acquired.observed:
            curves = surrogates(case.rank, generator, kind, n)
            at = np.full(n, _index_of_acquisition(case))
            rates.append((_outcomes(curves, at, rule) == 0).mean())
    return float(np.mean(rates)) if rates else math.nan


def surrogates(
    rank: pd.Series, generator: np.random.Generator, kind: str, n: int
) -> Float[np.ndarray, "n checkpoint"]:
    """Random curves that start where `rank` starts and move as much from checkpoint to checkpoint.

    Args:
        kind: "shuffled differences" takes the differences of ln rank in a random order, so the
            curve also ends where `rank` ends; "random walk" draws them from the normal distribution
            of mean 0 and the same mean square.
        n: how many curves.

    Raises:
        UnknownNameError: no such kind.
        ParameterError: `n` < 1, or what `phases` refuses.
    """
    if kind not in SURROGATES:
        raise UnknownNameError("surrogate", kind, SURROGATES)
    require_int("n", n, 1)
    logs = np.log(_require_rank(rank))
    steps = np.diff(logs)
    if kind == "random walk":
        scale = math.sqrt(np.mean(steps**2)) if len(steps) else 0.0
        moves = scale * generator.standard_normal((n, len(steps)))
    else:
        moves = generator.permuted(np.tile(steps, (n, 1)), axis=1)
    walk = np.concatenate([np.zeros((n, 1)), moves.cumsum(1)], axis=1)
    return np.exp(logs[0] + walk)


class _Located(NamedTuple):
    """Indices of checkpoints, one a curve; the number of checkpoints where there is none."""

    peak: Int[np.ndarray, " curve"]
    onset: Int[np.ndarray, " curve"]
    floor: Int[np.ndarray, " curve"]
    recovery: Int[np.ndarray, " curve"]
    collapsed: Bool[np.ndarray, " curve"]


def _locate(values: Float[np.ndarray, "curve checkpoint"], rule: Rule) -> _Located:
    """The phases of many curves at once."""
    n_curves, n = values.shape
    at = np.arange(n)
    every = np.arange(n_curves)
    floor = values[:, : max(1, math.ceil(rule.within * n))].argmin(1)
    before = np.where(at <= floor[:, None], values, -np.inf)
    peak = n - 1 - before[:, ::-1].argmax(1)
    low, high = values[every, floor][:, None], values[every, peak][:, None]
    falls = (at > peak[:, None]) & (values <= high - rule.onset * (high - low)) & (low < high)
    rises = (at > floor[:, None]) & (values >= low + rule.recovery * (high - low)) & (low < high)
    depth = 1 - low / high
    collapsed = ((depth >= rule.min_depth) & (depth > 0)).squeeze(1)
    return _Located(peak, _first(falls), floor, _first(rises), collapsed)


def _first(holds: Bool[np.ndarray, "curve checkpoint"]) -> Int[np.ndarray, " curve"]:
    return np.where(holds.any(1), holds.argmax(1), holds.shape[1])


def _outcomes(
    values: Float[np.ndarray, "curve checkpoint"], acquired: Int[np.ndarray, " curve"], rule: Rule
) -> Int[np.ndarray, " curve"]:
    """Index into `OUTCOMES`, a curve; `acquired` is a checkpoint, or their number for never."""
    n = values.shape[1]
    found = _locate(values, rule)
    event = getattr(found, rule.event)
    lead = acquired - event
    result = np.where(lead >= rule.lead, 0, np.where(lead > -rule.lead, 1, 2))
    result = np.where(event == n, 2, result)
    result = np.where(found.collapsed, result, 3)
    return np.where(acquired == n, 4, result)


def _index_of_acquisition(case: Case) -> int:
    """The checkpoint at which a case was acquired; their number if it was not."""
    if not case.acquired.observed:
        return len(case.rank)
    return int(case.rank.index.searchsorted(case.acquired.step))


def _acquired_at(case: Case) -> Int[np.ndarray, " 1"]:
    return np.array([_index_of_acquisition(case)])


def _event(steps: np.ndarray, at: int) -> Event:
    return Event(steps[at].item(), True) if at < len(steps) else Event(steps[-1].item(), False)


def _require_rank(rank: pd.Series) -> Float[np.ndarray, " checkpoint"]:
    values = rank.to_numpy(float)
    if not len(values) or not (np.isfinite(values) & (values > 0)).all():
        raise ParameterError("rank", values.tolist(), "positive finite numbers, at least one")
    if not rank.index.is_monotonic_increasing or not rank.index.is_unique:
        raise ParameterError("rank.index", rank.index.tolist(), "increasing steps")
    return values
