"""One training run: settings from text, the run, and the folder it leaves (``emergence train``).

{"row_weight": "2", "n_heads": "4", "lr": "3e-4"} ─► Settings(task, model, training)
Settings ─► train ─► Result ─► folder/trajectory.parquet, model.safetensors, run.json
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from safetensors.torch import save

from emergence_lib.analysis.emergence import Event, acquisition
from emergence_lib.arguments import describe_type, field_types, parse_value
from emergence_lib.errors import ParameterError, StoreError, UnknownNameError
from emergence_lib.experiments.linear_map_cell import LinearMapCell
from emergence_lib.models import ModelConfig
from emergence_lib.provenance import provenance
from emergence_lib.tasks import TASKS, LinearMap, Task
from emergence_lib.training import Run, TrainConfig
from emergence_lib.training import train as train_model

FORMAT = 1  # of run.json
SHAPE = ("n_layers", "d_model", "n_heads")
DERIVED = ("vocab_size", "max_pos")  # follow from the task
SOLVED_ACCURACY = 0.99
_SOLVED = f"accuracy above {SOLVED_ACCURACY:.0%} at two evaluations in a row"


@dataclass(frozen=True)
class Settings:
    """A task, the shape of the model and how it is trained."""

    task: Task
    model: ModelConfig
    training: TrainConfig

    def describe(self) -> str:
        """The settings that matter most, as lines of text."""
        task = ", ".join(f"{name} {value}" for name, value in asdict(self.task).items())
        model, training = self.model, self.training
        optimizer = f"AdamW, lr {training.lr:g}"
        if training.muon_lr is not None:
            optimizer = f"Muon for the mixers, muon_lr {training.muon_lr:g}; else {optimizer}"
        stop = "never"
        if training.stop_margin is not None:
            stop = f"within {training.stop_margin:g} nats of the floor (stop_margin)"
        return "\n".join(
            (
                f"task         {self.task.name}: {task}",
                f"model        n_layers {model.n_layers}, d_model {model.d_model}, "
                f"n_heads {model.n_heads}, init_std {model.init_std:g}",
                f"optimizer    {optimizer}",
                f"training     steps {training.steps}, batch_size {training.batch_size}, "
                f"attention_bias {training.attention_bias:g}, seed {training.seed}",
                f"stops early  {stop}",
            )
        )


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        run: what training left.
        floor: loss of a perfect predictor in nats, None where unknown.
        solved: the first of two evaluations in a row above `SOLVED_ACCURACY`, or censored.
        seconds: wall time of the training.
    """

    run: Run
    floor: float | None
    solved: Event
    seconds: float

    def numbers(self) -> dict[str, Any]:
        """The result in JSON types; losses in nats, accuracy from 0 to 1."""
        return {
            "final_loss": float(self.run.metric("loss").iloc[-1]),
            "floor": self.floor,
            "accuracy": float(self.run.metric("accuracy").iloc[-1]),
            "solved_at": self.solved.step if self.solved.observed else None,
            "stopped_at": self.run.stopped_at,
            "seconds": round(self.seconds, 1),
        }

    def describe(self) -> str:
        """The result as lines of text."""
        numbers = self.numbers()
        floor = "unknown" if self.floor is None else f"{self.floor:.4f}"
        solved = f"no, in {self.run.stopped_at} steps"
        if self.solved.observed:
            solved = f"at step {numbers['solved_at']} ({_SOLVED})"
        return "\n".join(
            (
                f"final loss   {numbers['final_loss']:.4f} nats (floor {floor})",
                f"accuracy     {numbers['accuracy']:.1%}",
                f"solved       {solved}",
                f"took         {self.run.stopped_at} steps, {self.seconds:.0f} s",
            )
        )


def settings_from_text(task: str, given: Mapping[str, str]) -> Settings:
    """Settings from names and texts; a name belongs to the task, the model or the training.

    What is not given is as `describe_parameters` lists it: for the linear map the book's recipe.

    Raises:
        UnknownNameError: no such task or parameter; the nearest is named.
        ParameterError: a wrong type or out of range.
    """
    groups = _groups(task)
    known = {name: hint for types in groups.values() for name, hint in types.items()}
    for name in given:
        if name not in known:
            raise UnknownNameError(f"parameter of task {task!r}, model or training", name, known)
    values = {
        cls: {name: parse_value(name, given[name], types[name]) for name in types if name in given}
        for cls, types in groups.items()
    }
    task_class, model_class, train_class = groups
    defaults = _defaults(task)
    chosen = task_class(**values[task_class])
    return Settings(
        chosen,
        model_class(
            **defaults[model_class] | values[model_class],
            vocab_size=chosen.vocab_size,
            max_pos=chosen.seq_len - 1,
        ),
        train_class(**defaults[train_class] | values[train_class]),
    )


