"""A mixture of algorithmic task-levels: each sequence is of one, drawn uniformly.

    label 0    copy 3 7 = 3 7 · · ·          sequences of one batch are padded to the longest
    label 22   mul 4 2 | 7 = 2 9 4           task-level; padding never counts in the loss
    label 12   add 7 | 5 = 1 2 · ·

Source: paper B (arXiv 2602.15997; fact sheet B1), which trains one model a size on all its tasks.
That task-levels are equally frequent is our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.tasks.algorithmic import (
    ALGORITHMS,
    LEVELS,
    PAD,
    VOCAB_SIZE,
    Algorithm,
    exact_match,
)
from emergence_lib.tasks.base import TASKS, Batch, Task, register, require_int


@register("multi-task")
@dataclass(frozen=True)
class MultiTask(Task):
    """Every level of some of the eight tasks in equal shares.

    Args:
        tasks: names from `ALGORITHMS`; one alone is the control of training that task by itself.
        shuffled: every answer is that of another sequence of its task-level, so that there is
            nothing to learn but what answers look like: the control for measures of geometry.

    Raises:
        ParameterError: no task, one twice, or `shuffled` is not a bool.
        UnknownNameError: no such task (the nearest is named).
    """

    tasks: tuple[str, ...] = ALGORITHMS
    shuffled: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))  # JSON has lists only
        if not isinstance(self.shuffled, bool):
            raise ParameterError("shuffled", self.shuffled, "True or False")
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ParameterError("tasks", self.tasks, "at least one task, each once")
        for name in self.tasks:
            if name not in ALGORITHMS:
                raise UnknownNameError("algorithmic task", name, ALGORITHMS)

    @cached_property
    def parts(self) -> tuple[Algorithm, ...]:
        """The task-levels: levels within tasks. Label i of a batch means ``parts[i]``."""
        every = (cast(type[Algorithm], TASKS[name]) for name in self.tasks)
        return tuple(part(level) for part in every for level in LEVELS)

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def seq_len(self) -> int:
        return max(part.seq_len for part in self.parts)

    @property
    def floor(self) -> float:
        """0: every answer follows from its prompt."""
        return 0.0

    @property
    def chance(self) -> float:
        """Mean over the task-levels of the best answer that ignores the operands."""
        return sum(part.chance for part in self.parts) / len(self.parts)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Fresh sequences, grouped by the label ``task_level`` (int64) that says their part."""
        require_int("batch_size", batch_size, 1)
        n_parts = len(self.parts)
        which = torch.randint(n_parts, (batch_size,), generator=generator, device=generator.device)
        counts = which.bincount(minlength=n_parts).tolist()
        return self._batch(
            [part.sequences(n, generator) for part, n in zip(self.parts, counts, strict=True)]
        )

    def balanced(self, per_level: int, generator: torch.Generator) -> Batch:
        """`per_level` sequences of every task-level, no two of them the same, labelled as above.

        What measures of geometry need: equally many samples, and no rank lost to repeats.

        Raises:
            ParameterError: a task-level does not have as many different sequences.
        """
        require_int("per_level", per_level, 1)
        chosen = []
        for part in self.parts:
            # Enough draws to see nearly every sequence of a small task-level.
            drawn = part.sequences(20 * per_level, generator).unique(dim=0)
            if len(drawn) < per_level:
                advice = f"{part.label} has about that many different sequences."
                raise ParameterError("per_level", per_level, f"at most {len(drawn)}", advice)
            order = torch.randperm(len(drawn), generator=generator, device=generator.device)
            chosen.append(drawn[order[:per_level]])
        return self._batch(chosen)

    def _batch(self, sequences: list[Int[Tensor, "sample _"]]) -> Batch:
        """The sequences of each part, padded to one length."""
        counts = [len(rows) for rows in sequences]
        tokens = sequences[0].new_full((sum(counts), self.seq_len), PAD)
        counted = torch.zeros_like(tokens[:, 1:], dtype=torch.bool)
        start = 0
        for part, rows in zip(self.parts, sequences, strict=True):
            end, first = start + len(rows), part.prompt_end + 1
            tokens[start:end, :first] = rows[:, :first]
            tokens[start:end, first : part.seq_len] = (
                rows[:, first:].roll(1, 0) if self.shuffled else rows[:, first:]
            )
            counted[start:end, part.prompt_end : part.seq_len - 1] = True
            start = end
        level = torch.arange(len(counts), device=tokens.device)
        level = level.repeat_interleave(torch.tensor(counts, device=tokens.device))
        return Batch(tokens, counted, {"task_level": level})

    def attention_target(self) -> None:
        """None: see `Algorithm.attention_target`."""

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Exact match over all sequences of the batch."""
        return exact_match(logits, batch).float().mean().item()
