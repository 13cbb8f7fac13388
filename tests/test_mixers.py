"""The token mixers against recurrences written step by step, and against others' code.

`naive_mixers.py` holds the recurrences. Here also every whole layer is written out once more, from
the formulas of its docstring.
"""

import math

import naive_mixers as naive
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from emergence_lib.errors import ParameterError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.models.mixers import MIXERS, MLPMixer, chunks
from emergence_lib.models.mixers.gated_delta import gated_delta_rule
from emergence_lib.models.mixers.mamba import BLOCK, selective_scan
from emergence_lib.models.mixers.mlstm import matrix_memory
from emergence_lib.models.mixers.rwkv import LOG_DECAY, wkv
from emergence_lib.models.mixers.scan import linear_scan

torch.set_num_threads(1)

VOCAB = 7
SHAPE = {"n_layers": 1, "d_model": 12, "n_heads": 3, "d_head": 5, "vocab_size": VOCAB}
RECURRENT = sorted(set(MIXERS) - {"attention", "mlp_mixer"})
RECURRENCES = {
    "gated_delta": (gated_delta_rule, naive.gated_delta_rule),
    "rwkv": (wkv, naive.wkv),
    "mlstm": (matrix_memory, naive.matrix_memory),
    "linear_rnn": (linear_scan, naive.linear_scan),
    "mamba": (selective_scan, naive.selective_scan),
}
every_mixer = pytest.mark.parametrize("name", MIXERS)
every_recurrence = pytest.mark.parametrize("name", RECURRENCES)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def inputs(name, n_pos, batch=2, heads=2, d=5, d_v=3):
    """What the recurrence is called with, at random, all states remembering some tens of steps."""
    key, value, number = (batch, heads, n_pos, d), (batch, heads, n_pos, d_v), (batch, heads, n_pos)
    channels, state = (batch, n_pos, 6), (batch, n_pos, 4)
    unit = F.normalize(draw(*key, seed=1), dim=-1)
    slow = F.logsigmoid(3 + draw(*number, seed=2))
    if name == "gated_delta":
        return [draw(*key), unit, draw(*value), slow, draw(*number, seed=3).sigmoid()]
    if name == "rwkv":
        log_w = LOG_DECAY * (2 * draw(*key, seed=2) - 2).sigmoid()
        rate = draw(*key, seed=3).sigmoid()
        return [draw(*key), log_w, draw(*key, seed=4), draw(*value), -unit, unit * rate]
    if name == "mlstm":
        return [draw(*key), draw(*key, seed=1), draw(*value), draw(*number, seed=3), slow]
    if name == "linear_rnn":
        return [(2 + draw(*channels)).sigmoid(), draw(*channels, seed=1)]
    rates = -torch.arange(1.0, 5.0, dtype=torch.float64).repeat(6, 1)
    step = 0.1 * draw(*channels, seed=1).exp()
    return [draw(*channels), step, rates, draw(*state, seed=2), draw(*state, seed=3)]


