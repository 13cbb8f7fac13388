"""The loop: the same numbers whatever interrupts it, and a clear word when it cannot go on."""

import importlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import save_file

from emergence_lib.errors import ParameterError, StoreError, TrainingError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import Batch, LinearMap
from emergence_lib.training import (
    TrainConfig,
    linear_schedule,
    log_schedule,
    masked_loss,
    pythia_schedule,
    scaled_pythia_schedule,
    train,
)
from emergence_lib.training.train import lr_share, step_generator

training_loop = importlib.import_module("emergence_lib.training.train")  # beside the function

torch.set_num_threads(1)

TASK = LinearMap(state_size=5, row_weight=2)
MODEL = ModelConfig(n_layers=1, d_model=16, n_heads=2, vocab_size=2, max_pos=9)
TIED = replace(
    MODEL, positional="rotary", parallel_residual=True, tied_embeddings=True, embed_std=0.02
)
CONFIG = TrainConfig(
    steps=24, batch_size=8, eval_every=5, eval_batch_size=16, warmup_steps=10, weight_decay=0.01
)


def entropy(model, batch, logits, tap):
    pattern = tap["pattern.0"]
    assert not pattern.requires_grad
    return {"entropy": torch.special.entr(pattern).sum(-1).mean().item()}


entropy.taps = ("pattern.0",)


class Interrupt(Exception):
    pass


def interrupt_at(evaluation):
    """An observer that raises at the given evaluation, counted from 0."""
    left = [evaluation]

    def observer(*_):
        left[0] -= 1
        if left[0] < 0:
            raise Interrupt
        return {}

    return observer


def assert_same(a, b):
    """Bit for bit: every number of the trajectory, every weight, every kept state."""
    assert a.trajectory.equals(b.trajectory)
    assert (a.stopped_at, a.solved, a.checkpoint_steps) == (
        b.stopped_at,
        b.solved,
        b.checkpoint_steps,
    )
    states = [(a.model.state_dict(), b.model.state_dict())]
    states += [(a.checkpoint(step), b.checkpoint(step)) for step in a.checkpoint_steps]
    for ours, theirs in states:
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# --- exact resume -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "config"),
    [(MODEL, CONFIG), (TIED, CONFIG), (MODEL, replace(CONFIG, muon_lr=0.02))],
    ids=["untied", "tied", "muon"],
)
@pytest.mark.parametrize("killed_at", [0, 1, 2, 5])
@pytest.mark.parametrize("checkpoints", [range(25), (0, 7, 24), ()], ids=["each", "few", "none"])
def test_a_run_that_raised_resumes_to_the_same_bits(
    tmp_path, model, config, killed_at, checkpoints
):
    whole = train(TASK, model, config, observers=[entropy], checkpoints=checkpoints)
    with pytest.raises(Interrupt):
        train(
            TASK,
            model,
            config,
            observers=[entropy, interrupt_at(killed_at)],
            checkpoints=checkpoints,
            folder=tmp_path,
        )
    resumed = train(
        TASK, model, config, observers=[entropy], checkpoints=checkpoints, folder=tmp_path
    )
    assert_same(whole, resumed)
    again = train(
        TASK, model, config, observers=[entropy], checkpoints=checkpoints, folder=tmp_path
    )
    assert_same(whole, again)


CHILD = """
import sys, torch
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_training as t
torch.set_num_threads(1)
t.train(t.TASK, t.MODEL, t.LONG, checkpoints=range(0, 20_001, 3), folder=Path({folder!r}))
"""
LONG = replace(CONFIG, steps=20_000)


