"""Causal multi-head softmax attention (Vaswani et al. 2017), optionally rotary or myopic.

pattern[t, j] = softmax_{j ≤ t}( q_t · k_j / √d_head + bias[t, j] )
z_t           = Σ_j pattern[t, j] v_j
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn as nn
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

if TYPE_CHECKING:
    from emergence_lib.models.transformer import ModelConfig, Recorder


class Attention(nn.Module):
    """Fused unless the scores or pattern are recorded or edited, or attention is myopic."""

    taps = ("pattern", "scores", "q", "k", "v", "z")
    rotary_cos: Float[Tensor, "pos rotary_dim"]
    rotary_sin: Float[Tensor, "pos rotary_dim"]

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        assert config.d_head is not None
        self.layer = layer
        self.n_heads, self.d_head = config.n_heads, config.d_head
        self.rotary_dim = config.rotary_dim
        self.qkv = nn.Linear(config.d_model, 3 * self.n_heads * self.d_head)
        self.out = nn.Linear(self.n_heads * self.d_head, config.d_model)
        if self.rotary_dim:
            cos, sin = rotary_tables(config.max_pos, self.rotary_dim)
            self.register_buffer("rotary_cos", cos, persistent=False)
            self.register_buffer("rotary_sin", sin, persistent=False)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        *,
        attn_bias: Float[Tensor, "*batch_and_head query key"] | None,
        myopic: bool,
        record: Recorder,
        last_only: bool = False,
    ) -> Float[Tensor, "batch query d_model"]:
        batch, n_pos, _ = x.shape
        qkv = self.qkv(x).view(batch, n_pos, 3, self.n_heads, self.d_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, head, pos, d_head]
        if self.rotary_dim:
            q, k = self._rotate(q), self._rotate(k)
        q = record(f"q.{self.layer}", q)
        k = record(f"k.{self.layer}", k)
        v = record(f"v.{self.layer}", v)
        if last_only:
            q = q[:, :, -1:]
            attn_bias = attn_bias if attn_bias is None else attn_bias[..., -1:, :]

        if myopic or record.wants(f"scores.{self.layer}", f"pattern.{self.layer}"):
            z = self._explicit(q, k, v, attn_bias, myopic, record)
        elif attn_bias is None:
            z = F.scaled_dot_product_attention(q, k, v, is_causal=not last_only)
        else:
            mask = attn_bias.to(q.dtype).masked_fill(future(q, k), -math.inf)
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        z = record(f"z.{self.layer}", z.transpose(1, 2))
        return self.out(z.flatten(2))

    def _explicit(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch head key d_head"],
        v: Float[Tensor, "batch head key d_head"],
        attn_bias: Float[Tensor, "*batch_and_head query key"] | None,
        myopic: bool,
        record: Recorder,
    ) -> Float[Tensor, "batch head query d_head"]:
        """Attention with its scores and pattern in the open; the queries are the last positions."""
        before = k.shape[2] - q.shape[2]
        past_k, past_v = (k.detach(), v.detach()) if myopic else (k, v)
        scores = q @ past_k.transpose(-1, -2) / math.sqrt(self.d_head)
        if myopic:
            # Adds exactly 0 forward; backward it lets a position's own key receive its gradient.
            own = (q * (k - past_k)[:, :, before:]).sum(-1) / math.sqrt(self.d_head)
            scores = scores + F.pad(torch.diag_embed(own), (before, 0))
        scores = record(f"scores.{self.layer}", scores)
        if attn_bias is not None:
            scores = scores + attn_bias
        scores = scores.masked_fill(future(q, k), -math.inf)
        pattern = record(f"pattern.{self.layer}", scores.softmax(-1))
        z = pattern @ past_v
        if myopic:
            own = pattern.diagonal(before, dim1=-2, dim2=-1)
            z = z + own.unsqueeze(-1) * (v - past_v)[:, :, before:]  # the same for values
        return z

    def _rotate(
        self, x: Float[Tensor, "batch head pos d_head"]
    ) -> Float[Tensor, "batch head pos d_head"]:
        """Turn the leading `rotary_dim` dimensions, pairing i with i + rotary_dim/2 (GPT-NeoX)."""
        n_pos = x.shape[2]
        turned, kept = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        first, second = turned.chunk(2, dim=-1)
        swapped = torch.cat([-second, first], dim=-1)
        turned = turned * self.rotary_cos[:n_pos] + swapped * self.rotary_sin[:n_pos]
        return torch.cat([turned, kept], dim=-1)


def future(
    q: Float[Tensor, "*batch query d"], k: Float[Tensor, "*batch key d"]
) -> Bool[Tensor, "query key"]:
    """The keys a query must not see: those after it. The queries are the last positions."""
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    every = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device)
    return every.triu(1 + n_keys - n_queries)


def rotary_tables(
    max_pos: int, dim: int
) -> tuple[Float[Tensor, "pos dim"], Float[Tensor, "pos dim"]]:
    """Cosines and sines of rotary embeddings, base 10,000 (Su et al. 2021, arXiv 2104.09864)."""
    frequency = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(max_pos, dtype=torch.float64), frequency).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()
