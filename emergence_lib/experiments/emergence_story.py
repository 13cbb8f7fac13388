"""One emergence told in a sentence, from a recorded row of `pythia`."""

from __future__ import annotations

import pandas as pd

from emergence_lib.experiments.pythia_evidence import (
    MIN_HEAD_RISE,
    curve,
    emergence_table,
    head_time,
)


def emergence_in_words(found: pd.DataFrame, capability: str) -> str:
    """When the capability of one run emerges, by how much p(target) jumps, and when heads rise.

    Args:
        found: the line of one run, as `pythia_evidence.one_run` gives.
    """
    row = found.iloc[0]
    line = emergence_table(found, "many").set_index("capability").loc[capability]
    p = curve(row, f"p_{capability}")
    name = capability.replace("_", " ")
    if line.observed:
        before, after = p[p.index < line.step].iloc[-1], p[p.index > line.step].iloc[0]
        sentence = (
            f"In this run {name} emerges at step {line.step:.0f} of {line.horizon}: the mean "
            f"probability of the answer is {before:.2f} at the checkpoint before, {after:.2f} at "
            f"the one after and {p.iloc[-1]:.2f} at the end. Later {line.reversals:.0f} "
            "checkpoints fail after one that passed."
        )
    else:
        sentence = (
            f"In this run {name} does not emerge within {line.horizon} steps; the mean probability "
            f"of the answer ends at {p.iloc[-1]:.2f}."
        )
    for score in ("previous_token", "induction"):
        time = head_time(row, score)
        sentence += f" The {score.replace('_', '-')} score of the best head "
        sentence += (
            f"is half-way up at step {time:.0f}."
            if time is not None
            else (f"rises by less than {MIN_HEAD_RISE}.")
        )
    return sentence
