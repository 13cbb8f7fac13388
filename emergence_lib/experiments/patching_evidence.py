"""What rows of `attention_patching` say: how much of an emergence its patterns carry (A-5, A-6)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from emergence_lib.analysis.survival import Estimate, mean_interval
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import with_interval
from emergence_lib.experiments.pythia_evidence import of_models

MIN_GAP = 0.05
"""Difference of p(target) between post and pre below which a recovered fraction is noise."""


def patched(rows: pd.DataFrame, strides: int) -> pd.DataFrame:
    """Rows of runs that acquire the capability with a gap to recover, at one bracket width."""
    wide = rows[(rows.strides == strides) & rows.pre_step.notna()]
    return wide[wide.p_post - wide.p_pre >= MIN_GAP]


def patching_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a capability and bracket width, over runs.

    Returns:
        Columns capability, strides, n (runs that acquire it with a gap to recover), p_pre, p_post,
        then the mean recovered fraction of all patterns, values and head outputs, the top quarter's
        patterns and random quarters', and control_rise.
    """
    lines = []
    for (capability, strides), group in rows.groupby(["capability", "strides"], sort=False):
        found = patched(group, strides)
        fractions = [
            found.apply(at_share, axis=1, column=column, share=share).mean()
            for column, share in (
                ("recovered_pattern", 1.0),
                ("recovered_v", 1.0),
                ("recovered_z", 1.0),
                ("recovered_pattern", 0.25),
                ("recovered_random", 0.25),
            )
            if len(found)
        ] or [math.nan] * 5
        means = (found.p_pre.mean(), found.p_post.mean(), *fractions, found.control_rise.mean())
        lines.append((str(capability).replace("_", " "), strides, len(found), *means))
    columns = ["capability", "strides", "n", "p_pre", "p_post", "patterns", "values", "outputs"]
    return pd.DataFrame(lines, columns=[*columns, "top quarter", "random quarter", "control_rise"])


def at_share(row: pd.Series, column: str, share: float) -> float:
    """Recovered fraction with that share of all heads, rounded up, patched."""
    values = np.asarray(row[column], float)
    return float(values[math.ceil(share * (len(values) - 1))])


def by_run(rows: pd.DataFrame, column: str, share: float) -> list[float]:
    """`at_share`, averaged over a run's capabilities: one independent number a run."""
    values = rows.apply(at_share, axis=1, column=column, share=share)
    return values.groupby([rows["size"], rows["seed"]]).mean().tolist()


def _interval(rows: pd.DataFrame, column: str, share: float) -> Estimate:
    return mean_interval(by_run(rows, column, share))


def judge_patterns_cause(rows: pd.DataFrame) -> Verdict:
    """A-5: attention patterns are causal: the top K heads' recover most of the gap.

    Widest bracket; K is a quarter of the heads, rounded up; means over runs (each the mean of its
    capabilities) with Student's t interval. "reproduced": the top quarter's patterns recover more
    than half with the whole interval, and more than random quarters; "partly": all patterns
    together recover more than half, or the top quarter more than random ones with intervals apart.
    """
    found = patched(rows, int(rows.strides.max()))
    n = found.groupby(["size", "seed"]).ngroups
    if n < 5:
        return Verdict("not tested here", f"Five runs are needed; {n} are recorded.", n)
    top, chance = (
        _interval(found, "recovered_pattern", 0.25),
        _interval(found, "recovered_random", 0.25),
    )
    whole, outputs = (
        _interval(found, "recovered_pattern", 1.0),
        _interval(found, "recovered_z", 1.0),
    )
    values = _interval(found, "recovered_v", 1.0)
    beats = top.low > chance.high
    status = "not reproduced"
    if beats or whole.low > 0.5:
        status = "reproduced" if beats and top.low > 0.5 else "partly"
    evidence = (
        f"The patterns of the top quarter of heads recover {with_interval(top, '.0%')} of the gap, "
        f"of random quarters {with_interval(chance, '.0%')}; all patterns "
        f"{with_interval(whole, '.0%')}, all values {with_interval(values, '.0%')}, all head "
        f"outputs {with_interval(outputs, '.0%')} (mean over {n} runs).{of_models(rows)}"
    )
    return Verdict(status, evidence, n)


def judge_many_heads(rows: pd.DataFrame) -> Verdict:
    """A-6: the effect is spread over many heads.

    Of what the best K patterns recover at most, the share that the single best head recovers.
    "reproduced": below one half with the whole interval, over runs; "partly": its mean is; else
    "not reproduced". Runs whose patterns recover less than a tenth of the gap say nothing.
    """
    found = patched(rows, int(rows.strides.max())) if len(rows) else rows
    most = found.recovered_pattern.map(lambda values: float(np.max(values)))
    found = found[most >= 0.1]
    n = found.groupby(["size", "seed"]).ngroups
    if n < 5:
        return Verdict(
            "not tested here",
            f"Five runs whose patterns recover a tenth of the gap are needed; {n} are recorded.",
            n,
        )
    shares = found.recovered_pattern.map(lambda values: values[1] / np.max(values))
    needed = found.recovered_pattern.map(
        lambda values: int(np.argmax(np.asarray(values) >= 0.8 * np.max(values)))
    )
    single = mean_interval(shares.groupby([found["size"], found["seed"]]).mean().tolist())
    status = "reproduced" if single.high < 0.5 else "partly" if single.value < 0.5 else None
    evidence = (
        f"The best single head recovers {with_interval(single, '.0%')} of what patterns recover at "
        f"most; four fifths of it take {np.median(needed):g} heads (median; mean over {n} runs)."
        f"{of_models(rows)}"
    )
    return Verdict(status or "not reproduced", evidence, n)
