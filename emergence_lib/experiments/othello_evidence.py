"""What the Othello runs say about claims C-5 and C-6: judges and the tables behind the figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from emergence_lib.analysis.gradients import PARTS
from emergence_lib.analysis.survival import Estimate, mean_interval
from emergence_lib.experiments.base import Verdict
from emergence_lib.experiments.evidence import over_runs, with_interval

KINDS = ("useful", "useless")
LEAST_RUNS = 3
LEAST_LEGAL = 0.8
"""Legal-move accuracy below which a run has not learned the game and tests nothing."""

PART_WORDS = {"direct": "direct", "precached": "pre-cached", "shared": "shared"}
UNITS = {
    "runs": "influence_by_layer",
    "squares": "influence_by_square",
    "positions": "influence_by_position",
    "games": "influence_by_game",
}
"""What an interval is over, and the column that has a value of each."""


def by_layer(row: pd.Series, column: str) -> np.ndarray:
    """A ``[layer][pos]`` column as its mean over positions, a value a layer."""
    return _mean_of_known(as_floats(row[column]).T)


def as_floats(nested: Any) -> np.ndarray:
    """Nested lists, as the store gives them back, as an array; null is NaN."""
    if isinstance(nested, list | tuple | np.ndarray):
        return np.array([as_floats(value) for value in nested])
    return np.array(np.nan if nested is None else float(nested))


def read_best(row: pd.Series, model: str) -> dict[str, float]:
    """Accuracy on useful and useless squares at the layer where their mean is best.

    Args:
        model: "probe" for the trained model, "untrained" for the one before training.
    """
    layers = {kind: by_layer(row, f"{model}_{kind}") for kind in KINDS}
    best = int(np.argmax(layers["useful"] + layers["useless"]))
    return {kind: float(values[best]) for kind, values in layers.items()}


def accuracy_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of the probes over layers.

    Returns:
        Columns model ("trained", "untrained"), kind, layer, n (runs), value, low, high (mean over
        runs with its 95 % interval, NaN for fewer than three runs).
    """
    lines = []
    for label, model in (("trained", "probe"), ("untrained", "untrained")):
        for kind in KINDS:
            runs = np.array([by_layer(row, f"{model}_{kind}") for _, row in rows.iterrows()])
            lines += [
                (label, kind, layer, len(runs), *over_runs(values))
                for layer, values in enumerate(runs.T)
            ]
    columns = ["model", "kind", "layer", "n", "value", "low", "high"]
    return pd.DataFrame(lines, columns=columns)


def guess_accuracy(rows: pd.DataFrame) -> dict[str, float]:
    """Mean accuracy of naming the likelier owner of each square, by kind."""
    return {
        kind: over_runs(float(_mean_of_known(as_floats(v))) for v in rows[f"guess_{kind}"]).value
        for kind in KINDS
    }


def influence_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Integrated influence of each part on each kind of square, with intervals over four units.

    Returns:
        Columns unit (a key of `UNITS`), part, kind, n (units), value, low, high. Runs are
        independent trainings; squares and positions are averaged over runs first; games are those
        of all runs.
    """
    lines = []
    for unit in UNITS:
        for part in PARTS:
            for kind in KINDS:
                values = _values(rows, unit, PARTS.index(part), KINDS.index(kind))
                lines.append((unit, part, kind, len(values), *over_runs(values.tolist())))
    columns = ["unit", "part", "kind", "n", "value", "low", "high"]
    return pd.DataFrame(lines, columns=columns)


def _values(rows: pd.DataFrame, unit: str, part: int, kind: int) -> np.ndarray:
    """One number a unit."""
    if not len(rows):
        return np.empty(0)
    runs = np.array([as_floats(value)[part, kind] for value in rows[UNITS[unit]]])
    if unit == "runs":
        return runs.mean(axis=1)
    values = runs.flatten() if unit == "games" else _mean_of_known(runs)
    return values[np.isfinite(values)]


def _mean_of_known(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis of what is finite; NaN where nothing is."""
    known = np.isfinite(values)
    return np.where(known, values, 0).sum(0) / np.where(known.any(0), known.sum(0), np.nan)


def example(row: pd.Series) -> dict[str, np.ndarray]:
    """The drawn game of a run: state, useful, readout, legal and probability by square."""
    names = ("state", "useful", "readout", "legal", "probability")
    return {name: np.asarray(row[f"example_{name}"]) for name in names}


def legal_sentence(rows: pd.DataFrame) -> str:
    """How well the runs play; "" without any."""
    if not len(rows):
        return ""
    legal = over_runs(rows.legal_accuracy)
    gap = over_runs([row.eval_loss[-1] - row.floor for _, row in rows.iterrows()])
    size, steps = int(rows["size"].iloc[0]), int(rows.steps.iloc[0])
    return (
        f"On the {size} × {size} board, after {steps:,} steps, {with_interval(legal, '.1%')} of "
        f"the predicted moves are legal (n = {len(rows)} runs); the loss is "
        f"{with_interval(gap, '.2f')} nats above that of the uniform prediction over legal moves."
    )