def test_a_run_killed_with_kill_9_resumes_to_the_same_bits(tmp_path):
    folder = tmp_path / "run"
    program = CHILD.format(tests=os.path.dirname(__file__), folder=str(folder))
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 180  # a loaded machine imports slowly
        while len(list(folder.glob("step-*.safetensors"))) < 5:
            assert child.poll() is None and time.monotonic() < deadline  # noqa: PT018
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    last = max(int(path.stem.split("-")[1]) for path in folder.glob("step-*.safetensors"))
    assert 12 <= last < 19_000

    # A config of another length would be another run, so the child's run is finished by cutting it
    # with an observer, and compared with an uninterrupted run cut at the same place.
    stop = last // 5 + 4
    recorded = []
    for where in (folder, tmp_path / "uninterrupted"):
        first = (last // 5 + 1) if where is folder else 0
        with pytest.raises(Interrupt):
            train(
                TASK,
                MODEL,
                LONG,
                observers=[interrupt_at(stop - first)],
                checkpoints=range(0, 20_001, 3),
                folder=where,
            )
        recorded.append({path.name: path.read_bytes() for path in where.glob("step-*.safetensors")})
    assert max(recorded[0]) > f"step-{last:08d}.safetensors"
    assert recorded[0].keys() == recorded[1].keys()
    for name, ours in recorded[0].items():
        assert ours == recorded[1][name], name


def test_a_resumed_run_really_starts_from_the_checkpoint(tmp_path):
    train(TASK, MODEL, CONFIG, checkpoints=(20,), folder=tmp_path)
    evaluated = []
    train(TASK, MODEL, CONFIG, folder=tmp_path, observers=[lambda *_: evaluated.append(1) or {}])
    assert len(evaluated) == 1  # step 24 alone: steps 0 … 20 were not done again


def test_data_depend_on_seed_and_step_only(monkeypatch):
    seen = {}
    sample = LinearMap.sample

    def spy(task, batch_size, generator):
        batch = sample(task, batch_size, generator)
        seen.setdefault(batch_size, []).append(batch.tokens)
        return batch

    monkeypatch.setattr(LinearMap, "sample", spy)
    train(TASK, MODEL, CONFIG)
    first = seen.pop(8)
    train(TASK, TIED, replace(CONFIG, lr=0.1, eval_every=2, steps=9))
    assert all(torch.equal(a, b) for a, b in zip(first, seen[8], strict=False))
    for step in (1, 24):
        alone = sample(TASK, 8, step_generator(0, "train", step)).tokens
        assert torch.equal(first[step - 1], alone)
    flat = [tuple(tokens.flatten().tolist()) for tokens in first]
    assert len(set(flat)) == 24  # fresh at every step
    train(TASK, MODEL, replace(CONFIG, seed=1))
    assert not torch.equal(first[0], seen[8][-24])


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    torch.manual_seed(1)
    a = train(TASK, MODEL, CONFIG, checkpoints=(3,))
    torch.manual_seed(2)
    b = train(TASK, MODEL, CONFIG, checkpoints=(3,))
    assert_same(a, b)
    other = train(TASK, MODEL, replace(CONFIG, seed=1))
    assert (other.metric("loss") != a.metric("loss")).all()


# --- stopping ---------------------------------------------------------------------------------


def test_stops_at_the_second_evaluation_on_the_floor_and_never_trains_on(tmp_path):
    easy, margin = LinearMap(state_size=3, row_weight=1), 0.02
    config = TrainConfig(steps=3000, eval_every=20, lr=3e-3, stop_margin=margin)
    every = range(0, 3001, 20)
    run = train(easy, replace(MODEL, max_pos=5), config, checkpoints=every, folder=tmp_path)
    losses = run.metric("loss")
    assert run.solved
    assert run.stopped_at == losses.index[-1] < 3000
    below = losses < easy.floor + margin
    both = below & below.shift(fill_value=False)
    assert both.sum() == 1
    assert both.iloc[-1]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = train(easy, replace(MODEL, max_pos=5), config, checkpoints=every, folder=tmp_path)
    assert_same(run, again)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


@pytest.mark.parametrize("change", [{"lr": 1e38, "warmup_steps": 0}, {"lr": 1e38, "steps": 1}])
def test_a_loss_that_is_no_number_names_the_step(change):
    config = replace(CONFIG, eval_every=1, grad_clip=None, **change)
    with pytest.raises(TrainingError, match=r"step 1: loss (nan|inf).*Lower lr \(now 1e\+38\)"):
        train(TASK, MODEL, config)


def test_the_advice_names_muon_s_rate_where_there_is_one():
    config = replace(CONFIG, eval_every=1, lr=1e38, muon_lr=0.5, warmup_steps=0)
    with pytest.raises(TrainingError, match=r"Lower lr \(now 1e\+38\) or muon_lr \(now 0\.5\), "):
        train(TASK, MODEL, config)


def test_poisoned_weights_name_the_step_of_the_gradient():
    def poison(model, *_):
        if poison.evaluations == 2:  # steps 0, 5, 10
            model.blocks[0].mlp.down.weight.data[0, 0] = math.nan
        poison.evaluations += 1
        return {}

    poison.evaluations = 0
    with pytest.raises(TrainingError, match="step 11: loss nan, gradient norm nan"):
        train(TASK, MODEL, CONFIG, observers=[poison])


# --- one step, by hand ------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_first_step_is_adamw_on_the_clipped_gradient(clip):
    config = replace(CONFIG, steps=1, eval_every=1, grad_clip=clip, warmup_steps=4)
    run = train(TASK, MODEL, config)
    model = Transformer(MODEL, step_generator(0, "weights"))
    tokens = TASK.sample(8, step_generator(0, "train", 1)).tokens
    log_p = model(tokens[:, :-1]).log_softmax(-1)
    loss = -log_p.gather(-1, tokens[:, 1:, None]).mean()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    norm = math.sqrt(sum(grad.square().sum().item() for grad in grads))
    assert run.metric("grad_norm")[1] == pytest.approx(norm, rel=1e-4)
    assert norm > 0.05
    scale = 1.0 if clip is None else clip / norm
    lr = config.lr / 4
    for parameter, grad, trained in zip(
        model.parameters(), grads, run.model.parameters(), strict=True
    ):
        grad = grad * scale  # after one step both bias-corrected moments are the gradient's own
        expected = parameter * (1 - lr * 0.01) - lr * grad / (grad.abs() + 1e-8)
        surely = grad.abs() > 1e-6  # below, rounding decides the sign
        torch.testing.assert_close(trained[surely], expected[surely], rtol=0, atol=1e-6)


def test_masked_loss_against_a_computation_by_hand():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 5, generator=generator)
    tokens = torch.randint(5, (3, 5), generator=generator)
    for mask in (
        torch.ones(3, 4, dtype=torch.bool),
        torch.rand(3, 4, generator=generator) < 0.4,
        torch.tensor([[True, False, False, False], [False] * 4, [True] * 4]),
    ):
        terms = [
            math.log(sum(math.exp(value) for value in logits[b, t].tolist()))
            - logits[b, t, tokens[b, t + 1]].item()
            for b in range(3)
            for t in range(4)
            if mask[b, t]
        ]
        loss = masked_loss(logits, Batch(tokens, mask))
        assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_attention_bias_reaches_training_and_evaluation():
    config = replace(CONFIG, attention_bias=50.0, eval_every=24)
    run = train(TASK, MODEL, config, observers=[entropy])
    batch = TASK.sample(16, step_generator(0, "eval"))
    bias = 50.0 * TASK.attention_target().float()
    tap = {"pattern.0": None}
    with torch.no_grad():
        logits = run.model(batch.tokens[:, :-1], attn_bias=bias, tap=tap)
    assert run.metric("loss")[24] == pytest.approx(masked_loss(logits, batch).item(), abs=1e-6)
    assert run.metric("accuracy")[24] == pytest.approx(TASK.accuracy(logits, batch))
    assert run.metric("entropy")[24] == pytest.approx(entropy(None, None, None, tap)["entropy"])
    outside = tap["pattern.0"][:, :, 4:].masked_fill(TASK.attention_target()[4:], 0.0)
    assert outside.max() < 1e-6


