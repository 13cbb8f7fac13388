"""Forecast when something will happen from what was seen in the first part of its run.

    log T = (c + x·b + log E) / a       E exponential, a > 0: the Weibull accelerated failure time
                                        model in the parameters in which its likelihood is concave

Times are counted from the end of what was seen and may be right-censored. Units that share a run
are not independent, so no run is ever on both sides of a split: predictions are made for one run at
a time by a model fitted on the others, whose penalty was chosen by splitting those others again
(nested cross-validation). Whether a feature helps is asked by shuffling times within each run,
which keeps what the units of a run have in common.

The model is Weibull's as in lifelines' `WeibullAFTFitter`, which a test compares it with; ours is
a Newton method without a formula's overhead, since a permutation test fits thousands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import require_int

PENALTIES = (0.01, 0.1, 1.0)
"""Strengths of the ridge penalty that the inner splits choose from."""

INNER_FOLDS = 4

CLIP = 3.0
"""Standard deviations beyond which a feature counts as just that far: other tasks lie far out."""

_STEADY = 1e-6  # holds `a` finite where the times are all the same
_NEWTON_STEPS = 100


@dataclass(frozen=True)
class Units:
    """What is to be forecast: units with features, times and the run they are from.

    Args:
        features: columns on any scale; none (width 0) is the model that knows only times.
        time: positive, from the end of what was seen; the time watched where censored.
        observed: whether it happened at `time`.
        run: labels; units with the same label are never split.

    Raises:
        ParameterError: lengths differ, a feature is not finite, or a time is not positive.
    """

    features: Float[np.ndarray, "unit feature"]
    time: Float[np.ndarray, " unit"]
    observed: Bool[np.ndarray, " unit"]
    run: Int[np.ndarray, " unit"]

    def __post_init__(self) -> None:
        lengths = {len(values) for values in (self.features, self.time, self.observed, self.run)}
        if len(lengths) != 1:
            raise ParameterError("units", sorted(lengths), "columns of one length")
        if not np.isfinite(self.features).all():
            raise ParameterError("features", "a number that is not finite", "finite numbers")
        if not (self.time > 0).all():
            raise ParameterError("time", float(self.time.min()), "positive times")

    def __getitem__(self, which: np.ndarray) -> Units:
        columns = (self.features, self.time, self.observed, self.run)
        return Units(*(column[which] for column in columns))


@dataclass(frozen=True)
class WeibullModel:
    """A fitted model; see `fit`.

    Attributes:
        scale: a, one over the spread of log time.
        intercept: c.
        weights: b, of standardised features.
        centre, width: means and standard deviations of the features it was fitted on.
    """

    scale: float
    intercept: float
    weights: Float[np.ndarray, " feature"]
    centre: Float[np.ndarray, " feature"]
    width: Float[np.ndarray, " feature"]

    def standardised(
        self, features: Float[np.ndarray, "unit feature"]
    ) -> Float[np.ndarray, "unit feature"]:
        return np.clip((features - self.centre) / self.width, -CLIP, CLIP)

    def median(self, features: Float[np.ndarray, "unit feature"]) -> Float[np.ndarray, " unit"]:
        """Median time of each unit."""
        place = self.intercept + self.standardised(features) @ self.weights
        return np.exp((place + math.log(math.log(2))) / self.scale)

    def log_likelihood(self, units: Units) -> float:
        """Sum over the units, censored ones by the chance of lasting as long."""
        log_time = np.log(units.time)
        z = self.scale * log_time - self.intercept
        z = z - self.standardised(units.features) @ self.weights
        density = math.log(self.scale) - log_time + z
        return float((units.observed * density - np.exp(np.minimum(z, 50))).sum())


def fit(units: Units, penalty: float) -> WeibullModel:
    """Penalised maximum likelihood: mean log-likelihood minus penalty · |b|² / 2.

    Raises:
        ParameterError: nothing was observed, or a negative penalty.
    """
    if not units.observed.any():
        raise ParameterError("observed", "none", "at least one unit whose time was seen")
    if not penalty >= 0:
        raise ParameterError("penalty", penalty, "a number ≥ 0")
    centre, width = units.features.mean(0), units.features.std(0)
    width = np.where(width > 1e-12, width, 1.0)
    x = np.clip((units.features - centre) / width, -CLIP, CLIP)
    log_time, n = np.log(units.time), len(units.time)
    middle = log_time.mean()
    design = np.column_stack([log_time - middle, -np.ones(n), -x])  # z = design @ (a, c, b)
    ridge = np.array([_STEADY, 0.0, *[penalty] * x.shape[1]])
    theta = np.zeros(design.shape[1])
    theta[0] = 1 / max(log_time.std(), 0.1)
    seen = units.observed.astype(float)

    def value(at: Float[np.ndarray, " parameter"]) -> float:
        if at[0] <= 0:
            return -math.inf
        z = design @ at
        likelihood = seen * (math.log(at[0]) + z) - np.exp(np.minimum(z, 50))
        return float(likelihood.mean() - ridge @ at**2 / 2)

    now = value(theta)
    for _ in range(_NEWTON_STEPS):
        growth = np.exp(np.minimum(design @ theta, 50))
        slope = design.T @ (seen - growth) / n - ridge * theta
        slope[0] += seen.mean() / theta[0]
        bend = (design.T * growth) @ design / n + np.diag(ridge + 1e-9)
        bend[0, 0] += seen.mean() / theta[0] ** 2
        step = np.linalg.solve(bend, slope)
        if slope @ step < 1e-10:
            break
        size = 1.0
        while (then := value(theta + size * step)) < now + 1e-4 * size * (slope @ step):
            size /= 2
            if size < 1e-8:
                break
        theta, now = theta + size * step, max(then, now)
    return WeibullModel(theta[0], theta[1] + theta[0] * middle, theta[2:], centre, width)


def choose_penalty(units: Units, penalties: Sequence[float] = PENALTIES) -> float:
    """The penalty whose models give left-out runs the highest likelihood; ties to the strongest."""
    ordered = sorted(penalties, reverse=True)
    runs = np.unique(units.run)
    if len(runs) < 2 or units.features.shape[1] == 0:
        return ordered[0]
    folds = [runs[start::INNER_FOLDS] for start in range(min(INNER_FOLDS, len(runs)))]
    scores = []
    for penalty in ordered:
        score = 0.0
        for fold in folds:
            out = np.isin(units.run, fold)
            if units.observed[~out].any():
                score += fit(units[~out], penalty).log_likelihood(units[out])
        scores.append(score)
    return ordered[int(np.argmax(scores))]


def fit_chosen(units: Units, penalties: Sequence[float] = PENALTIES) -> WeibullModel:
    """`fit` with the penalty of `choose_penalty`."""
    return fit(units, choose_penalty(units, penalties))


def left_out(units: Units, penalties: Sequence[float] = PENALTIES) -> Float[np.ndarray, " unit"]:
    """Each unit's median time, by a model that has seen no unit of its run.

    The penalty is chosen anew for every run left out, among the others alone.

    Raises:
        ParameterError: fewer than two runs, or nothing observed in all but one.
    """
    runs = np.unique(units.run)
    if len(runs) < 2:
        raise ParameterError("run", runs.tolist(), "at least two runs, one to be left out")
    predicted = np.empty(len(units.time))
    for run in runs:
        out = units.run == run
        predicted[out] = fit_chosen(units[~out], penalties).median(units.features[out])
    return predicted


def concordance(
    predicted: Float[np.ndarray, " unit"],
    time: Float[np.ndarray, " unit"],
    observed: Bool[np.ndarray, " unit"],
) -> float:
    """Share of comparable pairs in the right order (Harrell's C); a tied prediction counts half.

    A pair is comparable if the earlier one was observed and the times differ, or if they are equal
    and only one was observed. One half knows nothing. NaN where no pair is comparable.
    """
    earlier = _precedes(time, observed, time, observed)
    if not earlier.any():
        return math.nan
    return float(_in_order(predicted, predicted)[earlier].mean())


def by_run(predicted: Float[np.ndarray, " unit"], units: Units) -> dict[int, float]:
    """Concordance within each run that has a comparable pair: which of its units comes first."""
    found = {}
    for run in np.unique(units.run):
        own = units.run == run
        value = concordance(predicted[own], units.time[own], units.observed[own])
        if math.isfinite(value):
            found[int(run)] = value
    return found


def between_runs(
    units: Units,
    stratum: Int[np.ndarray, " unit"] | None = None,
    penalties: Sequence[float] = PENALTIES,
) -> float:
    """Concordance of pairs of units from two runs, by models that have seen neither run.

    With one run left out at a time, the mean of the others is low where the run left out is slow,
    and a model that knows nothing orders runs backwards; with both out it is at one half (leave
    pair out: Airola et al. 2011).

    Args:
        stratum: labels; only pairs with the same one are compared. None compares all.

    Returns:
        NaN where no pair is comparable.

    Raises:
        ParameterError: from `fit`, where all but two runs have nothing observed.
    """
    stratum = np.zeros(len(units.time), dtype=int) if stratum is None else stratum
    right, pairs = 0.0, 0
    for one, other in combinations(np.unique(units.run), 2):
        first, second = units.run == one, units.run == other
        if not np.intersect1d(stratum[first], stratum[second]).size:
            continue
        model = fit_chosen(units[~(first | second)], penalties)
        for earlier, later in ((first, second), (second, first)):
            a, b = units[earlier], units[later]
            comparable = _precedes(a.time, a.observed, b.time, b.observed)
            comparable &= stratum[earlier][:, None] == stratum[later][None, :]
            ordered = _in_order(model.median(a.features), model.median(b.features))
            right += float(ordered[comparable].sum())
            pairs += int(comparable.sum())
    return right / pairs if pairs else math.nan


def _precedes(
    time: Float[np.ndarray, " one"],
    observed: Bool[np.ndarray, " one"],
    other_time: Float[np.ndarray, " other"],
    other_observed: Bool[np.ndarray, " other"],
) -> Bool[np.ndarray, "one other"]:
    """Whether a unit is known to come before another one."""
    tied = time[:, None] == other_time[None, :]
    last = ~other_observed[None, :]
    return observed[:, None] & ((time[:, None] < other_time[None, :]) | (tied & last))


def _in_order(
    predicted: Float[np.ndarray, " one"], other: Float[np.ndarray, " other"]
) -> Float[np.ndarray, "one other"]:
    """1 where the first is forecast to come before the second, one half where they are tied."""
    return (predicted[:, None] < other) + 0.5 * (predicted[:, None] == other)


def factor_off(predicted: Float[np.ndarray, " unit"], units: Units) -> float:
    """Median factor between predicted and actual time of the observed units; 1 is perfect.

    NaN where nothing was observed. Censored units are left out: a late one that was not seen cannot
    be found wrong.
    """
    if not units.observed.any():
        return math.nan
    ratio = np.log(predicted[units.observed] / units.time[units.observed])
    return math.exp(float(np.median(np.abs(ratio))))


@dataclass(frozen=True)
class Permuted:
    """A permutation test.

    Attributes:
        value: mean within-run concordance of predictions for left-out runs.
        null: the same after each shuffle.
        p_value: (1 + shuffles at least as good) / (1 + shuffles); one-sided.
    """

    value: float
    null: tuple[float, ...]
    p_value: float


def permutation_test(
    units: Units, generator: np.random.Generator, n_shuffles: int = 99, penalty: float = 0.1
) -> Permuted:
    """Whether features tell which unit *of a run* comes first; times are shuffled within runs.

    Shuffled and real data go through the same cross-validation, at one fixed penalty.

    Raises:
        ParameterError: no shuffles, or what `left_out` refuses.
    """
    require_int("n_shuffles", n_shuffles, 1)

    def statistic(of: Units) -> float:
        within = by_run(left_out(of, (penalty,)), of).values()
        return float(np.mean(list(within))) if within else math.nan

    value, null = statistic(units), []
    for _ in range(n_shuffles):
        order = np.arange(len(units.time))
        for run in np.unique(units.run):
            own = np.flatnonzero(units.run == run)
            order[own] = generator.permutation(own)
        shuffled = replace(units, time=units.time[order], observed=units.observed[order])
        null.append(statistic(shuffled))
    p_value = (1 + sum(other >= value for other in null)) / (1 + n_shuffles)
    return Permuted(value, tuple(null), p_value)
