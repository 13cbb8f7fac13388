"""The models whose latents are looked at: a small language model, a toy task, the pocket suite.

    pile                3 layers of width 64 on PocketPile, trained here
    majority            2 layers on paper C's toy tasks, trained here; windows of 20 tokens
    conditioned_majority
    pocket 442k         a model of the pocket suite, of which the book ships checkpoints

All are asked for the same things by `q_ratio_cell`. What has no sense for one (the text that a
token belongs to, in a toy task) or is not known (integrated influence, where training is AdamW with
clipping) it leaves out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import torch

from emergence_lib.errors import UnknownNameError
from emergence_lib.experiments.pocket_suite import train_checkpoints
from emergence_lib.experiments.text_cell import EVAL_WINDOWS, TextCell
from emergence_lib.models import ModelConfig
from emergence_lib.models.pocket import (
    CONTEXT,
    POCKET_SIZES,
    checkpoint_steps,
    load_pocket,
    pocket_config,
)
from emergence_lib.tasks import ConditionedMajority, Majority
from emergence_lib.tasks.base import Batch, Task
from emergence_lib.tasks.corpus import VOCAB_SIZE, PocketPile
from emergence_lib.training import Run
from emergence_lib.training.train import masked_loss, step_generator

TOYS: dict[str, type[Majority]] = {task.name: task for task in (Majority, ConditionedMajority)}
POCKET = {f"pocket {size}": size for size in POCKET_SIZES}
CORPORA = ("pile", *TOYS, *POCKET)

POCKET_CHECKPOINTS = (0, 960, 1_080, 1_100, 1_220, 2_860)
"""Steps over which "training" is summed: those that are shipped, and that every run has."""


@dataclass(frozen=True)
class ToyModel(TextCell):
    """A toy task with the recipe of the text runs; its held-out sequences are fresh ones."""

    def task(self, split: str = "train") -> Task:
        return TOYS[self.corpus]()


@dataclass(frozen=True)
class PocketModel:
    """A run of the pocket suite, read from its checkpoints and trained only where they miss."""

    corpus: str

    @property
    def size(self) -> str:
        return POCKET[self.corpus]

    @property
    def n_layers(self) -> int:
        return self.model_config().n_layers

    @property
    def window(self) -> int:
        return CONTEXT

    def task(self, split: str = "train") -> Task:
        return PocketPile(CONTEXT + 1, split)

    def model_config(self) -> ModelConfig:
        return pocket_config(self.size, VOCAB_SIZE)

    def held_out(self, n_windows: int, stream: str) -> Batch:
        """Windows that are not trained on."""
        return self.task("held out").sample(n_windows, step_generator(0, stream))

    def validate(self) -> None:
        """Nothing to check: a known corpus is a possible model."""

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self)

    def train(self, seed: int, device: str) -> Run:
        """The finished run; minutes of training where its checkpoints are not on this machine."""
        if set(POCKET_CHECKPOINTS) - set(checkpoint_steps(self.size, seed)):
            train_checkpoints(self.size, seed)
        last = POCKET_CHECKPOINTS[-1]
        model = load_pocket(self.size, seed, last).to(device)
        batch = self.held_out(EVAL_WINDOWS, "eval").to(device)
        with torch.no_grad():
            loss = float(masked_loss(model(batch.tokens[:, :-1]), batch))
        table = pd.DataFrame({"step": [last], "metric": ["loss"], "value": [loss]})
        kept = {s: load_pocket(self.size, seed, s).state_dict() for s in POCKET_CHECKPOINTS}
        return Run(table, model, last, False, dict(kept))


Model = TextCell | PocketModel


def model_of(corpus: str, **settings: Any) -> Model:
    """The model of a corpus.

    Args:
        settings: of `TextCell`; a model of the pocket suite has its own and takes none of them.

    Raises:
        UnknownNameError: no such corpus.
    """
    if corpus not in CORPORA:
        raise UnknownNameError("corpus", corpus, CORPORA)
    if corpus in POCKET:
        return PocketModel(corpus)
    if corpus in TOYS:
        toy = TOYS[corpus]()
        return ToyModel(corpus, **settings | {"n_layers": 2, "window": toy.seq_len - 1})
    return TextCell(corpus, **settings)


def model_from(params: dict[str, Any]) -> Model:
    """The model whose `params` these are."""
    if params["corpus"] in POCKET:
        return PocketModel(**params)
    return (ToyModel if params["corpus"] in TOYS else TextCell)(**params)
