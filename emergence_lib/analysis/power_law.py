"""How a waiting time grows with a size, where some runs were not watched long enough.

    steps                     ×  not seen by the last step: at least this long
      │            o  ×
      │        o  o           log steps = a + exponent · log size + noise
      │    o  o
      └──────────────── size

Leaving the censored runs out, or counting them as over, makes the line too flat: the longest waits
are those that go missing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from lifelines import LogNormalAFTFitter
from scipy import stats

from emergence_lib.analysis.emergence import Event
from emergence_lib.analysis.survival import Estimate
from emergence_lib.errors import ParameterError


@dataclass(frozen=True)
class PowerLaw:
    """steps = scale · size^exponent, times log-normal noise.

    Attributes:
        exponent: with its 95 % interval.
        scale: median steps at size 1.
        spread: standard deviation of log steps around the line.
        n, observed: runs, and those whose event was seen.
    """

    exponent: Estimate
    scale: float
    spread: float
    n: int
    observed: int

    def median(self, size: float) -> float:
        """Median steps at a size."""
        return self.scale * size**self.exponent.value


def fit_power_law(sizes: Sequence[float], events: Sequence[Event]) -> PowerLaw:
    """Maximum likelihood with right-censoring: an accelerated failure time model of log-normal
    times (Tobit's likelihood of log steps; Klein and Moeschberger 2003, chapter 12).

    The interval is Student's t with n-2 degrees of freedom on the observed-information error, whose
    variance is scaled by n/(n-2): without censoring that is the interval of least squares.

    Args:
        sizes: one a run, positive, at least two different ones among the observed.
        events: one a run, at positive steps.

    Raises:
        ParameterError: fewer than four runs, other lengths, a size or step that is not positive, or
            too little seen: three events at two sizes are needed.
    """
    size = np.asarray(sizes, dtype=float)
    steps = np.array([event.step for event in events], dtype=float)
    seen = np.array([event.observed for event in events], dtype=bool)
    if len(size) != len(steps) or len(size) < 4:
        raise ParameterError("events", len(steps), f"one a size, at least four; {len(size)} sizes")
    for name, values in (("sizes", size), ("event.step", steps)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ParameterError(name, values.tolist(), "positive numbers")
    if seen.sum() < 3 or len(set(size[seen])) < 2:
        raise ParameterError("events", int(seen.sum()), "three observed, at two sizes or more")
    table = pd.DataFrame({"log_size": np.log(size), "steps": steps, "seen": seen})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few runs: lifelines advises against what is asked here
        fitter = LogNormalAFTFitter().fit(table, "steps", "seen")
    slope = float(fitter.params_["mu_", "log_size"])
    n = len(size)
    error = float(fitter.standard_errors_["mu_", "log_size"]) * math.sqrt(n / (n - 2))
    half = float(stats.t.ppf(0.975, n - 2)) * error
    return PowerLaw(
        exponent=Estimate(slope, slope - half, slope + half),
        scale=math.exp(fitter.params_["mu_", "Intercept"]),
        spread=math.exp(fitter.params_["sigma_", "Intercept"]),
        n=n,
        observed=int(seen.sum()),
    )
