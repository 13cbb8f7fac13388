"""One run of the collapse experiments: a model on the algorithmic tasks, and the row it leaves.

At every checkpoint and for every task-level: accuracy, loss, and the effective rank of the hidden
states at the last prompt token, at every layer (`analysis.geometry`). The same sequences are looked
at each time, all different, equally many of each task-level. With as few inputs as the smallest
task-levels have (81 products of one digit), training sees every one of them: accuracy here says
whether a task-level is learned, not whether it generalises.

Paper B (arXiv 2602.15997; fact sheet B1) gives AdamW and a cosine schedule; learning rate, batch
and steps are not known to us. Muon for the mixers' matrices is our choice, which acquires more
task-levels in the minutes that a run may take here; runs with AdamW alone are recorded beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from emergence_lib.analysis.emergence import Event, acquisition
from emergence_lib.analysis.geometry import RankObserver, unpack
from emergence_lib.analysis.precursor import Case
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.base import Point
from emergence_lib.experiments.linear_map_cell import rounded
from emergence_lib.models.shapes import algorithmic_config
from emergence_lib.models.transformer import ModelConfig, Transformer
from emergence_lib.tasks import MultiTask
from emergence_lib.tasks.algorithmic import ALGORITHMS, exact_match
from emergence_lib.tasks.base import Batch, require_int
from emergence_lib.training import TrainConfig, train
from emergence_lib.training.schedule import log_schedule
from emergence_lib.training.train import step_generator

ALL = "all"
"""`CollapseCell.tasks` of a model that learns all eight tasks."""

SUSTAIN = 3
"""Checkpoints in a row that accuracy has to stay above its threshold (fact sheet B1)."""

COLLAPSE_SCHEMA = {
    "task_levels": 'list of str: "COPY 1", …, in the order of the lists below',
    "checkpoints": "list of int: training steps looked at; 0 is the untrained model",
    "accuracy": "list of list of float [task-level][checkpoint]: exact match, 0 to 1",
    "loss": "list of list of float [task-level][checkpoint]: nats an answer token",
    "rankme": "list of list of list of float [task-level][layer - 1][checkpoint]: uncentred",
    "rankme_centred": "the same shape: effective rank of the covariance's eigenvalues",
    "n_params": "int: trained parameters",
}


@dataclass(frozen=True)
class CollapseCell:
    """Parameters of one run.

    Args:
        size: a key of `models.shapes.ALGORITHMIC_SIZES`.
        tasks: "all", or names of `ALGORITHMS` joined by "+"; one alone is trained by itself.
        shuffled: train on answers of other sequences, the control with nothing to learn.
        steps, batch_size, lr, muon_lr, warmup_steps: see `TrainConfig`; the rates fall along a
            cosine to a tenth.
        n_checkpoints: about how many, evenly in log(step): dense early.
        samples: sequences of each task-level that every checkpoint is looked at with.

    Raises (when used):
        ParameterError, UnknownNameError: from the task, model or training settings.
    """

    size: str = "405k"
    tasks: str = ALL
    shuffled: bool = False
    steps: int = 5_000
    batch_size: int = 64
    lr: float = 2e-3
    muon_lr: float | None = 0.01
    warmup_steps: int = 50
    n_checkpoints: int = 80
    samples: int = 80

    def task(self) -> MultiTask:
        names = ALGORITHMS if self.tasks == ALL else self.tasks.split("+")
        return MultiTask(tuple(names), self.shuffled)

    def model_config(self) -> ModelConfig:
        return algorithmic_config(self.size, self.task().vocab_size)

    def train_config(self, seed: int) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            final_lr=0.1,
            muon_lr=self.muon_lr,
            warmup_steps=self.warmup_steps,
            seed=seed,
        )

    def validate(self) -> None:
        """Raise `ParameterError` now rather than in the middle of a sweep."""
        require_int("samples", self.samples, 2)
        log_schedule(self.steps, self.n_checkpoints)
        self.model_config()
        self.train_config(0)

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self)


class LevelObserver:
    """Records accuracy (exact match) and loss of every task-level: ``accuracy.g``, ``loss.g``."""

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Float[Tensor, "batch pos vocab"],
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        level = batch.labels["task_level"]
        n = level.bincount()
        right = level.bincount(exact_match(logits, batch).double()) / n
        losses = F.cross_entropy(logits.mT, batch.tokens[:, 1:], reduction="none")
        counted = batch.loss_mask.double()
        loss = level.bincount((losses * counted).sum(1)) / level.bincount(counted.sum(1))
        return {f"accuracy.{g}": value for g, value in enumerate(right.tolist())} | {
            f"loss.{g}": value for g, value in enumerate(loss.tolist())
        }


def run_collapse(point: Point, device: str) -> dict[str, Any]:
    """Train the cell of a point with its seed and look at it at every checkpoint.

    Returns:
        The columns of `COLLAPSE_SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell = CollapseCell(**point.params)
    task, config = cell.task(), cell.model_config()
    layers = range(1, config.n_layers + 1)
    run = train(
        task,
        config,
        cell.train_config(point.seed),
        observers=[LevelObserver(), RankObserver("task_level", layers)],
        evaluations=log_schedule(cell.steps, cell.n_checkpoints),
        eval_batch=task.balanced(cell.samples, step_generator(point.seed, "eval")),
        device=device,
    )
    levels = range(len(task.parts))
    ranks = {name: unpack(run.trajectory, name) for name in ("rankme", "rankme_centred")}
    return {
        "task_levels": [part.label for part in task.parts],
        "checkpoints": run.metric("accuracy").index.tolist(),
        "accuracy": [rounded(run.metric(f"accuracy.{g}").to_numpy(), 4) for g in levels],
        "loss": [rounded(run.metric(f"loss.{g}").to_numpy(), 5) for g in levels],
        "n_params": sum(p.numel() for p in run.model.parameters()),
        **{
            name: [[rounded(table[layer, g].to_numpy(), 4) for layer in layers] for g in levels]
            for name, table in ranks.items()
        },
    }


# --- reading a recorded row -------------------------------------------------------------------


def curve(row: pd.Series, column: str, level: str) -> pd.Series:
    """Accuracy or loss of one task-level over training steps.

    Args:
        row: one recorded run.
        column: "accuracy" or "loss".
        level: one of its `task_levels`.

    Raises:
        UnknownNameError: the run has no such task-level.
    """
    return pd.Series(np.asarray(row[column][_index(row, level)]), index=_steps(row), name=column)


def rank_curve(
    row: pd.Series, level: str, layer: int | None = None, centred: bool = False
) -> pd.Series:
    """Effective rank of one task-level over training steps.

    Args:
        row: one recorded run.
        level: one of its `task_levels`.
        layer: from 1; None is the last, the paper's.
        centred: see `analysis.geometry`.

    Raises:
        UnknownNameError: the run has no such task-level.
        ParameterError: the model has no such layer.
    """
    by_layer = row["rankme_centred" if centred else "rankme"][_index(row, level)]
    if layer is None:
        layer = len(by_layer)
    if not 1 <= layer <= len(by_layer):
        raise ParameterError("layer", layer, f"from 1 to {len(by_layer)}")
    return pd.Series(np.asarray(by_layer[layer - 1]), index=_steps(row), name="rankme")


def acquired(row: pd.Series, level: str, corrected: bool = True) -> Event:
    """When a task-level was acquired: accuracy above a threshold for three checkpoints.

    Args:
        corrected: the threshold is halfway from chance to 1, else the paper's 0.5, which is the
            chance level of CMP and PAR.
    """
    threshold = (1 + chance_levels()[level]) / 2 if corrected else 0.5
    return acquisition(curve(row, "accuracy", level), threshold, SUSTAIN)


def cases(
    row: pd.Series, layer: int | None = None, centred: bool = False, corrected: bool = True
) -> dict[str, Case]:
    """Task-level → its rank over training and its acquisition, of one run."""
    return {
        level: Case(rank_curve(row, level, layer, centred), acquired(row, level, corrected))
        for level in row["task_levels"]
    }


@cache
def chance_levels() -> Mapping[str, float]:
    """Task-level → accuracy of the best answer that ignores the operands."""
    return MappingProxyType({part.label: part.chance for part in MultiTask().parts})


def multi_task(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs on all tasks with their true answers and the common optimizer."""
    return rows[(rows.tasks == ALL) & ~rows.shuffled.astype(bool) & rows.muon_lr.notna()]


def _index(row: pd.Series, level: str) -> int:
    levels = list(row["task_levels"])
    if level not in levels:
        raise UnknownNameError("task-level", level, levels)
    return levels.index(level)


def _steps(row: pd.Series) -> list[int]:
    return [int(step) for step in row["checkpoints"]]
