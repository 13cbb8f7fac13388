"""Patching against a forward pass a head, transformer-lens hooks, and patches of known effect."""

import itertools
import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from emergence_lib.analysis import patching
from emergence_lib.analysis.patching import (
    COMPONENTS,
    patch_heads,
    patch_top_k,
    random_order,
    rank_heads,
    recovered_fraction,
    target_probability,
)
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models import ModelConfig, Transformer, bridge

torch.set_num_threads(1)

SHAPE = {"n_layers": 3, "d_model": 32, "n_heads": 4, "vocab_size": 11, "max_pos": 12}
ROTARY = {"positional": "rotary", "rotary_fraction": 0.25, "activation": "gelu"}
CONFIGS = {
    "pythia": ModelConfig(**SHAPE, **ROTARY, parallel_residual=True),
    "rotary, sequential": ModelConfig(**SHAPE, **ROTARY),
    "learned": ModelConfig(**SHAPE, activation="gelu_tanh"),
    "one layer, own head size": ModelConfig(**SHAPE | {"n_layers": 1}, d_head=6, d_mlp=20),
}
every_config = pytest.mark.parametrize("name", CONFIGS)
every_component = pytest.mark.parametrize("component", COMPONENTS)


def shaken(name, seed):
    """A model in float64 whose every parameter matters."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(CONFIGS[name]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    return model


def copy_of(model, change=None):
    """The same model, its named parameters replaced by `change`."""
    copy = Transformer(model.config).to(model.embed.weight.dtype)
    copy.load_state_dict(model.state_dict() | (change or {}))
    return copy


def prompts(n=5, pos=9):
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(11, (n, pos + 1), generator=generator)
    return tokens[:, :-1], tokens[:, -1]


def p_target(logits, target):
    return logits[:, -1].softmax(-1)[torch.arange(len(target)), target]


def all_heads(model):
    return list(itertools.product(range(model.config.n_layers), range(model.config.n_heads)))


def values_of(model, tokens, component):
    tap = {f"{component}.{layer}": None for layer in range(model.config.n_layers)}
    model(tokens, tap=tap)
    return tap


def of_head(component, head):
    """Where a head's values lie in a tap."""
    return (slice(None), slice(None), head) if component == "z" else (slice(None), head)


def moving(component, theirs, heads):
    """An `edit` that puts these heads' values into a run."""

    def put_in(own, layer):
        own = own.clone()
        for place in (of_head(component, head) for at, head in heads if at == layer):
            own[place] = theirs[f"{component}.{layer}"][place]
        return own

    return {f"{component}.{layer}": partial(put_in, layer=layer) for layer, _ in heads}


@torch.no_grad()
def one_pass_a_head(pre, post, tokens, target, component):
    """Δp by one edited forward pass a head."""
    theirs = values_of(post, tokens, component)
    before = p_target(pre(tokens), target)
    delta = torch.empty(len(tokens), pre.config.n_layers, pre.config.n_heads).to(before)
    for layer, head in all_heads(pre):
        logits = pre(tokens, edit=moving(component, theirs, [(layer, head)]))
        delta[:, layer, head] = p_target(logits, target) - before
    return delta


