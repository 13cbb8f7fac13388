"""Token mixers by name, one file each: how information moves between positions.

A mixer is a module built as ``Mixer(config, layer)`` and called as
``mixer(x, attn_bias=…, myopic=…, record=…)`` on the normed residual stream [batch, pos, d_model];
it returns what is added to the stream. It must be causal: output t sees inputs ≤ t. Its class
attribute `taps` names the values it passes to `record`, each as ``name.layer``.
"""

from emergence_lib.models.mixers.attention import Attention

MIXERS: dict[str, type[Attention]] = {"attention": Attention}

__all__ = ["MIXERS", "Attention"]
