"""One run of the Othello experiment: a model of random games, and what it knows of the board.

    train ─► legal-move accuracy
      ├────► probes, by layer and position: is a disc mine or theirs? (`probe_columns`)
      ├────► turning a disc over along a probe's direction (`othello_intervention`)
      └────► which part of the gradient built the read-outs (`othello_influence`)

Source: paper C (arXiv 2603.14087), section on Othello: 6 layers, d_model 256, 4 heads, 5,000 steps
of 1,024 games on the 8 × 8 board; probes at positions 4, 8, …, 56 (fact sheet C4). The smaller
boards and models are ours, and the defaults here what a laptop core trains in minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from emergence_lib.analysis.probes import Probe, fit_ridge
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import Batch, Othello
from emergence_lib.training import TrainConfig
from emergence_lib.training.train import step_generator

TRAIN_SHARE = 0.7
"""Of the probes' games; the rest tests them (fact sheet C3)."""

INIT_STD = 0.09
"""Of the weight matrices, as in the linear map; at 0.02 the small model needs half as many more
steps to the same loss."""

LEAST_GAMES = 10
"""Test games in which a square must be useful, and in which it must be useless, to be compared."""


@dataclass(frozen=True)
class OthelloCell:
    """Parameters of one run.

    Args:
        size: side of the board.
        n_layers, d_model, n_heads: of the model.
        steps, batch_size, lr: of training by AdamW, `lr` falling to a tenth along a cosine.
        probe_games: games whose activations the probes are fitted and tested on.
        track_every: training steps between two measurements of the gradient's parts.

    Raises (when used):
        ParameterError: from the task, model or training settings it is turned into.
    """

    size: int = 6
    n_layers: int = 3
    d_model: int = 64
    n_heads: int = 4
    steps: int = 6_000
    batch_size: int = 32
    lr: float = 4e-3
    probe_games: int = 2_000
    track_every: int = 100

    def task(self) -> Othello:
        return Othello(self.size)

    def model_config(self) -> ModelConfig:
        task = self.task()
        return ModelConfig(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            vocab_size=task.vocab_size,
            max_pos=task.n_moves,
            activation="gelu",
            init_std=INIT_STD,
        )

    def train_config(self, seed: int) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            final_lr=0.1,
            grad_clip=None,  # Adam's steps then split into those of the gradient's parts
            eval_every=max(1, self.steps // 20),
            eval_batch_size=256,
            seed=seed,
        )

    def positions(self) -> list[int]:
        """Every fourth one, after as many moves: 4, 8, … (fact sheet C4)."""
        return list(range(4, self.task().n_moves, 4))

    def tracked_steps(self) -> list[int]:
        """The steps before which the gradient's parts are measured."""
        return list(range(0, self.steps, self.track_every))

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self)


@dataclass(frozen=True)
class Boards:
    """What the games of a batch look like at the tracked positions.

    Attributes:
        state: +1 for a disc of the player to move, -1 for the opponent's, 0 for an empty square.
        useful: occupied, and its disc matters to the next move.
        useless: occupied, and its disc does not matter.
    """

    state: Int8[Tensor, "pos game square"]
    useful: Bool[Tensor, "pos game square"]
    useless: Bool[Tensor, "pos game square"]


def boards_at(task: Othello, batch: Batch, positions: Sequence[int]) -> Boards:
    """The boards on which the moves after `positions` are made."""
    state = task.board_state(batch)[:, positions].transpose(0, 1)
    useful = task.useful_squares(batch)[:, positions].transpose(0, 1)
    return Boards(state, useful, (state != 0) & ~useful)


@torch.no_grad()
def residuals_at(
    model: Transformer, batch: Batch, positions: Sequence[int]
) -> Float[Tensor, "layer pos game d"]:
    """The residual stream at the tracked positions, layer 0 (embeddings) to the last."""
    names = [f"resid.{k}" for k in range(model.config.n_layers + 1)]
    chunks = []
    for tokens in batch.tokens[:, :-1].split(256):  # all at once takes gigabytes on large boards
        tap: dict[str, Tensor | None] = dict.fromkeys(names)
        model(tokens, tap=tap)
        chunks.append(torch.stack([tap[name][:, positions] for name in names]))  # type: ignore[index]
    return torch.cat(chunks, dim=1).transpose(1, 2)


