"""Does the collapse of algorithmic tasks happen in language models too? Claim B-13.

Source: paper B (arXiv 2602.15997; fact sheet B3), which follows RankMe through the checkpoints of
Pythia (160M, 410M, 2.8B). Which texts, token and layer it takes is not known to us. Here: the last
token of 200 held-out texts of each domain of the pocket corpus, and of 200 prompts of each
capability of paper A, at every layer. Two sources of checkpoints, one probe:

    source="pocket"   the pocket suite, trained here with its own recipe (`pocket_suite`): the runs
                      of `pythia`, number for number, looked at on other inputs
    source="hub"      the real Pythia, through `models.pythia.load`; `scan_checkpoints` takes what
                      that reads, so also kept checkpoints of the pocket suite and local folders

Reduced for two cores: models of 0.1 and 0.4 million parameters beside their embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.language_geometry_evidence import judge_language
from emergence_lib.experiments.language_probe import PROBE_SCHEMA, LanguageProbe, scan_columns
from emergence_lib.experiments.pocket_suite import PocketRun
from emergence_lib.experiments.pythia import SOURCES, names_of
from emergence_lib.models import pythia
from emergence_lib.models.pocket import POCKET_SIZES
from emergence_lib.models.pythia import SIZES, STEPS
from emergence_lib.tasks.base import require_int
from emergence_lib.tasks.corpus import pocket_tokenizer
from emergence_lib.training import log_schedule, train
from emergence_lib.training.train import step_generator


@dataclass(frozen=True)
class LanguageGrid(Grid):
    """Sizes of one source, each with several seeds.

    Args:
        source: "pocket" or "hub".
        sizes: of the source, one or several.
        seeds: runs a size, seeded 0, 1, …; of the Hub ten at most, and of sizes above 410M one.
        steps: training steps of the pocket suite. The Hub's runs are what they are.
        n_checkpoints: about how many, evenly in log(step); of the Hub the nearest of its 154, and
            all from 154 on.
        samples: texts or prompts of each group.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such source, or a size that the source does not have.
    """

    source: str = "pocket"
    sizes: tuple[str, ...] = ("98k",)
    seeds: int = 5
    steps: int = PocketRun.steps
    n_checkpoints: int = 60
    samples: int = 200

    def __post_init__(self) -> None:
        (source,) = names_of("source", (self.source,), SOURCES)
        known = POCKET_SIZES if source == "pocket" else SIZES
        kind = f"size of the source {source!r}"
        object.__setattr__(self, "sizes", names_of(kind, self.sizes, known))
        require_int("seeds", self.seeds, 1)
        require_int("samples", self.samples, 2)
        log_schedule(self.steps, self.n_checkpoints)
        for size in self.sizes:
            if source == "hub":
                pythia.repository(size, self.seeds - 1)
            else:
                PocketRun(size, self.steps).train_config(0)

    def points(self) -> list[Point]:
        """Seed by seed, so that an interrupted sweep has every size."""
        return [
            Point("language_geometry", 1, self._params(size), seed)
            for seed in range(self.seeds)
            for size in self.sizes
        ]

    def _params(self, size: str) -> dict[str, Any]:
        looked = {"n_checkpoints": self.n_checkpoints, "samples": self.samples}
        if self.source == "hub":
            return {"source": "hub", "size": size, **looked}
        run = PocketRun(size, self.steps)
        recipe = {name: getattr(run, name) for name in RECIPE}
        return {"source": "pocket", "size": size, **recipe, **looked}


RECIPE = ("steps", "batch_size", "lr", "weight_decay")
"""Fields of `PocketRun` that a point takes over."""


def run_language(point: Point, device: str) -> dict[str, Any]:
    """Train a run of the pocket suite, or load one of the Hub, and look at every checkpoint.

    Returns:
        The columns of `PROBE_SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
        StoreError: as `models.pythia.load`.
    """
    params = dict(point.params)
    n, samples = params["n_checkpoints"], params["samples"]
    if params["source"] == "hub":
        steps = hub_checkpoints(n)
        return scan_checkpoints(params["size"], point.seed, steps, "hub", samples, device)
    pocket = PocketRun(params["size"], **{name: params[name] for name in RECIPE})
    run = train(
        pocket.task(),
        pocket.model_config(),
        pocket.train_config(point.seed),
        observers=(LanguageProbe(pocket_tokenizer(), samples),),
        evaluations=log_schedule(pocket.steps, n),
        eval_batch=pocket.task().sample(1, step_generator(0, "held out")),  # the probe has its own
        device=device,
    )
    return scan_columns(run.trajectory)


def hub_checkpoints(n: int) -> tuple[int, ...]:
    """About `n` of Pythia's checkpoints, those nearest to even distances in log(step)."""
    if n >= len(STEPS):
        return STEPS
    wanted = log_schedule(STEPS[-1], n)
    return tuple(sorted({min(STEPS, key=lambda step: abs(step - w)) for w in wanted}))


def scan_checkpoints(
    size: str,
    seed: int,
    steps: Sequence[int],
    source: str | Path,
    samples: int,
    device: str = "cpu",
) -> dict[str, Any]:
    """The columns of `PROBE_SCHEMA` for checkpoints that exist.

    Args:
        size, seed, source: as `models.pythia.load` takes them: "hub", "pocket" or a folder.
        steps: checkpoints in increasing order.
        samples: texts or prompts of each group.
        device: of the models.

    Raises:
        As `models.pythia.load`.
    """
    lines = []
    probe = None
    for i, step in enumerate(steps):
        if source == "hub":
            pythia.prefetch(size, seed, steps[i + 1 : i + 2])  # arrives while this one is measured
        loaded = pythia.load(size, seed, step, source)
        probe = probe or LanguageProbe(loaded.tokenizer, samples)
        metrics = probe.measure(loaded.model.to(device))
        lines += [(step, name, value) for name, value in metrics.items()]
    return scan_columns(pd.DataFrame(lines, columns=["step", "metric", "value"]))


def download(point: Point) -> int:
    """Bytes that a point fetches at most."""
    if point.params["source"] != "hub":
        return 0
    n = len(hub_checkpoints(point.params["n_checkpoints"]))
    return n * pythia.download_size(point.params["size"])


LANGUAGE_GEOMETRY = Experiment(
    name="language_geometry",
    version=1,
    question="Does the rank of a language model's representations collapse and recover over "
    "pretraining, and does it warn of single capabilities?",
    grid=LanguageGrid,
    profiles={
        "smoke": (LanguageGrid(seeds=1, steps=4, n_checkpoints=3, samples=4),),
        "quick": (LanguageGrid(seeds=1, steps=150, n_checkpoints=30, samples=100),),
        "cpu": (LanguageGrid(), LanguageGrid(sizes=("442k",), seeds=2)),
        "paper": (
            LanguageGrid(source="hub", sizes=("160m", "410m"), seeds=1, n_checkpoints=len(STEPS)),
            LanguageGrid(source="hub", sizes=("2.8b",), seeds=1, n_checkpoints=72),
        ),
    },
    run=run_language,
    schema=PROBE_SCHEMA,
    judges={"B-13": judge_language},
    seconds={"smoke": 2, "quick": 30, "cpu": 280, "paper": 5_000},
    download=download,
)
