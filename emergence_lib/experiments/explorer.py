"""What the book's explorer shows: every lens and every head's attention, over one run a condition.

    pattern  uint8 [evaluation, layer · head, query, key], 255 is a share of 1, base64 in the row

The runs are those of the three lenses, looked at half as often, with the attention patterns kept. A
pattern is the mean over the evaluation batch, at the watched queries only: all positions of a
cellular automaton would be eight times as much, too much for a page. No claim rests on them.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, UInt8

from emergence_lib.analysis.lenses import LensObserver, PatternKeeper
from emergence_lib.experiments import lenses
from emergence_lib.experiments.base import Experiment, Point
from emergence_lib.experiments.lenses import CONDITIONS, LensGrid
from emergence_lib.training.schedule import linear_schedule

EARLY = (1, 2, 4, 10, 20)
"""Steps looked at besides the regular ones."""

SCHEMA = {
    **lenses.SCHEMA,
    "pattern": "str: base64 of uint8 [evaluation, layer · head, query, key], 255 is a share of 1",
    "pattern_shape": "list of int: the four sizes",
    "heads": "int: heads a layer",
    "queries": "list of int: positions of the watched queries",
    "needed": "list of list of int: the keys that each watched query needs",
}


@dataclass(frozen=True)
class ExplorerGrid(LensGrid):
    """Runs of the three lenses, one a condition and looked at half as often, with their patterns.

    Arguments and errors are those of `LensGrid`.
    """

    seeds: int = 1
    eval_every: int = 50

    def points(self) -> list[Point]:
        return [
            Point("explorer", 1, asdict(lenses.LensCell(name, self.steps, self.eval_every)), seed)
            for seed in range(self.seeds)
            for name in self.conditions
        ]


def run(point: Point, device: str) -> dict[str, Any]:
    """Train one run, look at it through every lens and keep its attention patterns.

    Raises:
        TrainingError: the loss is not finite.
    """
    lens = lenses.LensCell(**point.params)
    cell = CONDITIONS[lens.condition]
    task, config = cell.task(point.seed), cell.model_config()
    queries = LensObserver(task, config.n_layers).queries
    keeper = PatternKeeper(queries, config.n_layers)
    evaluations = sorted({*EARLY, *linear_schedule(lens.steps, lens.eval_every)})
    columns = lenses.look(
        lens.condition, lens.steps, evaluations, point.seed, device, others=[keeper]
    )
    patterns = to_bytes(np.stack(keeper.kept))
    target = task.attention_target()
    assert target is not None  # else LensObserver had refused the task
    return columns | {
        "pattern": base64.b64encode(patterns.tobytes()).decode(),
        "pattern_shape": list(patterns.shape),
        "heads": config.n_heads,
        "queries": queries.tolist(),
        "needed": [target[query].nonzero().squeeze(-1).tolist() for query in queries],
    }


def to_bytes(shares: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Shares from 0 to 1 in steps of 1/255."""
    return np.round(np.clip(shares, 0, 1) * 255).astype(np.uint8)


def patterns(row: pd.Series) -> UInt8[np.ndarray, "evaluation head query key"]:
    """The attention patterns of a recorded row."""
    flat = np.frombuffer(base64.b64decode(row["pattern"]), dtype=np.uint8)
    return flat.reshape([int(n) for n in row["pattern_shape"]])


EXPLORER = Experiment(
    name="explorer",
    version=1,
    question="What do attention, loss, rank and gradients of one run show, step by step?",
    grid=ExplorerGrid,
    profiles={
        "smoke": (ExplorerGrid(("linear map",), steps=20, eval_every=10),),
        "quick": (ExplorerGrid(("linear map",), steps=1_000),),
        "cpu": (ExplorerGrid(),),
        "paper": (ExplorerGrid(seeds=5, steps=10_000, eval_every=150),),
    },
    run=run,
    schema=SCHEMA,
    seconds={"smoke": 1, "quick": 15, "cpu": 50, "paper": 160},
)