def close(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@every_config
@every_component
def test_every_head_agrees_with_a_forward_pass_of_its_own(name, component):
    pre, post = shaken(name, 1), shaken(name, 2)
    found = patch_heads(pre, post, *prompts(), component)
    expected = one_pass_a_head(pre, post, *prompts(), component)
    close(found, expected)
    assert expected.abs().amax((0, 1)).min() > 1e-4  # every head does something to compare
    assert not found.requires_grad


@every_config
@every_component
def test_the_same_model_gives_exactly_zero(name, component):
    model = shaken(name, 1).float()
    found = patch_heads(model, copy_of(model), *prompts(), component)
    assert not found.any()


def test_chunks_do_not_change_the_numbers(monkeypatch):
    pre, post = shaken("pythia", 1), shaken("pythia", 2)
    order = random_order(3, 4, torch.Generator().manual_seed(1))
    whole = patch_heads(pre, post, *prompts())
    joint = patch_top_k(pre, post, *prompts(), order, range(13))
    alone = target_probability(pre, *prompts())
    for chunk, stored in ((1, 1), (2 * 9 * 128, 2**26), (2**22, 2 * 12 * 9 * 32)):
        monkeypatch.setattr(patching, "CHUNK", chunk)
        monkeypatch.setattr(patching, "STORED", stored)
        close(patch_heads(pre, post, *prompts()), whole)
        close(patch_top_k(pre, post, *prompts(), order, range(13)), joint)
        close(target_probability(pre, *prompts()), alone)


HOOKS = {"pattern": "attn.hook_pattern", "z": "attn.hook_z", "v": "attn.hook_v"}
"""Names in transformer-lens; its z and v are [batch, pos, head, d_head]."""


@pytest.mark.parametrize("name", ["pythia", "learned"])
def test_agreement_with_transformer_lens_hooks(name):
    pre, post = shaken(name, 1).float(), shaken(name, 2).float()
    tokens, target = prompts()
    lens_pre, lens_post = bridge(pre), bridge(post)
    for component, hook_name in HOOKS.items():
        found = patch_heads(pre, post, tokens, target, component)
        with torch.no_grad():
            _, cache = lens_post.run_with_cache(tokens)
            before = p_target(lens_pre(tokens), target)
            for layer, head in all_heads(pre):
                full_name = f"blocks.{layer}.{hook_name}"
                index = of_head("pattern" if component == "pattern" else "z", head)

                def put_in(value, hook, index=index, cache=cache):
                    value = value.clone()
                    value[index] = cache[hook.name][index]
                    return value

                logits = lens_pre.run_with_hooks(tokens, fwd_hooks=[(full_name, put_in)])
                delta = p_target(logits, target) - before
                close(found[:, layer, head], delta, atol=1e-6)
                assert delta.abs().max() > 1e-4


def test_the_benchmark_compares_like_with_like():
    script = Path(__file__).parents[1] / "benchmarks" / "patching.py"
    benchmark = runpy.run_path(str(script))
    config = ModelConfig(**SHAPE, **ROTARY, parallel_residual=True, init_std=0.2)
    config = replace(config, vocab_size=500, max_pos=16)
    found = benchmark["compare"](config, n_prompts=2, repeats=1)
    assert found.largest_difference <= 1e-6
    assert found.largest_effect > 1e-3
    assert found.loop_operations > 3 * found.ours_operations > 0


# A model of which one head changed: moving that head makes the whole change.


def with_changed_head(model, part, layer=1, head=2):
    """`model` with other weights for the queries, keys or values of one head."""
    name = f"blocks.{layer}.mixer.qkv.weight"
    weight = model.state_dict()[name].clone()
    rows = weight.unflatten(0, (3, model.config.n_heads, -1))["qkv".index(part), head]
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(9))
    rows.copy_(noise.to(rows))
    return copy_of(model, {name: weight})


@every_config
@pytest.mark.parametrize(("part", "component"), [("k", "pattern"), ("v", "v"), ("v", "z")])
def test_the_head_that_changed_makes_the_whole_difference(name, part, component):
    layer = min(1, CONFIGS[name].n_layers - 1)
    pre = shaken(name, 1)
    post = with_changed_head(pre, part, layer)
    found = patch_heads(pre, post, *prompts(), component)
    gap = target_probability(post, *prompts()) - target_probability(pre, *prompts())
    assert gap.abs().max() > 1e-3
    close(found[:, layer, 2], gap)
    assert not found[:, :layer].any()  # below, both models are the same
    assert not found[:, layer, [0, 1, 3]].any()
    back = patch_heads(post, pre, *prompts(), component)
    close(back[:, layer, 2], -gap)
    joint = patch_top_k(pre, post, *prompts(), [(layer, 2)], [1], component)
    close(joint[0], target_probability(post, *prompts()))


