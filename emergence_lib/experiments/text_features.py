"""What builds grammar and story position in a small language model (claims C-7, C-8, C-9).

Source: paper C (Rofin et al. 2026, arXiv 2603.14087), section on text; fact sheet C5: TinyStories,
windows of 64, 4 layers, tags and dependency labels by spaCy, positions 30 to 39, plain and myopic
training. Here the stories are generated (`tasks.stories`), so their grammar is known and no tagger
can err; the model has 3 layers of d_model 64 and trains on 0.8 million tokens. The `paper` profile
takes TinyStories and spaCy (`tasks.tinystories`), which do not come with this library.

A feature is a ridge probe's direction at the layers between embeddings and last residual stream,
where both direct and pre-cached gradient can build it, scaled so that what it reads has variance 1
in the trained model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emergence_lib.analysis.gradients import PARTS
from emergence_lib.analysis.influence import RULES, Directions
from emergence_lib.analysis.probes import Probe, correlation, fit_ridge
from emergence_lib.errors import UnknownNameError
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.linear_map_cell import rounded
from emergence_lib.experiments.text_cell import (
    PROBED,
    TextCell,
    feature_values,
    integrated,
    made_from,
    streams,
)
from emergence_lib.experiments.text_features_evidence import (
    judge_myopic_costs_loss,
    judge_story_position_needs_precaching,
    judge_syntax_is_direct,
)
from emergence_lib.tasks.base import require_int
from emergence_lib.training.train import step_generator

CORPORA_WITH_GRAMMAR = ("stories", "tinystories")
FOLLOWED = (30, 33, 36, 39)
"""Positions whose influence is integrated; the paper follows all of `PROBED`."""


@dataclass(frozen=True)
class TextFeaturesGrid(Grid):
    """Plain and myopic training, several seeds each.

    Args:
        seeds: runs of each; a plain and a myopic run of one seed share weights and data.
        corpus: "stories", or "tinystories" where that text and spaCy are at hand.
        n_layers, d_model, steps, batch_size, lr, track_every: of `TextCell`.
        probe_windows: windows to fit the probes on, and half as many to read them.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: a corpus without these features.
    """

    seeds: int = 5
    corpus: str = "stories"
    n_layers: int = 3
    d_model: int = 64
    steps: int = 800
    batch_size: int = 16
    lr: float = 2e-3
    track_every: int = 20
    probe_windows: int = 600

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        if self.corpus not in CORPORA_WITH_GRAMMAR:
            raise UnknownNameError("corpus with grammar", self.corpus, CORPORA_WITH_GRAMMAR)
        require_int("n_layers", self.n_layers, 2)
        require_int("probe_windows", self.probe_windows, 8)
        self.cell(myopic=False).validate()

    def cell(self, *, myopic: bool) -> TextCell:
        return TextCell(
            self.corpus,
            n_layers=self.n_layers,
            d_model=self.d_model,
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            myopic=myopic,
            track_every=self.track_every,
        )

    def points(self) -> list[Point]:
        """A seed's two runs together, so that the first seeds are useful alone."""
        return [
            Point(
                "text_features",
                1,
                self.cell(myopic=myopic).params() | {"probe_windows": self.probe_windows},
                seed,
            )
            for seed in range(self.seeds)
            for myopic in (False, True)
        ]