def intervention_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of the changed moves predicted as if a disc were turned, by layer and kind of edit.

    Returns:
        Columns layer, unedited, edited, random: means over runs.
    """
    lines = [
        (layer, row.followed_unedited, edited, random)
        for _, row in rows.iterrows()
        for layer, (edited, random) in enumerate(
            zip(row.followed_edited, row.followed_random, strict=True)
        )
    ]
    table = pd.DataFrame(lines, columns=["layer", "unedited", "edited", "random"])
    return table.astype({"layer": int}).groupby("layer", as_index=False).mean()


def intervention_sentence(rows: pd.DataFrame) -> str:
    """What turning a disc over does at the layer where it does most."""
    if not len(rows):
        return "Nothing is recorded yet."
    layer = int(intervention_table(rows).edited.argmax())
    edited, random = (
        over_runs([as_floats(v)[layer] for v in rows[f"followed_{kind}"]])
        for kind in ("edited", "random")
    )
    return (
        f"Of the moves that a turned disc changes, the unedited model has "
        f"{with_interval(over_runs(rows.followed_unedited), '.1%')} as on the turned board, which "
        f"are its errors. Moving the stream along the probe's direction after block {layer} makes "
        f"it {with_interval(edited, '.1%')}, moving it as far in a random direction "
        f"{with_interval(random, '.1%')} (n = {len(rows)} runs)."
    )


def judge_useless_squares(rows: pd.DataFrame) -> Verdict:
    """C-5: useless squares are represented, but worse than useful ones.

    By the accuracy of linear probes at each model's best layer, over the same squares and positions
    for both kinds. "reproduced", each with its whole interval over runs:

    1. useless squares are read better than in the model before training,
    2. useful squares are read better than useless ones, and
    3. they are so by more than before training: some discs are easier to infer for any model.

    "partly": 1 or 2 holds. Fewer than three runs that play legally test nothing.
    """
    rows = learned(rows)
    if len(rows) < LEAST_RUNS:
        return _too_few()
    trained, untrained = (
        pd.DataFrame([read_best(row, model) for _, row in rows.iterrows()])
        for model in ("probe", "untrained")
    )
    built = mean_interval(trained.useless - untrained.useless)
    gap = mean_interval(trained.useful - trained.useless)
    gap_before = mean_interval(untrained.useful - untrained.useless)
    grown = mean_interval(
        (trained.useful - trained.useless) - (untrained.useful - untrained.useless)
    )
    if built.low > 0 and gap.low > 0 and grown.low > 0:
        status = "reproduced"
    else:
        status = "partly" if built.low > 0 or gap.low > 0 else "not reproduced"
    evidence = (
        f"Probes read the owner of {_percent(trained.useful)} of the useful squares and of "
        f"{_percent(trained.useless)} of the useless ones, before training of "
        f"{_percent(untrained.useful)} and {_percent(untrained.useless)}. Training adds "
        f"{_points(built)} points on useless squares; useful ones are {_points(gap)} points "
        f"better read, before training {_points(gap_before)} (the difference grows by "
        f"{_points(grown)}). {legal_sentence(rows)}"
    )
    return Verdict(status, evidence, len(rows))


def judge_influence(rows: pd.DataFrame) -> Verdict:
    """C-6: direct builds useful squares only; pre-cached and shared build useless ones.

    By integrated influence, averaged over layers, positions and squares, with intervals over runs.
    Three statements, each with its whole interval:

    1. direct is above 0 on useful squares and not above 0 on useless ones,
    2. pre-cached is above 0 on useless squares,
    3. shared is above 0 on useless squares.

    "reproduced": all three; "partly": some; "not reproduced": none. Fewer than three runs that play
    legally test nothing.
    """
    rows = learned(rows)
    if len(rows) < LEAST_RUNS:
        return _too_few()
    table = influence_table(rows).set_index(["unit", "part", "kind"]).loc["runs"]

    def above(part: str, kind: str) -> bool:
        return bool(table.loc[(part, kind), "low"] > 0)

    holds = [
        above("direct", "useful") and not above("direct", "useless"),
        above("precached", "useless"),
        above("shared", "useless"),
    ]
    status = "reproduced" if all(holds) else "partly" if any(holds) else "not reproduced"
    lines = [
        f"{PART_WORDS[part]} "
        + " and ".join(with_interval(_estimate(table.loc[(part, kind)]), ".2f") for kind in KINDS)
        for part in PARTS
    ]
    before = np.mean([as_floats(v) for v in rows.mismatch], axis=0)
    evidence = (
        f"Integrated influence on useful and on useless squares: {'; '.join(lines)} (squared "
        f"units of the board; the mismatch before training is {before[0]:.2f} and "
        f"{before[1]:.2f}). {_direct_in_words(above)} {legal_sentence(rows)}"
    )
    return Verdict(status, evidence, len(rows))


def _direct_in_words(above: Callable[[str, str], bool]) -> str:
    """What the direct part does, since it decides most readings of the claim."""
    if not above("direct", "useful"):
        return "The direct part is not shown to build useful squares."
    if above("direct", "useless"):
        return "The direct part builds useless squares too."
    return "The direct part is shown to build useful squares only."


def learned(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs that play legally enough to be asked what they represent."""
    return rows[rows.legal_accuracy >= LEAST_LEGAL]


def _too_few() -> Verdict:
    return Verdict(
        "not tested here",
        f"At least {LEAST_RUNS} runs of which {LEAST_LEGAL:.0%} of the moves are legal are needed.",
        0,
    )


def _estimate(line: pd.Series) -> Estimate:
    return Estimate(line["value"], line["low"], line["high"])


def _percent(values: pd.Series) -> str:
    return with_interval(mean_interval(values), ".1%")


def _points(estimate: Estimate) -> str:
    """Differences of shares in percentage points."""
    return with_interval(Estimate(*(100 * x for x in estimate)), ".1f")
