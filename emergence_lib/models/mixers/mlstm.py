"""mLSTM, the matrix memory of xLSTM (Beck et al. 2024, arXiv 2405.04517, section 2.3).

    C_t = f_t C_{t-1} + i_t k_t v_tᵀ        state [d, d] of a head (the paper writes its transpose)
    n_t = f_t n_{t-1} + i_t k_t             normaliser [d]
    h_t = C_tᵀ q_t / max(|n_tᵀ q_t|, 1)

    q, k = W silu(conv(x)),   k scaled by 1/√d,   v = W x
    i_t  = exp(W_i x_t + b_i),   f_t = sigmoid(W_f x_t + b_f)             one number a head
    out  = W_o ( sigmoid(W_g x_t) ⊙ layernorm(h_t) )                      layernorm of each head

i_t may be huge, so a state is kept divided by e^m, m the largest logarithm in it (appendix A). Any
m gives the same h as long as the 1 becomes e^{-m}; here each position takes the largest logarithm
of a weight it uses, so every exponential is ≤ 1. With a column of ones beside v, n is part of C.

Initialisation: b_f from 3 to 6 over the heads (public implementation), b_i = 0, weights normal, as
everywhere in `Transformer`. The paper's wide projections around the memory are left out, as the
block's MLP follows (our choice).
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


class MLSTM(AttentionFree):
    """mLSTM with `n_heads` heads of `d_head`."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.d_head is not None
        self.n_heads = config.n_heads
        inner = config.n_heads * config.d_head
        self.conv = ShortConv(config.d_model, layer)
        self.qk = nn.Linear(config.d_model, 2 * inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.input_gate = nn.Linear(config.d_model, config.n_heads)
        self.forget_gate = nn.Linear(config.d_model, config.n_heads, bias=False)
        self.forget_bias = nn.Parameter(torch.linspace(3, 6, config.n_heads))
        self.gate = nn.Linear(config.d_model, inner, bias=False)
        self.norm = nn.LayerNorm(config.d_head)
        self.out = nn.Linear(inner, config.d_model)

    def mix(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        qk = self.qk(F.silu(self.conv(x))).chunk(2, dim=-1)
        q, k, v = (split_heads(y, self.n_heads) for y in (*qk, self.v(x)))
        log_i = self.input_gate(x).transpose(1, 2)
        log_f = F.logsigmoid(self.forget_gate(x) + self.forget_bias).transpose(1, 2)
        h = matrix_memory(q, k / math.sqrt(k.shape[-1]), v, log_i, log_f)
        return self.out(self.gate(x).sigmoid() * merge_heads(self.norm(h)))


def matrix_memory(
    q: Float[Tensor, "*batch pos d"],
    k: Float[Tensor, "*batch pos d"],
    v: Float[Tensor, "*batch pos d_v"],
    log_i: Float[Tensor, "*batch pos"],
    log_f: Float[Tensor, "*batch pos"],
) -> Float[Tensor, "*batch pos d_v"]:
    """The h of the recurrence above, in chunks.

    Args:
        q, k, v: queries, keys (already scaled), values.
        log_i: natural logarithm of the input gate, any number.
        log_f: natural logarithm of the forget gate, ≤ 0.
    """
    n_pos = v.shape[-2]
    q, k, v = chunks.split(q), chunks.split(k), chunks.split(F.pad(v, (0, 1), value=1.0))
    log_i, log_f = chunks.split(log_i[..., None]), chunks.split(log_f[..., None])
    log_decay = log_f.cumsum(-2)  # from the chunk's start
    total = log_decay[..., -1:, :]
    between = log_decay - (log_decay - log_i).mT + chunks.past_and_now(q).log()
    to_end = total - log_decay + log_i

    # m of the state after each chunk, and of the state before it; then m of every position.
    with torch.no_grad():
        elapsed = total.cumsum(-3)
        largest = to_end.amax(-2, keepdim=True)
        m_after = elapsed + (largest - elapsed).cummax(-3).values
        m_before = F.pad(m_after[..., :-1, :, :], (0, 0, 0, 0, 1, 0), value=-math.inf)
        m = torch.maximum(between.amax(-1, keepdim=True), log_decay + m_before)

    kept = (total + m_before - m_after).exp()
    additions = (k * (to_end - m_after).exp()).mT @ v
    state = torch.zeros_like(additions[..., 0, :, :])
    states = [state]
    for f, c in zip(kept.unbind(-3)[:-1], additions.unbind(-3)[:-1], strict=True):
        state = torch.addcmul(c, f, state)
        states.append(state)
    both = ((log_decay + m_before - m).exp() * q) @ torch.stack(states, -3)
    both = both + ((q @ k.mT) * (between - m).exp()) @ v
    numerator, normaliser = both[..., :-1], both[..., -1:]
    return chunks.join(numerator / torch.maximum(normaliser.abs(), (-m).exp()), n_pos)
