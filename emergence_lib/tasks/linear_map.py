"""One application of a sparse linear map over GF(2): sparse attention as a learning problem.

    S = 4, s = 2        A = 1 1 0 0        x0 = 1 0 1 1
                            0 1 0 1        A x0 mod 2 = 1 1 1 0
                            0 1 1 0
                            1 0 0 1

    tokens      1  0  1  1 │ 1  1  1  0
    position    0  1  2  3 │ 4  5  6  7
    predicted by   ·  ·  · │ 3  4  5  6       output i is predicted at position S-1+i …
    needs                  │ 01 13 12 03      … and needs the inputs j with A[i, j] = 1

Source: paper A (arXiv 2606.25010), section on the linear map. The paper gives the map, the sequence
and that the loss counts all 2S-1 predictions. That the matrix depends on the seed, that no
beginning-of-sequence token is used, and the query position of each output are our choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import Batch, Task, register, require_int


@register("linear_map")
@dataclass(frozen=True)
class LinearMap(Task):
    """``x1 = A x0 mod 2`` with exactly `row_weight` ones in each row of A.

    Args:
        state_size: S, bits in a state; the sequence has 2S tokens.
        row_weight: s, ones in each row of A (the sparsity; 1 is a permutation-like copy, S is the
            parity of the whole state).
        matrix_seed: seeds the draw of A; rows are independent uniform subsets of size s.

    Raises:
        ParameterError: a value is not an integer, or ``row_weight > state_size``.
    """

    state_size: int = 16
    row_weight: int = 3
    matrix_seed: int = 0

    def __post_init__(self) -> None:
        require_int("state_size", self.state_size, 2)
        require_int("row_weight", self.row_weight, 1)
        require_int("matrix_seed", self.matrix_seed, 0)
        if self.row_weight > self.state_size:
            raise ParameterError(
                "row_weight",
                self.row_weight,
                f"at most state_size={self.state_size}",
                "A row of A has state_size entries and cannot hold more ones than that.",
            )

    @property
    def vocab_size(self) -> int:
        return 2

    @property
    def seq_len(self) -> int:
        return 2 * self.state_size

    @property
    def floor(self) -> float:
        """(S-1)/(2S-1) · ln 2: S-1 predictions are coin tosses (inside x0), the rest certain."""
        return (self.state_size - 1) / (2 * self.state_size - 1) * math.log(2)

    @property
    def dense_copy_loss(self) -> float:
        """Loss in nats, at s = S, of guessing the first output bit and copying it S-1 times.

        With s = S all outputs are the same parity, so this needs no parity at all: one coin toss
        above the floor. The control for the dense end of the sparsity sweep (fact sheet A2).
        """
        return self.floor + math.log(2) / (2 * self.state_size - 1)

    @cached_property
    def matrix(self) -> Bool[Tensor, "output input"]:
        """A. Ranking independent uniform numbers picks a uniform subset of size s for each row."""
        generator = torch.Generator().manual_seed(self.matrix_seed)
        noise = torch.rand(self.state_size, self.state_size, generator=generator)
        chosen = noise.argsort(dim=1)[:, : self.row_weight]
        return torch.zeros_like(noise, dtype=torch.bool).scatter_(1, chosen, True)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Uniform x0 followed by A x0 mod 2. All 2S-1 predictions count."""
        require_int("batch_size", batch_size, 1)
        shape = (batch_size, self.state_size)
        x0 = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        matrix = self.matrix.to(generator.device, torch.float32)
        # Sums of at most S ones are exact in float32, whose matrix product is the fast one.
        x1 = (x0.float() @ matrix.T).remainder(2).long()
        tokens = torch.cat([x0, x1], dim=1)
        return Batch(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool))

    def attention_target(self) -> Bool[Tensor, "query key"]:
        n = self.seq_len - 1
        target = torch.zeros(n, n, dtype=torch.bool)
        target[self.state_size - 1 :, : self.state_size] = self.matrix
        return target

    def row_accuracy(
        self, logits: Float[Tensor, "batch pos vocab"], batch: Batch
    ) -> Float[Tensor, " output"]:
        """Share of right predictions for each output bit; 0.5 is chance."""
        return self._hits(logits, batch).float().mean(0)

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        return self._hits(logits, batch).float().mean().item()

    def _hits(
        self, logits: Float[Tensor, "batch pos vocab"], batch: Batch
    ) -> Bool[Tensor, "batch output"]:
        predicted: Int[Tensor, "batch output"] = logits[:, self.state_size - 1 :].argmax(-1)
        return predicted == batch.tokens[:, self.state_size :]
