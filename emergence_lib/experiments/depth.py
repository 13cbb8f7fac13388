"""Depth: more layers on the linear map and on cellular automata of many rules (claim A-13).

Source: paper A, section on architecture (fact sheet A5): depth hurts on the linear map, where one
layer is enough, and helps on cellular automata, where a rule has to be found in the context before
it is applied. No numbers and no depths are known to us; 1 to 4 layers are ours.

Reduced as in `heads`: the linear map has S = 8 and at most 3,000 steps; cellular automata are those
of `CellularAutomataCell`, and a run of theirs ends with its plateau. Training is the same at every
depth: a rate tuned for each would be another, fairer question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from emergence_lib.analysis.survival import Estimate, logrank
from emergence_lib.errors import UnknownNameError
from emergence_lib.experiments import two_tasks
from emergence_lib.experiments.base import Experiment, Grid, Point, Verdict
from emergence_lib.experiments.cellular_automata_cell import CellularAutomataCell
from emergence_lib.experiments.evidence import waits_by, with_interval
from emergence_lib.experiments.linear_map_cell import (
    LinearMapCell,
    ShapedLinearMapCell,
    int_tuple,
)
from emergence_lib.tasks.base import require_int


@dataclass(frozen=True)
class DepthGrid(Grid):
    """One task, several depths, several seeds.

    Args:
        task: "linear_map" or "cellular_automata".
        depths: numbers of layers.
        seeds: runs a depth, seeded 0, 1, …
        state_size: S, the size of a state.
        n_rules, n_states, tokens: of cellular automata, see `CellularAutomataCell`.
        d_model, n_heads: shape of a layer.
        steps: training steps at most.
        batch_size: sequences of the linear map.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such task.
    """

    task: str = "linear_map"
    depths: tuple[int, ...] = (1, 2, 3, 4)
    seeds: int = 3
    state_size: int = 8
    n_rules: int = 64
    n_states: int = CellularAutomataCell.n_states
    tokens: int = CellularAutomataCell.tokens
    d_model: int = LinearMapCell.d_model
    n_heads: int = LinearMapCell.n_heads
    steps: int = 3_000
    batch_size: int = LinearMapCell.batch_size

    def __post_init__(self) -> None:
        if self.task not in two_tasks.CELLS:
            raise UnknownNameError("task", self.task, two_tasks.CELLS)
        require_int("seeds", self.seeds, 1)
        object.__setattr__(self, "depths", int_tuple("depths", self.depths, 1, 64))
        for depth in self.depths:
            self.cell(depth).validate()

    def cell(self, depth: int) -> two_tasks.Cell:
        """The run of one depth."""
        if self.task == "linear_map":
            return ShapedLinearMapCell(
                state_size=self.state_size,
                d_model=self.d_model,
                n_heads=self.n_heads,
                n_layers=depth,
                steps=self.steps,
                batch_size=self.batch_size,
                eval_every=50,
            )
        return CellularAutomataCell(
            state_size=self.state_size,
            n_rules=self.n_rules,
            n_states=self.n_states,
            tokens=self.tokens,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=depth,
            steps=self.steps,
            stop_after_plateau=True,
        )

    def points(self) -> list[Point]:
        """Seed by seed, so that an interrupted sweep has every depth."""
        return [
            Point("depth", 1, two_tasks.params(self.cell(depth)), seed)
            for seed in range(self.seeds)
            for depth in self.depths
        ]


def by_depth(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Task → how long runs wait at each depth: `waits_by`, x being the layers."""
    return {
        title: waits_by(rows[rows.task == task], "n_layers", two_tasks.event)
        for task, title in two_tasks.NAMES.items()
    }


@dataclass(frozen=True)
class DepthEffect:
    """How the wait of a task goes with its layers.

    Attributes:
        ratio: restricted mean wait of the deepest model divided by that of the shallowest.
        p_value: of the log-rank test of these two.
        shallow, deep: their numbers of layers.
        n: runs of both.
        solved: of the shallow runs and of the deep ones, those that got there, in words.
    """

    ratio: Estimate
    p_value: float
    shallow: int
    deep: int
    n: int
    solved: str

    def slower(self) -> bool:
        """The deep model waits longer: the whole interval above 1, or no interval and p < 0.05."""
        return self.ratio.low > 1 or (math.isnan(self.ratio.low) and self._differs(more=True))

    def sooner(self) -> bool:
        """The deep model waits less, likewise."""
        return self.ratio.high < 1 or (math.isnan(self.ratio.low) and self._differs(more=False))

    def _differs(self, *, more: bool) -> bool:
        return self.p_value < 0.05 and (self.ratio.value > 1) == more


