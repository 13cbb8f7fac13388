"""The scan of the diagonal recurrences: h_t = a_t ⊙ h_{t-1} + b_t, every channel by itself.

Backward it is the same recurrence from the end, so nothing but a and h is kept:

    g_t = dh_t + a_{t+1} ⊙ g_{t+1},   db_t = g_t,   da_t = g_t ⊙ h_{t-1}

Positions are laid out as about √L rows of √L. One pass along all rows at once gives every row's own
scan and its running product of a; one pass over the ends of the rows carries h; then each row adds
its product times the h it starts from. That is 3 √L calls on long tensors in place of 2 L calls on
short ones. All factors are products of a, at most 1 in these mixers: nothing can overflow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def linear_scan(
    a: Float[Tensor, "batch pos channel"], b: Float[Tensor, "batch pos channel"]
) -> Float[Tensor, "batch pos channel"]:
    """All h_t, with h before the first position 0."""
    return _LinearScan.apply(a, b)


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        h = _scan(a, b, 1)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, h = ctx.saved_tensors
        g = _scan(a, grad, -1)
        grad_a = torch.zeros_like(a)
        torch.mul(g[:, 1:], h[:, :-1], out=grad_a[:, 1:])
        return grad_a, g


def _scan(a: Tensor, b: Tensor, direction: int) -> Tensor:
    """h_t = a_t h_{t-1} + b_t (direction 1) or, from the end, h_t = a_{t+1} h_{t+1} + b_t (-1)."""
    n_pos = a.shape[1]
    row = math.ceil(math.sqrt(n_pos))
    rows = -(-n_pos // row)
    fill = rows * row - n_pos  # the last row is filled up with zeros
    factors = F.pad(a, (0, 0, 0, fill)) if direction == 1 else F.pad(a[:, 1:], (0, 0, 0, fill + 1))
    product, h = (x.unflatten(1, (rows, row)) for x in (factors, F.pad(b, (0, 0, 0, fill))))

    product_t, h_t = product.unbind(2)[::direction], h.unbind(2)[::direction]
    scan_along(product_t[1:], h_t)
    for before, product_here in itertools.pairwise(product_t):
        product_here.mul_(before)
    scan_along(product_t[-1].unbind(1)[::direction][1:], h_t[-1].unbind(1)[::direction])
    if direction == 1:
        h[:, 1:, :-1].addcmul_(product[:, 1:, :-1], h[:, :-1, -1:])
    else:
        h[:, :-1, 1:].addcmul_(product[:, :-1, 1:], h[:, 1:, :1])
    return h.flatten(1, 2)[:, :n_pos]


def scan_along(factors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """values[t+1] += factors[t] ⊙ values[t] in place, one after the other."""
    for before, factor, value in zip(values, factors, values[1:], strict=False):
        value.addcmul_(factor, before)
