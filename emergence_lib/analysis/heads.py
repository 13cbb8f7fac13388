"""What kind of head a head is, and how much a model learns within its context.

Every sequence is random tokens, repeated once. Only three places are of use to a query of the
second half, and each names a kind of head (Olsson et al. 2022, arXiv 2209.11895):

    position    0  1  2  3  4    5  6  7  8  9
    token       k  c  x  a  m    k  c  x  a  m
                         ▲  ▲          ▲  │
                         │  │          └──┤ previous token   the position before
                         │  └─────────────┤ induction        after the token's earlier occurrence
                         └────────────────┘ duplicate token  that earlier occurrence

A score is the mean attention on that place, from 0 to 1, over the queries of the second half and
over sequences. An induction head predicts the next token; it needs a previous-token head below it.

`HeadObserver` writes previous_token.l.h, induction.l.h and duplicate_token.l.h, layer l and head h,
during `training.train`; `analysis.attention.unpack` gives them back as a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import Batch, require_int

LOGITS = 2**26
"""Logits computed at once: 256 MiB in float32."""


@torch.no_grad()
def head_scores(
    model: Transformer, generator: torch.Generator, n_sequences: int = 16, length: int = 50
) -> dict[str, Float[Tensor, "n_layers n_heads"]]:
    """Previous-token, induction and duplicate-token score of every head; see the module.

    Compare with `chance_score`. No token occurs twice in the random half, so that each has one
    earlier occurrence, and no beginning-of-text token is put in front (both our choice).

    Args:
        model: attention at every layer.
        generator: source of the tokens (CPU).
        n_sequences: sequences averaged over.
        length: random tokens before they are repeated; at least 3, below which places coincide.

    Returns:
        Keys "previous_token", "induction", "duplicate_token"; shares of attention from 0 to 1.

    Raises:
        ParameterError: `n_sequences` < 1, or a `length` for which twice the positions or the
            vocabulary do not suffice.
        UnknownNameError: a layer without an attention pattern.

    Source: Olsson et al. 2022, sections on induction heads and on head scores.
    """
    config = model.config
    require_int("n_sequences", n_sequences, 1)
    require_int("length", length, 3, min(config.max_pos // 2, config.vocab_size))
    draws = [torch.randperm(config.vocab_size, generator=generator) for _ in range(n_sequences)]
    tokens = torch.stack([draw[:length].repeat(2) for draw in draws]).to(model.embed.weight.device)
    back = {"previous_token": 1, "induction": length - 1, "duplicate_token": length}

    names = [f"pattern.{layer}" for layer in range(config.n_layers)]
    sums = {
        kind: torch.zeros(config.n_layers, config.n_heads, device=tokens.device) for kind in back
    }
    for some in tokens.split(max(1, LOGITS // (2 * length * config.vocab_size))):
        tap: dict[str, Tensor | None] = dict.fromkeys(names)
        model(some, tap=tap)
        for layer, name in enumerate(names):
            pattern = tap[name]
            assert pattern is not None
            for kind, distance in back.items():
                # Row r of the second half is query length + r, its key length + r - distance.
                place = pattern[:, :, length:].diagonal(length - distance, dim1=-2, dim2=-1)
                sums[kind][layer] += place.mean(-1).sum(0)
    return {kind: total / n_sequences for kind, total in sums.items()}


class ModelObserver(ABC):
    """An observer for `training.train` that looks at the model alone, with inputs of its own."""

    @abstractmethod
    def measure(self, model: Transformer) -> dict[str, float]:
        """The metrics of this model, of a run or not."""

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Float[Tensor, "batch pos vocab"],
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        return self.measure(model)


class HeadObserver(ModelObserver):
    """Records `head_scores`, on the same sequences at every evaluation.

    Args:
        generator: source of the tokens (CPU), as it is at the time of the call; not advanced.
        n_sequences, length: as for `head_scores`.
    """

    def __init__(self, generator: torch.Generator, n_sequences: int = 16, length: int = 50) -> None:
        self.generator = generator.clone_state()
        self.n_sequences, self.length = n_sequences, length

    def measure(self, model: Transformer) -> dict[str, float]:
        """The metrics of the module's docstring."""
        scores = head_scores(model, self.generator.clone_state(), self.n_sequences, self.length)
        return {
            f"{kind}.{layer}.{head}": score
            for kind, table in scores.items()
            for layer, row in enumerate(table.tolist())
            for head, score in enumerate(row)
        }


@torch.no_grad()
def head_pattern(
    model: Transformer, tokens: Int[Tensor, "1 pos"], layer: int, head: int
) -> Float[Tensor, "query key"]:
    """Attention pattern of one head on one prompt.

    Raises:
        UnknownNameError: a layer that is not there or has no attention pattern.
    """
    tap: dict[str, Tensor | None] = {f"pattern.{layer}": None}
    model(tokens, tap=tap)
    pattern = tap[f"pattern.{layer}"]
    assert pattern is not None
    return pattern[0, head]


def chance_score(length: int) -> float:
    """Each of the `head_scores` of uniform causal attention: the mean of 1 / (t + 1).

    The mean runs over the queries t of the second half; about ln 2 / `length`.

    Raises:
        ParameterError: `length` < 3.
    """
    require_int("length", length, 3)
    return sum(1 / (t + 1) for t in range(length, 2 * length)) / length


def in_context_learning_score(
    loss_by_position: Float[Tensor, "*batch pos"], early: int, late: int
) -> Float[Tensor, "*batch"]:
    """Loss at a late position minus loss at an early one, nats: negative if context helps.

    Olsson et al. 2022 (section on in-context learning) take the 500th and the 50th token of a
    context of 512; with another context length they are a choice, to be stated with the result.

    Args:
        loss_by_position: mean loss of predicting token i + 1 from tokens 0 to i, at index i.
        early, late: indices from 0, ``early < late``.

    Raises:
        ParameterError: a position that the losses do not have, or `late` not after `early`.
    """
    n_pos = loss_by_position.shape[-1]
    if n_pos < 2:
        raise ParameterError(
            "loss_by_position.shape", tuple(loss_by_position.shape), "[…, pos ≥ 2]"
        )
    require_int("early", early, 0, n_pos - 2)
    require_int("late", late, early + 1, n_pos - 1)
    return loss_by_position[..., late] - loss_by_position[..., early]
