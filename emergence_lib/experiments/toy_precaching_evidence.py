"""What the recorded toy runs say about claims C-1 … C-4, as tables and verdicts.

A feature counts as built at positions where it is useless by its *gain*: over the positions from 2
to the last that predicts an input, the mean of r_trained - r_untrained, each read at the best layer
from 1 on. The probe of the untrained model is the control: what attention that averages makes
decodable at random weights is not built.

Comparisons are between runs of one seed, which see the same batches; intervals are Student's t over
the seeds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from jaxtyping import Float

from emergence_lib.analysis.gradients import PARTS
from emergence_lib.analysis.influence import RULES
from emergence_lib.analysis.survival import Estimate, mean_interval
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import UNKNOWN, share_over_runs, with_interval
from emergence_lib.experiments.toy_precaching_cell import ABLATIONS, TASK_TYPES

FIRST_USELESS = 2
"""Before it the label is constant or a function of one token."""

LEAST_RUNS = 3
"""Runs of each way that a verdict needs."""

MOST_ERROR = 1e-10
"""Relative to the gradient: float64 keeps 16 digits, and a few are lost in the sums."""

LEARNED = 0.95
"""Accuracy of the first output from which a task counts as learned."""

SMALL = 0.05
"""Correlation or accuracy below which a difference is of no account."""

NAMES = {"majority": "Majority", "conditioned_majority": "Conditioned Majority"}
ABLATION_NAMES = {
    "plain": "plain",
    "myopic": "no pre-caching",
    "untied": "no sharing",
    "both": "neither",
}
SHOWN = ("accuracy", "r", "gain", "normed_gain")
NOT_TESTED = f"At least {LEAST_RUNS} recorded runs of each way of training are needed."


def n_inputs(task: str) -> int:
    """Positions below it are useless for the next token."""
    return TASK_TYPES[task]().n_inputs


def best_layer(row: pd.Series, column: str) -> Float[np.ndarray, " position"]:
    """r at the best layer from 1 on, by position; NaN where the label is constant."""
    r = np.array(row[column], dtype=float)[1:]
    known = ~np.isnan(r).all(0)
    return np.where(known, np.nanmax(np.where(known, r, 0.0), axis=0), np.nan)


def run_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a run that is not followed: those which are train by another recipe.

    Returns:
        Columns task, ablation, seed, accuracy (of the first output), excess (final loss above the
        floor, nats), r and untrained_r (mean over useless positions), gain (their difference),
        normed_gain (that of streams scaled to unit root mean square),
        useful_r (mean over the positions that predict outputs).
    """
    lines = []
    for _, row in _compared(rows).iterrows():
        cut = n_inputs(row.task)
        trained, untrained = (best_layer(row, c) for c in ("probe_r", "untrained_r"))
        normed, at_first = (best_layer(row, c) for c in ("normed_r", "untrained_normed_r"))
        useless = slice(FIRST_USELESS, cut)
        lines.append(
            {
                "task": row.task,
                "ablation": row.ablation,
                "seed": row.seed,
                "accuracy": row.accuracy,
                "excess": row.eval_loss[-1] - row.floor,
                "r": np.nanmean(trained[useless]),
                "untrained_r": np.nanmean(untrained[useless]),
                "gain": np.nanmean((trained - untrained)[useless]),
                "normed_gain": np.nanmean((normed - at_first)[useless]),
                "useful_r": np.nanmean(trained[cut:]),
            }
        )
    columns = [
        "task",
        "ablation",
        "seed",
        "accuracy",
        "excess",
        "r",
        "untrained_r",
        "gain",
        "normed_gain",
        "useful_r",
    ]
    return pd.DataFrame(lines, columns=columns)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a task and ablation, the means and intervals of `run_table` in words."""
    runs = run_table(rows)
    lines = []
    for task in NAMES:
        for ablation in ABLATIONS:
            cell = runs[(runs.task == task) & (runs.ablation == ablation)]
            if len(cell):
                shown = {c: with_interval(_over_runs(c, cell[c]), ".2f") for c in SHOWN}
                lines.append(
                    {"task": NAMES[task], "training": ABLATION_NAMES[ablation], "n": len(cell)}
                    | {
                        "accuracy of the first output": shown["accuracy"],
                        "r, useless positions": shown["r"],
                        "gain over untrained": shown["gain"],
                        "gain, unit scale": shown["normed_gain"],
                    }
                )
    return pd.DataFrame(lines)


def cell_values(rows: pd.DataFrame, column: str, task: str, ablation: str) -> pd.Series:
    """A column of `run_table` for one task and ablation, by seed."""
    runs = run_table(rows)
    cell = runs[(runs.task == task) & (runs.ablation == ablation)]
    return cell.set_index("seed")[column]


def minus(rows: pd.DataFrame, column: str, task: str, one: str, other: str) -> Estimate:
    """Mean difference between two ablations over the seeds that both have."""
    a, b = (cell_values(rows, column, task, ablation) for ablation in (one, other))
    return _mean((a - b).dropna())


def _mean(values: pd.Series) -> Estimate:
    return mean_interval(values.tolist()) if len(values) else UNKNOWN


def _over_runs(column: str, values: pd.Series) -> Estimate:
    """`_mean`; the interval of an accuracy ends at 0 and 1."""
    return share_over_runs(values) if column == "accuracy" and len(values) else _mean(values)


def _compared(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the common recipe, without the followed ones."""
    return rows[rows.influence.isna()]


