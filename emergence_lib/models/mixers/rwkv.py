"""RWKV, version 7 (Peng et al. 2025, arXiv 2503.14456, section 4): a delta rule whose decay and
writing strength are vectors.

    S_t = (diag(w_t) + b_t a_tᵀ) S_{t-1} + k̃_t v_tᵀ,   a_t = -κ̂_t,  b_t = κ̂_t ⊙ η_t    [d_k, d_v]
    o_t = S_tᵀ r_t                                            (the paper writes the transpose of S)

    x^□_t = x_t + μ_□ ⊙ (x_{t-1} - x_t)             token shift, one μ for each of r, k, v, w, η, g
    log w = -e^{-1/2} sigmoid(d + lora(x^w)),   η = sigmoid(e + lora(x^η)),   g = lora(x^g)
    κ̂     = unit length of ξ ⊙ k (each head),   k̃ = k ⊙ (1 + ζ ⊙ (η - 1))
    out   = W_o ( g ⊙ ( layernorm(o) + (r · (ρ ⊙ k̃)) v ) )        layernorm of each head

lora(x) = B f(A x) with f = tanh for w, identity for η, sigmoid for g. Left out: the paper's mixing
of v with the first layer's values, since a mixer here sees its own layer only.

A chunk works as in `gated_delta`, with decays inside the products: r_i and a_i are multiplied by
the decay from the chunk's start, k_j and b_j divided by it. As log w > -0.6066 by construction, no
factor exceeds exp(16 · 0.6066) ≈ 16,000 within a chunk, far from overflow.

Initialisation: d from -5.5 to 0.5 over the channels, ξ = 0.85, ζ = 1, e = ρ = 0 as published; μ
from 1 to 0 over the channels for all six (our choice; published: powers of it that depend on the
layer); ranks d_model / 4 (our choice); weights normal, as everywhere in `Transformer`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn as nn
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from emergence_lib.models.mixers import chunks
from emergence_lib.models.mixers.attention_free import AttentionFree, merge_heads, split_heads

if TYPE_CHECKING:
    from emergence_lib.models.transformer import ModelConfig

LOG_DECAY = -math.exp(-0.5)
"""Lower bound of log w."""


class RWKV(AttentionFree):
    """RWKV-7 time mixing with `n_heads` heads of `d_head`."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.d_head is not None
        d_model, self.n_heads = config.d_model, config.n_heads
        inner, rank = config.n_heads * config.d_head, max(1, config.d_model // 4)
        self.shift = nn.Parameter(torch.linspace(1, 0, d_model).repeat(6, 1, 1, 1))
        self.r = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.decay_down = nn.Linear(d_model, rank, bias=False)
        self.decay_up = nn.Linear(rank, inner, bias=False)
        self.decay_bias = nn.Parameter(torch.linspace(-5.5, 0.5, inner))
        self.rate_down = nn.Linear(d_model, rank, bias=False)
        self.rate_up = nn.Linear(rank, inner)  # its bias is e
        self.gate_down = nn.Linear(d_model, rank, bias=False)
        self.gate_up = nn.Linear(rank, inner, bias=False)
        self.removal_key = nn.Parameter(torch.full((inner,), 0.85))
        self.rate_share = nn.Parameter(torch.ones(inner))
        self.bonus = nn.Parameter(torch.zeros(inner))
        self.norm = nn.LayerNorm(config.d_head, eps=64e-5)
        self.out = nn.Linear(inner, d_model)

    def mix(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        step_back = F.pad(x, (0, 0, 1, -1)) - x
        x_r, x_k, x_v, x_decay, x_rate, x_gate = x + self.shift * step_back
        r, k, v = self.r(x_r), self.k(x_k), self.v(x_v)
        decay = self.decay_up(self.decay_down(x_decay).tanh())
        log_w = LOG_DECAY * (self.decay_bias + decay).sigmoid()
        rate = self.rate_up(self.rate_down(x_rate)).sigmoid()
        gate = self.gate_up(self.gate_down(x_gate).sigmoid())
        removal = F.normalize(split_heads(self.removal_key * k, self.n_heads), dim=-1)
        k = k * (1 + self.rate_share * (rate - 1))
        bonus = split_heads(r * self.bonus * k, self.n_heads).sum(-1, keepdim=True)
        r, k, v, rate, log_w = (split_heads(y, self.n_heads) for y in (r, k, v, rate, log_w))
        o = self.norm(wkv(r, log_w, k, v, -removal, removal * rate)) + bonus * v
        return self.out(gate * merge_heads(o))


def wkv(
    r: Float[Tensor, "*batch pos d_k"],
    log_w: Float[Tensor, "*batch pos d_k"],
    k: Float[Tensor, "*batch pos d_k"],
    v: Float[Tensor, "*batch pos d_v"],
    a: Float[Tensor, "*batch pos d_k"],
    b: Float[Tensor, "*batch pos d_k"],
) -> Float[Tensor, "*batch pos d_v"]:
    """The outputs o of the recurrence above, in chunks.

    Args:
        r, k, v: receptances (queries), keys, values.
        log_w: natural logarithm of the decay, from `LOG_DECAY` to 0.
        a, b: what is read from the state and where it is written, for stability b = -a ⊙ rate with
            a of unit length and a rate in [0, 1].
    """
    n_pos, d_k, d_v = v.shape[-2], k.shape[-1], v.shape[-1]
    r, log_w, k, v, a, b = (chunks.split(x) for x in (r, log_w, k, v, a, b))
    log_decay = log_w.cumsum(-2)  # from the chunk's start, this position's included
    total = log_decay[..., -1:, :]
    undo, to_end = (-log_decay).exp(), (total - log_decay).exp()
    a, r = (log_decay - log_w).exp() * a, log_decay.exp() * r
    b_undone, k_undone = (undo * b).mT, (undo * k).mT
    past, now = chunks.past(v), chunks.past_and_now(v)

    solved = chunks.resolvent(-(a @ b_undone))
    solved = solved @ torch.cat([a, (a @ k_undone * past) @ v], dim=-1)
    recalled, written = solved.split([d_k, d_v], dim=-1)  # Sᵀ a = recalled S₀ + written
    b_end, k_end = (to_end * b).mT, (to_end * k).mT
    transition = torch.diag_embed(total.exp().squeeze(-2)) + b_end @ recalled
    states = chunks.carry(transition, b_end @ written + k_end @ v)
    o = r @ states + (r @ b_undone * now) @ (recalled @ states + written)
    o = o + (r @ k_undone * now) @ v
    return chunks.join(o, n_pos)
