"""A causal MLP-Mixer: which positions are mixed is learned once, not chosen by the content.

    z_t = Σ_{j ≤ t} M[t, j] v_j,   v = W_v x,   out = W_o z       one M [max_pos, max_pos] a head

(Tolstikhin et al. 2021, arXiv 2105.01601, equation 1.) There all channels share a two-layer MLP
over positions, in which every position sees every other: trained on the next token, it would read
its target off the input. Here one masked matrix for each group of channels takes its place, the
non-linearity being the block's own MLP's (our choice).

Initialisation: M normal with `init_std` like every other weight matrix (our choice). It is kept as
a linear layer's weight [head · query, key] so that `Transformer` draws it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn as nn
from jaxtyping import Float
from torch import Tensor

from emergence_lib.models.mixers.attention_free import AttentionFree, merge_heads, split_heads

if TYPE_CHECKING:
    from emergence_lib.models.transformer import ModelConfig


class MLPMixer(AttentionFree):
    """One masked position × position matrix for each of `n_heads` groups of `d_head` channels."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.d_head is not None
        self.n_heads = config.n_heads
        inner = config.n_heads * config.d_head
        self.v = nn.Linear(config.d_model, inner)
        self.positions = nn.Linear(config.max_pos, config.n_heads * config.max_pos, bias=False)
        self.out = nn.Linear(inner, config.d_model)

    def pattern(self, n_pos: int) -> Float[Tensor, "head query key"]:
        """M of every head for the first `n_pos` positions, masked."""
        square = self.positions.weight.unflatten(0, (self.n_heads, -1))
        return square[:, :n_pos, :n_pos].tril()

    def mix(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        v = split_heads(self.v(x), self.n_heads)
        return self.out(merge_heads(self.pattern(x.shape[1]) @ v))