def test_a_bias_may_act_in_the_first_layers_only():
    model = replace(MODEL, n_layers=2)
    config = replace(CONFIG, attention_bias=50.0, attention_bias_layers=1, eval_every=24)
    taps = ("pattern.0", "pattern.1")

    def outside(_model, _batch, _logits, tap):
        target = TASK.attention_target()[4:]
        return {name: tap[name][:, :, 4:].masked_fill(target, 0.0).max().item() for name in taps}

    outside.taps = taps
    run = train(TASK, model, config, observers=[outside])
    assert run.metric("pattern.0").max() < 1e-6
    assert run.metric("pattern.1").min() > 0.05


# --- refusals ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoTarget(LinearMap):
    def attention_target(self):
        return None


def test_attention_bias_needs_a_target():
    task = NoTarget(state_size=5, row_weight=2)
    with pytest.raises(ParameterError, match=r"attention_bias=2\.0 .* 'linear_map'"):
        train(task, MODEL, replace(CONFIG, attention_bias=2.0))
    train(task, MODEL, replace(CONFIG, steps=1))


@pytest.mark.parametrize(
    "other",
    [
        (LinearMap(5, 2, matrix_seed=1), MODEL, CONFIG),
        (TASK, replace(MODEL, d_mlp=32), CONFIG),
        (TASK, MODEL, replace(CONFIG, seed=1)),
        (TASK, MODEL, replace(CONFIG, lr=2e-3)),
    ],
    ids=["task", "model", "seed", "lr"],
)
def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path, other):
    train(TASK, MODEL, CONFIG, checkpoints=(5,), folder=tmp_path)
    before = [(path, path.read_bytes()) for path in tmp_path.iterdir()]
    with pytest.raises(ParameterError, match=r"folder=.*step-00000005.* another run"):
        train(*other, folder=tmp_path)
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == before


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "step-00000001.safetensors")
    with pytest.raises(ParameterError, match="another run"):
        train(TASK, MODEL, CONFIG, folder=tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-40], lambda data: b"", lambda data: b"x" * 99]
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_damaged_checkpoint_is_set_aside_and_computed_again(tmp_path, which, damage):
    keep = (5, 12, 20)
    whole = train(TASK, MODEL, CONFIG, checkpoints=keep, folder=tmp_path)
    path = tmp_path / f"step-{keep[which]:08d}.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    goes_on_from = f"step {keep[which - 1]}" if which else "the start"
    with pytest.warns(UserWarning, match=f"{path.name} cannot be read.*from {goes_on_from}"):
        resumed = train(TASK, MODEL, CONFIG, checkpoints=keep, folder=tmp_path)
    assert_same(whole, resumed)
    assert path.with_suffix(".corrupt").exists()
    assert path.exists()


