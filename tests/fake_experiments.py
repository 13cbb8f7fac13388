"""Small experiments at module level, so that spawned workers can import them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emergence_lib.experiments.base import Experiment, Grid, Point


@dataclass(frozen=True)
class FakeGrid(Grid):
    """`seeds` points of one width."""

    seeds: int = 4
    width: int = 3

    def points(self) -> list[Point]:
        return [Point("fake", 1, {"width": self.width}, seed) for seed in range(self.seeds)]


def make(run, schema=("area", "curve"), version=1, profiles=None) -> Experiment:
    """An experiment called "fake" around `run`."""
    return Experiment(
        name="fake",
        version=version,
        question="Does the machinery work?",
        grid=FakeGrid,
        profiles=profiles or {"smoke": (FakeGrid(2),), "quick": (FakeGrid(4),)},
        run=run,
        schema=dict.fromkeys(schema, "a number"),
        # A lambda does not pickle: the sweep must not send it to the workers.
        judges={"A-0": lambda rows: None},
    )


def area(point: Point, device: str) -> dict:
    """Known answer: width² + seed, and a curve with values that JSON does not have."""
    width = point.params["width"]
    return {"area": width**2 + point.seed, "curve": [0.5 * width, math.nan, None]}
