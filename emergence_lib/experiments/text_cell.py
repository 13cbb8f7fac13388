"""One small language model of paper C's text experiments: how it is trained, and what builds it.

The paper trains 4 layers of d_model 128 for 1,000 steps of 256 windows (fact sheet C5). The
defaults here are smaller, so that a run with its influences fits in a minute and a half on one
core. Adam is plain, without clipping or decay, as the split of its steps asks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.analysis.gradients import Site
from emergence_lib.analysis.influence import Directions, Tracker
from emergence_lib.errors import UnknownNameError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks.base import Batch, Task, require_int
from emergence_lib.tasks.corpus import PocketPile, corpus_provenance
from emergence_lib.tasks.stories import PARTS_OF_SPEECH, ROLES
from emergence_lib.tasks.story_windows import StoryWindows
from emergence_lib.tasks.tinystories import TinyStories
from emergence_lib.training import Run, TrainConfig, train
from emergence_lib.training.train import step_generator

CORPORA: dict[str, type[StoryWindows] | type[PocketPile]] = {
    "stories": StoryWindows,
    "tinystories": TinyStories,
    "pile": PocketPile,
}
"""TinyStories is the paper's text; it needs a network and spaCy, and no recorded run uses it."""
EVAL_WINDOWS = 128

TAGS = (
    "noun",
    "proper noun",
    "verb",
    "determiner",
    "numeral",
    "adposition",
    "adjective",
    "pronoun",
    "adverb",
    "conjunction",
)
"""The ten commonest parts of speech that are words."""

DEPENDENCIES = (
    "subject",
    "root",
    "determiner",
    "object",
    "oblique",
    "modifier",
    "case",
    "coordinator",
    "conjunct",
    "auxiliary",
)
"""The paper's ten dependency labels, in our stories' names for them."""

FEATURES = (
    *(f"tag: {name}" for name in TAGS),
    *(f"role: {name}" for name in DEPENDENCIES),
    "story: index",
    "story: share",
)
"""Feature names, in the order of every list; "story: index" counts tokens since the story began,
"story: share" is the share of the story's characters that lies before the token."""

PROBED = range(30, 40)
"""Input positions that probes are fitted and read at (paper C)."""


@dataclass(frozen=True)
class TextCell:
    """Parameters of one run.

    Args:
        corpus: a key of `CORPORA`.
        window: input positions.
        track_every: training steps from one measurement of influence to the next.
        myopic: train with myopic gradients.

    Raises (when used):
        ParameterError: from the task, model or training settings it is turned into.
        UnknownNameError: no such corpus.
    """

    corpus: str
    n_layers: int = 3
    d_model: int = 64
    n_heads: int = 4
    window: int = 64
    steps: int = 600
    batch_size: int = 16
    lr: float = 3e-3
    myopic: bool = False
    track_every: int = 10

    def task(self, split: str = "train") -> Task:
        if self.corpus not in CORPORA:
            raise UnknownNameError("corpus", self.corpus, CORPORA)
        return CORPORA[self.corpus](self.window + 1, split)

    def model_config(self) -> ModelConfig:
        """GPT-2 style: learned positions, tied embeddings."""
        return ModelConfig(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            vocab_size=self.task().vocab_size,
            max_pos=self.window,
            activation="gelu",
            tied_embeddings=True,
            embed_std=0.02,
        )

    def train_config(self, seed: int) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            final_lr=0.1,
            warmup_steps=min(50, self.steps),
            grad_clip=None,
            myopic=self.myopic,
            eval_every=max(1, self.steps // 10),
            seed=seed,
        )

    def validate(self) -> None:
        """Raise `ParameterError` now rather than in the middle of a sweep."""
        self.model_config()
        self.train_config(0)
        require_int("track_every", self.track_every, 1, self.steps)

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self)

    def train(self, seed: int, device: str) -> Run:
        """Train, keeping the weights before every measured step."""
        return train(
            self.task(),
            self.model_config(),
            self.train_config(seed),
            checkpoints=tuple(range(0, self.steps, self.track_every)),
            eval_batch=self.held_out(EVAL_WINDOWS, "eval"),
            device=device,
        )

    def held_out(self, n_windows: int, stream: str) -> Batch:
        """Windows that are not trained on, the same for all runs of a corpus."""
        return self.task("held out").sample(n_windows, step_generator(0, stream))


def integrated(
    cell: TextCell, run: Run, directions: Directions, seed: int
) -> tuple[pd.DataFrame, dict[Site, Tensor]]:
    """Integrated influence of each part of the gradient on each direction, and the first mismatch.

    What the paper measures at every step is measured at one in `track_every`, which stands for
    those up to the next. Adam's moments are kept over the measured steps, with the decay they have
    in that many. No second run is needed: the weights before a step were kept, and its batch is a
    function of the seed.

    Returns:
        `Tracker.table`, and R at the first step.
    """
    config = cell.train_config(seed)
    first, second = (beta**cell.track_every for beta in config.betas)
    device = next(run.model.parameters()).device
    tracker = Tracker(run.model, replace(config, betas=(first, second)), directions)
    model = cell.model_config().build().to(device)
    task = cell.task()
    for before in range(0, cell.steps, cell.track_every):
        model.load_state_dict(run.checkpoint(before))
        batch = task.sample(cell.batch_size, step_generator(seed, "train", before + 1))
        tracker(before + 1, model, batch.to(device))
    table = tracker.table()
    table["influence"] *= cell.track_every
    return table, tracker.mismatch


@torch.no_grad()
def streams(
    model: Transformer, tokens: Int[Tensor, "batch pos"], layers: tuple[int, ...]
) -> Float[Tensor, "layer batch pos d_model"]:
    """``resid.k`` of some layers."""
    parts = []
    for part in tokens.split(256):
        tap: dict[str, Tensor | None] = {f"resid.{k}": None for k in layers}
        model(part, tap=tap)
        parts.append(torch.stack([x for x in tap.values() if x is not None]))
    return torch.cat(parts, dim=1)


def feature_values(batch: Batch) -> Float[Tensor, "sample feature"]:
    """`FEATURES` of the tokens at `PROBED`, window by window."""
    at = slice(PROBED.start, PROBED.stop)
    speech = batch.labels["part_of_speech"][:, at]
    role = batch.labels["role"][:, at]
    columns = [
        *(speech == PARTS_OF_SPEECH.index(name) for name in TAGS),
        *(role == ROLES.index(name) for name in DEPENDENCIES),
        batch.labels["token_index"][:, at],
        batch.labels["story_position"][:, at],
    ]
    return torch.stack([column.float() for column in columns], dim=-1).flatten(0, 1)


def made_from(task: Task) -> str:
    """What a run's data were made from, for its record; a toy task draws its own."""
    if isinstance(task, TinyStories):
        found = task.provenance()
    elif isinstance(task, StoryWindows | PocketPile):
        found = corpus_provenance()
    else:
        found = {"drawn": task.name}
    return "; ".join(f"{name} {value}" for name, value in found.items())