def full_disk(tensors, filename, metadata):
    filename.write_bytes(b"half")
    raise OSError("No space left on device")


def no_rename(source, target):
    raise OSError("No space left on device")


@pytest.mark.parametrize(
    ("call", "fails"),
    [("emergence_lib.training.state.save_file", full_disk), ("os.replace", no_rename)],
    ids=["while writing", "at the rename"],
)
def test_a_half_written_checkpoint_is_never_seen(tmp_path, monkeypatch, call, fails):
    monkeypatch.setattr(call, fails)
    with pytest.raises(StoreError, match=r"step-00000005\.safetensors: No space left.*Free some"):
        train(TASK, MODEL, CONFIG, checkpoints=(5,), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"Cannot write the checkpoint .*file"):
        train(TASK, MODEL, CONFIG, checkpoints=(5,), folder=tmp_path / "file" / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"batch_size": 2.5},
        {"lr": -1.0},
        {"lr": math.nan},
        {"lr": None},
        {"lr": True},
        {"lr": "1e-3"},
        {"muon_lr": 0},
        {"muon_lr": "fast"},
        {"weight_decay": -1},
        {"weight_decay": None},
        {"weight_decay": "0.1"},
        {"betas": (0.9,)},
        {"betas": (0.9, 1.0)},
        {"betas": (-0.1, 0.9)},
        {"betas": (0.9, math.nan)},
        {"betas": (0.9, None)},
        {"betas": (True, 0.9)},
        {"betas": 0.9},
        {"betas": "0.9,0.99"},
        {"betas": None},
        {"attention_bias": True},
        {"attention_bias_layers": 0},
        {"attention_bias_layers": 1.0},
        {"attention_bias": None},
        {"attention_bias": "2"},
        {"grad_clip": True},
        {"grad_clip": 0.0},
        {"stop_margin": -0.1},
        {"attention_bias": math.inf},
        {"seed": -1},
        {"warmup_steps": -1},
        {"final_lr": 1.5},
        {"final_lr": -0.1},
        {"final_lr": None},
        {"eval_every": True},
    ],
)
def test_impossible_settings_are_refused(change):
    ((name, value),) = change.items()
    with pytest.raises(ParameterError, match=re.escape(f"{name}={value!r} ")):
        replace(CONFIG, **change)


