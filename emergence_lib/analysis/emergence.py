"""When a capability appears: bisection over checkpoints, and events in a curve over training.

A *curve* here is a `pandas.Series` of numbers whose index is the step, as `Run.metric` returns;
of two lists it is ``pd.Series(losses, index=steps)``.

    loss   ─────────╮            high ─┐
                    │                  │ transition_width: the steps from 10 % to 90 % of the way
                    ╰───╮              │
                        ╰──────  low  ─┘
           plateau  ▲   ▲ loss_jumps
             plateau_length

An event that did not happen is *right-censored*: all that is known is that it had not happened by
the last step. `Event` carries that fact on to `analysis.survival`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Bool
from scipy.ndimage import median_filter

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import require_int


@dataclass(frozen=True)
class Event:
    """When something happened, or how long it was watched without happening.

    Attributes:
        step: the step of the event; if not `observed`, the last step watched.
        observed: False means right-censored at `step`.
    """

    step: float
    observed: bool


@dataclass(frozen=True)
class Emergence:
    """Two neighbouring checkpoints between which a capability appears.

    Attributes:
        last_failing: step of the checkpoint before `first_passing` (None if that is the first
            one), or the last checkpoint if `censored`.
        first_passing: step; None if `censored`.
        censored: the last checkpoint still fails.
        evaluations: how many checkpoints were evaluated to find out.
    """

    last_failing: int | None
    first_passing: int | None
    censored: bool
    evaluations: int

    @property
    def midpoint(self) -> float:
        """What paper A plots and averages: the step midway between the two checkpoints.

        The first step if that already passes. If censored, the last step, which is a lower bound
        and no emergence step: use `event` with `analysis.survival` where that matters.
        """
        known = [step for step in (self.last_failing, self.first_passing) if step is not None]
        return sum(known) / len(known)

    @property
    def event(self) -> Event:
        """The midpoint as a possibly right-censored event."""
        return Event(self.midpoint, not self.censored)


@dataclass(frozen=True)
class Scan:
    """What a full scan of the checkpoints finds.

    Attributes:
        emergence: at the *first* checkpoint that passes; `censored` if none does.
        reversals: how often a passing checkpoint is followed by a failing one. Bisection is only
            sure to agree with the scan when this is 0.
    """

    emergence: Emergence
    reversals: int


def emergence_point(solved: Callable[[int], bool], steps: Sequence[int]) -> Emergence:
    """Bisect for the first checkpoint that solves a task, as paper A does (Pythia section).

    Starts from the whole list and assumes that a solved checkpoint stays solved. Where this fails,
    the result is still a failing checkpoint directly followed by a passing one (or a passing first,
    or a failing last one), but there may be others: see `scan`.

    Args:
        solved: whether the checkpoint of a step solves the task; called once a step at most, and
            ``floor(log2(len(steps))) + 1`` times at most: 8 times for Pythia's 154 checkpoints.
        steps: checkpoints in increasing order.

    Raises:
        ParameterError: `steps` is empty or not increasing.
    """
    _require_increasing("steps", steps)
    low, high, evaluations, passed = 0, len(steps) - 1, 0, False
    # All before `low` that was evaluated fails; `high` passes once `passed`, else it is the last.
    while low < high or not passed:
        middle = (low + high) // 2
        evaluations += 1
        if solved(steps[middle]):
            high, passed = middle, True
        elif middle == len(steps) - 1:
            return Emergence(steps[middle], None, True, evaluations)
        else:
            low = middle + 1
    return Emergence(steps[low - 1] if low else None, steps[low], False, evaluations)


def next_evaluations(results: Mapping[int, bool], steps: Sequence[int]) -> tuple[int, ...]:
    """The checkpoint that `emergence_point` asks for next, then the two it may ask for after it.

    What to fetch ahead of time where a checkpoint takes minutes to arrive. Fewer than three near
    the end, none when `results` decide the bisection.

    Args:
        results: step → whether that checkpoint solves the task, of those evaluated so far.
        steps: checkpoints in increasing order.
    """
    first = _asked(results, steps)
    if first is None:
        return ()
    after = (_asked({**results, first: passes}, steps) for passes in (True, False))
    return (first, *(step for step in after if step is not None))


def _asked(results: Mapping[int, bool], steps: Sequence[int]) -> int | None:
    """The first step that bisection needs and `results` lack."""
    try:
        emergence_point(results.__getitem__, steps)
    except KeyError as missing:
        return missing.args[0]
    return None


def scan(solved: Callable[[int], bool], steps: Sequence[int]) -> Scan:
    """Evaluate every checkpoint: the first that passes, and how often a later one fails again.

    Args:
        solved: whether the checkpoint of a step solves the task; called once a step.
        steps: checkpoints in increasing order.

    Raises:
        ParameterError: `steps` is empty or not increasing.
    """
    _require_increasing("steps", steps)
    passes = [bool(solved(step)) for step in steps]
    reversals = sum(a and not b for a, b in pairwise(passes))
    if not any(passes):
        return Scan(Emergence(steps[-1], None, True, len(steps)), 0)
    first = passes.index(True)
    last_failing = steps[first - 1] if first else None
    return Scan(Emergence(last_failing, steps[first], False, len(steps)), reversals)


def acquisition(accuracy: pd.Series, threshold: float = 0.5, sustain: int = 3) -> Event:
    """First step with accuracy above `threshold` that stays above for `sustain` checkpoints.

    Paper B's definition of acquisition (its section on acquisition, v4). The first checkpoint is
    one of the `sustain` (our reading). For a task with chance near 0.5 give a threshold corrected
    for chance: halfway from chance c to 1 is ``(1 + c) / 2``.

    Args:
        accuracy: curve of shares from 0 to 1.
        threshold: a share; equality does not count.
        sustain: checkpoints in a row, at least 1. A curve that ends before there are as many has
            not shown it and is censored.

    Raises:
        ParameterError: the curve is empty, not finite or its steps do not increase; `sustain` < 1.
    """
    _require_curve("accuracy", accuracy)
    return _first_sustained(accuracy, accuracy.to_numpy() > threshold, sustain)


def plateau_length(loss: pd.Series, threshold: float, sustain: int = 1) -> Event:
    """First step at which the loss is below `threshold`, and stays there for `sustain` evaluations.

    Paper A uses an absolute threshold (1.3 nats for cellular automata). Where runs have different
    floors, let `level` choose the threshold as a share of the way down.

    Args:
        loss: curve in nats.
        threshold: nats; equality does not count.
        sustain: evaluations in a row, at least 1.

    Raises:
        ParameterError: the curve is empty, not finite or its steps do not increase; `sustain` < 1.
    """
    _require_curve("loss", loss)
    return _first_sustained(loss, loss.to_numpy() < threshold, sustain)


def level(plateau: float, floor: float, fraction: float) -> float:
    """The loss that has fallen `fraction` of the way from `plateau` to `floor`, all in nats.

    On the linear map, from ln 2 to the task's floor, each of the S rows is a share 1/S of the way:
    half a row, ``fraction = 0.5 / S``, separates "nothing learned" from "first row learned"; a
    fixed fraction would ask for more rows the larger S is.

    Raises:
        ParameterError: `floor` is not below `plateau`, or `fraction` not between 0 and 1.
    """
    if not floor < plateau:
        raise ParameterError("floor", floor, f"below plateau={plateau}")
    if not 0 < fraction < 1:
        raise ParameterError("fraction", fraction, "between 0 and 1")
    return plateau - fraction * (plateau - floor)


@dataclass(frozen=True)
class Jump:
    """An abrupt fall of the loss.

    Attributes:
        start: last evaluated step before the fall: within `min_drop` / 2 of the level before.
        end: first evaluated step after it: within `min_drop` / 2 of the level after.
        drop: level before minus level after, in nats; at least `min_drop`.
    """

    start: int
    end: int
    drop: float


def loss_jumps(loss: pd.Series, min_drop: float, window: int = 4) -> list[Jump]:
    """Abrupt falls: stretches in which the lowest loss so far drops by `min_drop` in `window`.

    Our definition; paper A points at the jumps of a curve. A median over three evaluations first
    removes single outliers and keeps edges where they are; the running minimum keeps the recovery
    from a loss spike from counting. Jumps at most `window` evaluations apart come out as one, with
    the sum of their drops. The levels before and after are medians of the loss over up to `window`
    evaluations beside the jump, so noise well below `min_drop` hardly moves `drop`.

    Args:
        loss: curve in nats, evaluated at regular steps.
        min_drop: nats. One row of a linear map is ln 2 / (2S-1); half of that finds single rows.
        window: evaluations, at least 1: slower falls are no jumps.

    Raises:
        ParameterError: the curve is empty, not finite or its steps do not increase; `min_drop` is
            not positive or `window` < 1.
    """
    _require_curve("loss", loss)
    require_int("window", window, 1)
    if not min_drop > 0:
        raise ParameterError("min_drop", min_drop, "a positive number of nats")
    lowest = np.minimum.accumulate(median_filter(loss.to_numpy(float), size=3, mode="nearest"))
    fast = np.flatnonzero(lowest[:-window] - lowest[window:] >= min_drop)
    edges: list[tuple[int, int]] = []
    for stretch in np.split(fast, np.flatnonzero(np.diff(fast) > 1) + 1):
        if len(stretch):
            first, last = stretch[0], stretch[-1] + window
            way = lowest[first : last + 1]
            start = first + np.flatnonzero(lowest[first] - way < min_drop / 2)[-1]
            end = first + np.flatnonzero(way - lowest[last] < min_drop / 2)[0]
            if edges and start < edges[-1][1]:  # slopes that run into each other are one jump
                start, _ = edges.pop()
            edges.append((start, end))
    jumps = []
    for i, (start, end) in enumerate(edges):
        previous = edges[i - 1][1] if i else 0
        following = edges[i + 1][0] if i + 1 < len(edges) else len(loss) - 1
        before = loss.iloc[max(previous, start - window + 1) : start + 1].median()
        after = loss.iloc[end : min(following, end + window - 1) + 1].median()
        if before - after >= min_drop:  # else a dip that did not last
            jumps.append(Jump(int(loss.index[start]), int(loss.index[end]), float(before - after)))
    return jumps


def transition_width(loss: pd.Series, high: float, low: float) -> float | None:
    """Steps from 10 % to 90 % of the way down from `high` to `low`: the width of the jump.

    From the last step above the 90 % level before the 10 % level is first reached, interpolated
    linearly between evaluations; so a width of about one evaluation interval is only an upper
    bound. A logistic fall ``1 / (1 + exp((t - t0) / scale))`` has width ``2 ln 9 · scale``.

    Args:
        loss: curve in nats.
        high, low: the levels before and after, nats.

    Returns:
        The width in steps; None where the curve does not start above and fall all the way.

    Raises:
        ParameterError: the curve is empty, not finite or its steps do not increase, or `low` is not
            below `high`.
    """
    _require_curve("loss", loss)
    if not low < high:
        raise ParameterError("low", low, f"below high={high}")
    values = loss.to_numpy(float)
    upper, lower = high - 0.1 * (high - low), low + 0.1 * (high - low)
    below = np.flatnonzero(values <= lower)
    above = np.flatnonzero(values[: below[0]] >= upper) if len(below) else below
    if not len(above):
        return None
    return _crossing(loss, below[0] - 1, lower) - _crossing(loss, above[-1], upper)


def _crossing(curve: pd.Series, i: int, value: float) -> float:
    """Where the straight line from evaluation i to the next takes `value`."""
    (t0, t1), (y0, y1) = curve.index[i : i + 2], curve.iloc[i : i + 2]
    return float(t0 + (y0 - value) / (y0 - y1) * (t1 - t0))


def _first_sustained(curve: pd.Series, holds: Bool[np.ndarray, " eval"], sustain: int) -> Event:
    """The step of the first of `sustain` consecutive evaluations at which `holds`."""
    require_int("sustain", sustain, 1)
    in_a_row = 0
    for i, held in enumerate(holds):
        in_a_row = in_a_row + 1 if held else 0
        if in_a_row == sustain:
            return Event(curve.index[i - sustain + 1].item(), True)
    return Event(curve.index[-1].item(), False)


def _require_increasing(parameter: str, steps: Sequence[int]) -> None:
    if len(steps) == 0:
        raise ParameterError(parameter, list(steps), "at least one step")
    for a, b in pairwise(steps):
        if not a < b:
            raise ParameterError(parameter, (a, b), "increasing", "Sort the steps, drop repeats.")


def _require_curve(parameter: str, curve: pd.Series) -> None:
    if not isinstance(curve, pd.Series):
        raise ParameterError(
            parameter,
            type(curve).__name__,
            "a pandas Series indexed by step",
            "Of two lists: pd.Series(values, index=steps).",
        )
    _require_increasing(f"{parameter}.index", curve.index)
    if not np.isfinite(curve.to_numpy(float)).all():
        step = curve.index[~np.isfinite(curve.to_numpy(float))][0]
        raise ParameterError(f"{parameter}[{step}]", curve[step], "finite")
