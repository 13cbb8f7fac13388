"""Othello: are discs that do not matter for the next move represented, and what built them?

A model of random games needs the board, but for any one move only some of its discs matter. Claims
C-5 (useless squares are represented, but worse) and C-6 (the direct part of the gradient builds
useful squares only, the pre-cached and shared parts the useless ones).

Source: paper C (arXiv 2603.14087), section on Othello (fact sheet C4). The `paper` profile has its
sizes; the others have a 6 × 6 board and smaller models. What a run is: `othello_cell`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.othello_cell import OthelloCell, halves, listed, probe_columns
from emergence_lib.experiments.othello_evidence import judge_influence, judge_useless_squares
from emergence_lib.experiments.othello_influence import influence_columns
from emergence_lib.experiments.othello_intervention import intervention_columns
from emergence_lib.models import Transformer
from emergence_lib.tasks.base import require_int
from emergence_lib.training import train
from emergence_lib.training.train import step_generator

SCHEMA = {
    "eval_steps": "list of int: evaluation steps",
    "eval_loss": "list of float: held-out loss in nats at those steps",
    "eval_accuracy": "list of float: share of predictions whose likeliest token is legal",
    "floor": "float: loss in nats of the uniform prediction over legal moves, same games",
    "legal_accuracy": "float: that share at the end, on the probes' held-out games",
    "legal_by_position": "list of float: the same at each position, null where no game counts",
    "share_useful": "list of float: useful among occupied squares, by tracked position",
    "probe_useful": "[layer][pos]: share of useful squares whose owner a probe reads, or null",
    "probe_useless": "[layer][pos]: of useless ones, over the same squares",
    "untrained_useful": "[layer][pos]: as probe_useful, in the model before training",
    "untrained_useless": "[layer][pos]: as probe_useless, in the model before training",
    "guess_useful": "[pos]: as probe_useful, by the likelier owner of each square",
    "guess_useless": "[pos]: as probe_useless, by the likelier owner of each square",
    "turned_games": "int: pairs of game and position in which a useful disc is turned over",
    "followed_unedited": "float: share of changed moves predicted as if the disc were turned",
    "followed_edited": "[layer]: that share with the stream moved along the probe's direction",
    "followed_random": "[layer]: that share with the stream moved as far in a random direction",
    "mismatch": "[useful, useless]: mean mismatch before training, squared units of the board",
    "influence_by_layer": "[part][useful, useless][layer]: integrated influence, same units",
    "influence_by_position": "[part][useful, useless][pos]: integrated influence or null",
    "influence_by_square": "[part][useful, useless][square]: integrated influence or null",
    "influence_by_game": "[part][useful, useless][game]: integrated influence",
    "example_moves": "int: moves made in the game that is drawn",
    "example_layer": "int: the layer whose probes read the most squares rightly",
    "example_state": "list of int: 1 a disc of the player to move, -1 of the other, 0 none",
    "example_useful": "list of bool: squares whose disc matters for the next move",
    "example_readout": "list of float: the probes' read-out of the squares at that layer",
    "example_legal": "list of bool: squares on which the player may move",
    "example_probability": "list of float: probability that the model gives each square",
}


@dataclass(frozen=True)
class OthelloGrid(Grid):
    """The same run with several seeds; the fields are those of `OthelloCell`.

    Args:
        seeds: runs, seeded 0, 1, …

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    seeds: int = 3
    size: int = OthelloCell.size
    n_layers: int = OthelloCell.n_layers
    d_model: int = OthelloCell.d_model
    n_heads: int = OthelloCell.n_heads
    steps: int = OthelloCell.steps
    batch_size: int = OthelloCell.batch_size
    lr: float = OthelloCell.lr
    probe_games: int = OthelloCell.probe_games
    track_every: int = OthelloCell.track_every

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        require_int("probe_games", self.probe_games, 40)
        require_int("track_every", self.track_every, 1)
        cell = self.cell()
        cell.task(), cell.model_config(), cell.train_config(0)

    def cell(self) -> OthelloCell:
        """The run."""
        return OthelloCell(
            size=self.size,
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            probe_games=self.probe_games,
            track_every=self.track_every,
        )

    def points(self) -> list[Point]:
        params = self.cell().params()
        return [Point("othello", 1, params, seed) for seed in range(self.seeds)]


def run_othello(point: Point, device: str) -> dict[str, Any]:
    """Train, and measure what the model knows of the board.

    Returns:
        The columns of `SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell, seed = OthelloCell(**point.params), point.seed
    task, config = cell.task(), cell.train_config(seed)
    run = train(task, cell.model_config(), config, checkpoints=cell.tracked_steps(), device=device)
    untrained = cell.model_config().build(step_generator(seed, "weights")).to(device)
    fit, test = halves(cell, seed, device)
    probed, probes = probe_columns(cell, run.model, untrained, fit, test)
    eval_batch = task.sample(config.eval_batch_size, step_generator(seed, "eval"))
    loss = run.metric("loss")
    return {
        "eval_steps": loss.index.tolist(),
        "eval_loss": loss.round(4).tolist(),
        "eval_accuracy": run.metric("accuracy").round(4).tolist(),
        "floor": round(task.floor_of(eval_batch), 4),
        **legal_columns(cell, run.model, test),
        **probed,
        **intervention_columns(cell, run.model, probes, test, step_generator(seed, "turned")),
        **influence_columns(cell, run, probes, seed, device),
    }


@torch.no_grad()
def legal_columns(cell: OthelloCell, model: Transformer, test: Any) -> dict[str, Any]:
    """Legal-move accuracy, over all and by position."""
    shares = cell.task().legal_share(model(test.tokens[:, :-1]), test)
    by_position = (shares & test.loss_mask).sum(0) / test.loss_mask.sum(0)
    return {
        "legal_accuracy": listed(shares[test.loss_mask].float().mean()),
        "legal_by_position": listed(by_position),
    }


OTHELLO = Experiment(
    name="othello",
    version=1,
    question="Are the discs of an Othello board represented that do not matter for the next move, "
    "and which part of the gradient builds them?",
    grid=OthelloGrid,
    profiles={
        "smoke": (
            OthelloGrid(
                seeds=1, size=4, n_layers=1, d_model=16, n_heads=2, steps=4, batch_size=8,
                probe_games=60, track_every=2,
            ),
        ),
        "quick": (
            OthelloGrid(seeds=1, n_layers=2, steps=800, probe_games=1_000),
        ),
        "cpu": (OthelloGrid(seeds=5),),
        "paper": (
            OthelloGrid(
                seeds=5, size=8, n_layers=6, d_model=256, steps=5_000, batch_size=1_024, lr=1e-3,
                track_every=50,
            ),
        ),
    },
    run=run_othello,
    schema=SCHEMA,
    judges={"C-5": judge_useless_squares, "C-6": judge_influence},
    seconds={"smoke": 1, "quick": 26, "cpu": 260, "paper": 400_000},
)  # fmt: skip
