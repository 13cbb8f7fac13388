"""Turning a disc over inside the model: does its next move follow?

In games where one useful disc is turned over, the residual stream of one layer is moved at one
position along the probe's direction of that square, past the point where the probe reads the other
owner. Moves that this makes legal should become likely, those that it makes illegal unlikely. A
probe only decodes; this tells whether what it decodes is used (Li et al. 2023, arXiv 2210.13382;
Nanda et al. 2023, arXiv 2309.00941, with linear directions). The control moves the stream as far in
a random direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.analysis.probes import Probe
from emergence_lib.experiments.othello_cell import Boards, OthelloCell, boards_at, listed
from emergence_lib.models import Transformer
from emergence_lib.tasks import Batch
from emergence_lib.tasks.othello import FIRST_SQUARE

STRENGTH = 4.0
"""The read-out is moved this many times as far as from one owner to the other. Once as far does
less than half as much: other positions and later layers still know the true board."""


@dataclass(frozen=True)
class Turned:
    """One useful disc turned over in each game that has one, at one position.

    Attributes:
        game: indices into the batch.
        square: which disc.
        before, after: legal squares of the true board and of the other one.
    """

    game: Int[Tensor, " n"]
    square: Int[Tensor, " n"]
    before: Bool[Tensor, "n square"]
    after: Bool[Tensor, "n square"]


def turn_discs(cell: OthelloCell, boards: Boards, where: int, generator: torch.Generator) -> Turned:
    """A random useful disc of each game at the `where`-th tracked position."""
    useful, state = boards.useful[where].cpu(), boards.state[where].cpu()
    game = useful.any(-1).nonzero().flatten()
    square = torch.multinomial(useful[game].float(), 1, generator=generator).flatten()
    other = state[game].clone()
    other[torch.arange(len(game)), square] *= -1
    return Turned(game, square, legal(cell, state[game]), legal(cell, other))


def legal(cell: OthelloCell, state: Int[Tensor, "n square"]) -> Bool[Tensor, "n square"]:
    """The legal squares of boards given square by square."""
    board = cell.task().board
    mine, theirs = (board.boards((state == owner).numpy()) for owner in (1, -1))
    return torch.from_numpy(board.squares(board.legal_moves(mine, theirs))).bool()


def followed(logits: Float[Tensor, "n vocab"], turned: Turned) -> Float[Tensor, " n"]:
    """Share of the moves that change between the boards which the prediction has as on the other.

    A square counts as predicted where it is among the N likeliest, N the legal moves of the other
    board (Li et al. 2023). 0 is a perfect model of the true board, 1 one that follows the turning.
    """
    likely_first = logits[:, FIRST_SQUARE:].cpu().argsort(-1, descending=True).argsort(-1)
    predicted = likely_first < turned.after.sum(-1, keepdim=True)
    changed = turned.before != turned.after
    return (changed & (predicted == turned.after)).sum(-1) / changed.sum(-1)


@torch.no_grad()
def intervention_columns(
    cell: OthelloCell, model: Transformer, probes: Probe, test: Batch, generator: torch.Generator
) -> dict[str, Any]:
    """How far the prediction follows a turned disc, by the layer at which it is turned.

    Returns:
        "turned_games", int; "followed_unedited", float; "followed_edited" and "followed_random"
        ``[layer]``: means over games and positions.
    """
    positions = cell.positions()
    boards = boards_at(cell.task(), test, positions)
    found: dict[str, list[Tensor]] = {"unedited": [], "edited": [], "random": []}
    for where, i in enumerate(positions):
        turned = turn_discs(cell, boards, where, generator)
        tokens = test.tokens[turned.game, : i + 1]
        owner = boards.state[where, turned.game, turned.square].float()
        found["unedited"].append(followed(model(tokens)[:, i], turned))
        by_layer: dict[str, list[Tensor]] = {"edited": [], "random": []}
        for k in range(cell.n_layers + 1):
            w = probes.weight[k, where][:, turned.square].T
            push = -2 * STRENGTH * (owner / (w**2).sum(-1))[:, None] * w
            noise = torch.randn(push.shape, generator=generator).to(push)
            noise *= push.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
            for kind, change in (("edited", push), ("random", noise)):
                edit = {f"resid.{k}": _adder(i, change)}
                by_layer[kind].append(followed(model(tokens, edit=edit)[:, i], turned))
        for kind, layers in by_layer.items():
            found[kind].append(torch.stack(layers))
    followed_by = {kind: torch.cat(parts, dim=-1) for kind, parts in found.items()}
    return {
        "turned_games": followed_by["unedited"].shape[-1],
        **{f"followed_{kind}": listed(shares.mean(-1)) for kind, shares in followed_by.items()},
    }


def _adder(position: int, change: Float[Tensor, "n d"]) -> Any:
    """An edit that moves the residual stream at one position."""

    def edit(stream: Float[Tensor, "n pos d"]) -> Float[Tensor, "n pos d"]:
        moved = stream.clone()
        moved[:, position] += change
        return moved

    return edit