def run_point(point: Point, device: str) -> dict[str, Any]:
    """Train, fit probes, and follow in a plain run what builds their directions.

    Raises:
        TrainingError: the loss is not finite.
    """
    params = dict(point.params)
    n_windows = params.pop("probe_windows")
    cell = TextCell(**params)
    run = cell.train(point.seed, device)
    layers = tuple(range(cell.n_layers + 1))
    fitted_on = cell.task().sample(n_windows, step_generator(0, "probes")).to(device)
    read_on = cell.held_out(max(1, n_windows // 2), "probes").to(device)
    untrained = cell.model_config().build(step_generator(point.seed, "weights")).to(device)
    scores = {}
    for name, model in (("untrained", untrained), ("probe", run.model)):
        fitting, reading = (
            streams(model, batch.tokens[:, :-1], layers)[:, :, list(PROBED)].flatten(1, 2)
            for batch in (fitted_on, read_on)
        )
        probe = fit_ridge(fitting, feature_values(fitted_on))
        truth = feature_values(read_on).expand(len(layers), -1, -1)
        scores[name] = rounded(correlation(probe(reading), truth).numpy(), 4)
    loss = run.metric("loss")
    row: dict[str, Any] = {
        "eval_steps": loss.index.tolist(),
        "eval_loss": rounded(loss.to_numpy(), 5),
        "final_loss": float(loss.iloc[-1]),
        "sources": made_from(cell.task()),
        **scores,
        **dict.fromkeys((*(f"influence_{rule}" for rule in RULES), "mismatch")),
    }
    if not cell.myopic:
        row |= influences(cell, run, unit_directions(probe, fitting), point.seed)
    return row


def unit_directions(probe: Probe, activations: Float[Tensor, "layer sample d"]) -> Directions:
    """The probes' directions between the first and last layer, scaled to read variance 1."""
    scale = probe(activations).std(dim=1, keepdim=True)
    weight = probe.weight / scale.clamp_min(1e-6)
    last = len(weight) - 1
    return {(k, i): weight[k].T.contiguous() for i in FOLLOWED for k in range(1, last)}


def influences(cell: TextCell, run: Any, directions: Directions, seed: int) -> dict[str, Any]:
    """Integrated influence [layer][part][feature], a mean over positions, by each rule."""
    table, mismatch = integrated(cell, run, directions, seed)
    means = table.groupby(["rule", "layer", "part", "feature"]).influence.mean()
    layers = sorted({k for k, _ in directions})
    columns: dict[str, Any] = {
        f"influence_{rule}": [
            [rounded(means[rule, k, part].to_numpy(), 7) for part in PARTS] for k in layers
        ]
        for rule in RULES
    }
    at_start = [torch.stack([mismatch[k, i] for i in FOLLOWED]).mean(0) for k in layers]
    return columns | {"mismatch": rounded(torch.stack(at_start).cpu().numpy(), 5)}


TEXT_FEATURES = Experiment(
    name="text_features",
    version=1,
    question="Which part of the gradient builds grammar and story position in a language model?",
    grid=TextFeaturesGrid,
    profiles={
        "smoke": (
            TextFeaturesGrid(
                seeds=1, n_layers=2, d_model=16, steps=4, batch_size=2, track_every=2,
                probe_windows=8,
            ),
        ),
        "quick": (
            TextFeaturesGrid(seeds=1, steps=240, batch_size=8, track_every=24, probe_windows=300),
        ),
        "cpu": (TextFeaturesGrid(),),
        "paper": (
            TextFeaturesGrid(
                seeds=10, corpus="tinystories", n_layers=4, d_model=128, steps=1_000,
                batch_size=256, lr=1e-3, track_every=1, probe_windows=2_000,
            ),
        ),
    },
    run=run_point,
    schema={
        "eval_steps": "list of int: evaluation steps",
        "eval_loss": "list of float: held-out loss in nats at those steps",
        "final_loss": "float: last held-out loss in nats",
        "probe": "list [layer][feature] of float: Pearson's r of the probe on held-out windows",
        "untrained": "list [layer][feature] of float: the same for the model before training",
        "influence_adam": "list [layer from 1][part][feature] of float or null: integrated "
        "influence, parts direct, precached, shared; null in myopic runs",
        "influence_sgd": "the same for steps of plain SGD along the same training",
        "mismatch": "list [layer from 1][feature] of float or null: R at the first step",
        "sources": "str: what the data were made from",
    },
    judges={
        "C-7": judge_myopic_costs_loss,
        "C-8": judge_syntax_is_direct,
        "C-9": judge_story_position_needs_precaching,
    },
    seconds={"smoke": 1, "quick": 14, "cpu": 65, "paper": 4_000},
)  # fmt: skip
