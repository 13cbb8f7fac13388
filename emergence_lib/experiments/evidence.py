"""Estimates in words, for the evidence of a verdict: an unknown or endless number reads as such."""

from __future__ import annotations

import math

from emergence_lib.analysis.survival import Estimate


def steps_in_words(estimate: Estimate, watched: float) -> str:
    """A median time, "600 [550, 700] steps", or "not within the 10,000 steps watched".

    Args:
        estimate: steps, infinite where the event was not seen.
        watched: steps that the runs were watched for.
    """
    if math.isinf(estimate.value):
        bound = f" (at least {estimate.low:,.0f})" if math.isfinite(estimate.low) else ""
        return f"not within the {watched:,.0f} steps watched{bound}"
    return f"{with_interval(estimate, ',.0f')} steps"


def with_interval(estimate: Estimate, spec: str) -> str:
    """A number and its interval, each in the format `spec`: "0.06 [0.05, 0.14]"."""
    if math.isnan(estimate.value):
        return "unknown"
    if math.isnan(estimate.low) or math.isnan(estimate.high):
        return f"{estimate.value:{spec}} (no interval)"
    high = "not seen" if math.isinf(estimate.high) else f"{estimate.high:{spec}}"
    return f"{estimate.value:{spec}} [{estimate.low:{spec}}, {high}]"
