"""The training loop: a task and a model in, a `Run` (trajectory and checkpoints) out.

The data of a step is a function of (seed, step) alone, and everything else a step needs is in the
saved state. So a run that is killed and called again with the same folder continues where its last
checkpoint left it and gives, bit for bit, the numbers of a run that never stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeGuard

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm

from emergence_lib.errors import ParameterError, TrainingError
from emergence_lib.models.transformer import ModelConfig, Transformer
from emergence_lib.tasks.base import Batch, Task, require_int
from emergence_lib.training.muon import Muon
from emergence_lib.training.schedule import linear_schedule
from emergence_lib.training.state import State, read_weights

Observer = Callable[[Transformer, Batch, Tensor, Mapping[str, Tensor | None]], dict[str, float]]
"""``observer(model, eval_batch, logits, tapped) -> {metric: value}``, called at every evaluation
without gradients. An observer that needs taps names them in an attribute ``taps``."""

BeforeStep = Callable[[int, Transformer, Batch], None]
"""``before_step(step, model, batch)``, called with the batch that the step is about to learn from,
before the update. It must leave model, gradients and global random state as they are."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Defaults are plain AdamW for small models, not any paper's recipe.

    The book's linear-map runs use `experiments.linear_map_cell.LinearMapCell`'s: Muon for the
    mixers, smaller batches and other initial weights, which the recorded search chose.

    Args:
        steps: optimizer steps at most.
        batch_size: fresh sequences a step.
        lr: AdamW's peak learning rate, reached linearly over `warmup_steps`.
        final_lr: share of the peak rates that is left at the last step, approached along a half
            cosine after the warm-up; 1 keeps them constant (Pythia: 0.1).
        muon_lr: None trains everything with AdamW; a rate hands the weight matrices of the token
            mixers to `Muon` (same warm-up), whose search for the right keys is the bottleneck.
        weight_decay: AdamW's, ≥ 0; none by default.
        betas: AdamW's two decay rates of its moments, each in [0, 1).
        grad_clip: gradients are scaled down to this global norm; None leaves them alone.
        attention_bias: c in ``scores + c · attention_target``, in every head and layer, in training
            and evaluation (paper A, section on attention bias); 0 is the unbiased model.
        attention_bias_layers: bias only that many layers, from the first; None is all.
        myopic: let no gradient cross positions in training (paper C, section on ablations); the
            forward pass is the same.
        eval_every: steps between evaluations.
        eval_batch_size: held-out sequences of an evaluation, the same ones each time.
        stop_margin: stop once the evaluation loss is within this many nats of the task's floor at
            two evaluations in a row; None never stops early.
        seed: seeds the initial weights, every batch and the evaluation batch, independently.

    Raises:
        ParameterError: a value has a wrong type or is out of range; only `muon_lr`, `grad_clip` and
            `stop_margin` may be None.
    """

    steps: int = 10_000
    batch_size: int = 32
    lr: float = 1e-3
    final_lr: float = 1.0
    muon_lr: float | None = None
    warmup_steps: int = 100
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    grad_clip: float | None = 1.0
    attention_bias: float = 0.0
    attention_bias_layers: int | None = None
    myopic: bool = False
    eval_every: int = 50
    eval_batch_size: int = 512
    stop_margin: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every", "eval_batch_size"):
            require_int(name, getattr(self, name), 1)
        require_int("warmup_steps", self.warmup_steps, 0)
        require_int("seed", self.seed, 0)
        if not (_is_finite(self.lr) and self.lr > 0):
            raise ParameterError("lr", self.lr, "a positive number", "The default is 1e-3.")
        if not (_is_finite(self.final_lr) and 0 <= self.final_lr <= 1):
            advice = "1 keeps the rate constant."
            raise ParameterError("final_lr", self.final_lr, "a share from 0 to 1", advice)
        for name, off in _MAY_BE_NONE.items():
            value = getattr(self, name)
            if value is not None and not (_is_finite(value) and value > 0):
                raise ParameterError(name, value, "a positive number or None", f"None {off}.")
        if not (_is_finite(self.weight_decay) and self.weight_decay >= 0):
            advice = "0 is no decay."
            raise ParameterError("weight_decay", self.weight_decay, "a number ≥ 0", advice)
        if not _are_betas(self.betas):
            advice = "The usual ones are 0.9 and 0.999."
            raise ParameterError("betas", self.betas, "two numbers ≥ 0 and below 1", advice)
        object.__setattr__(self, "betas", tuple(self.betas))  # JSON has lists only
        if not _is_finite(self.attention_bias):
            advice = "0 is the unbiased model."
            raise ParameterError("attention_bias", self.attention_bias, "a finite number", advice)
        if self.attention_bias_layers is not None:
            require_int("attention_bias_layers", self.attention_bias_layers, 1)
        if not isinstance(self.myopic, bool):
            raise ParameterError("myopic", self.myopic, "True or False")


_MAY_BE_NONE = {
    "muon_lr": "trains everything with AdamW",
    "grad_clip": "leaves gradients alone",
    "stop_margin": "never stops early",
}


def _is_finite(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _are_betas(value: object) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(_is_finite(beta) and 0 <= beta < 1 for beta in value)


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
        return read_weights(kept) if isinstance(kept, Path) else kept


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


def lr_share(step: int, config: TrainConfig) -> float:
    """Share of the peak learning rates that step `step`, counted from 1, is taken with."""
    if step < config.warmup_steps:
        return step / config.warmup_steps
    way = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.final_lr + (1 - config.final_lr) * (1 + math.cos(math.pi * way)) / 2


def train(
    task: Task,
    model_config: ModelConfig,
    config: TrainConfig,
    *,
    observers: Sequence[Observer] = (),
    before_step: BeforeStep | None = None,
    checkpoints: Sequence[int] = (),
    evaluations: Sequence[int] | None = None,
    eval_batch: Batch | None = None,
    folder: Path | None = None,
    device: str = "cpu",
    progress: bool = False,
) -> Run:
    """Train a fresh model on fresh samples.

    Args:
        task, model_config, config: what, with which model, and how.
        observers: see `Observer`; their metrics join the trajectory at every evaluation.
        before_step: see `BeforeStep`.
        checkpoints: steps whose state is kept (see `training.schedule`).
        evaluations: steps to evaluate at; None is every `config.eval_every` and the last.
        eval_batch: held-out sequences; None draws fresh ones of `task`, which is no held-out set
            where samples are windows of a finite text.
        folder: keep checkpoints as safetensors here and resume from the last one found (call with
            the same observers then); without it they stay in memory.
        device: "cpu", "cuda", …
        progress: a progress bar on a terminal, a line every tenth of the run elsewhere.

    Raises:
        TrainingError: a loss or gradient norm is not finite; the message names the step.
        StoreError: a checkpoint cannot be written.
        ParameterError: attention_bias for a task without an attention target, or a `folder` that
            holds another run.
    """
    model = model_config.build(step_generator(config.seed, "weights")).to(device)
    optimizers = _optimizers(model, config)
    attn_bias = attention_bias(task, config, model_config.n_layers, device)
    if eval_batch is None:
        eval_batch = task.sample(config.eval_batch_size, step_generator(config.seed, "eval"))
    eval_batch = eval_batch.to(device)
    state = State(model, optimizers, folder, _fingerprint(task, model_config, config))
    state.resume()

    if evaluations is None:
        evaluations = linear_schedule(config.steps, config.eval_every)
    evaluate_at = set(evaluations)
    keep = set(checkpoints)
    for step in _steps(state, config.steps, progress):
        metrics: dict[str, float] = {}
        if step > 0:  # step 0 only evaluates the fresh model
            metrics["grad_norm"] = _train_step(
                model, optimizers, task, config, step,
                attn_bias=attn_bias, before_step=before_step, device=device,
            )  # fmt: skip
        state.step = step
        if step in evaluate_at:
            evaluation = _evaluate(model, eval_batch, task, observers, attn_bias)
            _require_finite(step, config, evaluation["loss"])
            state.log(evaluation | metrics)
            state.solved = _at_floor(state, task, config)
        if step in keep:
            state.keep()
    return Run(state.table(), model, state.step, state.solved, state.kept)


def _optimizers(model: Transformer, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the mixers' matrices and AdamW for the rest."""
    matrices: list[Tensor] = []
    if config.muon_lr is not None:
        named = model.blocks.named_parameters()
        matrices = [p for name, p in named if ".mixer." in name and p.ndim == 2]
    taken = {id(p) for p in matrices}
    adamw = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if id(p) not in taken], "peak_lr": config.lr}],
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )
    return [adamw, Muon([{"params": matrices, "peak_lr": config.muon_lr}])] if matrices else [adamw]


