"""The same function in `transformers`: GPT-NeoX both ways, GPT-2 on the way out.

Every pair of parameters below is a pair of *views* of one shape, so one list of pairs serves both
directions. Only two layouts differ from ours: GPT-NeoX interleaves queries, keys and values head by
head ([head, 3, d_head] where we have [3, head, d_head]), and GPT-2 stores its matrices transposed.

`transformers` is imported when a function is called, so that importing this module costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.models.transformer import ModelConfig, Transformer

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, GPTNeoXForCausalLM

ACTIVATION_OF = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Our name of an activation by its name in `transformers`."""

NAME_OF = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu"}
"""Its name in `transformers` by ours."""

Pairs = Iterator[tuple[Tensor, Tensor]]


def from_gpt_neox(hf_model: GPTNeoXForCausalLM) -> Transformer:
    """A `Transformer` with the logits of `hf_model` (in evaluation mode), to 1e-4 in float32.

    The weights are copied, as float32, to the device of `hf_model`. What is read is what the model
    computes with (its rotary frequencies, its norms), since configuration files spell the same
    thing in several ways.

    Raises:
        ParameterError: not a GPT-NeoX model, or one with an activation, rotary scaling, rotary
            base or layer-norm epsilon that `Transformer` does not have.
    """
    from transformers import GPTNeoXForCausalLM

    if not isinstance(hf_model, GPTNeoXForCausalLM):
        raise ParameterError("hf_model", type(hf_model).__name__, "a GPTNeoXForCausalLM")
    hf = hf_model.config
    if hf.hidden_act not in ACTIVATION_OF:
        raise ParameterError("hf_model.config.hidden_act", hf.hidden_act, f"in {[*ACTIVATION_OF]}")
    if hf.layer_norm_eps != 1e-5:
        raise ParameterError("hf_model.config.layer_norm_eps", hf.layer_norm_eps, "1e-05")
    d_head = hf.hidden_size // hf.num_attention_heads
    config = ModelConfig(
        n_layers=hf.num_hidden_layers,
        d_model=hf.hidden_size,
        n_heads=hf.num_attention_heads,
        vocab_size=hf.vocab_size,
        max_pos=hf.max_position_embeddings,
        d_mlp=hf.intermediate_size,
        positional="rotary",
        rotary_fraction=_rotary_dim(hf_model) / d_head,
        parallel_residual=hf.use_parallel_residual,
        tied_embeddings=hf.tie_word_embeddings,
        activation=ACTIVATION_OF[hf.hidden_act],
    )
    model = Transformer(config).to(hf_model.device)
    with torch.no_grad():
        for ours, theirs in _gpt_neox_pairs(model, hf_model):
            ours.copy_(theirs)
    return model


def to_huggingface(model: Transformer) -> GPTNeoXForCausalLM | GPT2LMHeadModel:
    """A `transformers` model with the same logits: GPT-NeoX if `model` is rotary, else GPT-2.

    The weights are copied; the result is in evaluation mode on the device of `model`.

    Raises:
        ParameterError: a mixer other than attention, RMSNorm, heads that do not add up to d_model,
            or a parallel residual without rotary: neither architecture has these.
    """
    config = model.config
    assert config.d_head is not None
    for name, given, allowed, possible in (
        ("mixer", config.mixer, "'attention'", set(config.mixers) == {"attention"}),
        ("norm", config.norm, "'layernorm'", config.norm == "layernorm"),
        (
            "d_head",
            config.d_head,
            f"d_model / n_heads = {config.d_model / config.n_heads:g}",
            config.d_head * config.n_heads == config.d_model,
        ),
        (
            "parallel_residual",
            config.parallel_residual,
            "False unless positional='rotary'",
            config.positional == "rotary" or not config.parallel_residual,
        ),
    ):
        if not possible:
            raise ParameterError(name, given, f"{allowed} for a `transformers` model")
    hf_model: Any
    if config.positional == "rotary":
        hf_model = _new_gpt_neox(config)
        pairs = _gpt_neox_pairs(model, hf_model)
    else:
        hf_model = _new_gpt2(config)
        pairs = _gpt2_pairs(model, hf_model)
    with torch.no_grad():
        for ours, theirs in pairs:
            theirs.copy_(ours)
    return hf_model.to(model.embed.weight.device).eval()


