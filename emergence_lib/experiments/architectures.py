"""Architectures: seven token mixers on the linear map and on cellular automata, at matched
parameters, each with its own best learning rate (claims A-14 and A-15).

Source: paper A, section on architectures (fact sheet A5). Sizes, rates and configurations of the
paper's mixers are not known. Here every mixer has the parameters of the attention model
(`matched_mixers`), the same data and the same choice of rates:

    search   every mixer with every rate of `RATES`, seed 0, fewer steps     ─► `best_rates`
    final    every mixer with its best rate, seeds 1, 2, …                   ─► the judges

The final runs use other seeds than the search, so that no mixer is judged on the run that chose its
rate. Reduced: S = 8 instead of 16, width 64 instead of 128, and
automata of fewer colours, rules and states (`SHAPES`) with two layers instead of four.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.architectures_evidence import (
    judge_mixer_and_attention,
    judge_recurrent_mixers,
)
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.cellular_automata_cell import CellularAutomataCell
from emergence_lib.experiments.linear_map_cell import LinearMapCell, as_float, as_rate, rounded
from emergence_lib.experiments.matched_mixers import matched_config, n_parameters
from emergence_lib.models import ModelConfig
from emergence_lib.models.mixers import MIXERS
from emergence_lib.tasks import CellularAutomata, LinearMap
from emergence_lib.tasks.base import require_int
from emergence_lib.training import Run, train
from emergence_lib.training.train import step_generator

Rate = tuple[float, float | None]
"""AdamW's rate, and Muon's for the matrices of the token mixers (None: AdamW has those too)."""

RATES: Mapping[str, tuple[Rate, ...]] = {
    "linear_map": (
        (1e-3, None), (3e-3, None), (1e-2, None),
        (1e-3, 0.0025), (1e-3, 0.005), (1e-3, 0.02), (1e-3, 0.05), (3e-3, 0.005),
    ),
    "cellular_automata": ((2e-3, None), (6e-3, None), (2e-3, 0.01), (2e-3, 0.03)),
}  # fmt: skip
"""What the search tries on each task. Muon's rate is for weight matrices of softmax attention;
whether it suits the maps that make gates is part of the question."""

CHOSEN: Mapping[str, Mapping[str, Rate]] = {
    "linear_map": {
        "attention": (1e-3, 0.02),
        "mlp_mixer": (1e-3, 0.02),
        "mamba": (1e-3, 0.02),
        "gated_delta": (1e-3, None),
        "rwkv": (1e-3, 0.02),
        "mlstm": (3e-3, 0.005),
        "linear_rnn": (1e-3, 0.02),
    },
    "cellular_automata": dict.fromkeys(MIXERS, (2e-3, 0.01))
    | {"mamba": (6e-3, None), "linear_rnn": (2e-3, None)},
}
"""The rates of the final runs: what `best_rates` finds in the recorded search."""

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "small": {"colours": 3, "n_rules": 8, "n_states": 4, "tokens": 512},
    "many rules": {"n_rules": 64, "n_states": 8, "tokens": 1_024},
    "paper": {"n_rules": 256, "n_states": 16, "tokens": 4_096, "n_layers": 4, "n_heads": 8},
}
"""Of cellular automata. With three colours, few rules and few states seven mixers fit two cores;
with four colours and many rules, the paper's question, attention and MLP-Mixer do."""

STOP_MARGIN = 0.01
"""A run on the linear map ends within this many nats of the floor; one row of S = 8 is 0.046."""

SCHEMA = {
    "eval_steps": "list of int: evaluation steps",
    "eval_loss": "list of float: held-out loss in nats at those steps",
    "stopped_at": "int: last training step",
    "solved": "bool: the loss came within 0.01 nats of the floor and training stopped",
    "final_loss": "float: last held-out loss in nats",
    "final_accuracy": "float: last held-out share of right predictable tokens",
    "attainable": "float: loss in nats of the best predictor on the same held-out sequences; the "
    "floor, or the loss of the Bayes predictor, which must infer the rule",
    "parameters": "int: parameters of the whole model",
    "mlp_units": "int: hidden units of each MLP, chosen so that the parameters match",
}

