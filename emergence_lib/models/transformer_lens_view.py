"""A model as transformer-lens sees it. The only module that imports transformer_lens (version 4).

The import happens when `bridge` is called: transformer-lens takes seconds to load.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from emergence_lib.models.huggingface import to_huggingface
from emergence_lib.models.transformer import Transformer

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


def bridge(model: Transformer) -> TransformerBridge:
    """`model` as a transformer-lens `TransformerBridge`: its hooks, caches and patching tools.

    A copy of the weights at the time of the call, built offline and without a tokenizer: give it
    token tensors, ``logits, cache = bridge(model).run_with_cache(tokens)``. Names correspond as
    ``pattern.l`` = ``blocks.l.attn.hook_pattern``, ``z.l`` = ``blocks.l.attn.hook_z``,
    ``resid.k`` = ``blocks.k.hook_resid_pre``. Weights are raw: neither folded nor centred.

    Raises:
        ParameterError: `transformers` has no such architecture (see `to_huggingface`).
    """
    with warnings.catch_warnings():  # its tqdm warns in notebooks that have no widgets
        warnings.filterwarnings("ignore", message="IProgress not found")
        from transformer_lens.model_bridge.sources import build_bridge_from_module

    hf_model = to_huggingface(model)
    hf_model.set_attn_implementation("eager")  # fused attention has no pattern to hook
    return build_bridge_from_module(
        hf_model, type(hf_model).__name__, hf_config=hf_model.config, model_name="emergence"
    )
