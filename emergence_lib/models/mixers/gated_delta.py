"""Gated DeltaNet (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464, section 3.1 and figure 1).

    S_t = α_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ        state [d_k, d_v] of a head
    o_t = S_tᵀ q_t                                            (the paper writes the transpose of S)

β_t writes v_t in place of what the key k_t recalled; α_t forgets everything a little:

    q, k = unit length of silu(conv(W x)),   v = silu(conv(W x)),   q scaled by 1/√d
    β_t  = sigmoid(W_β x_t),   log α_t = -exp(a) softplus(W_α x_t + b)      one number a head
    out  = W_o ( rmsnorm(o_t) ⊙ silu(W_g x_t) )

Within a chunk, with decay Γ[i, j] = α_{j+1} … α_i, the values actually written are
U = (I + L)⁻¹ β (V - γ K S₀), L = β K Kᵀ ⊙ Γ below the diagonal (section 3.3). Every decay is the
exponential of a difference of sums of log α that is ≤ 0: strong decays go to 0, never to infinity.

Initialisation: exp(a) from 1 to 16 and softplus(b) from 0.001 to 0.1 (log scale) over the heads, as
Mamba-2 draws them at random; q, k and v as wide as d_head (our choice, the paper's v is twice as
wide); weights normal, as everywhere in `Transformer`.
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
from emergence_lib.models.mixers.short_conv import ShortConv

if TYPE_CHECKING:
    from emergence_lib.models.transformer import ModelConfig


class GatedDelta(AttentionFree):
    """Gated DeltaNet with `n_heads` heads of `d_head`."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.d_head is not None
        self.n_heads = config.n_heads
        inner = config.n_heads * config.d_head
        self.qkv = nn.Linear(config.d_model, 3 * inner, bias=False)
        self.conv = ShortConv(3 * inner, layer)
        self.decay = nn.Linear(config.d_model, config.n_heads, bias=False)
        self.log_rate = nn.Parameter(torch.linspace(1, 16, config.n_heads).log())
        self.decay_bias = nn.Parameter(inverse_softplus(log_spaced(1e-3, 1e-1, config.n_heads)))
        self.beta = nn.Linear(config.d_model, config.n_heads, bias=False)
        self.gate = nn.Linear(config.d_model, inner, bias=False)
        self.norm = nn.RMSNorm(config.d_head, eps=1e-5)
        self.out = nn.Linear(inner, config.d_model)

    def mix(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        mixed = F.silu(self.conv(self.qkv(x)))
        q, k, v = (split_heads(part, self.n_heads) for part in mixed.chunk(3, dim=-1))
        q, k = F.normalize(q, dim=-1) / math.sqrt(q.shape[-1]), F.normalize(k, dim=-1)
        log_alpha = -self.log_rate.exp() * F.softplus(self.decay(x) + self.decay_bias)
        beta = self.beta(x).sigmoid()
        o = gated_delta_rule(q, k, v, log_alpha.transpose(1, 2), beta.transpose(1, 2))
        return self.out(merge_heads(self.norm(o)) * F.silu(self.gate(x)))


def gated_delta_rule(
    q: Float[Tensor, "*batch pos d_k"],
    k: Float[Tensor, "*batch pos d_k"],
    v: Float[Tensor, "*batch pos d_v"],
    log_alpha: Float[Tensor, "*batch pos"],
    beta: Float[Tensor, "*batch pos"],
) -> Float[Tensor, "*batch pos d_v"]:
    """The outputs o of the recurrence above, in chunks.

    Args:
        q, k, v: queries, keys of unit length, values.
        log_alpha: natural logarithm of the decay, ≤ 0.
        beta: writing strength, in [0, 1].
    """
    n_pos, d_k, d_v = v.shape[-2], k.shape[-1], v.shape[-1]
    q, k, v = chunks.split(q), chunks.split(k), chunks.split(v)
    beta = chunks.split(beta[..., None])
    log_decay = chunks.split(log_alpha[..., None]).cumsum(-2)  # from the chunk's start
    total = log_decay[..., -1:, :]
    from_start, to_end = log_decay.exp(), (total - log_decay).exp()
    between = (log_decay - log_decay.mT + chunks.past_and_now(q).log()).exp()

    writes = chunks.resolvent(beta * (k @ k.mT) * between)
    writes = writes @ (beta * torch.cat([from_start * k, v], dim=-1))
    recalled, written = writes.split([d_k, d_v], dim=-1)  # written - recalled S₀ is added at keys k
    last_keys = (to_end * k).mT
    identity = torch.eye(d_k, dtype=k.dtype, device=k.device)
    states = chunks.carry(total.exp() * identity - last_keys @ recalled, last_keys @ written)
    o = (from_start * q) @ states + (q @ k.mT * between) @ (written - recalled @ states)
    return chunks.join(o, n_pos)


def inverse_softplus(y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The x with softplus(x) = y > 0."""
    return y + torch.log(-torch.expm1(-y))


def log_spaced(first: float, last: float, n: int) -> Float[Tensor, " n"]:
    """`n` numbers from `first` to `last` with equal ratios."""
    return torch.linspace(math.log(first), math.log(last), n).exp()