CELLS: Mapping[str, type[LinearMapCell] | type[CellularAutomataCell]] = {
    "linear_map": LinearMapCell,
    "cellular_automata": CellularAutomataCell,
}


@dataclass(frozen=True)
class MixerCell:
    """One run: a cell of a task, whose attention is replaced by a mixer.

    Args:
        cell: task, shape of the attention model that is matched, and training.
        mixer: a name of `models.mixers.MIXERS`.
    """

    cell: LinearMapCell | CellularAutomataCell
    mixer: str

    @classmethod
    def of(cls, point: Point) -> MixerCell:
        """The cell of a point."""
        params = dict(point.params)
        task, mixer = params.pop("task"), params.pop("mixer")
        return cls(CELLS[task](**params), mixer)

    @property
    def task_name(self) -> str:
        return self.cell.task(0).name

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self.cell) | {"task": self.task_name, "mixer": self.mixer}

    def model_config(self) -> ModelConfig:
        return matched_config(self.cell.model_config(), self.mixer)

    def train(self, seed: int, device: str) -> Run:
        config = self.cell.train_config(seed)
        if isinstance(self.cell, LinearMapCell):
            config = replace(config, stop_margin=STOP_MARGIN)
        return train(self.cell.task(seed), self.model_config(), config, device=device)

    def attainable(self, seed: int) -> float:
        """Loss in nats of the best predictor on the sequences that the run is evaluated on."""
        task = self.cell.task(seed)
        if isinstance(task, LinearMap):
            return task.floor
        assert isinstance(task, CellularAutomata)
        n_sequences = self.cell.train_config(seed).eval_batch_size
        batch = task.sample(n_sequences, step_generator(seed, "eval"))
        return task.bayes_loss(batch).mean().item()