def describe_parameters(task: str) -> str:
    """Every parameter `settings_from_text` takes, with its default and type, one a line.

    Raises:
        UnknownNameError: no such task.
    """
    lines = []
    groups, ours = _groups(task), _defaults(task)
    for title, (cls, types) in zip(
        (f"Task {task}", "Model", "Training"), groups.items(), strict=True
    ):
        defaults = {f.name: f.default for f in fields(cls)} | ours.get(cls, {})
        lines.append(title)
        for name, hint in types.items():
            default = "required" if defaults[name] is MISSING else _as_text(defaults[name])
            lines.append(f"  {name:<18} {default:<11} {describe_type(hint)}")
    return "\n".join(lines)


def train(settings: Settings, *, device: str = "cpu", folder: Path | None = None) -> Result:
    """Train with progress on stderr, and keep the result in a new folder if one is given.

    The folder appears complete or not at all: ``trajectory.parquet`` (`Run.trajectory`),
    ``model.safetensors`` (the final ``state_dict``) and ``run.json`` (settings and numbers).

    Raises:
        ParameterError: the folder exists and is not empty.
        StoreError: it cannot be written; tested before training starts.
        TrainingError: the loss is not finite.
    """
    with ExitStack() as stack:
        unfinished = stack.enter_context(_appearing(folder)) if folder is not None else None
        start = time.perf_counter()
        run = train_model(
            settings.task, settings.model, settings.training, device=device, progress=True
        )
        accuracy = run.metric("accuracy")
        result = Result(
            run,
            settings.task.floor,
            acquisition(accuracy, threshold=SOLVED_ACCURACY, sustain=2),
            time.perf_counter() - start,
        )
        if unfinished is not None:
            _save(unfinished, settings, result, device)
    return result


def _save(folder: Path, settings: Settings, result: Result, device: str) -> None:
    result.run.trajectory.to_parquet(folder / "trajectory.parquet", index=False)
    # Cloned, because safetensors refuses tensors that share memory (tied embeddings).
    state = {name: value.cpu().clone() for name, value in result.run.model.state_dict().items()}
    (folder / "model.safetensors").write_bytes(save(state))
    note = {
        "format": FORMAT,
        "task": {"name": settings.task.name, **asdict(settings.task)},
        "model": asdict(settings.model),
        "training": asdict(settings.training),
        "result": result.numbers(),
        "provenance": provenance(device),
    }
    (folder / "run.json").write_text(json.dumps(note, indent=1))


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when the block succeeds and vanishes otherwise."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParameterError("output", str(folder), "a new or an empty folder")
    folder = folder.resolve()
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.replace(folder)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be written: {error.strerror or error}. Nothing was kept there; "
            "choose another folder for --output or make room."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _groups(task: str) -> dict[type, dict[str, Any]]:
    """The classes that take parameters, each with the types of those it takes."""
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    return {
        TASKS[task]: field_types(TASKS[task]),
        ModelConfig: field_types(ModelConfig, without=DERIVED),
        TrainConfig: field_types(TrainConfig),
    }


def _defaults(task: str) -> dict[type, dict[str, Any]]:
    """Model and training settings that `task` starts from, where its classes' are not meant.

    The linear map has the recipe of the book's experiments, other tasks only its toy model's shape:
    what learns one task fast says little about another.
    """
    recipe = LinearMapCell()
    model, training = asdict(recipe.model_config()), asdict(recipe.train_config(seed=0))
    if task != LinearMap.name:
        return {ModelConfig: {name: model[name] for name in SHAPE}, TrainConfig: {}}
    follow = (*DERIVED, "d_head", "d_mlp")  # from a d_model that may be given
    return {
        ModelConfig: {name: value for name, value in model.items() if name not in follow},
        TrainConfig: training,
    }


def _as_text(value: Any) -> str:
    """A default as one would write it after its name on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(_as_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
