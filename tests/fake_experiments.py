"""Small experiments at module level, so that spawned workers can import them."""

from __future__ import annotations

import math
import os
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch

from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Experiment, Grid, Point


@dataclass(frozen=True)
class FakeGrid(Grid):
    """`seeds` points; `log` is a folder in which each computation leaves a file."""

    seeds: int = 4
    width: int = 3
    log: str = ""

    def points(self) -> list[Point]:
        params = {"width": self.width} | ({"log": self.log} if self.log else {})
        return [Point("fake", 1, params, seed) for seed in range(self.seeds)]


def make(run, schema=("area",)) -> Experiment:
    """An experiment called "fake" around `run`."""
    return Experiment(
        name="fake",
        version=1,
        question="Does the machinery work?",
        grid=FakeGrid,
        profiles={
            "smoke": (FakeGrid(2),),
            "quick": (FakeGrid(4),),
            "cpu": (FakeGrid(5), FakeGrid(5, width=7)),
        },
        run=run,
        schema=dict.fromkeys(schema, "a number"),
        # A lambda does not pickle: the sweep must not send it to the workers.
        judges={"A-0": lambda rows: None},
    )


def area(point: Point, device: str) -> dict:
    """Known answer: width² + seed. Leaves a file in the log and may be told to take long."""
    if log := point.params.get("log"):
        Path(log, f"{point.seed}-{os.getpid()}-{uuid.uuid4().hex}").touch()
    if point.seed >= int(os.environ.get("FAKE_SLOW_FROM", "1000")):
        time.sleep(600)
    return {"area": point.params["width"] ** 2 + point.seed}


def computed(log: Path) -> dict[int, int]:
    """seed → how often `area` was begun, from the files that it left."""
    seeds = [int(path.name.split("-")[0]) for path in Path(log).iterdir()]
    return {seed: seeds.count(seed) for seed in sorted(seeds)}


def unhurried(point: Point, device: str) -> dict:
    """`area`, taking long enough for two sweeps to meet."""
    time.sleep(0.05)
    return area(point, device)


def where(point: Point, device: str) -> dict:
    """The process and the number of torch threads that computed the point."""
    return {"pid": os.getpid(), "threads": torch.get_num_threads(), "half": math.nan}


def odd_fails(point: Point, device: str) -> dict:
    """Fails at odd seeds, with an exception that does not survive pickling."""
    if point.seed % 2:
        raise ParameterError("width", point.params["width"], "even")
    return area(point, device)


def dies_at_two(point: Point, device: str) -> dict:
    """Seed 2 kills its own process, as the kernel does when memory runs out."""
    if point.seed == 2 and "FAKE_SURVIVE" not in os.environ:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return area(point, device)


def interrupts_at_two(point: Point, device: str) -> dict:
    """Seed 2 presses Ctrl-C."""
    if point.seed == 2:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
    return area(point, device)
