"""The local learning coefficient (LLC) of a loss at a point, by SGLD (Lau et al. 2023).

How fast does the volume of parameters with nearly the same loss shrink around w*? Singular
learning theory (Watanabe 2009) measures it by a number λ. A quadratic valley in d dimensions has
λ = d/2, and flatter, singular valleys have less: λ = 1/4 for w⁴, and 1/2 for the crossing w₁²w₂².

The estimate (Lau et al., arXiv 2308.12108) samples the neighbourhood with Langevin steps

    w ← w - ε/2 · (nβ ∇L_m(w) + γ (w - w*)) + √ε · ξ       L_m: a mini-batch's loss, ξ: normal

    λ̂ = nβ · ( mean of L_m(w) over the draws after burn-in  -  mean of L_m(w*) )

Both means are over the same mini-batches (ours: it takes the batches' own noise out). Burn-in is
not averaged. λ̂ means something only near a local minimum, and then its changes from checkpoint to
checkpoint do more than its size: see `LLC.notes`. The sampler is our own rather than devinterp's,
whose version 2.0.1 averages burn-in too (fact sheet B2) and brings dependencies that nothing else
here needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import require_int

B = TypeVar("B")

FALLING = 0.1
"""Share of the estimate by which its second half must lie below its first to be called falling."""


@dataclass(frozen=True)
class SGLD:
    """How to sample; paper B's values are not known to us.

    Args:
        step_size: ε. Too large and the estimate grows with it: a direction of curvature h wants
            ε·(nβ·h + γ) well below 1 (its share is too large by the factor 1/(1 - ε(nβ·h + γ)/4)).
        n_beta: nβ, how strongly the loss counts against the noise; Lau et al. take n/ln n.
        localization: γ ≥ 0, the pull back to w*.
        n_chains: independent walks, each from w*.
        burn_in: steps of each walk that are not averaged.
        n_draws: steps of each walk that are.

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    step_size: float
    n_beta: float
    localization: float
    n_chains: int = 2
    burn_in: int = 50
    n_draws: int = 50

    def __post_init__(self) -> None:
        for name, low in (("n_chains", 1), ("burn_in", 0), ("n_draws", 2)):
            require_int(name, getattr(self, name), low)
        for name in ("step_size", "n_beta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ParameterError(name, value, "a positive number")
        if not (math.isfinite(self.localization) and self.localization >= 0):
            raise ParameterError("localization", self.localization, "a number ≥ 0")


@dataclass(frozen=True)
class LLC:
    """An estimate, what it rests on, and whether it can be read.

    Attributes:
        trace: nβ (L_m(w) - L_m(w*)) of every draw after burn-in; NaN from where a chain failed on.
        failed: chain → its step (counted from 0, burn-in included) whose loss was not finite.
    """

    trace: Float[np.ndarray, "chain draw"]
    failed: dict[int, int]

    @property
    def value(self) -> float:
        """λ̂, the mean of the chains; NaN where one failed.

        The others' mean would be too low: those that run away are those that climbed most.
        """
        return float(self.trace.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean, from the spread between chains; NaN for a single one."""
        return _standard_error(self.trace.mean(1))

    @property
    def drift(self) -> float:
        """Mean of the second half of the draws minus that of the first, mean over chains.

        Above 0 the walks still climb: λ̂ is too low. Below 0 they still fall.
        """
        return float(self._drifts().mean())

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the estimate cannot be read; none where it can.

        A chain that is not finite; a negative value, or a loss that still falls during the walk
        (by `FALLING` of the value and two standard errors over chains): then w* is no minimum, as
        early in training.
        """
        if self.failed:
            return tuple(
                f"chain {chain}: the loss is not finite from step {step} on; lower step_size"
                for chain, step in self.failed.items()
            )
        notes = []
        if self.value < 0:
            notes.append(f"negative ({self.value:.3g}): the walk found lower losses than at w*")
        noise = _standard_error(self._drifts())
        if self.drift < -FALLING * abs(self.value) and not self.drift > -2 * noise:
            notes.append("the loss still falls during the walk: w* is not a minimum")
        return tuple(notes)

    @property
    def interpretable(self) -> bool:
        """Whether there are no `notes`."""
        return not self.notes

    def _drifts(self) -> Float[np.ndarray, " chain"]:
        half = self.trace.shape[1] // 2
        return self.trace[:, -half:].mean(1) - self.trace[:, :half].mean(1)


def local_learning_coefficient(
    loss: Callable[[B], Float[Tensor, ""]],
    batches: Sequence[B],
    parameters: Sequence[Tensor],
    sgld: SGLD,
    generator: torch.Generator,
) -> LLC:
    """Estimate λ at the present `parameters`, which are put back afterwards.

    Args:
        loss: mean loss in nats of a batch at the present parameters, differentiable.
        batches: mini-batches; every step uses one of them at random.
        parameters: leaves that require gradients: w*.
        sgld: how to sample.
        generator: source of noise and batches (CPU).

    Raises:
        ParameterError: no batches.
    """
    if not batches:
        raise ParameterError("batches", [], "at least one mini-batch")
    home = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        base = [loss(batch).item() for batch in batches]
    trace = np.full((sgld.n_chains, sgld.n_draws), np.nan)
    failed: dict[int, int] = {}
    try:
        for chain in range(sgld.n_chains):
            _put(parameters, home)
            for step in range(sgld.burn_in + sgld.n_draws):
                which = int(torch.randint(len(batches), (), generator=generator))
                here = loss(batches[which])
                excess = sgld.n_beta * (here.item() - base[which])
                if not math.isfinite(excess):
                    failed[chain] = step
                    break
                if step >= sgld.burn_in:
                    trace[chain, step - sgld.burn_in] = excess
                _langevin_step(
                    parameters, home, torch.autograd.grad(here, parameters), sgld, generator
                )
    finally:
        _put(parameters, home)
    return LLC(trace, failed)


@torch.no_grad()
def _langevin_step(
    parameters: Sequence[Tensor],
    home: Sequence[Tensor],
    gradients: Sequence[Tensor],
    sgld: SGLD,
    generator: torch.Generator,
) -> None:
    for parameter, origin, gradient in zip(parameters, home, gradients, strict=True):
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        force = sgld.n_beta * gradient + sgld.localization * (parameter - origin)
        parameter.sub_(force, alpha=sgld.step_size / 2)
        parameter.add_(noise.to(parameter.device), alpha=math.sqrt(sgld.step_size))


@torch.no_grad()
def _put(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def _standard_error(values: Float[np.ndarray, " chain"]) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