def test_the_rate_rises_linearly_and_falls_along_a_half_cosine():
    config = TrainConfig(steps=110, warmup_steps=10, final_lr=0.1)
    share = [lr_share(step, config) for step in (1, 5, 10, 35, 60, 110)]
    # 35 and 60 are a quarter and half of the way: 1 - .9 · (1 - cos(π/4)) / 2, and the middle.
    assert share == pytest.approx([0.1, 0.5, 1.0, 0.1 + 0.45 * (1 + 2**-0.5), 0.55, 0.1])
    constant = replace(config, final_lr=1.0)
    assert [lr_share(step, constant) for step in (5, 10, 60, 110)] == [0.5, 1.0, 1.0, 1.0]
    assert lr_share(1, replace(constant, warmup_steps=0)) == 1.0


def test_every_optimizer_follows_the_schedule():
    config = replace(CONFIG, steps=6, warmup_steps=2, final_lr=0.0, muon_lr=0.02, lr=0.01)
    optimizers: list[torch.optim.Optimizer] = []

    def spy(model, config, build=training_loop._optimizers):
        optimizers.extend(build(model, config))
        return optimizers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_loop, "_optimizers", spy)
        train(TASK, MODEL, config)
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    assert rates == pytest.approx([0.0, 0.0], abs=1e-12)  # the last step is taken with final_lr


def test_what_may_be_off_may_be_none_and_betas_may_come_from_json():
    config = replace(CONFIG, muon_lr=None, grad_clip=None, stop_margin=None, betas=[0, 0.5])
    assert config.betas == (0, 0.5)
    hash(config)


def test_the_scaled_schedule_is_pythias_at_its_length():
    assert scaled_pythia_schedule(143_000) == pythia_schedule()
    short = scaled_pythia_schedule(2_860)
    assert short[:8] == (0, 1, 2, 4, 8, 16, 20, 40)
    assert short[-1] == 2_860
    assert len(short) == 6 + 143
    assert scaled_pythia_schedule(30, n_strides=3) == (0, 1, 2, 4, 8, 10, 20, 30)
    with pytest.raises(ParameterError, match="steps=142 "):
        scaled_pythia_schedule(142)
    with pytest.raises(ParameterError, match="n_strides=0 "):
        scaled_pythia_schedule(142, 0)


def test_a_given_held_out_batch_is_what_is_evaluated():
    class Watch:
        def __call__(self, model, batch, logits, tapped):
            seen.append(batch.tokens)
            return {}

    seen: list[torch.Tensor] = []
    held_out = TASK.sample(3, torch.Generator().manual_seed(9))
    train(TASK, MODEL, replace(CONFIG, steps=2), observers=[Watch()], eval_batch=held_out)
    assert len(seen) == 2
    assert all(torch.equal(tokens, held_out.tokens) for tokens in seen)