def with_gradients(function, arguments, dtype=torch.float64):
    """The outputs, and the gradients of a random weighting of them."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in arguments]
    out = function(*leaves)
    weights = draw(*out.shape, seed=9).to(dtype)
    return [out, *torch.autograd.grad(out, leaves, weights)]


def assert_same(actual, expected, tolerance):
    """Within `tolerance` times the largest number of each tensor, or times 0.001."""
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.isfinite().all(), i
        error = (a - e).abs().max() / e.abs().max().clamp_min(1e-3)
        assert error <= tolerance, (i, error.item())


@every_recurrence
@pytest.mark.parametrize("n_pos", [1, 2, chunks.SIZE, 2 * chunks.SIZE - 1, 2 * BLOCK + 7])
def test_a_recurrence_and_its_gradients_match_the_naive_form(name, n_pos):
    ours, reference = RECURRENCES[name]
    arguments = inputs(name, n_pos)
    actual = with_gradients(ours, arguments)
    assert_same(actual, with_gradients(reference, inputs(name, n_pos)), 1e-10)
    for given, fresh in zip(arguments, inputs(name, n_pos), strict=True):
        assert torch.equal(given, fresh), "an argument was changed in place"


def strong(name, n_pos):
    """Inputs whose decays go from none at all to forgetting everything, side by side."""
    arguments = inputs(name, n_pos, batch=1)
    number = arguments[0].shape[:3]
    extreme = torch.where(draw(*number, seed=5) > 0, -60.0, -1e-4).double()
    if name == "gated_delta":
        arguments[3] = extreme
    elif name == "rwkv":  # its strongest decay, in every channel and at every position of one head
        arguments[1][:, 0] = LOG_DECAY
        arguments[1][:, 1, :, ::2] = -1e-6
    elif name == "mlstm":  # exp(±100) is beyond float32
        arguments[3] = 100 * draw(*number, seed=6).sign()
        arguments[3][:, 0, :40] = -100  # at first nothing at all is written
        arguments[4] = extreme
    elif name == "linear_rnn":
        arguments[0] = torch.where(draw(*arguments[0].shape, seed=5) > 0, 1e-30, 1 - 1e-4).double()
    else:
        arguments[1] = torch.where(draw(*arguments[1].shape, seed=5) > 0, 50.0, 1e-3).double()
    return arguments


@every_recurrence
def test_strong_decays_and_long_sequences_stay_exact_in_single_precision(name):
    ours, reference = RECURRENCES[name]
    arguments = [x.float() for x in strong(name, 600)]
    expected = with_gradients(reference, [x.double() for x in arguments])
    # Logarithms of decays are summed in single precision: an error of 1e-7 times the sum, up to
    # 60 · 16 here, becomes a relative error of a weight; so do input gates of exp(±100).
    tolerance = {"mlstm": 2e-3, "gated_delta": 1e-4}.get(name, 1e-6)
    assert_same(with_gradients(ours, arguments, torch.float32), expected, tolerance)


def test_repeated_keys_do_not_ruin_the_delta_rule_in_single_precision():
    # Where every key is the same, the powers of L in (I + L)⁻¹ grow like binomials and cancel.
    q, k, v, log_alpha, beta = inputs("gated_delta", 64)
    arguments = [q, k[..., :1, :].expand_as(k), v, 1e-3 * log_alpha, torch.full_like(beta, 0.999)]
    expected = with_gradients(naive.gated_delta_rule, arguments)
    ours = with_gradients(gated_delta_rule, arguments, torch.float32)
    assert_same(ours[:4], expected[:4], 1e-5)  # the output, and the gradients of q, k and v


def config(name, **changes):
    return ModelConfig(**(SHAPE | {"max_pos": 40, "mixer": name} | changes))


def shaken(name, **changes):
    """A model in float64 whose every parameter matters."""
    generator = torch.Generator().manual_seed(3)
    model = Transformer(config(name, **changes)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    return model


def mixer_of(model):
    return model.blocks[0].mixer


def apply(mixer, x):
    return mixer(x, attn_bias=None, myopic=False, record=lambda name, value: value)


def heads(x):
    return x.unflatten(-1, (3, 5)).transpose(1, 2)


def conv(module, x):
    """Position by position."""
    return torch.stack(
        [
            module.bias
            + sum(module.kernel[:, 0, 3 - j] * x[:, t - j] for j in range(4) if t - j >= 0)
            for t in range(x.shape[1])
        ],
        1,
    )


def gated_delta_by_hand(m, x):
    q, k, v = (heads(y) for y in F.silu(conv(m.conv, x @ m.qkv.weight.T)).chunk(3, -1))
    q = q / q.norm(dim=-1, keepdim=True) / math.sqrt(5)
    k = k / k.norm(dim=-1, keepdim=True)
    rate = F.softplus(x @ m.decay.weight.T + m.decay_bias) * m.log_rate.exp()
    beta = (x @ m.beta.weight.T).sigmoid()
    o = naive.gated_delta_rule(q, k, v, -rate.mT, beta.mT)
    o = o / (o.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * m.norm.weight
    return m.out(o.transpose(1, 2).flatten(2) * F.silu(x @ m.gate.weight.T))


def rwkv_by_hand(m, x):
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    shifted = [(1 - mu.squeeze()) * x + mu.squeeze() * before for mu in m.shift]
    r, k, v = (y @ p.weight.T for y, p in zip(shifted, (m.r, m.k, m.v), strict=False))
    d = m.decay_bias + torch.tanh(shifted[3] @ m.decay_down.weight.T) @ m.decay_up.weight.T
    eta = (shifted[4] @ m.rate_down.weight.T @ m.rate_up.weight.T + m.rate_up.bias).sigmoid()
    g = (shifted[5] @ m.gate_down.weight.T).sigmoid() @ m.gate_up.weight.T
    kappa = heads(k * m.removal_key)
    kappa = kappa / kappa.norm(dim=-1, keepdim=True)
    k = heads(k * (1 - m.rate_share + m.rate_share * eta))
    r, v = heads(r), heads(v)
    o = naive.wkv(r, -heads(d.sigmoid()) * math.exp(-0.5), k, v, -kappa, kappa * heads(eta))
    centred = o - o.mean(-1, keepdim=True)
    o = centred / (centred.pow(2).mean(-1, keepdim=True) + 64e-5).sqrt()
    o = o * m.norm.weight + m.norm.bias
    o = o + (r * heads(m.bonus.expand(1, 1, -1)) * k).sum(-1, keepdim=True) * v
    return m.out(g * o.transpose(1, 2).flatten(2))


def mlstm_by_hand(m, x):
    q, k = ((F.silu(conv(m.conv, x)) @ w.T) for w in m.qk.weight.chunk(2))
    q, k, v = heads(q), heads(k) / math.sqrt(5), heads(x @ m.v.weight.T)
    log_i = x @ m.input_gate.weight.T + m.input_gate.bias
    f = (x @ m.forget_gate.weight.T + m.forget_bias).sigmoid()
    h = naive.matrix_memory(q, k, v, log_i.mT, f.log().mT)
    centred = h - h.mean(-1, keepdim=True)
    h = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    h = h * m.norm.weight + m.norm.bias
    return m.out((x @ m.gate.weight.T).sigmoid() * h.transpose(1, 2).flatten(2))


def linear_rnn_by_hand(m, x):
    u = conv(m.conv, m.u(x))
    a = (-8 * F.softplus(m.rate) * m.recurrence_gate(u).sigmoid()).exp()
    h = naive.linear_scan(a, (1 - a**2).sqrt() * m.input_gate(u).sigmoid() * u)
    return m.out(h * F.gelu(m.gate(x)))


def mamba_by_hand(m, x):
    u, gate = (x @ m.up.weight.T).chunk(2, -1)
    u = F.silu(conv(m.conv, u))
    delta, b, c = (u @ m.select.weight.T).split([1, 16, 16], -1)
    step = F.softplus(delta @ m.step.weight.T + m.step_bias)
    y = naive.selective_scan(u, step, -m.log_rate[0].exp(), b, c) + m.skip * u
    return m.out(y * F.silu(gate))


def mlp_mixer_by_hand(m, x):
    v, n_pos = m.v(x), x.shape[1]
    square = m.positions.weight.view(3, 40, 40)
    z = torch.zeros_like(v)
    for t in range(n_pos):
        for j in range(t + 1):
            z[:, t] += square[:, t, j].repeat_interleave(5) * v[:, j]
    return m.out(z)


BY_HAND = {
    "gated_delta": gated_delta_by_hand,
    "rwkv": rwkv_by_hand,
    "mlstm": mlstm_by_hand,
    "linear_rnn": linear_rnn_by_hand,
    "mamba": mamba_by_hand,
    "mlp_mixer": mlp_mixer_by_hand,
}


@pytest.mark.parametrize("name", sorted(set(MIXERS) - {"attention"}))
def test_a_whole_mixer_matches_its_formulas(name):
    mixer, x = mixer_of(shaken(name)), draw(2, 37, 12)
    with torch.no_grad():
        expected = BY_HAND[name](mixer, x)
        assert (apply(mixer, x) - expected).abs().max() <= 1e-9
    assert expected.std(1).min() > 0.01  # positions differ: there is something to compare


def test_mamba_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    from transformers.models.mamba.modeling_mamba import MambaMixer

    ours = mixer_of(shaken("mamba")).float()
    shape = transformers.MambaConfig(
        hidden_size=12,
        state_size=16,
        expand=2,
        conv_kernel=4,
        time_step_rank=1,
        num_hidden_layers=1,
    )
    theirs = MambaMixer(shape, layer_idx=0).eval()
    theirs.load_state_dict(
        {
            "A_log": ours.log_rate.squeeze(0),
            "D": ours.skip,
            "conv1d.weight": ours.conv.kernel,
            "conv1d.bias": ours.conv.bias,
            "in_proj.weight": ours.up.weight,
            "x_proj.weight": ours.select.weight,
            "dt_proj.weight": ours.step.weight,
            "dt_proj.bias": ours.step_bias,
            "out_proj.weight": ours.out.weight,
        }
    )
    x = draw(2, 70, 12).float()
    with torch.no_grad():
        expected = theirs(x) + ours.out.bias
        assert (apply(ours, x) - expected).abs().max() <= 1e-5
    assert expected.std() > 0.1


def test_the_gated_delta_rule_is_that_of_transformers():
    pytest.importorskip("transformers")
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    arguments = [x.float() for x in inputs("gated_delta", 70)]
    ours = gated_delta_rule(arguments[0] / math.sqrt(5), *arguments[1:])
    for form in (theirs.torch_recurrent_gated_delta_rule, theirs.torch_chunk_gated_delta_rule):
        q, k, v, log_alpha, beta = (x.transpose(1, 2) for x in arguments)
        expected, _ = form(q, k, v, g=log_alpha, beta=beta)
        assert (ours - expected.transpose(1, 2)).abs().max() <= 1e-5
    assert ours.std() > 0.1


def test_the_matrix_memory_is_that_of_transformers():
    pytest.importorskip("transformers")
    theirs = pytest.importorskip("transformers.models.xlstm.modeling_xlstm")
    q, k, v, log_i, _ = inputs("mlstm", 50)
    f = 3 + draw(2, 2, 50, seed=2)
    expected = theirs.mlstm_recurrent_sequence_native(
        q, k, v, log_i, f, eps=0.0, dtype_state=torch.float64
    )
    ours = matrix_memory(q / math.sqrt(5), k, v, log_i, F.logsigmoid(f))
    assert (ours - expected).abs().max() <= 1e-9


def sees_nothing_ahead(model, n_pos):
    """Changing the token at t changes the logits at t and none before: True if so for every t."""
    tokens = torch.randint(VOCAB, (2, n_pos), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        before = model(tokens)
        for t in range(n_pos):
            changed = tokens.clone()
            changed[:, t] = (changed[:, t] + 1) % VOCAB
            after = model(changed)
            assert (after[:, t] - before[:, t]).abs().max() > 1e-3
            if not torch.equal(after[:, :t], before[:, :t]):
                return False
    return True


@every_mixer
def test_a_token_changes_nothing_before_it(name):
    assert sees_nothing_ahead(shaken(name), n_pos=2 * chunks.SIZE + 5)


@every_mixer
def test_gradients_reach_every_earlier_position_and_none_later(name):
    model, n_pos = shaken(name), chunks.SIZE + 4
    tap = {"resid.0": None}
    tokens = torch.randint(VOCAB, (1, n_pos), generator=torch.Generator().manual_seed(4))
    logits = model(tokens, tap=tap)
    for t in range(n_pos):
        (grad,) = torch.autograd.grad(logits[0, t, 0], tap["resid.0"], retain_graph=True)
        reached = grad[0].abs().sum(-1)
        assert not reached[t + 1 :].any()
        assert (reached[: t + 1] > 1e-12).all()


def without_mask(mixer, n_pos):
    return mixer.positions.weight.unflatten(0, (mixer.n_heads, -1))[:, :n_pos, :n_pos]


def test_an_unmasked_mixer_leaks_the_target(monkeypatch):
    def loss_after_training():
        """Next-token loss on random tokens, of which nothing can be known."""
        generator = torch.Generator().manual_seed(0)
        model = Transformer(ModelConfig(1, 32, 4, 4, 8, mixer="mlp_mixer"), generator)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        losses = []
        for _ in range(250):
            tokens = torch.randint(4, (64, 9), generator=generator)
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return sum(losses[-20:]) / 20

    assert loss_after_training() > math.log(4) - 0.02
    monkeypatch.setattr(MLPMixer, "pattern", without_mask)
    # The last target is not in the input, so an eighth of the entropy stays.
    assert loss_after_training() < math.log(4) / 8 + 0.1
    assert not sees_nothing_ahead(shaken("mlp_mixer"), n_pos=8)  # the property test would fail


@every_mixer
def test_a_shorter_input_gives_the_same_logits(name):
    model = shaken(name)
    tokens = torch.randint(VOCAB, (2, 37), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        whole = model(tokens)
        for n_pos in (1, 5, chunks.SIZE, 20):
            difference = model(tokens[:, :n_pos]) - whole[:, :n_pos]
            assert difference.abs().max() <= 1e-10


@pytest.mark.parametrize("name", sorted(set(MIXERS) - {"attention"}))
def test_what_is_for_attention_only_is_refused(name):
    model = Transformer(config(name))
    tokens = torch.zeros(1, 6, dtype=torch.long)
    known = MIXERS[name].__name__
    with pytest.raises(ParameterError, match=rf"attn_bias=.*\(6, 6\).* {known} has no attention"):
        model(tokens, attn_bias=torch.zeros(6, 6))
    with pytest.raises(ParameterError, match=rf"myopic=True .* {known} has no attention"):
        model(tokens, myopic=True)


def test_layers_can_have_different_mixers():
    model = shaken(tuple(MIXERS), n_layers=len(MIXERS), max_pos=9)
    assert [type(block.mixer) for block in model.blocks] == list(MIXERS.values())
    assert "pattern.0" in model.tap_names()
    assert "pattern.1" not in model.tap_names()
    assert sees_nothing_ahead(model, n_pos=9)


@every_mixer
def test_weights_are_a_function_of_the_generator(name):
    def weights(seed):
        return Transformer(config(name), torch.Generator().manual_seed(seed)).state_dict()

    torch.manual_seed(1)
    first = weights(11)
    torch.manual_seed(2)
    second, other = weights(11), weights(12)
    assert all(torch.equal(first[key], second[key]) for key in first)
    mixer_weights = [key for key in first if "mixer" in key and key.endswith("weight")]
    assert any(not torch.equal(first[key], other[key]) for key in mixer_weights)


@every_mixer
def test_every_matrix_of_a_mixer_maps_one_space_to_another(name):
    # An optimizer for matrices takes all 2-dimensional parameters of a mixer (`Muon`).
    mixer = mixer_of(Transformer(config(name)))
    maps = {id(m.weight) for m in mixer.modules() if isinstance(m, nn.Linear)}
    assert all(id(p) in maps for p in mixer.parameters() if p.ndim == 2)


def test_initial_decays():
    def of(name):
        return mixer_of(Transformer(config(name)))

    mamba, delta, rnn, rwkv = of("mamba"), of("gated_delta"), of("linear_rnn"), of("rwkv")
    for steps in (F.softplus(mamba.step_bias), F.softplus(delta.decay_bias)):
        assert steps[[0, -1]].tolist() == pytest.approx([1e-3, 1e-1], rel=1e-4)
    assert mamba.log_rate.exp()[0, 3].tolist() == pytest.approx(list(range(1, 17)))
    assert (-8 * F.softplus(rnn.rate)).exp()[[0, -1]].tolist() == pytest.approx([0.9, 0.999])
    x = torch.zeros(1, 1, 12)
    decay = LOG_DECAY * (rwkv.decay_bias + rwkv.decay_up(rwkv.decay_down(x).tanh())).sigmoid()
    assert decay.exp()[0, 0, [0, -1]].tolist() == pytest.approx([0.9975, 0.6856], abs=1e-3)


@pytest.mark.parametrize("name", RECURRENT)
def test_memory_is_linear_in_length(name):
    """Bytes kept for the backward pass: twice the length, twice the bytes."""
    mixer = mixer_of(Transformer(config(name)))

    def kept(n_pos):
        storages = {}

        def count(tensor):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        x = torch.randn(1, n_pos, 12, generator=torch.Generator().manual_seed(0))
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            out = apply(mixer, x.requires_grad_())
        assert out.shape == x.shape
        return sum(storages.values())

    short, long, longer = (kept(n_pos) for n_pos in (512, 1024, 2048))
    assert longer - long == pytest.approx(2 * (long - short), rel=0.02)
