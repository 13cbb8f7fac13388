"""One cell of the linear-map experiments: a training run on `LinearMap`, and the row it leaves.

The paper fixes the shape (1 layer, d_model 128, 8 heads, MLP 512, 10,000 steps; fact sheet A2) and
leaves optimizer, learning rate, batch and initialisation open. The defaults here are what the
recorded search chose (experiment `linear_map_search`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from emergence_lib.analysis.emergence import Event, level, plateau_length
from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Point
from emergence_lib.models import ModelConfig
from emergence_lib.tasks import LinearMap
from emergence_lib.tasks.base import require_int
from emergence_lib.training import Observer, Run, TrainConfig, train
from emergence_lib.training.train import step_generator

UNIFORM_LOSS = math.log(2)
"""Loss in nats of an untrained guess on binary tokens: the height of the plateau."""

STOP_MARGIN = 0.002
"""A run is solved within this many nats of the floor; one unlearned row costs ln 2/(2S-1), ≥ .011
at S = 32."""

CURVE_SCHEMA = {
    "eval_steps": "list of int: evaluation steps",
    "eval_loss": "list of float: held-out loss in nats at those steps, over all 2S-1 predictions",
    "stopped_at": "int: last training step",
    "solved": "bool: the loss came within 0.002 nats of the floor and training stopped",
    "plateau_end": "int or null: first of two evaluations in a row below `plateau_level`",
    "final_loss": "float: last held-out loss in nats",
    "row_accuracy": "list of float: final accuracy of each output bit; 0.5 is chance",
}


@dataclass(frozen=True)
class LinearMapCell:
    """Parameters of one run; the sizes are the paper's, the recipe is the recorded search's.

    Raises (when used):
        ParameterError: from the task, model or training settings it is turned into.
    """

    state_size: int = 16
    row_weight: int = 3
    attention_bias: float = 0.0
    d_model: int = 128
    n_heads: int = 8
    steps: int = 10_000
    batch_size: int = 16
    lr: float = 1e-3
    muon_lr: float | None = 0.005
    init_std: float = 0.09
    embed_std: float = 1.0
    eval_every: int = 100

    def task(self, seed: int) -> LinearMap:
        """The map of this seed: like the data and weights, the matrix changes with the seed."""
        return LinearMap(self.state_size, self.row_weight, matrix_seed=seed)

    def model_config(self) -> ModelConfig:
        return ModelConfig(
            n_layers=1,
            d_model=self.d_model,
            n_heads=self.n_heads,
            vocab_size=2,
            max_pos=2 * self.state_size - 1,
            init_std=self.init_std,
            embed_std=self.embed_std,
        )

    def train_config(self, seed: int) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            muon_lr=self.muon_lr,
            attention_bias=self.attention_bias,
            eval_every=self.eval_every,
            eval_batch_size=256,
            stop_margin=STOP_MARGIN,
            seed=seed,
        )

    def validate(self) -> None:
        """Raise `ParameterError` now rather than in the middle of a sweep."""
        self.task(0)
        self.model_config()
        self.train_config(0)

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self)

    def train(self, seed: int, device: str, observers: Sequence[Observer] = ()) -> Run:
        return train(
            self.task(seed),
            self.model_config(),
            self.train_config(seed),
            observers=observers,
            device=device,
        )


@dataclass(frozen=True)
class ShapedLinearMapCell(LinearMapCell):
    """A cell that varies the model's shape too.

    Apart from `LinearMapCell`, whose parameters are the keys of recorded points.
    """

    n_layers: int = 1
    d_head: int | None = None

    def model_config(self) -> ModelConfig:
        return replace(
            super().model_config(),
            n_layers=self.n_layers,
            d_head=self.d_head or self.d_model // self.n_heads,
        )


def plateau_level(task: LinearMap) -> float:
    """Loss in nats below which a plateau is over: half an output row has been learned.

    Half a row rather than a share of the whole way, which would ask for more rows the larger S is.
    """
    return level(UNIFORM_LOSS, task.floor, 0.5 / task.state_size)


def curve_row(cell: LinearMapCell, run: Run, seed: int) -> dict[str, Any]:
    """The columns of `CURVE_SCHEMA` for a finished run."""
    task = cell.task(seed)
    batch = task.sample(2048, step_generator(seed, "final"))
    device = next(run.model.parameters()).device
    bias = cell.attention_bias * task.attention_target().float().to(device)  # 0 changes nothing
    with torch.no_grad():
        parts = batch.tokens[:, :-1].to(device).split(256)  # all at once takes 150 MB more
        logits = torch.cat([run.model(part, attn_bias=bias).cpu() for part in parts])
    return {
        **curve_columns(run, plateau_level(task)),
        "row_accuracy": rounded(task.row_accuracy(logits, batch).numpy(), 4),
    }


def curve_columns(run: Run, threshold: float) -> dict[str, Any]:
    """The columns that any task has: all of `CURVE_SCHEMA` up to final_loss.

    Args:
        threshold: loss in nats below which the plateau is over.
    """
    loss = run.metric("loss")
    plateau = plateau_length(loss, threshold, sustain=2)
    return {
        "eval_steps": loss.index.tolist(),
        "eval_loss": rounded(loss.to_numpy(), 5),
        "stopped_at": run.stopped_at,
        "solved": run.solved,
        "plateau_end": plateau.step if plateau.observed else None,
        "final_loss": float(loss.iloc[-1]),
    }


def run_cell(point: Point, device: str) -> dict[str, Any]:
    """Train the cell of a point with its seed: the `run` of experiments that keep only the curve.

    Returns:
        The columns of `CURVE_SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell = LinearMapCell(**point.params)
    return curve_row(cell, cell.train(point.seed, device), point.seed)


def plateau_event(row: pd.Series) -> Event:
    """The end of the plateau of a recorded row, censored where none was seen."""
    seen = not pd.isna(row["plateau_end"])
    return Event(float(row["plateau_end"] if seen else row["stopped_at"]), seen)


def solve_event(row: pd.Series) -> Event:
    """When a recorded run reached the floor, censored where it did not."""
    return Event(float(row["stopped_at"]), bool(row["solved"]))


def rounded(values: np.ndarray, decimals: int) -> list[Any]:
    """Nested lists short enough to store; `decimals` lie far below any noise of the measure."""
    return np.round(values.astype(float), decimals).tolist()


def int_tuple(name: str, values: object, low: int, high: int) -> tuple[int, ...]:
    """One integer or several (papermill passes lists) as a sorted tuple within low … high.

    Raises:
        ParameterError: nothing given, or a value that is not an integer in the range.
    """
    allowed = f"an integer or a list of integers from {low} to {high}"
    given = _listed(name, values, allowed, f"[{low}, {high}]")
    for value in given:
        require_int(name, value, low, high)
    return tuple(sorted(set(given)))


def float_tuple(name: str, values: object) -> tuple[float, ...]:
    """One number or several as a tuple without repeats, in the order given.

    Raises:
        ParameterError: nothing given, or a value that is not a number.
    """
    given = _listed(name, values, "a number or a list of numbers", "[0.0, 4.0]")
    return tuple(dict.fromkeys(as_float(name, value) for value in given))


def rate_tuple(name: str, values: object) -> tuple[float | None, ...]:
    """`float_tuple` in which None, "AdamW alone", is a value too."""
    allowed = "a number, None or a list of these"
    given = _listed(name, values, allowed, "[0.005, null]")  # -y reads YAML
    return tuple(dict.fromkeys(as_rate(name, value) for value in given))


def as_float(name: str, value: object) -> float:
    """A number as a float, so that 4 and 4.0 are the same point.

    Raises:
        ParameterError: not a number; whether it is in range is for its user to say.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterError(name, value, "a number")
    return float(value)


def as_rate(name: str, value: object) -> float | None:
    """A learning rate as a float; None stays None."""
    return None if value is None else as_float(name, value)


def _listed(name: str, values: object, allowed: str, example: str) -> list[Any]:
    if isinstance(values, str):  # what papermill's -p makes of a list
        advice = f"For example: -y '{name}: {example}'"
        raise ParameterError(name, values, f"{allowed}; with papermill pass it by -y", advice)
    listed = list(values) if isinstance(values, Iterable) else [values]
    if not listed:
        raise ParameterError(name, values, "at least one value")
    return listed
