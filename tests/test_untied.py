"""Untied models against two literal transformers in one context, and myopic training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.models.untied import UntiedConfig
from emergence_lib.tasks import LinearMap
from emergence_lib.training import TrainConfig, train
from emergence_lib.training.train import masked_loss, step_generator

torch.set_num_threads(1)
TASK = LinearMap(5, 2)
CUT = 4
SHAPE = {
    "n_layers": 2,
    "d_model": 8,
    "n_heads": 2,
    "vocab_size": 2,
    "max_pos": 9,
    "init_std": 0.5,
    "embed_std": 0.5,
    "tied_embeddings": True,
}
CONFIG = TrainConfig(steps=6, batch_size=8, eval_every=3, eval_batch_size=16, warmup_steps=0)


def untied(**changes):
    config = UntiedConfig(**SHAPE | changes, cut=CUT)
    return config.build(torch.Generator().manual_seed(1)).double()


def tokens():
    return TASK.sample(3, torch.Generator().manual_seed(2)).tokens[:, :-1]


def complete_model(model, side):
    """One of the two models as a plain Transformer with its weights."""
    plain = Transformer(
        ModelConfig(**{n: getattr(model.config, n) for n in ModelConfig.__dataclass_fields__})
    ).double()
    state = model.state_dict()
    plain.load_state_dict(
        {name: state[split_name(name, side, state)] for name in plain.state_dict()}
    )
    return plain


def split_name(name, side, state):
    """``blocks.0.mlp.up.weight`` → ``blocks.0.mlp.first.up.weight``, where that is a name."""
    parts = name.split(".")
    names = [".".join([*parts[:i], side, *parts[i:]]) for i in range(len(parts))]
    return next((n for n in names if n in state), name)


def block_by_hand(first, second, layer, x):
    """One block of two models, written per position with loops over queries and keys."""
    blocks = first.blocks[layer], second.blocks[layer]
    heads, d_head = blocks[0].mixer.n_heads, blocks[0].mixer.d_head
    out = []
    q, k, v = [], [], []
    for t in range(x.shape[1]):
        block = blocks[t >= CUT]
        parts = block.mixer.qkv(block.norm1(x[:, t])).view(-1, 3, heads, d_head)
        q.append(parts[:, 0]), k.append(parts[:, 1]), v.append(parts[:, 2])
    for t in range(x.shape[1]):
        block = blocks[t >= CUT]
        scores = torch.stack([(q[t] * k[j]).sum(-1) for j in range(t + 1)]) / d_head**0.5
        pattern = scores.softmax(0)
        z = sum(pattern[j][..., None] * v[j] for j in range(t + 1))
        after = x[:, t] + block.mixer.out(z.flatten(1))
        out.append(after + block.mlp(block.norm2(after)))
    return torch.stack(out, 1)


@pytest.mark.parametrize("tied", [True, False])
def test_an_untied_model_is_two_complete_models_split_by_position(tied):
    model = untied(tied_embeddings=tied)
    first, second = (complete_model(model, side) for side in ("first", "second"))
    ids = tokens()
    halves = [first.embed(ids[:, :CUT]), second.embed(ids[:, CUT:])]
    x = torch.cat(halves, 1) + first.pos_embed.weight[: ids.shape[1]]
    for layer in range(2):
        x = block_by_hand(first, second, layer, x)
    expected = torch.cat(
        [m.unembed(m.final_norm(part)) for m, part in ((first, x[:, :CUT]), (second, x[:, CUT:]))],
        1,
    )
    assert torch.allclose(model(ids), expected, atol=1e-12)
    assert not torch.allclose(model(ids)[:, CUT:], first(ids)[:, CUT:], atol=1e-3)
    assert torch.allclose(model(ids)[:, :CUT], first(ids)[:, :CUT], atol=1e-12)


def loss_at(model, positions, myopic):
    logits = model(tokens(), myopic=myopic)
    return logits.log_softmax(-1)[:, positions, 0].sum()


def touched(model, positions, myopic):
    """Which of the two models' weights get a gradient from the predictions at these positions."""
    model.zero_grad()
    loss_at(model, positions, myopic).backward()
    names = {
        side
        for name, p in model.named_parameters()
        for side in ("first", "second")
        if f".{side}." in name and p.grad is not None and p.grad.abs().max() > 0
    }
    return names


@pytest.mark.parametrize(("myopic", "late"), [(False, {"first", "second"}), (True, {"second"})])
def test_later_losses_reach_the_first_model_through_its_keys_and_values_alone(myopic, late):
    model = untied()
    assert touched(model, range(CUT), myopic) == {"first"}
    assert touched(model, range(CUT, 9), myopic) == late