def test_patterns_do_not_carry_changed_values_nor_values_changed_patterns():
    pre = shaken("pythia", 1)
    for part, component in (("v", "pattern"), ("q", "v")):
        post = with_changed_head(pre, part)
        found = patch_heads(pre, post, *prompts(), component)
        assert not found[:, :2].any()
        assert found[:, 2].abs().max() > 1e-4  # layer 2 sees another residual stream in post


@every_config
@every_component
def test_jointly_patched_heads_agree_with_one_pass_for_each_k(name, component):
    pre, post = shaken(name, 1), shaken(name, 2)
    tokens, target = prompts()
    heads = all_heads(pre)
    order = random_order(pre.config.n_layers, 4, torch.Generator().manual_seed(1))
    ks = [len(heads), 3, 0, 1, 2]
    found = patch_top_k(pre, post, tokens, target, order, ks, component)
    theirs = values_of(post, tokens, component)
    with torch.no_grad():
        for k, row in zip(ks, found, strict=True):
            edit = moving(component, theirs, order[:k])
            close(row, p_target(pre(tokens, edit=edit), target))
        everything = {tap: lambda own, tap=tap: theirs[tap] for tap in theirs}
        close(found[0], p_target(pre(tokens, edit=everything), target))
    close(found[2], target_probability(pre, tokens, target))
    delta = patch_heads(pre, post, tokens, target, component)
    close(found[3] - found[2], delta[(slice(None), *order[0])])
    assert (found[0] - found[2]).abs().max() > 0.01


@every_config
def test_all_head_outputs_are_all_that_attention_does(name):
    """Models that differ in their queries, keys and values only."""
    pre, other = shaken(name, 1), shaken(name, 2)
    change = {key: value for key, value in other.state_dict().items() if ".qkv." in key}
    post = copy_of(pre, change)
    p_pre, p_post = (target_probability(m, *prompts()) for m in (pre, post))
    assert (p_post - p_pre).abs().max() > 0.01
    order = all_heads(pre)
    moved = patch_top_k(pre, post, *prompts(), order, range(len(order) + 1), "z")
    close(moved[0], p_pre)
    close(moved[-1], p_post)


@every_config
def test_every_component_moved_gives_post(name):
    pre, post = shaken(name, 1), shaken(name, 2)
    tokens, _ = prompts()
    last = f"resid.{pre.config.n_layers}"
    parts = ["resid.0", *(t for t in pre.tap_names() if t.startswith(("mixer_out", "mlp_out")))]
    theirs = dict.fromkeys([*parts, last])
    logits = post(tokens, tap=theirs)
    found = {last: None}
    pre(tokens, tap=found, edit={part: lambda own, part=part: theirs[part] for part in parts})
    assert torch.equal(found[last], theirs[last])
    assert torch.equal(post.unembed(post.final_norm(found[last])), logits)


def test_target_probability():
    model = shaken("learned", 1)
    tokens, target = prompts()
    close(target_probability(model, tokens, target), p_target(model(tokens), target).detach())


def test_heads_are_ranked_by_their_mean_effect():
    delta = torch.tensor([[[0.1, -0.9], [0.3, 0.0]], [[0.1, 0.1], [0.1, 0.0]]])
    assert rank_heads(delta) == [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert rank_heads(delta[1]) == [(0, 0), (0, 1), (1, 0), (1, 1)]  # ties by layer and head
    assert rank_heads(-delta[0]) == [(0, 1), (1, 1), (0, 0), (1, 0)]


def test_a_random_order_holds_every_head_once_and_follows_its_generator():
    first = random_order(3, 4, torch.Generator().manual_seed(1))
    assert sorted(first) == list(itertools.product(range(3), range(4)))
    assert random_order(3, 4, torch.Generator().manual_seed(1)) == first
    assert random_order(3, 4, torch.Generator().manual_seed(2)) != first


def test_recovered_fraction_is_a_ratio_of_means():
    p_pre, p_post = torch.tensor([0.1, 0.2, 0.5]), torch.tensor([0.9, 0.6, 0.5])
    patched = torch.stack([p_pre, p_post, torch.tensor([0.5, 0.4, 0.5]), p_post + 0.1])
    found = recovered_fraction(patched, p_pre, p_post)
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 0.5, 1.25]))
    back = recovered_fraction(patched, p_post, p_pre)
    torch.testing.assert_close(back, 1 - found)
    samples = torch.tensor([[0, 1, 2], [1, 1, 2]])  # bootstrap over prompts
    stacked = recovered_fraction(patched[:, None][..., samples], p_pre[samples], p_post[samples])
    assert stacked.shape == (4, 1, 2)
    torch.testing.assert_close(stacked[:, 0, 0], found)
    assert stacked[2, 0, 1].item() == pytest.approx(0.4 / 0.8)


