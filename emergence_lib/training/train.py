"""The training loop: a task and a model in, a `Run` (trajectory and checkpoints) out.

The data of a step is a function of (seed, step) alone, and everything else a step needs is in the
saved state. So a run that is killed and called again with the same folder continues where its last
checkpoint left it and gives, bit for bit, the numbers of a run that never stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from emergence_lib.errors import ParameterError, TrainingError
from emergence_lib.models.transformer import ModelConfig, Transformer
from emergence_lib.tasks.base import Batch, Task, require_int
from emergence_lib.training.schedule import linear_schedule

Observer = Callable[[Transformer, Batch, Tensor, Mapping[str, Tensor | None]], dict[str, float]]
"""``observer(model, eval_batch, logits, tapped) -> {metric: value}``, called at every evaluation
without gradients. An observer that needs taps names them in an attribute ``taps``."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Defaults are this book's choice for the toy tasks; the papers give none.

    Args:
        steps: optimizer steps at most.
        batch_size: fresh sequences a step.
        lr: AdamW's peak learning rate, reached linearly over `warmup_steps`, constant after.
        weight_decay, betas: AdamW's; no decay by default.
        grad_clip: gradients are scaled down to this global norm; None leaves them alone.
        attention_bias: c in ``scores + c · attention_target``, in every head and layer, in training
            and evaluation (paper A, section on attention bias); 0 is the unbiased model.
        eval_every: steps between evaluations.
        eval_batch_size: held-out sequences of an evaluation, the same ones each time.
        stop_margin: stop once the evaluation loss is within this many nats of the task's floor at
            two evaluations in a row; None never stops early.
        seed: seeds the initial weights, every batch and the evaluation batch, independently.

    Raises:
        ParameterError: a value is out of range.
    """

    steps: int = 10_000
    batch_size: int = 32
    lr: float = 1e-3
    warmup_steps: int = 100
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    grad_clip: float | None = 1.0
    attention_bias: float = 0.0
    eval_every: int = 50
    eval_batch_size: int = 512
    stop_margin: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every", "eval_batch_size"):
            require_int(name, getattr(self, name), 1)
        require_int("warmup_steps", self.warmup_steps, 0)
        require_int("seed", self.seed, 0)
        for name in ("lr", "grad_clip", "stop_margin"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ParameterError(name, value, "a positive number")
        if not math.isfinite(self.attention_bias):
            raise ParameterError("attention_bias", self.attention_bias, "a finite number")


@dataclass
class Run:
    """What training leaves: numbers over time, kept states, and the model as it ended.

    Attributes:
        trajectory: a long table, one row a (step, metric): columns step, metric, value. Metrics
            are "loss" (evaluation, nats), "accuracy", "grad_norm" and those of the observers.
        model: the model after the last step.
        stopped_at: the last step taken.
        solved: whether training stopped early at the task's floor.
    """

    trajectory: pd.DataFrame
    model: Transformer
    stopped_at: int
    solved: bool
    _checkpoints: dict[int, dict[str, Tensor] | Path] = field(repr=False)

    def metric(self, name: str) -> pd.Series:
        """One metric over steps (index: step)."""
        rows = self.trajectory[self.trajectory.metric == name]
        return rows.set_index("step")["value"].rename(name)

    @property
    def checkpoint_steps(self) -> tuple[int, ...]:
        return tuple(sorted(self._checkpoints))

    def checkpoint(self, step: int) -> dict[str, Tensor]:
        """The model's state after `step` steps, for ``model.load_state_dict``.

        Raises:
            ParameterError: this step was not kept.
        """
        if step not in self._checkpoints:
            raise ParameterError("step", step, f"one of the kept steps {self.checkpoint_steps}")
        kept = self._checkpoints[step]
        if isinstance(kept, Path):
            with safe_open(kept, framework="pt") as file:
                return {k[6:]: file.get_tensor(k) for k in file.keys() if k.startswith("model.")}
        return kept


def step_generator(seed: int, stream: str, step: int = 0) -> torch.Generator:
    """An independent generator for each (seed, stream, step): no state to carry, none to resume."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{step}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def masked_loss(logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> Float[Tensor, ""]:
    """Mean cross entropy in nats over the predictions that count.

    `logits` are those of all tokens but the last, so position t predicts token t+1.
    """
    targets: Int[Tensor, "batch pos"] = batch.tokens[:, 1:]
    counted: Bool[Tensor, "batch pos"] = batch.loss_mask
    if counted.all():
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return F.cross_entropy(logits[counted], targets[counted])


