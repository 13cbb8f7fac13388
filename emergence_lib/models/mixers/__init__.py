"""Token mixers by name, one file each: how information moves between positions.

A mixer is a module built as ``Mixer(config, layer)`` and called as
``mixer(x, attn_bias=…, myopic=…, record=…)`` on the normed residual stream [batch, pos, d_model];
it returns what is added to the stream, with ``last_only=True`` at the last position alone. It must
be causal: output t sees inputs ≤ t. Its class attribute `taps` names the values it passes to
`record`, each as ``name.layer``.

    name          how output t depends on inputs ≤ t                        state of a head
    attention     softmax-weighted values                                   all keys and values
    mlp_mixer     fixed learned weights                                     all values
    mamba         diagonal, decay chosen by the input                       16 numbers a channel
    gated_delta   matrix, decays, overwrites what its key recalls           d_head × d_head
    rwkv          the same with a decay and rate a channel (version 7)      d_head × d_head
    mlstm         matrix, exponential input gate                            d_head × d_head
    linear_rnn    diagonal, gated                                           d_head
"""

from emergence_lib.models.mixers.attention import Attention
from emergence_lib.models.mixers.attention_free import AttentionFree
from emergence_lib.models.mixers.gated_delta import GatedDelta
from emergence_lib.models.mixers.linear_rnn import LinearRNN
from emergence_lib.models.mixers.mamba import Mamba
from emergence_lib.models.mixers.mlp_mixer import MLPMixer
from emergence_lib.models.mixers.mlstm import MLSTM
from emergence_lib.models.mixers.rwkv import RWKV

MIXERS: dict[str, type[Attention] | type[AttentionFree]] = {
    "attention": Attention,
    "mlp_mixer": MLPMixer,
    "mamba": Mamba,
    "gated_delta": GatedDelta,
    "rwkv": RWKV,
    "mlstm": MLSTM,
    "linear_rnn": LinearRNN,
}

__all__ = [
    "MIXERS",
    "MLSTM",
    "RWKV",
    "Attention",
    "AttentionFree",
    "GatedDelta",
    "LinearRNN",
    "MLPMixer",
    "Mamba",
]
