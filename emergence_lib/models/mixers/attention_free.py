"""What every mixer but attention shares: it has no attention logits, so it refuses what needs them.

A subclass writes `mix`, from the normed residual stream [batch, pos, d_model] to what is added to
it. `Transformer` draws the weights of every ``nn.Linear`` from its own generator; all other
parameters of a mixer start at fixed values, which its module's docstring gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn as nn
from jaxtyping import Float
from torch import Tensor

from emergence_lib.errors import ParameterError

if TYPE_CHECKING:
    from emergence_lib.models.transformer import Recorder


class AttentionFree(nn.Module):
    """A causal token mixer without an attention pattern; `out` is its last linear map."""

    taps: tuple[str, ...] = ()
    out: nn.Linear

    def mix(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """What the mixer adds to the residual stream."""
        raise NotImplementedError

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        *,
        attn_bias: Float[Tensor, "*batch_and_head query key"] | None,
        myopic: bool,
        record: Recorder,
        last_only: bool = False,
    ) -> Float[Tensor, "batch query d_model"]:
        """`mix`, with the arguments of every mixer.

        Raises:
            ParameterError: an `attn_bias`, or `myopic`: both are for attention only.
        """
        advice = f"The mixer {type(self).__name__} has no attention; take mixer='attention'."
        if attn_bias is not None:
            shape = tuple(attn_bias.shape)
            raise ParameterError("attn_bias", f"a tensor {shape}", "None", advice)
        if myopic:
            raise ParameterError("myopic", myopic, "False", advice)
        mixed = self.mix(x)
        return mixed[:, -1:] if last_only else mixed


def split_heads(
    x: Float[Tensor, "batch pos head_times_d"], n_heads: int
) -> Float[Tensor, "batch head pos d"]:
    """One slice of the last dimension a head."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def merge_heads(x: Float[Tensor, "batch head pos d"]) -> Float[Tensor, "batch pos head_times_d"]:
    """The inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)
