"""Three lenses on the same runs: attention (paper A), geometry (paper B), gradients (paper C).

    condition              task                              model
    linear map             LinearMap, S = 8, s = 3           1 layer, width 64
    linear map, bias       the same with attention bias 4    the same
    linear map, s = 2, 4   the same with other row weights   the same; for the forecast only
    cellular automata      64 rules, S = 8, 8 states         2 layers, width 64

Each paper looks at a run with instruments of its own. Here all of them look at every evaluation of
the same run, at the queries that have something to predict from (`analysis.lenses`), so that it can
be asked which moves first. This is no claim of any of the papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from emergence_lib.analysis.attention import unpack
from emergence_lib.analysis.lenses import MEASURES, LensObserver
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.cellular_automata_cell import CellularAutomataCell
from emergence_lib.experiments.linear_map_cell import LinearMapCell, rounded
from emergence_lib.tasks.base import require_int
from emergence_lib.training import Observer, train
from emergence_lib.training.schedule import linear_schedule

BIAS = 4.0
"""c of the condition with attention bias, with which the linear map's plateau is shortest."""

EARLY = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
"""Steps looked at besides the regular ones: paper B's collapse is over in some tens of steps."""

CONDITIONS: dict[str, LinearMapCell | CellularAutomataCell] = {
    "linear map": LinearMapCell(state_size=8, d_model=64),
    "linear map, bias": LinearMapCell(state_size=8, d_model=64, attention_bias=BIAS),
    "cellular automata": CellularAutomataCell(),
    "linear map, s = 2": LinearMapCell(state_size=8, d_model=64, row_weight=2),
    "linear map, s = 4": LinearMapCell(state_size=8, d_model=64, row_weight=4),
}
"""Name → the cell whose task, model and training the lenses look at."""

COMPARED = ("linear map", "linear map, bias", "cellular automata")
"""Conditions in which it is asked which lens moves first."""

DIFFICULTIES = ("linear map, s = 2", "linear map, s = 4")
"""The linear map made easier and harder: what a forecast is carried over to."""

SCHEMA = {
    "eval_steps": "list of int: evaluation steps",
    "eval_loss": "list of float: held-out loss in nats, over all predictions",
    "precached": "list of float: share of the residual gradient that later predictions send",
    "query_loss": "list of list of float [query][evaluation]: nats",
    "alignment": "the same shape: attention of the best head on the needed keys, 0 to 1",
    "entropy": "the same shape: entropy of the most certain head, nats",
    "rankme": "the same shape: effective rank of the last residual stream, uncentred",
    "rankme_centred": "the same shape: effective rank of its covariance",
    "direct": "the same shape: norm of the query's own gradient below the last block",
}


@dataclass(frozen=True)
class LensGrid(Grid):
    """Runs under all lenses.

    Args:
        conditions: keys of `CONDITIONS`.
        seeds: runs a condition, seeded 0, 1, …
        steps: training steps.
        eval_every: steps between two looks.

    Raises:
        UnknownNameError: no such condition.
        ParameterError: a number out of range, or no condition.
    """

    conditions: tuple[str, ...] = COMPARED
    seeds: int = 5
    steps: int = 3_000
    eval_every: int = 25

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "eval_every"):
            require_int(name, getattr(self, name), 1)
        given = tuple(self.conditions)
        if not given:
            raise ParameterError("conditions", given, f"at least one of {', '.join(CONDITIONS)}")
        for condition in given:
            if condition not in CONDITIONS:
                raise UnknownNameError("condition", condition, CONDITIONS)
        object.__setattr__(self, "conditions", given)

    def points(self) -> list[Point]:
        return [
            Point("lenses", 2, asdict(LensCell(condition, self.steps, self.eval_every)), seed)
            for seed in range(self.seeds)
            for condition in self.conditions
        ]


@dataclass(frozen=True)
class LensCell:
    """Parameters of one run."""

    condition: str
    steps: int
    eval_every: int


def run(point: Point, device: str) -> dict[str, Any]:
    """Train one run of a condition and look at it through every lens.

    Raises:
        TrainingError: the loss is not finite.
    """
    lens = LensCell(**point.params)
    evaluations = sorted({*EARLY, *linear_schedule(lens.steps, lens.eval_every)})
    return look(lens.condition, lens.steps, evaluations, point.seed, device)


def look(
    condition: str,
    steps: int,
    evaluations: Sequence[int],
    seed: int,
    device: str,
    others: Sequence[Observer] = (),
) -> dict[str, Any]:
    """The columns of `SCHEMA` of one training run, with other observers looking on.

    Args:
        condition: key of `CONDITIONS`.
        steps: training steps.
        evaluations: steps at which every observer looks.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell = CONDITIONS[condition]
    task, config = cell.task(seed), cell.model_config()
    settings = cell.train_config(seed)
    trained = train(
        task,
        config,
        replace(settings, steps=steps, stop_margin=None),  # what follows the jump is seen too
        observers=[LensObserver(task, config.n_layers, settings.attention_bias), *others],
        evaluations=evaluations,
        device=device,
    )
    loss = trained.metric("loss")
    by_query = {name: unpack(trained.trajectory, name).to_numpy().T for name in MEASURES}
    return {
        "eval_steps": loss.index.tolist(),
        "eval_loss": rounded(loss.to_numpy(), 5),
        "precached": rounded(trained.metric("precached").to_numpy(), 4),
        **{name: rounded(np.asarray(values), 5) for name, values in by_query.items()},
    }


LENSES = Experiment(
    name="lenses",
    version=2,
    question="Attention, geometry, gradients: which of them moves first when a capability appears?",
    grid=LensGrid,
    profiles={
        "smoke": (LensGrid(("linear map",), seeds=1, steps=20, eval_every=10),),
        "quick": (LensGrid(("linear map",), seeds=1, steps=1_000),),
        "cpu": (LensGrid(), LensGrid(DIFFICULTIES), LensGrid(("linear map",), seeds=10)),
        "paper": (LensGrid(seeds=10, steps=10_000),),
    },
    run=run,
    schema=SCHEMA,
    seconds={"smoke": 1, "quick": 15, "cpu": 60, "paper": 200},
)