def _train_step(
    model: Transformer,
    optimizers: Sequence[torch.optim.Optimizer],
    task: Task,
    config: TrainConfig,
    step: int,
    *,
    attn_bias: Tensor | None,
    before_step: BeforeStep | None,
    device: str,
) -> float:
    """One optimizer step on the batch of this step; returns the gradient norm before clipping."""
    share = lr_share(step, config)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * share
    batch = task.sample(config.batch_size, step_generator(config.seed, "train", step)).to(device)
    if before_step is not None:
        before_step(step, model, batch)
    logits = model(batch.tokens[:, :-1], attn_bias=attn_bias, myopic=config.myopic)
    loss = masked_loss(logits, batch)
    model.zero_grad(set_to_none=True)
    loss.backward()
    limit = math.inf if config.grad_clip is None else config.grad_clip
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item()
    _require_finite(step, config, loss.item(), grad_norm)
    for optimizer in optimizers:
        optimizer.step()
    return grad_norm


def _require_finite(step: int, config: TrainConfig, loss: float, grad_norm: float = 0.0) -> None:
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    rates = f"lr (now {config.lr:g})"
    if config.muon_lr is not None:
        rates += f" or muon_lr (now {config.muon_lr:g})"
    raise TrainingError(
        f"step {step}: loss {loss:.4g}, gradient norm {grad_norm:.4g}. "
        f"Lower {rates}, or set grad_clip (now {config.grad_clip})."
    )


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