def train(
    task: Task,
    model_config: ModelConfig,
    config: TrainConfig,
    *,
    observers: Sequence[Observer] = (),
    checkpoints: Sequence[int] = (),
    folder: Path | None = None,
    device: str = "cpu",
    progress: bool = False,
) -> Run:
    """Train a fresh model on fresh samples.

    Args:
        task, model_config, config: what, with which model, and how.
        observers: see `Observer`; their metrics join the trajectory at every evaluation.
        checkpoints: steps whose state is kept (see `training.schedule`).
        folder: keep checkpoints as safetensors here and resume from the last one found; without
            it they stay in memory.
        device: "cpu", "cuda", …
        progress: a progress bar on a terminal, a line every tenth of the run elsewhere.

    Raises:
        TrainingError: the loss or gradient norm is not finite; the message names the step.
        ParameterError: attention_bias for a task without an attention target, or a `folder` that
            holds another run.
    """
    model = Transformer(model_config, step_generator(config.seed, "weights")).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )
    attn_bias = _attention_bias(task, config, device)
    eval_batch = task.sample(config.eval_batch_size, step_generator(config.seed, "eval")).to(device)
    state = _State(model, optimizer, folder, _fingerprint(task, model_config, config))
    state.resume()

    evaluate_at = set(linear_schedule(config.steps, config.eval_every))
    keep = set(checkpoints)
    for step in _steps(state.step, config.steps, progress, state):
        if step > state.step:
            grad_norm = _train_step(
                model, optimizer, task, config, step, attn_bias=attn_bias, device=device
            )
            state.step = step
        else:  # step 0: nothing trained yet
            grad_norm = float("nan")
        if step in evaluate_at:
            metrics = _evaluate(model, eval_batch, task, observers, attn_bias)
            if not math.isnan(grad_norm):
                metrics["grad_norm"] = grad_norm
            state.log(metrics)
            state.solved = _at_floor(state, task, config)
        if step in keep:
            state.keep()
        if state.solved:
            break
    return Run(state.table(), model, state.step, state.solved, state.kept)