def halves(cell: OthelloCell, seed: int, device: str) -> tuple[Batch, Batch]:
    """The probes' games, to fit and to test; held out from training by their stream."""
    task, n_train = cell.task(), round(TRAIN_SHARE * cell.probe_games)
    generator = step_generator(seed, "probes")
    sizes = (n_train, cell.probe_games - n_train)
    fit, test = (task.sample(n, generator).to(device) for n in sizes)
    return fit, test


def fit_probes(cell: OthelloCell, model: Transformer, batch: Batch) -> Probe:
    """One probe a layer and position for the state of every square."""
    boards = boards_at(cell.task(), batch, cell.positions())
    return fit_ridge(residuals_at(model, batch, cell.positions()), boards.state.float())


def mean_accuracy(
    right: Bool[Tensor, "layer pos game square"],
    boards: Boards,
) -> dict[str, list[list[float | None]]]:
    """Share of the occupied squares whose owner is read rightly, useful and useless apart.

    Usefulness depends on the square and on how far the game is. So that both kinds are averaged
    over the same squares, a position counts only its squares that are useful in at least
    `LEAST_GAMES` games and useless in as many; each of them counts the same.

    Returns:
        "useful" and "useless": ``[layer][pos]``, None where no square can be compared.
    """
    n_useful, n_useless = boards.useful.sum(1), boards.useless.sum(1)  # [pos, square]
    compared = (n_useful >= LEAST_GAMES) & (n_useless >= LEAST_GAMES)
    found = {}
    for kind, mask, n in (
        ("useful", boards.useful, n_useful),
        ("useless", boards.useless, n_useless),
    ):
        by_square = (right & mask).sum(2) / n.clamp_min(1)
        by_position = (by_square * compared).sum(-1) / compared.sum(-1)  # 0/0 is NaN
        found[kind] = listed(by_position)
    return found


def listed(values: Tensor) -> Any:
    """Nested lists with four decimals, None for NaN, as the store keeps them."""
    if values.ndim:
        return [listed(value) for value in values]
    value = values.item()
    return None if value != value else round(value, 4)


def probe_columns(
    cell: OthelloCell, model: Transformer, untrained: Transformer, fit: Batch, test: Batch
) -> tuple[dict[str, Any], Probe]:
    """What linear probes read, beside an untrained model's and the likelier owner's; and them."""
    task, positions = cell.task(), cell.positions()
    boards = boards_at(task, test, positions)
    columns: dict[str, Any] = {
        "share_useful": listed(boards.useful.sum((1, 2)) / (boards.state != 0).sum((1, 2)))
    }
    probes = fit_probes(cell, model, fit)
    guess = boards_at(task, fit, positions).state.float().mean(1, keepdim=True)
    for name, readouts in (
        ("probe", probes(residuals_at(model, test, positions))),
        ("untrained", fit_probes(cell, untrained, fit)(residuals_at(untrained, test, positions))),
        ("guess", guess[None].expand(1, *boards.state.shape)),
    ):
        for kind, accuracy in mean_accuracy(readouts * boards.state > 0, boards).items():
            columns[f"{name}_{kind}"] = accuracy[0] if name == "guess" else accuracy
        if name == "probe":
            columns |= example_columns(cell, model, test, boards, readouts)
    return columns, probes


def example_columns(
    cell: OthelloCell,
    model: Transformer,
    test: Batch,
    boards: Boards,
    readouts: Float[Tensor, "layer pos game square"],
) -> dict[str, Any]:
    """One held-out game half-way through, for a drawing: its board, read-outs and next move."""
    half = len(cell.positions()) // 2
    position = cell.positions()[half]
    layer = best_layer(readouts * boards.state > 0, boards)
    with torch.no_grad():
        logits = model(test.tokens[:1, :-1])[0, position]
    return {
        "example_moves": position,
        "example_layer": layer,
        "example_state": boards.state[half, 0].tolist(),
        "example_useful": boards.useful[half, 0].tolist(),
        "example_readout": listed(readouts[layer, half, 0]),
        "example_legal": cell.task().legal_tokens(test)[0, position, -(cell.size**2) :].tolist(),
        "example_probability": listed(logits.softmax(-1)[-(cell.size**2) :]),
    }


def best_layer(right: Bool[Tensor, "layer pos game square"], boards: Boards) -> int:
    """The layer whose probes read the most occupied squares rightly."""
    occupied = boards.state != 0
    return int((right & occupied).sum((1, 2, 3)).argmax())
