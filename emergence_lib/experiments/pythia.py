"""Emergence points of language models over seeds and sizes (claims A-1 to A-4).

Source: paper A, Pythia section (fact sheet A1). Two sources of checkpoints, one row:

    source="pocket"   the suite trained here (`pocket_suite`), measured at every checkpoint
    source="hub"      the real Pythia and PolyPythias, measured where a bisection looks

A row lists what was measured at each evaluated checkpoint, so the paper's bisection can be replayed
on either, and on a full scan its error is known too. Solved: the greedy next token is the target,
for the paper's single prompt ("single") or for enough of many ("many": `pythia_evidence.solves`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pandas as pd

from emergence_lib.analysis.emergence import next_evaluations
from emergence_lib.analysis.heads import HeadObserver
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.linear_map_cell import as_float
from emergence_lib.experiments.pocket_suite import (
    SCAN_SCHEMA,
    PocketRun,
    capability_observer,
    keep_checkpoints,
    measured,
    scan_row,
)
from emergence_lib.experiments.pythia_evidence import (
    PROMPTS,
    judge_abrupt,
    judge_attention,
    judge_larger_earlier,
    judge_random,
    solves,
)
from emergence_lib.models import pythia
from emergence_lib.models.pocket import POCKET_SIZES
from emergence_lib.models.pythia import STEPS
from emergence_lib.tasks.base import require_int
from emergence_lib.tasks.prompts import CAPABILITIES
from emergence_lib.training.train import step_generator

SOURCES = ("pocket", "hub")
HUB_SIZES = ("14m", "31m", "70m", "160m", "410m")
"""Sizes with ten seeds each, the paper's."""

PAPER_REPETITION = {
    size: steps / 143_000
    for size, steps in (
        ("14m", 78_000), ("31m", 61_000), ("70m", 103_000), ("160m", 37_000), ("410m", 5_800),
    )
}  # fmt: skip
"""Mean emergence of string repetition as a share of training, ten seeds a size, runs that fail
counted as the last step; measured off the paper's figure."""


