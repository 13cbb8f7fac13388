"""Which part of the gradient builds the read-out of a square: direct, pre-cached or shared.

A tracked site is (layer, position), its features the directions w of the probes for the 16 central
squares. What `analysis.influence` averages over games is kept apart by game here, since a square is
useful in some games and useless in others:

    influence of a part on square s in game b = (⟨w, r_θ⟩ - ⟨w, r_θ*⟩)_b ⟨w, J Δ⟩_b

with Δ the part's step and θ* the trained weights. Positive is mismatch taken away.

Source: paper C (arXiv 2603.14087), section on influence and that on Othello: central squares, every
fourth position, all layers. What differs, for the price or for the small batches:

- The mismatch is that of fresh games, not of the batch about to be used. A step always fits its own
  batch: with 32 games, where the paper has 1,024, the sum of that over training is many times the
  mismatch there was, and says how well single batches are fitted.
- One step in `track_every` is measured and stands for those up to the next.
- Adam's second moment comes from the gradients of the measured steps, with its decay between two of
  them; there is no first moment, which would only move a part's steps by about ten.

The weights are those that the run kept and the batch the one it was about to use, both functions of
the seed, so that nothing runs twice.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.analysis.gradients import PARTS, Gradients, backward_passes, through_sites
from emergence_lib.analysis.influence import ADAM_EPS, read_out_errors, site_changes
from emergence_lib.analysis.probes import Probe
from emergence_lib.experiments.othello_cell import OthelloCell, boards_at, listed
from emergence_lib.models import Transformer
from emergence_lib.tasks import Batch
from emergence_lib.training import Run
from emergence_lib.training.train import lr_share, step_generator

LEAST_SHARE = 0.05
"""Of the games: in as many a square must be useful, and in as many useless, to be compared."""


class SecondMoment:
    """Adam's second moment, from the gradients of every `every`-th step."""

    def __init__(self, beta: float, every: int) -> None:
        self.decay, self.seen = beta**every, 0
        self.moment: Gradients = {}

    def update(self, gradient: Gradients) -> None:
        """Take in the gradient of the next measured step."""
        self.seen += 1
        for name, g in gradient.items():
            self.moment[name] = torch.lerp(g**2, self.moment.get(name, 0 * g), self.decay)

    def step(self, part: Gradients, lr: float) -> Gradients:
        """The part's share of what the update subtracts: lr · G / (√v̂ + ε)."""
        correction = 1 - self.decay**self.seen
        return {
            name: lr * g / ((self.moment[name] / correction).sqrt() + ADAM_EPS)
            for name, g in part.items()
        }


def influence_columns(
    cell: OthelloCell, run: Run, probes: Probe, seed: int, device: str
) -> dict[str, Any]:
    """Integrated influence of each part on useful and on useless squares.

    Returns:
        ``influence_by_…``: nested lists ``[part][useful, useless][…]`` by layer, position, square
        and game (the g-th of every step's), in squared units of the board (+1, 0, -1); and
        "mismatch" ``[useful, useless]``, the mean of ½ (⟨w, r_θ⟩ - ⟨w, r_θ*⟩)² at the start.
    """
    task, positions, layers = cell.task(), cell.positions(), range(cell.n_layers + 1)
    config, centre = cell.train_config(seed), central_squares(cell.size)
    directions = {
        (k, i): probes.weight[k, p][:, centre].T for k in layers for p, i in enumerate(positions)
    }
    model = cell.model_config().build().to(device)
    moment = SecondMoment(config.betas[1], cell.track_every)
    total = seen = mismatch = torch.zeros(())
    for before in cell.tracked_steps():
        model.load_state_dict(run.checkpoint(before))
        batch = task.sample(config.batch_size, step_generator(seed, "train", before + 1)).to(device)
        fresh = task.sample(config.batch_size, step_generator(seed, "mismatch", before)).to(device)
        boards = boards_at(task, fresh, positions)
        kinds = torch.stack([boards.useful, boards.useless])[..., centre]
        errors = read_out_errors(model, run.model, fresh.tokens, directions)
        rate = config.lr * lr_share(before + 1, config)
        removed = mismatch_removed(model, batch, fresh.tokens, directions, errors, moment, rate)
        by_part = torch.stack([removed[site] for site in directions], dim=1)
        by_part = by_part.unflatten(1, (len(layers), -1))  # [part, layer, pos, game, square]
        total = total + (by_part[:, None] * kinds[:, None]).double().cpu()
        seen = seen + kinds.double().cpu()
        if before == 0:
            start = torch.stack([error**2 / 2 for error in errors.values()])
            start = start.unflatten(0, (len(layers), -1))
            mismatch = torch.stack([start[:, kind].mean() for kind in kinds])
    return {"mismatch": listed(mismatch)} | averages(
        total, seen, len(cell.tracked_steps()), cell.steps
    )


def mismatch_removed(
    model: Transformer,
    batch: Batch,
    tokens: Int[Tensor, "game pos+1"],
    directions: dict[tuple[int, int], Tensor],
    errors: dict[tuple[int, int], Tensor],
    moment: SecondMoment,
    lr: float,
) -> dict[tuple[int, int], Float[Tensor, "part game square"]]:
    """What each part's step takes away of the mismatch, at each site and in each game.

    Args:
        batch: what the step learns from.
        tokens: games whose mismatch `errors` holds.
    """
    passes = backward_passes(model, batch.tokens, batch.loss_mask, myopic=False)
    moment.update(passes.full)
    found = {}
    sites = list(directions)
    for site, *parts in through_sites(model, batch.tokens, passes, sites, myopic=False):
        steps = [moment.step(gradient, lr) for gradient in (*parts, passes.full)]
        stacked = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}
        direct, precached, full = site_changes(model, tokens, site, stacked)
        changes = torch.stack([direct, precached, full - direct - precached])
        found[site] = errors[site] * (changes @ directions[site].T)
    return found


def central_squares(size: int) -> list[int]:
    """The 16 squares in the middle (fact sheet C4)."""
    edge = (size - 4) // 2
    rows = range(edge, size - edge)
    return [size * row + column for row in rows for column in rows]


def averages(
    total: Float[Tensor, "part kind layer pos game square"],
    seen: Float[Tensor, "kind pos game square"],
    n_measured: int,
    steps: int,
) -> dict[str, Any]:
    """Integrated influence by layer, position, square and game.

    A (position, square) in which each kind was seen in at least `LEAST_SHARE` of all steps and
    games is a cell. Its mean over these is taken first and every cell counts the same, so that both
    kinds are averaged over the same cells.
    """
    counts = seen.sum(2)  # [kind, pos, square]
    cells = (counts >= LEAST_SHARE * n_measured * seen.shape[2]).all(0)
    weight = (cells / counts.clamp_min(1))[:, None, :, None]  # [kind, layer, pos, game, square]
    scaled = steps * total * weight
    layers = total.shape[2]
    assert total.shape[:2] == (len(PARTS), 2)
    return {
        "influence_by_layer": listed(scaled.sum((3, 4, 5)) / cells.sum()),
        "influence_by_position": listed(scaled.sum((2, 4, 5)) / cells.sum(1) / layers),
        "influence_by_square": listed(scaled.sum((2, 3, 4)) / cells.sum(0) / layers),
        "influence_by_game": listed(scaled.sum((2, 3, 5)) * total.shape[4] / cells.sum() / layers),
    }
