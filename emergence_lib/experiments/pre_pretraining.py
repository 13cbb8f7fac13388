"""Pre-pre-training: does training on Dyck or neural automata first make induction emerge sooner?
(claim A-16)

    source steps                                   downstream steps
    dyck, neural_ca, unigram  ─ blocks ─►  induction, fresh embeddings ─► accuracy above one half
    none                                   induction from scratch

Source: paper A, section on pre-pre-training, of which only the claim is known (fact sheet A6); the
sources are those of Hu et al. 2025 (arXiv 2502.19249) and Lee et al. 2026 (arXiv 2603.10055), made
small. Downstream is the induction task instead of language, for which runs this short show an
emergence. Every arm has the same tokens in a step, the same optimizer and the same downstream
batches; arms with a source have its steps on top. So two times are compared: downstream steps
alone, as the literature counts, and all steps, the matched compute. `unigram` is the control: as
many steps on tokens without any structure in their context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emergence_lib.analysis.emergence import acquisition
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.linear_map_cell import as_float, as_rate, rounded
from emergence_lib.experiments.pre_pretraining_evidence import judge_pre_pretraining
from emergence_lib.models import ModelConfig
from emergence_lib.models.transferred import TransferredConfig, moved_parameters
from emergence_lib.tasks import Dyck, Induction, NeuralCA, Task, Unigram
from emergence_lib.tasks.base import require_int
from emergence_lib.training import Run, TrainConfig, train

SOURCES: Mapping[str, Task | None] = {
    "none": None,
    "dyck": Dyck(k=8, max_depth=8, seq_len=44),
    "neural_ca": NeuralCA(grid_size=6, colours=3, n_grids=4, min_ratio=0.3),
    "unigram": Unigram(n_tokens=16, seq_len=44),
}
"""What is trained on first. All have 44 tokens a sequence; Dyck and unigram have as many tokens."""

ACQUIRED = 0.5
"""Accuracy on the predictable tokens that counts as the emergence, three evaluations in a row."""

SCHEMA = {
    "eval_steps": "list of int: downstream evaluation steps",
    "eval_loss": "list of float: held-out loss in nats at those steps",
    "eval_accuracy": "list of float: share of right predictable tokens at those steps",
    "stopped_at": "int: last downstream step",
    "acquired_at": "int or null: first of three evaluations in a row with accuracy above 0.5",
    "source_loss": "float or null: loss in nats at the end of the source; null without one",
    "source_floor": "float or null: loss in nats of a perfect predictor of the source",
}


@dataclass(frozen=True)
class TransferCell:
    """Parameters of one run.

    Args:
        source: a key of `SOURCES`.
        source_steps: steps on the source; 0 for "none".
        n_tokens, min_period, max_period, seq_len: the induction task.
        tokens: of a batch, at most, on either task.
        Others: as in `ModelConfig` and `TrainConfig`.
    """

    source: str = "none"
    source_steps: int = 0
    n_tokens: int = 24
    min_period: int = 8
    max_period: int = 18
    seq_len: int = 40
    n_layers: int = 2
    d_model: int = 64
    n_heads: int = 4
    steps: int = 800
    tokens: int = 480
    lr: float = 1e-3
    muon_lr: float | None = None
    init_std: float = 0.05
    eval_every: int = 20

    def task(self) -> Induction:
        return Induction(self.n_tokens, self.min_period, self.max_period, self.seq_len)

    def model_config(self, task: Task) -> ModelConfig:
        """The shape for a task. Rotary, so that no embedding of positions has to be moved."""
        return ModelConfig(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            vocab_size=task.vocab_size,
            max_pos=max(self.seq_len, 44) - 1,
            positional="rotary",
            init_std=self.init_std,
        )

    def train_config(self, task: Task, steps: int, seed: int) -> TrainConfig:
        return TrainConfig(
            steps=steps,
            batch_size=self.tokens // task.seq_len,
            lr=self.lr,
            muon_lr=self.muon_lr,
            eval_every=self.eval_every,
            eval_batch_size=128,
            seed=seed,
        )

    def validate(self) -> None:
        """Raise `ParameterError` now rather than in the middle of a sweep."""
        if self.source not in SOURCES:
            raise UnknownNameError("source", self.source, SOURCES)
        if self.source != "none":
            require_int("source_steps", self.source_steps, 1)
        require_int("tokens", self.tokens, max(44, self.seq_len))
        self.model_config(self.task())
        self.train_config(self.task(), self.steps, 0)

    def train_source(self, seed: int, device: str) -> Run | None:
        """The run on the source, None without one. Its seed is another than the downstream run's:
        else both would start with the same numbers in their matrices."""
        task = SOURCES[self.source]
        if task is None:
            return None
        config = self.train_config(task, self.source_steps, seed + 1_000)
        return train(task, self.model_config(task), config, device=device)

    def train(self, seed: int, device: str, source: Run | None) -> Run:
        """The downstream run, from the blocks of `source` where there is one."""
        config = self.model_config(self.task())
        if source is not None:
            settings = {name: getattr(config, name) for name in config.__dataclass_fields__}
            config = TransferredConfig(**settings, moved=moved_parameters(source.model))
        train_config = self.train_config(self.task(), self.steps, seed)
        return train(self.task(), config, train_config, device=device)


def run_transfer(point: Point, device: str) -> dict[str, Any]:
    """Train on the source, then downstream: a row of `SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell = TransferCell(**point.params)
    source = cell.train_source(point.seed, device)
    run = cell.train(point.seed, device, source)
    loss, accuracy = run.metric("loss"), run.metric("accuracy")
    acquired = acquisition(accuracy, ACQUIRED)
    source_loss = None if source is None else source.metric("loss")
    task = SOURCES[cell.source]
    return {
        "eval_steps": loss.index.tolist(),
        "eval_loss": rounded(loss.to_numpy(), 5),
        "eval_accuracy": rounded(accuracy.to_numpy(), 4),
        "stopped_at": run.stopped_at,
        "acquired_at": int(acquired.step) if acquired.observed else None,
        "source_loss": None if source_loss is None else float(source_loss.iloc[-1]),
        "source_floor": None if task is None or task.floor is None else float(task.floor),
    }


@dataclass(frozen=True)
class PrePretrainingGrid(Grid):
    """Several sources, several seeds.

    Args:
        sources: keys of `SOURCES`.
        source_steps: training steps on the source.
        seeds: runs a source, seeded 0, 1, …
        n_tokens: of the induction task.
        steps: downstream steps.
        lr, muon_lr: see `TrainConfig`; of both tasks.
        d_model: width.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such source.
    """

    sources: tuple[str, ...] = tuple(SOURCES)
    source_steps: int = 1_000
    seeds: int = 6
    n_tokens: int = TransferCell.n_tokens
    steps: int = TransferCell.steps
    lr: float = TransferCell.lr
    muon_lr: float | None = TransferCell.muon_lr
    d_model: int = TransferCell.d_model

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        object.__setattr__(self, "lr", as_float("lr", self.lr))
        object.__setattr__(self, "muon_lr", as_rate("muon_lr", self.muon_lr))
        given: object = self.sources  # a notebook may give one name, or a list
        sources = (given,) if isinstance(given, str) else tuple(self.sources)
        if not sources:
            raise ParameterError("sources", sources, "at least one source")
        object.__setattr__(self, "sources", tuple(dict.fromkeys(sources)))
        for source in self.sources:
            self.cell(source).validate()

    def cell(self, source: str) -> TransferCell:
        """The run of one source."""
        return TransferCell(
            source=source,
            source_steps=0 if source == "none" else self.source_steps,
            n_tokens=self.n_tokens,
            steps=self.steps,
            lr=self.lr,
            muon_lr=self.muon_lr,
            d_model=self.d_model,
        )

    def points(self) -> list[Point]:
        """Seed by seed, so that a part compares all sources."""
        return [
            Point("pre_pretraining", 2, vars(self.cell(source)).copy(), seed)
            for seed in range(self.seeds)
            for source in self.sources
        ]


PRE_PRETRAINING = Experiment(
    name="pre_pretraining",
    version=2,
    question="Does training on Dyck or neural automata first make induction emerge sooner?",
    grid=PrePretrainingGrid,
    profiles={
        "smoke": (PrePretrainingGrid(("none", "dyck"), seeds=1, source_steps=3, steps=3),),
        "quick": (
            PrePretrainingGrid(("none", "dyck", "unigram"), source_steps=300, seeds=1, steps=600),
        ),
        "cpu": (
            PrePretrainingGrid(),
            PrePretrainingGrid(("dyck", "neural_ca", "unigram"), source_steps=300),
        ),
        "paper": tuple(
            PrePretrainingGrid(source_steps=n, seeds=10, n_tokens=64, steps=10_000, d_model=128)
            for n in (500, 5_000)
        ),
    },
    run=run_transfer,
    schema=SCHEMA,
    judges={"A-16": judge_pre_pretraining},
    seconds={"smoke": 1, "quick": 8, "cpu": 16, "paper": 150},
)
