"""A linear RNN: the real-gated diagonal recurrence RG-LRU of Griffin (De et al. 2024,
arXiv 2402.19427, sections 2.3 and 2.4), a real, input-gated form of the LRU (Orvieto et al. 2023).

    h_t = a_t ⊙ h_{t-1} + √(1 - a_t²) ⊙ (i_t ⊙ u_t)          state [d], all real, no non-linearity
    log a_t = -8 softplus(Λ) ⊙ sigmoid(W_a u_t + b_a),   i_t = sigmoid(W_i u_t + b_i)

    u = conv(W x),   out = W_o ( h ⊙ gelu(W_g x) )

The root keeps the size of h about that of u whatever the decay.

Initialisation: a_t⁸ᐟ⁸ at an open gate, exp(-softplus(Λ) · 8), from 0.9 to 0.999 over the channels
(drawn at random in the paper); the state is as wide as all heads together (the paper's is 4/3 as
wide, our choice); gates are full matrices, as in the paper's formulas; weights normal, as
everywhere in `Transformer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn as nn
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from emergence_lib.models.mixers.attention_free import AttentionFree
from emergence_lib.models.mixers.gated_delta import inverse_softplus
from emergence_lib.models.mixers.scan import linear_scan
from emergence_lib.models.mixers.short_conv import ShortConv

if TYPE_CHECKING:
    from emergence_lib.models.transformer import ModelConfig

SHARPNESS = 8.0


class LinearRNN(AttentionFree):
    """RG-LRU with a state of ``n_heads · d_head`` channels; heads have no part in it."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.d_head is not None
        inner = config.n_heads * config.d_head
        self.u = nn.Linear(config.d_model, inner)
        self.conv = ShortConv(inner, layer)
        self.recurrence_gate = nn.Linear(inner, inner)
        self.input_gate = nn.Linear(inner, inner)
        slowest = -torch.linspace(0.9, 0.999, inner).log() / SHARPNESS
        self.rate = nn.Parameter(inverse_softplus(slowest))
        self.gate = nn.Linear(config.d_model, inner)
        self.out = nn.Linear(inner, config.d_model)

    def mix(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        u = self.conv(self.u(x))
        log_a = -SHARPNESS * F.softplus(self.rate) * self.recurrence_gate(u).sigmoid()
        root = (-torch.expm1(2 * log_a)).clamp_min(1e-12).sqrt()  # its slope at 0 is infinite
        h = linear_scan(log_a.exp(), root * self.input_gate(u).sigmoid() * u)
        return self.out(h * F.gelu(self.gate(x)))