def test_evaluations_replace_the_regular_ones():
    run = train(TASK, MODEL, CONFIG, evaluations=(0, 3, 7))
    assert run.metric("loss").index.tolist() == [0, 3, 7]
    regular = train(TASK, MODEL, replace(CONFIG, eval_every=1)).metric("loss")
    assert run.metric("loss").tolist() == regular[[0, 3, 7]].tolist()


def test_a_step_that_was_not_kept_is_refused():
    run = train(TASK, MODEL, CONFIG, checkpoints=(0, 5))
    assert run.checkpoint_steps == (0, 5)
    with pytest.raises(ParameterError, match=r"step=6 .*\(0, 5\)"):
        run.checkpoint(6)


# --- what a reader sees -----------------------------------------------------------------------


def test_trajectory_and_observers():
    run = train(TASK, MODEL, CONFIG, observers=[entropy], checkpoints=(0, 24))
    assert list(run.trajectory.columns) == ["step", "metric", "value"]
    assert list(run.metric("loss").index) == [0, 5, 10, 15, 20, 24]
    assert list(run.metric("grad_norm").index) == [5, 10, 15, 20, 24]
    assert list(run.metric("entropy").index) == [0, 5, 10, 15, 20, 24]
    model, batch = Transformer(MODEL), TASK.sample(16, step_generator(0, "eval"))
    for step in (0, 24):
        model.load_state_dict(run.checkpoint(step))
        tap = {"pattern.0": None}
        with torch.no_grad():
            logits = model(batch.tokens[:, :-1], tap=tap)
        assert run.metric("loss")[step] == masked_loss(logits, batch).item()
        assert run.metric("accuracy")[step] == TASK.accuracy(logits, batch)
        assert run.metric("entropy")[step] == entropy(None, None, None, tap)["entropy"]


def test_plain_lines_when_not_on_a_terminal_and_silence_when_not_asked(capsys):
    train(TASK, MODEL, CONFIG)
    assert capsys.readouterr() == ("", "")
    run = train(TASK, MODEL, replace(CONFIG, steps=20), progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert [line.split()[1] for line in lines] == [f"{step}/20" for step in range(0, 21, 2)]
    assert lines[-1] == f"step 20/20  last evaluated loss {run.metric('loss')[20]:.4f}"
    assert "\r" not in err


def test_the_last_plain_line_is_the_solving_step(capsys):
    easy = LinearMap(state_size=3, row_weight=1)
    config = TrainConfig(steps=3000, eval_every=20, lr=3e-3, stop_margin=0.02)
    run = train(easy, replace(MODEL, max_pos=5), config, progress=True)
    assert run.solved
    assert f"step {run.stopped_at}/3000" in capsys.readouterr().err.splitlines()[-1]


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    train(TASK, MODEL, CONFIG, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "25/25" in err
    assert "loss" not in err


def test_schedules():
    assert linear_schedule(10, 4) == (0, 4, 8, 10)
    assert linear_schedule(8, 4) == (0, 4, 8)
    assert linear_schedule(3, 10) == (0, 3)
    assert log_schedule(1000, 4) == (0, 1, 10, 100, 1000)
    assert log_schedule(10, 50) == tuple(range(11))
    assert log_schedule(1, 2) == (0, 1)
    public = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *(1000 * k for k in range(1, 144))]
    assert pythia_schedule() == tuple(public)
    assert len(public) == 154
    assert pythia_schedule(2500) == tuple(step for step in public if step <= 2500)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: linear_schedule(0, 1), "steps=0"),
        (lambda: linear_schedule(5, 0), "every=0"),
        (lambda: log_schedule(10, 1), "n_points=1"),
        (lambda: pythia_schedule(-1), "steps=-1"),
    ],
)
def test_impossible_schedules_are_refused(call, named):
    with pytest.raises(ParameterError, match=named):
        call()
