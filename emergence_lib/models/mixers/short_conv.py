"""The short causal convolution in front of a recurrence: every channel sees its last 4 positions.

y_t = Σ_{j<4} w_j ⊙ x_{t-j} + b

(Gu & Dao 2023, arXiv 2312.00752, section 3.4; Yang et al. 2024 and Beck et al. 2024 take it over.)

Initialisation: w uniform in ±1/√4, as ``nn.Conv1d`` draws it in all public implementations, but
from a generator of its own, seeded by the layer: a mixer is built before the model's generator is
at hand (our choice). So all models share these few numbers. b is 0.
"""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

WIDTH = 4


class ShortConv(nn.Module):
    """Depthwise causal convolution over positions, of width 4."""

    def __init__(self, channels: int, layer: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(layer)
        uniform = torch.rand(channels, 1, WIDTH, generator=generator)
        self.kernel = nn.Parameter((2 * uniform - 1) / math.sqrt(WIDTH))  # last entry: position t
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Float[Tensor, "batch pos channel"]) -> Float[Tensor, "batch pos channel"]:
        before = F.pad(x, (0, 0, WIDTH - 1, 0))  # zeros before the first position
        taps = self.kernel.squeeze(1).unbind(-1)
        y = self.bias + taps[-1] * x
        for j in range(1, WIDTH):
            y = torch.addcmul(y, taps[-1 - j], before[:, WIDTH - 1 - j : -j])
        return y