def _rotary_dim(hf_model: GPTNeoXForCausalLM) -> int:
    """Dimensions of a head that `hf_model` turns, from the frequencies it turns them with."""
    rotary = hf_model.gpt_neox.rotary_emb
    if rotary.rope_type != "default":
        raise ParameterError("hf_model's rotary scaling", rotary.rope_type, "'default' (none)")
    dim = 2 * rotary.inv_freq.numel()
    found = rotary.inv_freq.double().cpu()
    expected = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if not torch.allclose(found, expected, rtol=1e-5):
        base = found[1].item() ** (-dim / 2)
        raise ParameterError("hf_model's rotary base", round(base, 2), "10000")
    return dim


def _new_gpt_neox(config: ModelConfig) -> GPTNeoXForCausalLM:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    assert config.d_head is not None
    rotary_pct = config.rotary_dim / config.d_head
    if int(config.d_head * rotary_pct) < config.rotary_dim:  # transformers truncates, e.g. 30/44
        rotary_pct = math.nextafter(rotary_pct, 1.0)
    settings: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_mlp,
        "hidden_act": NAME_OF[config.activation],
        "max_position_embeddings": config.max_pos,
        "rotary_pct": rotary_pct,  # every release takes this name
        "use_parallel_residual": config.parallel_residual,
        "tie_word_embeddings": config.tied_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return GPTNeoXForCausalLM(GPTNeoXConfig(**settings))


def _new_gpt2(config: ModelConfig) -> GPT2LMHeadModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "n_positions": config.max_pos,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_mlp,
        "activation_function": NAME_OF[config.activation],
        "tie_word_embeddings": config.tied_embeddings,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return GPT2LMHeadModel(GPT2Config(**settings))


def _gpt_neox_pairs(model: Any, hf_model: Any) -> Pairs:  # Any: attributes of nn.Modules
    heads, d_head = model.config.n_heads, model.config.d_head
    body = hf_model.gpt_neox
    yield model.embed.weight, body.embed_in.weight
    # The attribute was renamed between releases of transformers; this accessor was not.
    yield model.unembed.weight, hf_model.get_output_embeddings().weight
    yield from _both(model.final_norm, body.final_layer_norm)
    for block, layer in zip(model.blocks, body.layers, strict=True):
        for ours, theirs in _both(block.mixer.qkv, layer.attention.query_key_value):
            yield (
                ours.view(3, heads, d_head, -1).transpose(0, 1),
                theirs.view(heads, 3, d_head, -1),
            )
        yield from _both(block.mixer.out, layer.attention.dense)
        yield from _both(block.norm1, layer.input_layernorm)
        yield from _both(block.norm2, layer.post_attention_layernorm)
        yield from _both(block.mlp.up, layer.mlp.dense_h_to_4h)
        yield from _both(block.mlp.down, layer.mlp.dense_4h_to_h)


def _gpt2_pairs(model: Any, hf_model: Any) -> Pairs:
    body = hf_model.transformer
    yield model.embed.weight, body.wte.weight
    yield model.unembed.weight, hf_model.lm_head.weight
    if model.config.positional == "learned":
        yield model.pos_embed.weight, body.wpe.weight
    else:  # no positions are positions that add nothing
        yield torch.zeros_like(body.wpe.weight), body.wpe.weight
    yield from _both(model.final_norm, body.ln_f)
    for block, layer in zip(model.blocks, body.h, strict=True):
        for linear, conv1d in (
            (block.mixer.qkv, layer.attn.c_attn),
            (block.mixer.out, layer.attn.c_proj),
            (block.mlp.up, layer.mlp.c_fc),
            (block.mlp.down, layer.mlp.c_proj),
        ):
            yield linear.weight.T, conv1d.weight
            yield linear.bias, conv1d.bias
        yield from _both(block.norm1, layer.ln_1)
        yield from _both(block.norm2, layer.ln_2)


def _both(ours: Any, theirs: Any) -> Pairs:
    """Weight and bias; without a bias theirs adds nothing, as ours does when it is zero."""
    yield ours.weight, theirs.weight
    if theirs.bias is not None:
        yield ours.bias, theirs.bias