def depth_effect(rows: pd.DataFrame, task: str) -> DepthEffect | None:
    """Deepest against shallowest, of the depths with two runs or more; None without two such."""
    runs = rows[rows.task == task] if len(rows) else rows
    if runs.empty:
        return None
    counts = runs.n_layers.value_counts()
    depths = sorted(int(depth) for depth in counts.index[counts >= 2])
    if len(depths) < 2:
        return None
    shallow, deep = depths[0], depths[-1]
    groups = {
        str(depth): [two_tasks.event(row) for _, row in runs[runs.n_layers == depth].iterrows()]
        for depth in (shallow, deep)
    }
    test = logrank(groups, int(runs.steps.min()))
    ended = [f"{sum(e.observed for e in group)} of {len(group)}" for group in groups.values()]
    return DepthEffect(
        test.ratios[str(deep)],
        test.p_value,
        shallow,
        deep,
        sum(len(group) for group in groups.values()),
        " and ".join(ended),
    )


def judge_depth(rows: pd.DataFrame) -> Verdict:
    """A-13: the deepest model waits longer on the linear map and less on cellular automata.

    "reproduced": both, each with the whole interval of the ratio of mean waits on its side of 1
    (log-rank p < 0.05 where a group that never got there leaves no interval); "partly": one of the
    two. Two depths with two runs each are needed on both tasks.
    """
    effects = {task: depth_effect(rows, task) for task in two_tasks.NAMES}
    linear_map, automata = effects["linear_map"], effects["cellular_automata"]
    if linear_map is None or automata is None:
        need = "Two depths with two runs each on both tasks are needed."
        return Verdict("not tested here", need, 0)
    agree = linear_map.slower() + automata.sooner()
    status = ("not reproduced", "partly", "reproduced")[agree]
    parts = [
        f"{two_tasks.NAMES[task].capitalize()}: the mean wait until {two_tasks.WAITS[task]} with "
        f"{effect.deep} layers is {with_interval(effect.ratio, '.2f')} times that with "
        f"{effect.shallow} (log-rank p = {effect.p_value:.2g}; it ended in {effect.solved} runs)"
        for task, effect in (("linear_map", linear_map), ("cellular_automata", automata))
    ]
    return Verdict(status, f"{'. '.join(parts)}.", linear_map.n + automata.n)


DEPTH = Experiment(
    name="depth",
    version=1,
    question="Do more layers lengthen the wait on the linear map and shorten it on cellular "
    "automata?",
    grid=DepthGrid,
    profiles={
        "smoke": (
            DepthGrid("linear_map", (1, 2), 1, 3, d_model=8, n_heads=2, steps=20, batch_size=8),
            DepthGrid("cellular_automata", (1,), 1, 4, n_rules=2, d_model=8, n_heads=2, steps=10),
        ),
        "quick": (DepthGrid(depths=(1, 3), seeds=1, steps=600),),
        "cpu": (
            DepthGrid(seeds=5),
            DepthGrid(
                "cellular_automata",
                d_model=CellularAutomataCell.d_model,
                n_heads=CellularAutomataCell.n_heads,
                steps=3_000,
            ),
        ),
        "paper": (
            DepthGrid(state_size=16, depths=(1, 2, 4, 8), steps=10_000, batch_size=256),
            DepthGrid(
                "cellular_automata",
                (1, 2, 4, 8),
                state_size=16,
                n_rules=256,
                n_states=16,
                tokens=65_536,
                steps=10_000,
            ),
        ),
    },
    run=two_tasks.run_cell,
    schema=two_tasks.CURVE_SCHEMA,
    judges={"A-13": judge_depth},
    seconds={"smoke": 1, "quick": 10, "cpu": 40, "paper": 1_200},
)
