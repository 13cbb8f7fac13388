"""What a task is: a distribution over token sequences with a known answer.

A task samples a `Batch` from an explicit generator, knows which earlier positions the answer
depends on (`attention_target`) and the loss of a perfect predictor (`floor`). Models and training
never need to know which task they have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError, UnknownNameError


@dataclass(frozen=True)
class Batch:
    """Token sequences, which predictions count, and what a reader may want to know about them.

    Attributes:
        tokens: int64 token ids.
        loss_mask: ``[b, t]`` says whether predicting token ``t + 1`` of sequence ``b`` counts.
        labels: named tensors whose first dimension is the batch (none for most tasks).
    """

    tokens: Int[Tensor, "batch pos"]
    loss_mask: Bool[Tensor, "batch pos-1"]
    labels: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        return Batch(
            self.tokens.to(device),
            self.loss_mask.to(device),
            {name: label.to(device) for name, label in self.labels.items()},
        )


@dataclass(frozen=True)
class Task(ABC):
    """A frozen dataclass of its parameters, validated when constructed."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of distinct tokens."""

    @property
    @abstractmethod
    def seq_len(self) -> int:
        """Tokens in one sequence; a model needs `seq_len - 1` input positions."""

    @property
    @abstractmethod
    def floor(self) -> float | None:
        """Mean loss in nats of a perfect predictor over the counted predictions, where known."""

    @abstractmethod
    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Draw `batch_size` sequences; every random number comes from `generator`."""

    @abstractmethod
    def attention_target(self) -> Bool[Tensor, "query key"] | None:
        """Ground truth over the `seq_len - 1` input positions: the keys each query needs.

        The query that predicts token t+1 is t. Rows of queries whose token cannot be predicted are
        all False. None where a task has no fixed truth.
        """

    @abstractmethod
    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Share of the *predictable* tokens whose arg-max prediction is right (0 to 1)."""


TASKS: dict[str, type[Task]] = {}
"""The one registry: every task class by its name."""

T = TypeVar("T", bound=type[Task])


def register(name: str) -> Callable[[T], T]:
    """Class decorator that enters a task in `TASKS` under `name`."""

    def enter(cls: T) -> T:
        cls.name = name
        TASKS[name] = cls
        return cls

    return enter


def make_task(name: str, **parameters: object) -> Task:
    """Construct a registered task by name.

    Raises:
        UnknownNameError: no such task, or the task has no such parameter (the nearest is named).
        ParameterError: a parameter is out of range.
    """
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    known = {f.name for f in fields(TASKS[name])}
    for parameter in parameters:
        if parameter not in known:
            raise UnknownNameError(f"parameter of the task {name!r} called", parameter, known)
    return TASKS[name](**parameters)


def require_int(parameter: str, value: object, low: int, high: int | None = None) -> None:
    """Raise `ParameterError` unless `value` is an integer (not a bool) in ``low … high``."""
    allowed = f"an integer ≥ {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(parameter, value, allowed)
    if value < low or (high is not None and value > high):
        raise ParameterError(parameter, value, allowed)
