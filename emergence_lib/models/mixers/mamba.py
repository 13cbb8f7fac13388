"""Mamba's selective scan (Gu & Dao 2023, arXiv 2312.00752, section 3, algorithm 2, figure 3).

    h_t = exp(Δ_t A) ⊙ h_{t-1} + (Δ_t u_t) B_tᵀ      state [channel, n] (Δ, u: channel; B, C: n)
    y_t = h_t C_t + D ⊙ u_t

    (u, g) = W x,   u = silu(conv(u)),   (δ, B, C) = W u,   Δ = softplus(W_δ δ + b)
    out = W_o ( y ⊙ silu(g) )

with 2 · d_model channels, n = 16 and δ of rank d_model / 16; `n_heads` and `d_head` have no part in
it. A is diagonal and negative, so the decay lies in (0, 1).

The states of all positions together are 32 · d_model numbers a position. They are made, used and
dropped `BLOCK` positions at a time, and made again in the backward pass: what is kept is linear in
the length with a small factor, and a block stays in the cache.

Initialisation as published: A = -1 … -n in every channel, D = 1, softplus(b) from 0.001 to 0.1 on a
log scale over the channels (drawn at random in the paper); weights normal, as everywhere in
`Transformer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from emergence_lib.models.mixers.attention_free import AttentionFree
from emergence_lib.models.mixers.gated_delta import inverse_softplus, log_spaced
from emergence_lib.models.mixers.scan import scan_along
from emergence_lib.models.mixers.short_conv import ShortConv

if TYPE_CHECKING:
    from emergence_lib.models.transformer import ModelConfig

EXPANSION, N_STATE, BLOCK = 2, 16, 32


class Mamba(AttentionFree):
    """The Mamba mixer."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        inner, self.rank = EXPANSION * config.d_model, -(-config.d_model // 16)
        self.up = nn.Linear(config.d_model, 2 * inner, bias=False)
        self.conv = ShortConv(inner, layer)
        self.select = nn.Linear(inner, self.rank + 2 * N_STATE, bias=False)
        self.step = nn.Linear(self.rank, inner, bias=False)
        self.step_bias = nn.Parameter(inverse_softplus(log_spaced(1e-3, 1e-1, inner)))
        # The leading 1 tells it from a weight matrix: an optimizer for matrices must not take it.
        self.log_rate = nn.Parameter(torch.arange(1.0, N_STATE + 1).log().repeat(1, inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, config.d_model)

    def mix(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        u, gate = self.up(x).chunk(2, dim=-1)
        u = F.silu(self.conv(u))
        step, b, c = self.select(u).split([self.rank, N_STATE, N_STATE], dim=-1)
        step = F.softplus(self.step(step) + self.step_bias)
        y = selective_scan(u, step, -self.log_rate.squeeze(0).exp(), b, c) + self.skip * u
        return self.out(y * F.silu(gate))


def selective_scan(
    u: Float[Tensor, "batch pos channel"],
    step: Float[Tensor, "batch pos channel"],
    a: Float[Tensor, "channel n"],
    b: Float[Tensor, "batch pos n"],
    c: Float[Tensor, "batch pos n"],
) -> Float[Tensor, "batch pos channel"]:
    """h_t C_t of the recurrence above for inputs `u`, steps Δ > 0 and rates `a` < 0."""
    return _SelectiveScan.apply(u, step, a, b, c)


class _SelectiveScan(torch.autograd.Function):
    """Forward keeps the state before each block; backward makes a block's states again.

    With G_t the gradient of h_t, which runs backward as G_t = dy_t C_tᵀ + exp(Δ_{t+1} A) ⊙ G_{t+1}:
    dC_t = h_tᵀ dy_t, dB_t = G_tᵀ (Δ_t u_t), d(Δ_t u_t) = G_t B_t, and the gradient of the exponent
    Δ_t A is E_t = G_t ⊙ exp(Δ_t A) ⊙ h_{t-1}.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        before = u.new_zeros(len(u), *a.shape)
        y, starts = torch.empty_like(u), []
        for start in range(0, u.shape[1], BLOCK):
            block = slice(start, start + BLOCK)
            starts.append(before)
            _, h = _states(u[:, block], step[:, block], a, b[:, block], before)
            y[:, block] = (h @ c[:, block, :, None]).squeeze(-1)
            before = h[:, -1].clone()
        ctx.save_for_backward(u, step, a, b, c, *starts)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, ...]:
        u, step, a, b, c, *starts = ctx.saved_tensors
        grad_u, grad_step, grad_b, grad_c = (torch.empty_like(x) for x in (u, step, b, c))
        grad_a, grad_after = torch.zeros_like(a), torch.zeros_like(starts[0])
        for n in reversed(range(len(starts))):
            block = slice(n * BLOCK, (n + 1) * BLOCK)
            d, dy = step[:, block], grad_y[:, block]
            decay, h = _states(u[:, block], d, a, b[:, block], starts[n])
            grad_c[:, block] = (dy.unsqueeze(-2) @ h).squeeze(-2)
            g = dy.unsqueeze(-1) * c[:, block].unsqueeze(-2)
            g[:, -1] += grad_after
            scan_along(decay.unbind(1)[:0:-1], g.unbind(1)[::-1])
            grad_after = decay[:, 0] * g[:, 0]
            du = (g @ b[:, block, :, None]).squeeze(-1)
            grad_b[:, block] = ((d * u[:, block]).unsqueeze(-2) @ g).squeeze(-2)
            e = g.mul_(decay)
            e[:, 1:] *= h[:, :-1]
            e[:, 0] *= starts[n]
            grad_u[:, block] = d * du
            grad_step[:, block] = u[:, block] * du + (e * a).sum(-1)
            grad_a += (d.unsqueeze(-1) * e).sum((0, 1))
        return grad_u, grad_step, grad_a, grad_b, grad_c


def _states(
    u: Tensor, step: Tensor, a: Tensor, b: Tensor, before: Tensor
) -> tuple[Float[Tensor, "batch pos channel n"], Float[Tensor, "batch pos channel n"]]:
    """exp(Δ_t A) and h_t of a block that starts from the state `before`."""
    decay = (step.unsqueeze(-1) * a).exp_()
    h = (step * u).unsqueeze(-1) * b.unsqueeze(-2)
    h[:, 0].addcmul_(decay[:, 0], before)
    scan_along(decay.unbind(1)[1:], h.unbind(1))
    return decay, h
