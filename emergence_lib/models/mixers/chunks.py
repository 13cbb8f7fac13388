"""What the chunked recurrences share: positions split into chunks, and a state carried over them.

    position   0 1 2 3 │ 4 5 6 7 │ 8 9 · ·      within a chunk: matrix products, all chunks at once
    chunk          0   │    1    │    2         between chunks: one step a chunk
    state      S₀ ───► S₁ ─────► S₂

A recurrence whose step is affine in its state, S_t = M_t S_{t-1} + B_t, is affine over a chunk too,
so that a loop over positions becomes products within chunks and a loop over chunks (Yang et al.
2024, arXiv 2412.06464, section 3.3). The last chunk is filled up with zeros, which come after every
real position and so reach none of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

SIZE = 16
"""Positions in a chunk. At head sizes of 8 to 32 the best of 8, 16, 32 and 64 on a CPU."""


def split(x: Float[Tensor, "*batch pos d"]) -> Float[Tensor, "*batch chunk size d"]:
    """Chunks of `SIZE` positions, the last one filled up with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % SIZE)).unflatten(-2, (-1, SIZE))


def join(x: Float[Tensor, "*batch chunk size d"], n_pos: int) -> Float[Tensor, "*batch pos d"]:
    """The first `n_pos` positions of what `split` made."""
    return x.flatten(-3, -2)[..., :n_pos, :]


def carry(
    transition: Float[Tensor, "*batch chunk d_k d_k"],
    addition: Float[Tensor, "*batch chunk d_k d_v"],
) -> Float[Tensor, "*batch chunk d_k d_v"]:
    """The state before each chunk: S_0 = 0 and S_{n+1} = transition_n S_n + addition_n."""
    batch = addition.shape[:-3]
    transitions = transition.flatten(0, -4).unbind(1)
    additions = addition.flatten(0, -4).unbind(1)
    states = [torch.zeros_like(additions[0])]
    for m, b in zip(transitions[:-1], additions[:-1], strict=True):
        states.append(torch.baddbmm(b, m, states[-1]))
    return torch.stack(states, 1).unflatten(0, batch)


def past(x: Float[Tensor, "*batch size d"]) -> Float[Tensor, "size size"]:
    """1 where a column comes before its row, else 0: a factor, faster than ``tril``."""
    return torch.ones(SIZE, SIZE, dtype=x.dtype, device=x.device).tril(-1)


def past_and_now(x: Float[Tensor, "*batch size d"]) -> Float[Tensor, "size size"]:
    """The same with the diagonal."""
    return torch.ones(SIZE, SIZE, dtype=x.dtype, device=x.device).tril()


def resolvent(lower: Float[Tensor, "*batch size size"]) -> Float[Tensor, "*batch size size"]:
    """(I + L)⁻¹, where L is what lies strictly below the diagonal of `lower`.

    By forward substitution. (The series I - L + L² - … is exact as well, but where keys repeat its
    terms grow like binomials and cancel.)
    """
    return _Resolvent.apply(lower)


class _Resolvent(torch.autograd.Function):
    """With T = (I + L)⁻¹, dL = -Tᵀ dT Tᵀ: cheaper than solving once more backward."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        identity = torch.eye(SIZE, dtype=lower.dtype, device=lower.device).expand_as(lower)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False, unitriangular=True)
        inverse = inverse.contiguous()  # it comes column by column, which slows every product
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return (inverse.mT @ grad @ inverse.mT) * -past(inverse)