def _train_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    task: Task,
    config: TrainConfig,
    step: int,
    *,
    attn_bias: Tensor | None,
    device: str,
) -> float:
    """One optimizer step on the batch of this step; returns the gradient norm before clipping."""
    for group in optimizer.param_groups:
        group["lr"] = config.lr * min(1.0, step / max(1, config.warmup_steps))
    batch = task.sample(config.batch_size, step_generator(config.seed, "train", step)).to(device)
    loss = masked_loss(model(batch.tokens[:, :-1], attn_bias=attn_bias), batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    limit = math.inf if config.grad_clip is None else config.grad_clip
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item()
    if not math.isfinite(grad_norm) or not torch.isfinite(loss):
        raise TrainingError(
            f"step {step}: loss {loss.item():.4g}, gradient norm {grad_norm:.4g}. "
            f"Lower lr (now {config.lr:g}) or set grad_clip (now {config.grad_clip})."
        )
    optimizer.step()
    return grad_norm


@torch.no_grad()
def _evaluate(
    model: Transformer,
    batch: Batch,
    task: Task,
    observers: Sequence[Observer],
    attn_bias: Tensor | None,
) -> dict[str, float]:
    """Loss and accuracy on the held-out batch, and what the observers make of the same pass."""
    tap: dict[str, Tensor | None] = dict.fromkeys(
        name for observer in observers for name in getattr(observer, "taps", ())
    )
    logits = model(batch.tokens[:, :-1], attn_bias=attn_bias, tap=tap or None)
    metrics = {
        "loss": masked_loss(logits, batch).item(),
        "accuracy": task.accuracy(logits, batch),
    }
    for observer in observers:
        metrics.update(observer(model, batch, logits, tap))
    return metrics


def _attention_bias(task: Task, config: TrainConfig, device: str) -> Tensor | None:
    """``c · target`` over [query, key], or None at c = 0."""
    if config.attention_bias == 0:
        return None
    target = task.attention_target()
    if target is None:
        raise ParameterError(
            "attention_bias",
            config.attention_bias,
            f"0 for the task {task.name!r}, which has no fixed attention target",
        )
    return config.attention_bias * target.to(device, torch.float32)


def _at_floor(state: _State, task: Task, config: TrainConfig) -> bool:
    if config.stop_margin is None or task.floor is None:
        return False
    losses = state.last("loss", 2)
    return len(losses) == 2 and max(losses) < task.floor + config.stop_margin


def _fingerprint(task: Task, model_config: ModelConfig, config: TrainConfig) -> str:
    """Identifies a run, so that a folder never continues another one."""
    parts = [task.name, asdict(task), asdict(model_config), asdict(config)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _steps(start: int, stop: int, progress: bool, state: _State):
    """Steps left to do, announced as the output allows. A fresh run starts with step 0."""
    todo = range(start + 1 if start or state.metrics else 0, stop + 1)
    if not progress or sys.stderr.isatty():
        yield from tqdm(todo, initial=start, total=stop, unit="step", disable=not progress)
        return
    every = max(1, stop // 10)
    for step in todo:
        yield step
        if step and (step % every == 0 or state.solved):
            loss = (state.last("loss", 1) or [math.nan])[0]
            print(f"step {step}/{stop}  loss {loss:.4f}", file=sys.stderr, flush=True)


class _State:
    """Everything a run must carry from one step to the next, in memory and on disk."""

    def __init__(
        self,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        folder: Path | None,
        fingerprint: str,
    ) -> None:
        self.model, self.optimizer, self.folder = model, optimizer, folder
        self.fingerprint = fingerprint
        self.step = 0
        self.solved = False
        self.metrics: list[tuple[int, str, float]] = []
        self.kept: dict[int, dict[str, Tensor] | Path] = {}

    def log(self, metrics: Mapping[str, float]) -> None:
        self.metrics.extend((self.step, name, value) for name, value in metrics.items())

    def last(self, metric: str, n: int) -> list[float]:
        return [value for _, name, value in self.metrics if name == metric][-n:]

    def table(self) -> pd.DataFrame:
        return pd.DataFrame(self.metrics, columns=["step", "metric", "value"])

    def keep(self) -> None:
        """Keep the state of this step; on disk under a temporary name first, then renamed."""
        if self.folder is None:
            self.kept[self.step] = {
                k: v.detach().clone() for k, v in self.model.state_dict().items()
            }
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        if self.model.config.tied_embeddings:
            del tensors["model.unembed.weight"]  # safetensors refuses shared memory
        for i, parameter in enumerate(self.model.parameters()):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{i}.{name}"] = value
        note = {
            "step": self.step,
            "solved": self.solved,
            "fingerprint": self.fingerprint,
            "metrics": self.metrics,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{self.step:08d}.safetensors"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            save_file(
                {k: v.contiguous() for k, v in tensors.items()},
                temporary,
                metadata={"run": json.dumps(note)},
            )
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        self.kept[self.step] = path

    def resume(self) -> None:
        """Take up the last state in the folder, if there is one and it is of this run."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in sorted(self.folder.glob("step-*.safetensors")):
            with safe_open(path, framework="pt") as file:
                note = json.loads(file.metadata()["run"])
            if note["fingerprint"] != self.fingerprint:
                raise ParameterError(
                    "folder",
                    str(self.folder),
                    "empty or of the same task, model and training settings",
                    f"{path.name} in it belongs to another run; choose another folder.",
                )
            self.kept[note["step"]] = path
        if self.kept:
            self._load(self.kept[max(self.kept)])

    def _load(self, path: Path | dict[str, Tensor]) -> None:
        assert isinstance(path, Path)
        with safe_open(path, framework="pt") as file:
            note = json.loads(file.metadata()["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        weights = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
        if self.model.config.tied_embeddings:
            weights["unembed.weight"] = weights["embed.weight"]
        self.model.load_state_dict(weights)
        for i, parameter in enumerate(self.model.parameters()):
            prefix = f"optimizer.{i}."
            moments = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
            if moments:
                self.optimizer.state[parameter] = {
                    k: v.to(parameter.device) for k, v in moments.items()
                }
        self.step, self.solved = note["step"], note["solved"]
        self.metrics = [tuple(row) for row in note["metrics"]]
