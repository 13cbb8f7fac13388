"""Agreement with `transformers` and transformer-lens on random weights, offline."""

import subprocess
import sys

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from emergence_lib.errors import ParameterError
from emergence_lib.models import ModelConfig, Transformer, bridge, to_huggingface

torch.set_num_threads(1)

SHAPE = {
    "vocab_size": 23,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
TOY = {"n_layers": 2, "d_model": 32, "n_heads": 4, "vocab_size": 11, "max_pos": 20}
OURS = {
    "pythia": ModelConfig(
        **TOY,
        positional="rotary",
        rotary_fraction=0.25,
        parallel_residual=True,
        activation="gelu",
    ),
    "rotary, sequential, tied": ModelConfig(
        **TOY, positional="rotary", tied_embeddings=True, activation="silu"
    ),
    "toy": ModelConfig(**TOY, d_mlp=24),
    "gpt2": ModelConfig(**TOY, tied_embeddings=True, activation="gelu_tanh"),
    "no positions": ModelConfig(**TOY, positional="none", activation="gelu"),
}


def shaken(model):
    """Weights large enough that a permuted or transposed matrix shows in the logits."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def tokens(vocab_size, batch, pos):
    return torch.randint(vocab_size, (batch, pos), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("pos", [1, 13, 40])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("rotary_pct", [0.25, 1.0])
def test_gpt_neox_gives_the_same_logits(rotary_pct, parallel, tied, pos):
    hf_model = shaken(
        GPTNeoXForCausalLM(
            GPTNeoXConfig(
                **SHAPE,
                rotary_pct=rotary_pct,
                use_parallel_residual=parallel,
                tie_word_embeddings=tied,
            )
        )
    )
    model = Transformer.from_huggingface(hf_model)
    x = tokens(23, 3, pos)
    with torch.no_grad():
        expected = hf_model(x).logits
        assert expected.std() > 1
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-4)
    assert (model.unembed.weight is model.embed.weight) == tied


@pytest.mark.parametrize(
    ("spelling", "fraction"),
    [
        ({}, 0.25),
        ({"rotary_pct": 0.5, "rotary_emb_base": 10_000}, 0.5),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75}}, 0.75),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}, 1.0),
        ({"rotary_pct": 0.5, "attention_bias": False}, 0.5),
        ({"hidden_act": "gelu_new"}, 0.25),
        ({"hidden_act": "relu"}, 0.25),
    ],
)
def test_configurations_in_every_spelling_survive_a_checkpoint_on_disk(
    spelling, fraction, tmp_path
):
    shaken(GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE, **spelling))).save_pretrained(tmp_path)
    hf_model = GPTNeoXForCausalLM.from_pretrained(tmp_path).eval()
    model = Transformer.from_huggingface(hf_model)
    assert model.config.rotary_fraction == fraction
    x = tokens(23, 2, 17)
    torch.testing.assert_close(model(x), hf_model(x).logits, rtol=0, atol=1e-4)


def test_weights_are_copied_not_shared():
    hf_model = shaken(GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE)))
    model = Transformer.from_huggingface(hf_model)
    x = tokens(23, 2, 5)
    before = model(x)
    with torch.no_grad():
        for parameter in hf_model.parameters():
            parameter.zero_()
    assert torch.equal(model(x), before)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rotary_emb_base": 25_000}, "rotary base"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rotary scaling"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps"),
        ({"hidden_act": "mish"}, "hidden_act"),
    ],
)
def test_what_cannot_be_represented_is_refused(change, named):
    hf_model = GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE, **({"rotary_pct": 1.0} | change)))
    with pytest.raises(ParameterError, match=named):
        Transformer.from_huggingface(hf_model)


def test_another_architecture_is_refused_by_name():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=5, n_positions=4, n_embd=8, n_layer=1, n_head=2))
    with pytest.raises(ParameterError, match="GPT2LMHeadModel"):
        Transformer.from_huggingface(gpt2)


@pytest.mark.parametrize("name", OURS)
def test_to_huggingface_gives_the_same_logits(name):
    model = shaken(Transformer(OURS[name]))
    hf_model = to_huggingface(model)
    x = tokens(11, 3, 20)
    expected = GPTNeoXForCausalLM if OURS[name].positional == "rotary" else GPT2LMHeadModel
    assert type(hf_model) is expected
    torch.testing.assert_close(hf_model(x).logits, model(x), rtol=0, atol=1e-4)


def test_a_rotary_fraction_that_transformers_would_truncate():
    config = ModelConfig(1, 88, 2, 5, 9, positional="rotary", rotary_fraction=30 / 44)
    assert config.rotary_dim == 30
    assert int(44 * (30 / 44)) == 29
    model = shaken(Transformer(config))
    x = tokens(5, 2, 9)
    hf_model = to_huggingface(model)
    torch.testing.assert_close(hf_model(x).logits, model(x), rtol=0, atol=1e-4)
    assert Transformer.from_huggingface(hf_model).config.rotary_dim == 30


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"norm": "rmsnorm"}, "norm='rmsnorm'"),
        ({"d_head": 4}, "d_head=4"),
        ({"parallel_residual": True}, "parallel_residual=True"),
    ],
)
def test_to_huggingface_refuses_what_it_cannot_represent(change, named):
    with pytest.raises(ParameterError, match=named):
        to_huggingface(Transformer(ModelConfig(**TOY, **change)))


@pytest.mark.parametrize("name", ["pythia", "toy"])
def test_the_transformer_lens_bridge_sees_the_same_model(name):
    model = shaken(Transformer(OURS[name]))
    x = tokens(11, 3, 17)
    tap = dict.fromkeys(model.tap_names())
    with torch.no_grad():
        logits = model(x, tap=tap)
        seen, cache = bridge(model).run_with_cache(x)
    # A silently prepended beginning-of-sequence token would change the length.
    assert seen.shape == logits.shape
    torch.testing.assert_close(seen, logits, rtol=0, atol=1e-4)
    for layer in range(2):
        for ours, theirs in (
            (f"pattern.{layer}", f"blocks.{layer}.attn.hook_pattern"),
            (f"z.{layer}", f"blocks.{layer}.attn.hook_z"),
            (f"resid.{layer}", f"blocks.{layer}.hook_resid_pre"),
            (f"resid.{layer + 1}", f"blocks.{layer}.hook_resid_post"),
            (f"mixer_out.{layer}", f"blocks.{layer}.hook_attn_out"),
            (f"mlp_out.{layer}", f"blocks.{layer}.hook_mlp_out"),
        ):
            value = cache[theirs].reshape(tap[ours].shape)
            torch.testing.assert_close(value, tap[ours], rtol=0, atol=1e-4, msg=ours)


def test_importing_the_models_imports_neither_library():
    program = (
        "import sys, emergence_lib.models\n"
        "heavy = {'transformers', 'transformer_lens'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
