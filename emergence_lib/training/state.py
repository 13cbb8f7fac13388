"""What a run carries from one step to the next, in memory and on disk.

A checkpoint is one safetensors file ``step-00000300.safetensors``: the weights (``model.…``), the
optimizers' moments (``optimizer.<parameter index>.…``) and, in its header, the step, whether the
task is solved, the metrics so far and a fingerprint of the run. It is written under a temporary
name and renamed, so no reader ever sees half of one, and a killed run loses only the steps since
its last checkpoint.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from emergence_lib.errors import ParameterError, StoreError
from emergence_lib.files import whole_file
from emergence_lib.models.transformer import Transformer


class State:
    """Model, optimizers, metrics and kept checkpoints of a run.

    Attributes:
        step: the last step done; -1 before step 0, which evaluates the fresh model.
        solved: whether the task's floor was reached.
        kept: the weights of each kept step, or the file that holds them.
    """

    def __init__(
        self,
        model: Transformer,
        optimizers: Sequence[torch.optim.Optimizer],
        folder: Path | None,
        fingerprint: str,
    ) -> None:
        self.model, self.optimizers, self.folder = model, optimizers, folder
        self.fingerprint = fingerprint
        self.step = -1
        self.solved = False
        self.metrics: list[tuple[int, str, float]] = []
        self.kept: dict[int, dict[str, Tensor] | Path] = {}

    def log(self, metrics: Mapping[str, float]) -> None:
        """Enter the metrics of this step."""
        self.metrics.extend((self.step, name, float(value)) for name, value in metrics.items())

    def last(self, metric: str, n: int) -> list[float]:
        """Its last `n` values, fewer where there are fewer."""
        return [value for _, name, value in self.metrics if name == metric][-n:]

    def table(self) -> pd.DataFrame:
        """One row a (step, metric)."""
        return pd.DataFrame(self.metrics, columns=["step", "metric", "value"])

    def keep(self) -> None:
        """Keep this step: in memory without a folder, else as a file.

        Raises:
            StoreError: the file cannot be written.
        """
        if self.folder is None:
            weights = self.model.state_dict()
            self.kept[self.step] = {name: value.clone() for name, value in weights.items()}
            return
        path = self.folder / f"step-{self.step:08d}.safetensors"
        try:
            with whole_file(path) as temporary:
                save_file(self._tensors(), temporary, metadata={"run": self._note()})
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"Cannot write the checkpoint {path}: {error}. "
                "Free some space, or choose a folder you may write to."
            ) from error
        self.kept[self.step] = path

    def resume(self) -> None:
        """Take up the last checkpoint in the folder, if there is one.

        A file that cannot be read is set aside as ``*.corrupt`` with a warning, and the run goes on
        from the last checkpoint before it: the steps after it are computed again, to the same
        numbers.

        Raises:
            ParameterError: a checkpoint belongs to another run.
        """
        paths = sorted(self.folder.glob("step-*.safetensors")) if self.folder else []
        for path in paths:
            try:
                note = _read_note(path)
            except (OSError, SafetensorError, ValueError) as error:
                aside = path.with_suffix(".corrupt")
                path.rename(aside)
                warnings.warn(
                    f"{path} cannot be read ({error}). It is set aside as {aside.name}; the run "
                    f"continues from {f'step {max(self.kept)}' if self.kept else 'the start'}.",
                    stacklevel=3,
                )
                break
            if note.get("fingerprint") != self.fingerprint:
                raise ParameterError(
                    "folder",
                    str(self.folder),
                    "empty or of the same task, model and training settings",
                    f"{path.name} in it belongs to another run; choose another folder.",
                )
            self.kept[note["step"]] = path
        if self.kept:
            self._load(self.kept[max(self.kept)])

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.model.config.tied_embeddings:
            for name in [name for name in tensors if name.startswith("model.unembed.")]:
                del tensors[name]  # safetensors refuses shared memory
        for i, parameter in enumerate(self.model.parameters()):
            for optimizer in self.optimizers:
                for name, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer.{i}.{name}"] = value
        return {name: value.contiguous() for name, value in tensors.items()}

    def _note(self) -> str:
        return json.dumps(
            {
                "step": self.step,
                "solved": self.solved,
                "fingerprint": self.fingerprint,
                "metrics": self.metrics,
            }
        )

    def _load(self, path: dict[str, Tensor] | Path) -> None:
        assert isinstance(path, Path)
        note = _read_note(path)
        self.step, self.solved = note["step"], note["solved"]
        self.metrics = [tuple(row) for row in note["metrics"]]
        self.model.load_state_dict(read_weights(path))
        with safe_open(path, framework="pt") as file:
            for i, parameter in enumerate(self.model.parameters()):
                prefix = f"optimizer.{i}."
                names = [name for name in file.keys() if name.startswith(prefix)]
                if names:  # at step 0 there are no moments yet
                    self._owner(parameter).state[parameter] = {
                        name[len(prefix) :]: file.get_tensor(name).to(parameter.device)
                        for name in names
                    }

    def _owner(self, parameter: Tensor) -> torch.optim.Optimizer:
        """The optimizer that updates this parameter."""
        return next(
            optimizer
            for optimizer in self.optimizers
            if any(parameter is p for group in optimizer.param_groups for p in group["params"])
        )


def read_weights(path: Path) -> dict[str, Tensor]:
    """The model's state in a checkpoint file, for ``model.load_state_dict``."""
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("model.")]
        weights = {name.removeprefix("model."): file.get_tensor(name) for name in names}
    tied = {f"un{name}": value for name, value in weights.items() if name.startswith("embed.")}
    return tied | weights  # a tied unembedding is stored once


def _read_note(path: Path) -> dict[str, Any]:
    """The header's account of the run; empty for a file that is no checkpoint of ours."""
    with safe_open(path, framework="pt") as file:
        return json.loads((file.metadata() or {}).get("run", "{}"))