def run_mixer(point: Point, device: str) -> dict[str, Any]:
    """Train the model of a point: a row of `SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell = MixerCell.of(point)
    run = cell.train(point.seed, device)
    loss, accuracy = run.metric("loss"), run.metric("accuracy")
    config = cell.model_config()
    return {
        "eval_steps": loss.index.tolist(),
        "eval_loss": rounded(loss.to_numpy(), 5),
        "stopped_at": run.stopped_at,
        "solved": run.solved,
        "final_loss": float(loss.iloc[-1]),
        "final_accuracy": float(accuracy.iloc[-1]),
        "attainable": cell.attainable(point.seed),
        "parameters": n_parameters(config),
        "mlp_units": config.d_mlp,
    }


@dataclass(frozen=True)
class ArchitecturesGrid(Grid):
    """One task, several mixers, their rates and seeds.

    Args:
        task: "linear_map" or "cellular_automata".
        mixers: names of `models.mixers.MIXERS`.
        search: every rate of `RATES`; else each mixer's own of `CHOSEN`.
        seeds: runs a mixer and rate, seeded `first_seed`, `first_seed` + 1, …
        first_seed: 0 for the search, 1 for the runs that are judged.
        state_size: S, the size of a state.
        row_weight: s; the linear map's only.
        steps: training steps at most.
        d_model: width of the attention model.
        shape: a key of `SHAPES`; cellular automata only.

    Raises:
        ParameterError: a value of the wrong type or out of range, or a model too small to hold the
            mixer.
        UnknownNameError: no such task, mixer or shape.
    """

    task: str = "linear_map"
    mixers: tuple[str, ...] = tuple(MIXERS)
    search: bool = False
    seeds: int = 3
    first_seed: int = 1
    state_size: int = 8
    row_weight: int = 3
    steps: int = 1_500
    d_model: int = 64
    shape: str = "small"

    def __post_init__(self) -> None:
        if self.task not in CELLS:
            raise UnknownNameError("task", self.task, CELLS)
        if self.shape not in SHAPES:
            raise UnknownNameError("shape", self.shape, SHAPES)
        given: object = self.mixers  # a notebook may give one name, or a list
        mixers = (given,) if isinstance(given, str) else tuple(self.mixers)
        for mixer in mixers:
            if mixer not in MIXERS:
                raise UnknownNameError("mixer", mixer, MIXERS)
        if not mixers:
            raise ParameterError("mixers", mixers, "at least one mixer")
        object.__setattr__(self, "mixers", tuple(dict.fromkeys(mixers)))
        require_int("seeds", self.seeds, 1)
        require_int("first_seed", self.first_seed, 0)
        require_int("d_model", self.d_model, 8)
        for mixer in self.mixers:
            cell = self.cell(mixer, CHOSEN[self.task][mixer])
            cell.cell.validate()
            cell.model_config()

    def cell(self, mixer: str, rate: Rate) -> MixerCell:
        """The run of one mixer and rate."""
        lr, muon_lr = as_float("lr", rate[0]), as_rate("muon_lr", rate[1])
        if self.task == "linear_map":
            base: LinearMapCell | CellularAutomataCell = LinearMapCell(
                state_size=self.state_size,
                row_weight=self.row_weight,
                d_model=self.d_model,
                steps=self.steps,
                lr=lr,
                muon_lr=muon_lr,
                eval_every=25,
            )
        else:
            base = CellularAutomataCell(
                state_size=self.state_size,
                d_model=self.d_model,
                steps=self.steps,
                lr=lr,
                muon_lr=muon_lr,
                **SHAPES[self.shape],
            )
        return MixerCell(base, mixer)

    def points(self) -> list[Point]:
        """Seed by seed, and mixer by mixer within a rate, so that a part compares all mixers."""
        n_rates = len(RATES[self.task]) if self.search else 1
        return [
            Point("architectures", 1, self.cell(mixer, self._rate(mixer, i)).params(), seed)
            for seed in range(self.first_seed, self.first_seed + self.seeds)
            for i in range(n_rates)
            for mixer in self.mixers
        ]

    def _rate(self, mixer: str, i: int) -> Rate:
        return RATES[self.task][i] if self.search else CHOSEN[self.task][mixer]


def _search(task: str, **changes: Any) -> ArchitecturesGrid:
    return ArchitecturesGrid(task, search=True, seeds=1, first_seed=0, **changes)


PAPER_LINEAR_MAP: Mapping[str, Any] = {"state_size": 16, "d_model": 128, "steps": 10_000}
PAPER_AUTOMATA: Mapping[str, Any] = {
    "state_size": 16,
    "d_model": 128,
    "steps": 10_000,
    "shape": "paper",
}

ARCHITECTURES = Experiment(
    name="architectures",
    version=1,
    question="Which token mixer learns each task soonest, at matched parameters and its best rate?",
    grid=ArchitecturesGrid,
    profiles={
        "smoke": (
            ArchitecturesGrid(
                mixers=("attention", "mlp_mixer"), seeds=1, state_size=4, steps=10, d_model=16
            ),
        ),
        "quick": (
            ArchitecturesGrid(
                mixers=("attention", "mlp_mixer", "gated_delta", "linear_rnn"),
                seeds=1,
                steps=800,
            ),
        ),
        "cpu": (
            _search("linear_map", steps=800),
            ArchitecturesGrid(),
            _search("cellular_automata", steps=800),
            ArchitecturesGrid("cellular_automata"),
            ArchitecturesGrid(
                "cellular_automata",
                mixers=("attention", "mlp_mixer"),
                steps=2_500,
                shape="many rules",
            ),
            ArchitecturesGrid(row_weight=5),
        ),
        "paper": (
            _search("linear_map", **PAPER_LINEAR_MAP),
            *(ArchitecturesGrid(row_weight=s, **PAPER_LINEAR_MAP) for s in (3, 5, 7)),
            _search("cellular_automata", **PAPER_AUTOMATA),
            ArchitecturesGrid("cellular_automata", **PAPER_AUTOMATA),
        ),
    },
    run=run_mixer,
    schema=SCHEMA,
    judges={"A-14": judge_mixer_and_attention, "A-15": judge_recurrent_mixers},
    seconds={"smoke": 1, "quick": 8, "cpu": 15, "paper": 900},
)