def names_of(kind: str, given: object, known: Collection[str]) -> tuple[str, ...]:
    """One name or several (papermill passes lists) as a tuple.

    Raises:
        ParameterError: no name.
        UnknownNameError: a name that is not known (the nearest is named).
    """
    names = (given,) if isinstance(given, str) else tuple(given)  # type: ignore[arg-type]
    if not names:
        raise ParameterError(kind, names, f"one or more of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, str(name), known)
    return names


def sizes_of(source: object, sizes: object) -> tuple[str, ...]:
    """`names_of` the sizes that a source has.

    Raises:
        ParameterError: no size.
        UnknownNameError: no such source or size.
    """
    (named,) = names_of("source", (source,), SOURCES)
    known = POCKET_SIZES if named == "pocket" else HUB_SIZES
    return names_of(f"size of the source {named!r}", sizes, known)


def require_seeds(source: str, seeds: object) -> None:
    """Raise `ParameterError` unless `seeds` is a number of runs that the source has."""
    require_int("seeds", seeds, 1, None if source == "pocket" else 10)


@dataclass(frozen=True)
class PythiaGrid(Grid):
    """Sizes of one source, each with several seeds.

    Args:
        source: "pocket" or "hub".
        sizes: of the source, one or several.
        seeds: runs a size, seeded 0, 1, …; the Hub has ten (0 is the original run).
        steps, batch_size, lr: training of the pocket suite, see `PocketRun`.
        n_strides: its checkpoints after the first few. The Hub's runs are what they are and ignore
            all four.
        n_prompts: prompts, and as many controls, of each capability.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such source, or a size that the source does not have.
    """

    source: str = "pocket"
    sizes: tuple[str, ...] = tuple(POCKET_SIZES)
    seeds: int = 10
    steps: int = PocketRun.steps
    batch_size: int = PocketRun.batch_size
    lr: float = PocketRun.lr
    n_strides: int = PocketRun.n_strides
    n_prompts: int = PocketRun.n_prompts

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", sizes_of(self.source, self.sizes))
        require_seeds(self.source, self.seeds)
        for size in self.sizes:
            self.run(size).validate()

    def run(self, size: str) -> PocketRun:
        """The pocket suite's run of a size."""
        size = size if self.source == "pocket" else PocketRun.size
        return PocketRun(
            size,
            self.steps,
            self.batch_size,
            as_float("lr", self.lr),
            n_strides=self.n_strides,
            n_prompts=self.n_prompts,
        )

    def points(self) -> list[Point]:
        """Small sizes first."""
        return [
            Point("pythia", 1, {"source": self.source, **self._params(size)}, seed)
            for size in self.sizes
            for seed in range(self.seeds)
        ]

    def _params(self, size: str) -> dict[str, Any]:
        if self.source == "pocket":
            return self.run(size).params()
        return {"size": size, "n_prompts": self.n_prompts}


def run(point: Point, device: str) -> dict[str, Any]:
    """Train a pocket run, or bisect a run of the Hub."""
    params = dict(point.params)
    if params.pop("source") == "hub":
        return bisect_row(params["size"], point.seed, params["n_prompts"], device)
    pocket = PocketRun(**params)
    trained = pocket.train(point.seed, device)
    if pocket == PocketRun(pocket.size):  # the suite itself, which patching takes up again
        keep_checkpoints(pocket.size, point.seed, trained)
    return scan_row(trained, point.seed)


def bisect_row(size: str, seed: int, n_prompts: int, device: str) -> dict[str, Any]:
    """The columns of `SCAN_SCHEMA` at the checkpoints that any capability's bisection looks at."""
    found: dict[int, dict[str, float]] = {}

    def measure(step: int, ahead: tuple[int, ...]) -> None:
        if step in found:
            return
        pythia.prefetch(size, seed, ahead)  # arrives while this one is measured
        loaded = pythia.load(size, seed, step)
        model = loaded.model.to(device)
        prompts = capability_observer(loaded.tokenizer, n_prompts)
        heads = HeadObserver(step_generator(0, "head scores"))
        found[step] = prompts.measure(model) | heads.measure(model)

    for capability in CAPABILITIES:
        for prompts in PROMPTS:
            results: dict[int, bool] = {}
            while ahead := next_evaluations(results, STEPS):
                measure(ahead[0], ahead[1:])
                results[ahead[0]] = solves(found[ahead[0]], capability, prompts)
    lines = [(step, name, value) for step in sorted(found) for name, value in found[step].items()]
    trajectory = pd.DataFrame(lines, columns=["step", "metric", "value"])
    return measured(trajectory) | {"grad_norm": [], "sample": "", "corpus": ""}


def download(point: Point) -> int:
    """Bytes that a point fetches at most.

    The bisections of all capabilities and criteria are paths down one tree of checkpoints, and at
    every step the two that may come next are fetched ahead: so all its nodes that the paths touch,
    and their children.
    """
    if point.params["source"] != "hub":
        return 0
    n_paths, depth = len(CAPABILITIES) * len(PROMPTS), len(STEPS).bit_length()
    nodes = sum(min(2**level, 2 * n_paths) for level in range(depth))
    return min(nodes, len(STEPS)) * pythia.download_size(point.params["size"])


PYTHIA = Experiment(
    name="pythia",
    version=1,
    question="When does a capability emerge, over seeds and sizes, and does attention move then?",
    grid=PythiaGrid,
    profiles={
        "smoke": (
            PythiaGrid(sizes=("98k",), seeds=1, steps=4, batch_size=2, n_strides=2, n_prompts=2),
        ),
        "quick": (PythiaGrid(sizes=("98k",), seeds=1, steps=715, n_strides=35),),
        "cpu": (
            PythiaGrid(sizes=("98k",)),
            PythiaGrid(sizes=("442k",)),
            PythiaGrid(sizes=("1.2m",), seeds=5),
        ),
        "paper": (PythiaGrid(source="hub", sizes=HUB_SIZES),),
    },
    run=run,
    schema=SCAN_SCHEMA,
    judges={
        "A-1": judge_random,
        "A-2": judge_larger_earlier,
        "A-3": judge_abrupt,
        "A-4": judge_attention,
    },
    seconds={"smoke": 3, "quick": 60, "cpu": 600, "paper": 1800},
    download=download,
)
