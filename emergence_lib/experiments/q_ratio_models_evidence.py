"""Q on the toy task and on the pocket suite, beside the language model that claims rest on."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from emergence_lib.analysis.survival import Estimate
from emergence_lib.experiments.evidence import UNKNOWN, with_interval
from emergence_lib.experiments.othello_evidence import as_floats
from emergence_lib.experiments.q_ratio_cell import STEERED_GROUPS
from emergence_lib.experiments.q_ratio_evidence import (
    LEAST_LATENTS,
    TRUTHS,
    correlations,
    latents,
    look_ahead,
    of_models,
)
from emergence_lib.experiments.q_ratio_models import POCKET
from emergence_lib.tasks.corpus_sources import DOMAINS


def by_model(rows: pd.DataFrame) -> pd.DataFrame:
    """Rank correlation of Q (ratio of sums) with what it stands for, in each model.

    Returns:
        Columns model, truth (its name), n (runs), value, low, high, runs.
    """
    parts = [
        correlations(some).query("estimate == 'q_sum'").assign(model=name)
        for name, some in of_models(rows).items()
    ]
    columns = ["model", "truth", "n", "value", "low", "high", "runs"]
    if not parts:
        return pd.DataFrame(columns=columns)
    return pd.concat(parts)[columns].replace({"truth": TRUTHS})


def spread_over_latents(row: pd.Series) -> dict[str, Estimate]:
    """Standard deviation of ln Q among a run's latents for each text, with a bootstrap interval.

    Over latents, as the paper's: it says how exactly this model was measured, not what another
    would give.
    """
    found = {}
    for domain in DOMAINS:
        ln_q = latents(row).query("domain == @domain").ln_q.to_numpy()
        found[domain] = UNKNOWN
        if len(ln_q) >= LEAST_LATENTS:
            interval = bootstrap(
                (ln_q,),
                lambda x, axis: np.std(x, ddof=1, axis=axis),
                n_resamples=2_000,
                method="percentile",
                rng=np.random.default_rng(0),
            ).confidence_interval
            found[domain] = Estimate(float(np.std(ln_q, ddof=1)), interval.low, interval.high)
    return found


def pocket_sentence(rows: pd.DataFrame) -> str:
    """What the recorded model of the pocket suite says on C-11 to C-13: one run, no verdict."""
    rows = rows[rows.corpus.isin(list(POCKET))] if len(rows) else rows
    if not len(rows):
        return "No model of the pocket suite is recorded yet."
    row = rows.iloc[0]
    sd = ", ".join(
        f"{name} {with_interval(value, '.2f')}" for name, value in spread_over_latents(row).items()
    )
    written = "; ".join(
        f"{measure} "
        + ", ".join(
            f"{value:.2f} {group}"
            for group, value in zip(
                STEERED_GROUPS, as_floats(row[f"steered_{measure}"]), strict=True
            )
        )
        for measure in ("code", "punctuation")
    )
    ahead = look_ahead(rows.iloc[:1])
    relation = ", ".join(f"{v:.2f} for {a}" for a, v in zip(ahead.ahead, ahead.value, strict=True))
    return (
        f"The pocket suite's {POCKET[row.corpus]} model (seed {row.seed}, {len(latents(row))} "
        f"latents that pass the filter). Standard deviation of ln Q, with intervals over latents: "
        f"{sd}. Shares of what is written: {written}. Rank correlation of ln Q with the alignment "
        f"to the look-ahead map, by tokens ahead: {relation}. One run: no verdict rests on it."
    )