def test_there_is_no_fraction_of_no_gap():
    p_pre = torch.tensor([0.1, 0.3])
    found = recovered_fraction(torch.rand(3, 2), p_pre, p_pre.flip(0))
    assert found.isnan().all()
    assert not recovered_fraction(torch.rand(3, 2), p_pre, p_pre + 2e-3).isnan().any()


def refused(post="learned", component="pattern", **changes):
    tokens, target = prompts()
    given = {"tokens": tokens, "target": target} | changes
    pre, post = Transformer(CONFIGS["learned"]), Transformer(CONFIGS[post])
    patch_heads(pre, post, **given, component=component)


def with_token(token):
    tokens, _ = prompts()
    tokens[1, 2] = token
    return {"tokens": tokens}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"post": "pythia"}, r"post\.config\.positional='rotary' .* 'learned'"),
        ({"post": "one layer, own head size"}, r"post\.config\.n_layers=1 .* 3, as in pre"),
        (with_token(11), "tokens=11 .* = 10"),
        (with_token(-1), "tokens=-1"),
        ({"target": torch.full((5,), 11)}, "target=11"),
        ({"target": torch.zeros(4).long()}, r"target\.shape=\(4,\) .* \(5,\)"),
        ({"target": torch.zeros(5, 1).long()}, r"target\.shape=\(5, 1\)"),
        ({"target": torch.zeros(5)}, r"target\.dtype=torch\.float32"),
        ({"tokens": torch.zeros(5, 13).long()}, r"tokens\.shape=\(5, 13\) .* max_pos=12"),
        ({"tokens": torch.zeros(5).long()}, r"tokens\.shape=\(5,\)"),
        ({"tokens": torch.zeros(0, 4).long()}, r"tokens\.shape=\(0, 4\)"),
    ],
)
def test_what_cannot_be_patched_is_refused(change, says):
    with pytest.raises(ParameterError, match=says):
        refused(**change)


def test_an_unknown_component_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'patern'\. Did you mean 'pattern'"):
        refused(component="patern")


@pytest.mark.parametrize(
    ("order", "ks", "says"),
    [
        ([(0, 1), (3, 0)], [1], r"order\[1\]=\(3, 0\) .* to \(2, 3\)"),
        ([(0, 1), (0, 1)], [1], r"order\[1\]=\(0, 1\) .* each once"),
        ([(0, 0), *itertools.product(range(3), range(4))], [1], r"order\[1\]=\(0, 0\)"),
        ([(0, 1)], [0, 2], "ks=2 .* from 0 to 1"),
        ([(0, 1)], [-1], "ks=-1"),
        ([(0, 1)], [], r"ks=\[\]"),
    ],
)
def test_an_impossible_order_is_refused(order, ks, says):
    model = Transformer(CONFIGS["learned"])
    with pytest.raises(ParameterError, match=says):
        patch_top_k(model, model, *prompts(), order, ks)


def test_fractions_need_the_same_prompts():
    with pytest.raises(ParameterError, match=r"p_post\.shape=\(3,\) .* prompt=2"):
        recovered_fraction(torch.rand(4, 2), torch.rand(2), torch.rand(3))
