"""The transformer against an independent computation, written head by head and query by query."""

import math

import numpy as np
import pytest
import torch

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models import ModelConfig, Transformer

torch.set_num_threads(1)

SHAPE = {"n_layers": 2, "d_model": 12, "n_heads": 3, "vocab_size": 7, "max_pos": 9}
CONFIGS = {
    "toy": ModelConfig(**SHAPE),
    "gpt2": ModelConfig(**SHAPE, tied_embeddings=True, activation="gelu_tanh", embed_std=0.02),
    "pythia": ModelConfig(
        **SHAPE,
        positional="rotary",
        rotary_fraction=0.5,
        parallel_residual=True,
        activation="gelu",
    ),
    "own head size": ModelConfig(**SHAPE, d_head=6, d_mlp=5, positional="rotary"),
    "no positions": ModelConfig(**SHAPE, positional="none", norm="rmsnorm", activation="silu"),
}
every_config = pytest.mark.parametrize("name", CONFIGS)


def shaken(name):
    """A model in float64 whose every parameter, biases and norms too, matters."""
    generator = torch.Generator().manual_seed(3)
    model = Transformer(CONFIGS[name]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.4 * noise)
    return model


def sample(batch=2, pos=9):
    return torch.randint(7, (batch, pos), generator=torch.Generator().manual_seed(4))


def run(model, tokens, **options):
    """Logits and every tap."""
    tap = dict.fromkeys(model.tap_names())
    return model(tokens, tap=tap, **options), tap


def reference(model, tokens, attn_bias=None, detach_others=False):
    """Every tap by hand. With `detach_others`, the literal definition of myopic attention: each
    query sees the keys and values of the other positions as constants."""
    c = model.config
    n_pos = tokens.shape[1]
    taps = {}

    def norm(module, x):
        if c.norm == "rmsnorm":
            return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / scale * module.weight + module.bias

    def rotate(x):  # [batch, pos, d_head], as complex numbers
        half = c.rotary_dim // 2
        frequency = 10_000.0 ** (-np.arange(half) * 2 / max(c.rotary_dim, 1))
        turn = torch.from_numpy(np.exp(1j * np.outer(np.arange(n_pos), frequency)))
        turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * turn
        return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], dim=-1)

    def activation(x):
        if c.activation == "relu":
            return x.clamp_min(0)
        if c.activation == "silu":
            return x / (1 + (-x).exp())
        if c.activation == "gelu":
            return x * (1 + torch.erf(x / math.sqrt(2))) / 2
        return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    def attention(layer, x):
        mixer = model.blocks[layer].mixer
        parts = {"q": [], "k": [], "v": [], "z": [], "pattern": [], "scores": []}
        for head in range(c.n_heads):
            rows = [
                slice(
                    (part * c.n_heads + head) * c.d_head, (part * c.n_heads + head + 1) * c.d_head
                )
                for part in range(3)
            ]
            q, k, v = (x @ mixer.qkv.weight[r].T + mixer.qkv.bias[r] for r in rows)
            q, k = rotate(q), rotate(k)
            z, pattern, scores = [], [], []
            for t in range(n_pos):
                k_t, v_t = k, v
                if detach_others:
                    own = torch.arange(n_pos).eq(t)[:, None]
                    k_t, v_t = torch.where(own, k, k.detach()), torch.where(own, v, v.detach())
                row = (k_t @ q[:, t, :, None]).squeeze(-1) / math.sqrt(c.d_head)
                scores.append(row)
                row = row if attn_bias is None else row + attn_bias[t]
                weight = row[:, : t + 1].exp()
                weight = weight / weight.sum(-1, keepdim=True)
                pattern.append(torch.cat([weight, weight.new_zeros(len(row), n_pos - t - 1)], -1))
                z.append((weight[..., None] * v_t[:, : t + 1]).sum(1))
            for key, value in (("q", q), ("k", k), ("v", v)):
                parts[key].append(value)
            for key, value in (("z", z), ("pattern", pattern), ("scores", scores)):
                parts[key].append(torch.stack(value, 1))
        for key, heads in parts.items():
            taps[f"{key}.{layer}"] = torch.stack(heads, 2 if key == "z" else 1)
        return torch.cat(parts["z"], -1) @ mixer.out.weight.T + mixer.out.bias

    x = model.embed.weight[tokens]
    if c.positional == "learned":
        x = x + model.pos_embed.weight[:n_pos]
    taps["resid.0"] = x
    for layer, block in enumerate(model.blocks):
        mixed = taps[f"mixer_out.{layer}"] = attention(layer, norm(block.norm1, x))
        inner = norm(block.norm2, x if c.parallel_residual else x + mixed)
        hidden = activation(inner @ block.mlp.up.weight.T + block.mlp.up.bias)
        taps[f"mlp_out.{layer}"] = hidden @ block.mlp.down.weight.T + block.mlp.down.bias
        x = taps[f"resid.{layer + 1}"] = x + mixed + taps[f"mlp_out.{layer}"]
    unembedding = model.embed.weight if c.tied_embeddings else model.unembed.weight
    return norm(model.final_norm, x) @ unembedding.T, taps