def test_taps_edits_and_myopic_values_are_those_of_a_transformer():
    model, ids = untied(), tokens()
    tap = dict.fromkeys(model.tap_names())
    plain = model(ids, tap=tap)
    assert all(isinstance(value, Tensor) for value in tap.values())
    assert tap["pattern.1"].shape == (3, 2, 9, 9)
    assert torch.allclose(model(ids, myopic=True), plain, atol=1e-12)
    frozen = tap["resid.1"] * 2
    edited = model(ids, edit={"resid.1": lambda _: frozen})
    assert not torch.allclose(edited, plain)


def test_the_two_models_start_independent_and_have_a_whole_model_s_weights_each():
    model = untied()
    assert not torch.equal(model.embed.first.weight, model.embed.second.weight)
    n_positions = model.pos_embed.weight.numel()
    n_plain = sum(p.numel() for p in Transformer(ModelConfig(**SHAPE)).parameters())
    n = sum(p.numel() for p in model.parameters())
    assert n - n_positions == 2 * (n_plain - n_positions)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cut": 0}, "cut=0 .* from 1 to max_pos - 1 = 8"),
        ({"cut": 9}, "cut=9 .* from 1 to max_pos - 1 = 8"),
        ({"cut": True}, "cut=True .* an integer"),
        ({"mixer": "mamba"}, "mixer='mamba' .* 'attention'"),
    ],
)
def test_impossible_untied_models_are_refused(changes, says):
    with pytest.raises(ParameterError, match=says):
        UntiedConfig(**SHAPE | {"cut": CUT} | changes)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("myopic", [True, False])
def test_untied_and_myopic_models_train_and_resume_bit_for_bit(tmp_path, tied, myopic):
    shape = UntiedConfig(**SHAPE | {"tied_embeddings": tied}, cut=CUT)
    config = replace(CONFIG, myopic=myopic)
    whole = train(TASK, shape, config)
    # A run that was killed after step 4: its last checkpoint is all that is left of it.
    train(TASK, shape, config, folder=tmp_path, checkpoints=(4, 6))
    (tmp_path / "step-00000006.safetensors").unlink()
    resumed = train(TASK, shape, config, folder=tmp_path)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert whole.trajectory.equals(resumed.trajectory)


def test_a_myopic_step_is_the_gradient_of_each_position_through_its_own_column():
    """SGD-like reference: the gradient that AdamW's first step signs, with other columns frozen."""
    shape = ModelConfig(**SHAPE)
    run = train(TASK, shape, replace(CONFIG, steps=1, grad_clip=None, myopic=True))
    model = shape.build(step_generator(0, "weights"))
    batch = TASK.sample(8, step_generator(0, "train", 1))
    ids = batch.tokens[:, :-1]

    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(ids.shape[1]):

        def own_column(x, i=i):
            """Keys or values of every other position are constants."""
            keep = torch.zeros(x.shape[2], 1, dtype=torch.bool)
            keep[i] = True
            return torch.where(keep, x, x.detach())

        edit = {f"{name}.{layer}": own_column for name in "kv" for layer in range(2)}
        logits = model(ids, edit=edit)
        loss = -logits.log_softmax(-1)[:, i].gather(1, batch.tokens[:, i + 1, None]).mean()
        parts = torch.autograd.grad(loss / ids.shape[1], list(model.parameters()))
        total = [a + b for a, b in zip(total, parts, strict=True)]
    for before, after, grad in zip(model.parameters(), run.model.parameters(), total, strict=True):
        big = grad.abs() > 1e-5
        step = (after - before).detach()[big] / -1e-3
        assert big.any()
        assert torch.allclose(step, grad[big].sign(), atol=1e-2)


def test_before_step_sees_the_batch_and_the_weights_that_the_step_starts_from():
    seen = []

    def watch(step, model, batch):
        loss = masked_loss(model(batch.tokens[:, :-1]), batch).item()
        seen.append((step, loss, batch.tokens.clone()))

    watched = train(TASK, ModelConfig(**SHAPE), CONFIG, before_step=watch)
    alone = train(TASK, ModelConfig(**SHAPE), CONFIG)
    assert watched.trajectory.equals(alone.trajectory)
    assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    for step, _, ids in seen:
        assert torch.equal(ids, TASK.sample(8, step_generator(0, "train", step)).tokens)
    fresh = Transformer(ModelConfig(**SHAPE), step_generator(0, "weights"))
    first = TASK.sample(8, step_generator(0, "train", 1))
    assert seen[0][1] == masked_loss(fresh(first.tokens[:, :-1]), first).item()


def test_myopic_must_be_a_bool():
    with pytest.raises(ParameterError, match="myopic=1 "):
        TrainConfig(myopic=1)
