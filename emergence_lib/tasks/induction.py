"""Induction: a random segment, repeated to the end of the sequence, its length to be found.

    8 tokens, period 5

    tokens      3  7  0  7  2 │ 3  7  0  7  2 │ 3  7 …
    position    0  1  2  3  4 │ 5  6  7  8  9 │ 10 11
    predicted by   ·  ·  ·  · │ ·  5  6  7  8 │ 9  10 …    token t at position t-1 …
    needs                     │    0  1  2  3 │ 4  5  …    … from t - period, found by what precedes

The period changes with the sequence, so that no fixed distance helps: the model has to find where
the current token stood before and to copy what followed (Olsson et al. 2022, arXiv 2209.11895,
induction heads). Where the segment has a token twice, longer context decides.

    knows the period                   ln V for each token of the segment, then nothing     `floor`
    must find it (Bayes)               more, since the first repetition surprises      `bayes_loss`

Source: the field's standard test of in-context copying; periods that change with the sequence, the
floors and what accuracy counts are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.tasks.base import Batch, Task, register, require_int


@register("induction")
@dataclass(frozen=True)
class Induction(Task):
    """Uniform tokens for one period, then ``x[t] = x[t - period]``; every prediction counts.

    Batches have the label ``period``, int64 ``[batch]``, uniform from `min_period` to `max_period`.

    Args:
        n_tokens: V, tokens to draw from.
        min_period, max_period: lengths of the segment.
        seq_len: tokens of a sequence.

    Raises:
        ParameterError: a value is no integer or out of range; no token would be repeated.
    """

    n_tokens: int = 16
    min_period: int = 6
    max_period: int = 14
    seq_len: int = 32

    def __post_init__(self) -> None:
        require_int("n_tokens", self.n_tokens, 2)
        require_int("min_period", self.min_period, 1)
        require_int("max_period", self.max_period, self.min_period)
        require_int("seq_len", self.seq_len, self.max_period + 2)

    @property
    def vocab_size(self) -> int:
        return self.n_tokens

    @property
    def floor(self) -> float:
        """ln V for each token of the segment but the first, over seq_len - 1 predictions; exact.

        The loss of a predictor that is told the period; no predictor does better on average.
        """
        mean_period = (self.min_period + self.max_period) / 2
        return (mean_period - 1) * math.log(self.n_tokens) / (self.seq_len - 1)

    def bayes_loss(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Loss in nats of the Bayes predictor on each sequence, which has to find the period.

        By the chain rule its losses on a sequence sum to -ln p(sequence), where p is the mean over
        periods of V^-period for the periods that the sequence agrees with. float64.
        """
        tokens = batch.tokens
        log_v = math.log(self.n_tokens)
        fits = []
        for period in range(self.min_period, self.max_period + 1):
            agrees = (tokens[:, period:] == tokens[:, :-period]).all(1)
            log_p = torch.full(agrees.shape, -period * log_v, dtype=torch.float64)
            fits.append(log_p.masked_fill(~agrees, -math.inf))
        log_p = torch.stack(fits).logsumexp(0) - math.log(len(fits))
        return (-log_p - log_v) / (self.seq_len - 1)  # the first token is not predicted

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """A period and a segment for each sequence."""
        require_int("batch_size", batch_size, 1)
        device = generator.device
        period = torch.randint(
            self.min_period, self.max_period + 1, (batch_size,), generator=generator, device=device
        )
        segment = torch.randint(
            self.n_tokens, (batch_size, self.max_period), generator=generator, device=device
        )
        place = torch.arange(self.seq_len, device=device) % period[:, None]
        tokens = segment.gather(1, place)
        return Batch(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool), {"period": period})

    def attention_target(self) -> None:
        """None: where to look depends on the sequence."""

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Share of right tokens among those whose predecessor has been seen: from period + 1 on.

        A predictor that looks at one preceding token only errs where the segment has it twice.
        """
        right: Bool[Tensor, "batch pos"] = logits.argmax(-1) == batch.tokens[:, 1:]
        position: Int[Tensor, " pos"] = torch.arange(right.shape[1], device=right.device)
        counted = position >= batch.labels["period"][:, None]
        return right[counted].float().mean().item()