def close(actual, expected, atol=1e-6, msg=None):
    """The rotary tables are kept in float32, hence not tighter."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol, msg=msg)


@every_config
def test_every_tap_and_the_logits_match_a_computation_by_hand(name):
    model = shaken(name)
    logits, tap = run(model, sample())
    expected, by_hand = reference(model, sample())
    assert set(tap) == set(by_hand)
    for tap_name, value in tap.items():
        assert value.shape == by_hand[tap_name].shape, tap_name
        close(value, by_hand[tap_name], msg=tap_name)
    close(logits, expected)
    assert expected.std() > 0.5  # the comparison has something to compare


def test_taps_have_the_documented_shapes():
    model = shaken("own head size")
    logits, tap = run(model, sample(batch=2, pos=8))
    c = model.config
    square, heads = (2, c.n_heads, 8, 8), (2, c.n_heads, 8, c.d_head)
    stream = (2, 8, c.d_model)
    expected = {f"resid.{k}": stream for k in range(3)}
    for layer in range(2):
        expected |= {f"pattern.{layer}": square, f"scores.{layer}": square}
        expected |= {f"{name}.{layer}": heads for name in "qkv"}
        expected |= {f"z.{layer}": (2, 8, c.n_heads, c.d_head)}
        expected |= {f"mixer_out.{layer}": stream, f"mlp_out.{layer}": stream}
    assert {name: tuple(value.shape) for name, value in tap.items()} == expected
    assert logits.shape == (2, 8, c.vocab_size)


@every_config
def test_recording_and_identity_edits_change_nothing(name):
    model = shaken(name).float()
    tokens = sample()
    explicit = model(tokens, tap=dict.fromkeys(["pattern.0", "pattern.1"]))
    everything, _ = run(model, tokens)
    edited = model(tokens, edit={name: lambda x: x.clone() for name in model.tap_names()})
    assert torch.equal(everything, explicit)
    assert torch.equal(edited, explicit)
    assert (model(tokens) - explicit).abs().max() <= 1e-6 * max(1, explicit.abs().max())


def test_an_edit_is_applied_before_recording_and_a_tap_stays_in_the_graph():
    model = shaken("toy")
    tap = dict.fromkeys(["resid.1", "mlp_out.0"])
    model(sample(), tap=tap, edit={"mlp_out.0": torch.zeros_like}).sum().backward()
    assert not tap["mlp_out.0"].any()
    assert tap["resid.1"].requires_grad
    assert model.blocks[0].mlp.up.weight.grad is None  # its output was replaced
    assert model.embed.weight.grad.any()


def test_a_hand_set_one_hot_pattern_moves_exactly_that_value():
    model = shaken("toy")
    source = [0, 0, 1, 2, 0, 3, 5, 1, 8]  # the position each query copies

    def hand_set(pattern):
        return torch.eye(9, dtype=pattern.dtype)[source].expand_as(pattern)

    _, tap = run(model, sample(), edit={"pattern.0": hand_set})
    v = tap["v.0"]
    close(tap["z.0"], v[:, :, source].transpose(1, 2))
    assert torch.equal(tap["pattern.0"], hand_set(v.new_zeros(2, 3, 9, 9)))


@pytest.mark.parametrize("shape", [(9, 9), (3, 9, 9), (2, 1, 9, 9), (2, 3, 9, 9)])
def test_bias_is_the_same_in_fused_and_explicit_attention(shape):
    model = shaken("pythia").float()
    bias = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(5))
    explicit, tap = run(model, sample(), attn_bias=bias)
    close(model(sample(), attn_bias=bias), explicit, atol=3e-6)
    masked = (tap["scores.0"] + bias).masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
    close(tap["pattern.0"], masked.softmax(-1))
    assert (model(sample()) - explicit).abs().max() > 0.01


def test_bias_matches_the_computation_by_hand_also_in_float64():
    model = shaken("toy")
    bias = torch.randn(9, 9, generator=torch.Generator().manual_seed(5))
    expected, _ = reference(model, sample(), attn_bias=bias.double())
    close(model(sample(), attn_bias=bias), expected)


def test_a_huge_bias_pins_the_pattern():
    model = shaken("toy")
    source = torch.tensor([0, 1, 0, 3, 2, 2, 6, 0, 7])
    one_hot = torch.eye(9)[source]
    _, tap = run(model, sample(), attn_bias=1e4 * one_hot)
    for layer in range(2):
        pattern = tap[f"pattern.{layer}"]
        assert torch.equal(pattern, one_hot.double().expand_as(pattern))


@every_config
def test_myopic_leaves_the_forward_pass_alone(name):
    model = shaken(name).float()
    explicit, taps = run(model, sample())
    myopic, myopic_taps = run(model, sample(), myopic=True)
    assert torch.equal(myopic, explicit)
    assert all(torch.equal(taps[name], myopic_taps[name]) for name in taps)
    assert torch.equal(model(sample(), myopic=True), explicit)


@every_config
def test_myopic_gradients_never_cross_positions_and_are_right_within_one(name):
    model = shaken(name)
    tokens = sample(batch=1, pos=6)
    weight = torch.randn(7, generator=torch.Generator().manual_seed(6), dtype=torch.float64)

    tap = {"resid.0": None}
    logits = model(tokens, myopic=True, tap=tap)
    expected, by_hand = reference(model, tokens, detach_others=True)
    free_tap = {"resid.0": None}
    free = model(tokens, tap=free_tap)
    for t in range(6):
        (grad,) = torch.autograd.grad(
            (logits[0, t] * weight).sum(), tap["resid.0"], retain_graph=True
        )
        others = [s for s in range(6) if s != t]
        assert not grad[0, others].any(), "a gradient crossed positions"
        (right,) = torch.autograd.grad(
            (expected[0, t] * weight).sum(), by_hand["resid.0"], retain_graph=True
        )
        close(grad, right)
        (crossing,) = torch.autograd.grad(
            (free[0, t] * weight).sum(), free_tap["resid.0"], retain_graph=True
        )
        assert t == 0 or crossing[0, :t].abs().max() > 1e-3  # without myopic they do cross


@every_config
def test_myopic_parameter_gradients_match_the_definition(name):
    model = shaken(name)
    weight = torch.randn(2, 9, 7, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    parameters = list(model.parameters())
    ours = torch.autograd.grad((model(sample(), myopic=True) * weight).sum(), parameters)
    expected, _ = reference(model, sample(), detach_others=True)
    right = torch.autograd.grad((expected * weight).sum(), parameters)
    for (parameter_name, _), a, b in zip(model.named_parameters(), ours, right, strict=True):
        close(a, b, atol=1e-5, msg=parameter_name)


@every_config
@pytest.mark.parametrize("option", ["fused", "explicit", "bias"])
def test_a_token_changes_nothing_before_it(name, option):
    model = shaken(name)
    options = {
        "fused": {},
        "explicit": {"tap": {"pattern.0": None, "pattern.1": None}},
        "bias": {"attn_bias": torch.full((9, 9), 2.0)},
    }[option]
    before = model(sample(), **options)
    for t in range(9):
        tokens = sample()
        tokens[:, t] = (tokens[:, t] + 1) % 7
        after = model(tokens, **options)
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t] - before[:, t]).abs().max() > 1e-3


def test_a_shorter_input_gives_the_same_logits():
    model = shaken("pythia")
    close(model(sample()[:, :4]), model(sample())[:, :4], atol=1e-12)


def weights(config, seed):
    return Transformer(config, torch.Generator().manual_seed(seed)).state_dict()


@every_config
def test_weights_are_a_function_of_the_generator(name):
    torch.manual_seed(1)
    first = weights(CONFIGS[name], 11)
    torch.manual_seed(2)
    second, other = weights(CONFIGS[name], 11), weights(CONFIGS[name], 12)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])


def test_initial_scales():
    model = Transformer(ModelConfig(1, 128, 4, 50, 50, init_std=0.1, embed_std=0.5))
    assert abs(model.embed.weight.std() - 0.5) < 0.02
    assert abs(model.pos_embed.weight.std() - 0.5) < 0.02
    for linear in (model.blocks[0].mixer.qkv, model.blocks[0].mlp.down, model.unembed):
        assert abs(linear.weight.std() - 0.1) < 0.005
    assert not model.blocks[0].mlp.up.bias.any()
    tied = Transformer(ModelConfig(1, 128, 4, 50, 50, tied_embeddings=True, embed_std=0.5))
    assert tied.unembed.weight is tied.embed.weight
    assert abs(tied.embed.weight.std() - 0.5) < 0.02


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_heads": 5}, r"n_heads=5 .* d_model=12 \(1, 2, 3, 4, 6, 12\)"),
        ({"n_layers": 0}, "n_layers=0"),
        ({"d_head": 0}, "d_head=0"),
        ({"d_mlp": 2.5}, "d_mlp=2.5"),
        ({"vocab_size": True}, "vocab_size=True"),
        ({"init_std": -1.0}, "init_std=-1.0"),
        ({"embed_std": math.nan}, "embed_std=nan"),
        ({"positional": "rotary", "rotary_fraction": 0.25}, "rotary_fraction=0.25 .* d_head=4"),
        ({"positional": "rotary", "rotary_fraction": 1.5}, "rotary_fraction=1.5"),
        ({"positional": "rotary", "rotary_fraction": 0.0}, "rotary_fraction=0.0"),
        ({"mixer": ("attention",)}, "each of the 2 layers"),
    ],
)
def test_impossible_shapes_are_refused(change, says):
    with pytest.raises(ParameterError, match=says):
        ModelConfig(**(SHAPE | change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mixer": "atention"}, "mixer 'atention'. Did you mean 'attention'"),
        ({"mixer": ["attention", "mamba3"]}, "mixer 'mamba3'"),
        ({"activation": "gleu"}, "activation 'gleu'. Did you mean 'gelu'"),
        ({"norm": "layer_norm"}, "norm 'layer_norm'. Did you mean 'layernorm'"),
        ({"positional": "rotory"}, "positional encoding 'rotory'. Did you mean 'rotary'"),
    ],
)
def test_unknown_names_suggest_the_nearest(change, says):
    with pytest.raises(UnknownNameError, match=says):
        ModelConfig(**(SHAPE | change))


def test_wrong_calls_are_refused():
    model = Transformer(CONFIGS["toy"])
    with pytest.raises(UnknownNameError, match=r"tap 'patern\.0'. Did you mean 'pattern\.0'"):
        model(sample(), tap={"patern.0": None})
    with pytest.raises(UnknownNameError, match=r"tap 'resid\.3'"):
        model(sample(), edit={"resid.3": torch.zeros_like})
    with pytest.raises(ParameterError, match=r"shape\[1\]=10 .* max_pos=9"):
        model(sample(pos=10))
    with pytest.raises(ParameterError, match=r"attn_bias.shape=\(8, 8\) .* query=9, key=9"):
        model(sample(), attn_bias=torch.zeros(8, 8))
    with pytest.raises(ParameterError, match=r"edit\['resid\.1'\]"):
        model(sample(), edit={"resid.1": lambda x: x[:, :1]})


@every_config
@pytest.mark.parametrize("myopic", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_last_position_alone_is_that_of_the_whole_stream(name, myopic, biased):
    """Its value and its gradient, at every depth."""
    model, tokens = shaken(name), sample()
    generator = torch.Generator().manual_seed(5)
    bias = torch.randn(9, 9, generator=generator, dtype=torch.float64) if biased else None
    for n_blocks in range(3):
        streams = [
            model.residual(tokens, n_blocks, attn_bias=bias, myopic=myopic, last_only=last_only)
            for last_only in (False, True)
        ]
        assert streams[0].shape == (2, 9, 12)
        assert streams[1].shape == (2, 1, 12)
        whole, alone = streams[0][:, -1:], streams[1]
        assert torch.allclose(alone, whole, atol=1e-12)
        weight = torch.randn(whole.shape, generator=generator, dtype=torch.float64)
        parameters = list(model.parameters())
        pairs = zip(
            *(
                torch.autograd.grad((x * weight).sum(), parameters, materialize_grads=True)
                for x in (whole, alone)
            ),
            strict=True,
        )
        assert all(torch.allclose(a, b, atol=1e-10) for a, b in pairs)