def _runs(rows: pd.DataFrame, task: str, ablation: str) -> int:
    rows = _compared(rows)
    return int(((rows.task == task) & (rows.ablation == ablation)).sum())


def _enough(rows: pd.DataFrame, task: str, ablations: tuple[str, ...]) -> bool:
    return all(_runs(rows, task, ablation) >= LEAST_RUNS for ablation in ablations)


def judge_identity(rows: pd.DataFrame) -> Verdict:
    """C-1: in every trained model the three parts by definition sum to the gradient.

    "reproduced": the error is below 1e-10 of the gradient in every run, and the two-pass scheme
    agrees with the definition as well. "partly": the sum does, the scheme does not.
    """
    if not len(rows):
        return Verdict("not tested here", "No run is recorded.", 0)
    of_sum, of_scheme = rows.sum_error.max(), rows.scheme_error.max()
    if of_sum < MOST_ERROR:
        status = "reproduced" if of_scheme < MOST_ERROR else "partly"
    else:
        status = "not reproduced"
    evidence = (
        f"In {len(rows)} trained models (both tasks, all ablations), at four positions of every "
        "layer in float64, the three parts computed apart by the definition sum to the gradient "
        f"with a relative error of at most {of_sum:.0e}; the two-pass scheme differs from the "
        f"definition by at most {of_scheme:.0e}."
    )
    return Verdict(status, evidence, len(rows))


def judge_useless_needs_either(rows: pd.DataFrame) -> Verdict:
    """C-2: with pre-caching and sharing both off, a useless feature gains nothing; else it does.

    For each task: the plain gain is above 0, and that without either mechanism is lower and not
    above 0.05, each with its whole interval. "reproduced": in both tasks. "partly": in one, or the
    gain is only lower than plain's in both.
    """
    tasks = [t for t in NAMES if _enough(rows, t, ("plain", "both"))]
    if len(tasks) < len(NAMES):
        return Verdict("not tested here", NOT_TESTED, len(rows))
    fails, lower, sentences, n = 0, 0, [], 0
    for task in tasks:
        plain, both = (_mean(cell_values(rows, "gain", task, a)) for a in ("plain", "both"))
        drop = minus(rows, "gain", task, "both", "plain")
        falls = plain.low > 0 and drop.high < 0
        fails += falls and both.high < SMALL
        lower += falls
        n += _runs(rows, task, "plain") + _runs(rows, task, "both")
        sentences.append(
            f"{NAMES[task]}: {with_interval(plain, '.2f')} in plain training and "
            f"{with_interval(both, '.2f')} without both mechanisms"
        )
    status = "not reproduced"
    if fails or lower == len(tasks):
        status = "reproduced" if fails == len(tasks) else "partly"
    evidence = (
        "Gain of the probe's r over the untrained model, mean over useless positions: "
        + "; ".join(sentences)
        + "."
    )
    return Verdict(status, evidence, n)


def judge_precaching_needed(rows: pd.DataFrame) -> Verdict:
    """C-3: without pre-caching Conditioned Majority is learned clearly worse; Majority is not.

    "reproduced": the plain model learns it (accuracy of the first output above 0.95), the myopic
    one falls short of it by more than 0.05 with the whole interval, and on Majority by less than
    that shortfall. "partly": short by more than 0, but not by all of this. "not reproduced": not
    short, though the plain model learned.
    """
    task = "conditioned_majority"
    if not _enough(rows, task, ("plain", "myopic")):
        return Verdict("not tested here", NOT_TESTED, _runs(rows, task, "plain"))
    n = _runs(rows, task, "plain") + _runs(rows, task, "myopic")
    plain, myopic = (
        _over_runs("accuracy", cell_values(rows, "accuracy", task, a)) for a in ("plain", "myopic")
    )
    short = minus(rows, "accuracy", task, "plain", "myopic")
    control = minus(rows, "accuracy", "majority", "plain", "myopic")
    guess = rows.guess_accuracy[rows.task == task].iloc[0]
    evidence = (
        f"Accuracy of the first output of Conditioned Majority: {with_interval(plain, '.3f')} "
        f"plain, {with_interval(myopic, '.3f')} without pre-caching (best constant guess "
        f"{guess:.3f}); difference {with_interval(short, '.3f')}. On Majority the difference is "
        f"{with_interval(control, '.3f')}."
    )
    if plain.value < LEARNED:
        return Verdict("not tested here", f"The plain model did not learn the task. {evidence}", n)
    if short.low > SMALL and control.high < short.low:
        return Verdict("reproduced", evidence, n)
    return Verdict("partly" if short.low > 0 else "not reproduced", evidence, n)