def attention_bias(
    task: Task, config: TrainConfig, n_layers: int, device: torch.device | str
) -> Tensor | None:
    """What `Transformer.forward` takes as `attn_bias` in a run of `config`; None at c = 0."""
    if config.attention_bias == 0:
        return None
    target = task.attention_target()
    if target is None:
        raise ParameterError(
            "attention_bias",
            config.attention_bias,
            f"0 for the task {task.name!r}, which has no fixed attention target",
        )
    bias = config.attention_bias * target.to(device, torch.float32)
    if (layers := config.attention_bias_layers) is None:
        return bias
    return bias * (torch.arange(n_layers, device=device) < layers)[:, None, None, None, None]


def _at_floor(state: State, task: Task, config: TrainConfig) -> bool:
    if config.stop_margin is None or task.floor is None:
        return False
    losses = state.last("loss", 2)
    return len(losses) == 2 and max(losses) < task.floor + config.stop_margin


def _fingerprint(task: Task, model_config: ModelConfig, config: TrainConfig) -> str:
    """Identifies a run, so that a folder never continues another one."""
    parts = [task.name, asdict(task), asdict(model_config), asdict(config)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _steps(state: State, steps: int, progress: bool) -> Iterator[int]:
    """The steps left to do, up to the one that solves the task, announced as the output allows."""
    todo = [] if state.solved else range(state.step + 1, steps + 1)
    on_terminal = sys.stderr.isatty()
    every = max(1, steps // 10)
    bar = tqdm(
        todo, initial=state.step + 1, total=steps + 1, disable=not (progress and on_terminal)
    )
    for step in bar:
        yield step
        if progress and not on_terminal and (step % every == 0 or state.solved):
            loss = state.last("loss", 1)[0]
            print(f"step {step}/{steps}  last evaluated loss {loss:.4f}", file=sys.stderr)
        if state.solved:
            return
