"""Unigram: independent tokens, some more frequent than others. Nothing in the context helps.

    4 tokens, exponent 1        p = 0.48  0.24  0.16  0.12        token i as 1 / (i + 1)

    tokens      0  2  0  1  0  0  3  1 …
    needs       nothing

A control for what training on *any* tokens does, without structure to be found: scales of weights,
the optimizer's warm-up, a unigram distribution. Source: ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import Batch, Task, register, require_int


@register("unigram")
@dataclass(frozen=True)
class Unigram(Task):
    """Independent tokens from a power law; every prediction counts.

    Args:
        n_tokens: V, the size of the vocabulary.
        exponent: token i has probability proportional to (i + 1) ** -exponent; 0 is uniform, 1 is
            Zipf's law.
        seq_len: tokens of a sequence.

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    n_tokens: int = 64
    exponent: float = 1.0
    seq_len: int = 64

    def __post_init__(self) -> None:
        require_int("n_tokens", self.n_tokens, 2)
        require_int("seq_len", self.seq_len, 2)
        known = isinstance(self.exponent, int | float) and not isinstance(self.exponent, bool)
        if not known or not 0 <= self.exponent < math.inf:
            raise ParameterError("exponent", self.exponent, "a number ≥ 0", "0 is uniform.")

    @property
    def vocab_size(self) -> int:
        return self.n_tokens

    @property
    def probabilities(self) -> Float[Tensor, " token"]:
        """Of each token, float64."""
        weight = torch.arange(1, self.n_tokens + 1, dtype=torch.float64) ** -self.exponent
        return weight / weight.sum()

    @property
    def floor(self) -> float:
        """The entropy of a token, exact."""
        p = self.probabilities
        return -(p * p.log()).sum().item()

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        require_int("batch_size", batch_size, 1)
        tokens = torch.multinomial(
            self.probabilities.to(generator.device),
            batch_size * self.seq_len,
            replacement=True,
            generator=generator,
        ).view(batch_size, self.seq_len)
        return Batch(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool))

    def attention_target(self) -> Bool[Tensor, "query key"]:
        """No query needs any key."""
        return torch.zeros(self.seq_len - 1, self.seq_len - 1, dtype=torch.bool)

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Share of right tokens; the best predictor always says 0 and has its probability."""
        return (logits.argmax(-1) == batch.tokens[:, 1:]).float().mean().item()