def judge_sharing_carries(rows: pd.DataFrame) -> Verdict:
    """C-4: with pre-caching off, sharing alone builds Majority's feature where it is useless.

    In Majority the feature is useful at the outputs. "reproduced": the myopic model gains at
    useless positions, and more than the one whose sharing is off too, both with the whole interval.
    "partly": only one of the two.
    """
    task = "majority"
    if not _enough(rows, task, ("myopic", "both")):
        return Verdict("not tested here", NOT_TESTED, _runs(rows, task, "myopic"))
    n = _runs(rows, task, "myopic") + _runs(rows, task, "both")
    alone, neither = (_mean(cell_values(rows, "gain", task, a)) for a in ("myopic", "both"))
    more = minus(rows, "gain", task, "myopic", "both")
    held = (alone.low > 0) + (more.low > 0)
    status = ("not reproduced", "partly", "reproduced")[held]
    evidence = (
        "Majority, gain of the probe's r over the untrained model at useless positions: "
        f"{with_interval(alone, '.2f')} with sharing alone, {with_interval(neither, '.2f')} with "
        f"neither mechanism, difference {with_interval(more, '.2f')}."
    )
    return Verdict(status, evidence, n)


def probe_curves(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    """r by position for each ablation, and for the untrained models.

    Returns:
        Columns training (a name of `ABLATION_NAMES`, or "untrained"), seed, layer, position, r.
    """
    lines = []
    for _, row in _compared(rows[rows.task == task]).iterrows():
        ways = {ABLATION_NAMES[row.ablation]: row.probe_r}
        if row.ablation == "plain":
            ways["untrained"] = row.untrained_r
        for way, table in ways.items():
            for layer, by_position in enumerate(table):
                for position, r in enumerate(by_position):
                    if r is not None and np.isfinite(r):
                        lines.append((way, row.seed, layer, position, r))
    return pd.DataFrame(lines, columns=["training", "seed", "layer", "position", "r"])


def influence_table(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    """Integrated influences of Adam's steps in a task's tracked runs.

    Returns:
        Columns task, seed, layer, position, part, share (of the mismatch at the start).
    """
    lines = []
    for _, row in rows[(rows.task == task) & rows.influence.notna()].iterrows():
        table = row.influence[RULES.index("adam")]
        for k, by_position in enumerate(table):
            for i, parts in enumerate(by_position):
                for part, value in zip(PARTS, parts, strict=True):
                    start = row.mismatch[k][i]
                    lines.append((row.task, row.seed, k + 1, row.tracked[i], part, value / start))
    columns = ["task", "seed", "layer", "position", "part", "share"]
    return pd.DataFrame(lines, columns=columns)


def by_training(
    rows: pd.DataFrame, column: str
) -> dict[str, tuple[list[str], list[Estimate], list[list[float]]]]:
    """A column of `run_table`, for a figure with a line a way of training.

    Returns:
        task's name → (names of the ways of training, mean and interval of each, its runs).
    """
    groups = {}
    for task in _compared(rows).task.unique():
        runs = [cell_values(rows, column, task, ablation) for ablation in ABLATIONS]
        groups[NAMES[task]] = (
            [ABLATION_NAMES[ablation] for ablation in ABLATIONS],
            [_over_runs(column, values) for values in runs],
            [values.tolist() for values in runs],
        )
    return groups


def guesses(rows: pd.DataFrame) -> dict[str, float]:
    """Accuracy of the best constant guess in each task."""
    first = rows.groupby("task", sort=False).guess_accuracy.first()
    return {f"guess, {NAMES[task]}": float(value) for task, value in first.items()}


def by_task(
    rows: pd.DataFrame, table: Callable[[pd.DataFrame, str], pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """A table of each task under its name; those of both tasks where nothing is recorded."""
    return {
        NAMES[task]: table(rows, task) for task in NAMES if task in set(rows.task) or rows.empty
    }


def influence_sentence(rows: pd.DataFrame) -> str:
    """What the parts add up to, against the mismatch that training took away."""
    tracked = rows[rows.influence.notna()] if len(rows) else rows
    if not len(tracked):
        return "No run is followed yet."
    totals = pd.concat([influence_table(tracked, task) for task in tracked.task.unique()])
    total = totals.groupby(["task", "seed", "layer", "position"]).share.sum()
    return (
        f"In {len(tracked)} followed runs the three parts of Adam's steps add up to "
        f"{total.median():.2f} times the mismatch at the start (median over {len(total)} sites, "
        f"from {total.min():.2f} to {total.max():.2f}). Were steps infinitely small and the batch "
        "always the same, it would be 1 at every site."
    )
