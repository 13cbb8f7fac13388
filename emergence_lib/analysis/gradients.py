"""Where a gradient comes from, seen from one residual vector: direct, pre-cached or shared.

A site (k, i) is the residual stream r at position i after block k (k = 0 embeddings, k = L before
the final norm). The loss is L = Σ_j L_j, with L_j the part of the prediction made at position j:

    direct       flows from the site's own prediction L_i through the site into the weights
    pre-cached   flows from later predictions L_j, j > i, through the site into the weights
    shared       reaches the weights past the site: through other positions and other layers

The three sum to the gradient of L. The definition stops the gradient at the site and subtracts:
direct = ∇L_i - ∇L_i^stop, pre-cached = Σ_{j≠i} (∇L_j - ∇L_j^stop), shared = Σ_j ∇L_j^stop, with
^stop the same forward pass in which r is a constant for all that lies downstream. What is computed
here is the same without any such pass. With J = ∂r/∂θ the definition says

    direct = Jᵀ ∂L_i/∂r        pre-cached = Jᵀ ∂(L - L_i)/∂r        shared = ∇L - the two

and one backward pass gives ∂L/∂r at every site, a second one through the myopic graph (in which no
gradient crosses positions) ∂L_i/∂r at every site, since L_i reaches r only through column i.

Source: paper C (Rofin et al. 2026, arXiv 2603.14087), the definition; fact sheet C1. The two-pass
scheme is ours; the tests compare it with the definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import Batch
from emergence_lib.training.train import masked_loss

Site = tuple[int, int]
"""(k, i): after block k, at position i."""

Gradients = dict[str, Tensor]
"""Parameter name → a tensor of the parameter's shape."""

PARTS = ("direct", "precached", "shared")
"""The three parts of a gradient, in the order of every table."""


@dataclass(frozen=True)
class Components:
    """The three parts of the gradient at one site."""

    direct: Gradients
    precached: Gradients
    shared: Gradients


@dataclass(frozen=True)
class Passes:
    """What the ordinary and the myopic backward pass leave.

    Attributes:
        full: the gradient that training follows.
        direct, precached: ∂L_i/∂r and ∂(L - L_i)/∂r at every site [layer+1, batch, pos, d_model].
    """

    full: Gradients
    direct: Float[Tensor, "layer+1 batch pos d_model"]
    precached: Float[Tensor, "layer+1 batch pos d_model"]


def residual_gradients(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    loss_mask: Bool[Tensor, "batch pos"],
    attn_bias: Float[Tensor, "query key"] | None = None,
) -> tuple[Float[Tensor, "layer+1 batch pos d_model"], Float[Tensor, "layer+1 batch pos d_model"]]:
    """Direct and pre-cached gradient of the mean loss at every residual vector, in two passes.

    Args:
        tokens, loss_mask: of a `Batch`.
        attn_bias: that the model trains with, see `Transformer.forward`.

    Returns:
        ``(∂L_i/∂r, ∂Σ_{j>i} L_j/∂r)``, nats per unit of r; the second is exactly 0 at k = L.

    Raises:
        ParameterError: a mixer other than attention, which cannot be myopic.
    """
    passes = backward_passes(model, tokens, loss_mask, myopic=False, attn_bias=attn_bias)
    return passes.direct, passes.precached


def backward_passes(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    loss_mask: Bool[Tensor, "batch pos"],
    *,
    myopic: bool,
    attn_bias: Float[Tensor, "query key"] | None = None,
) -> Passes:
    """The two passes of `residual_gradients`, with the parameters' gradient from the first.

    Args:
        myopic: the model trains with myopic gradients: its own pass is the second, and what is
            pre-cached is exactly 0.
    """
    full, direct = _backward(model, tokens, loss_mask, myopic=True, attn_bias=attn_bias)
    total = direct
    if not myopic:
        full, total = _backward(model, tokens, loss_mask, myopic=False, attn_bias=attn_bias)
    return Passes(full, direct, total - direct)


def decompose(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    loss_mask: Bool[Tensor, "batch pos"],
    sites: Iterable[Site],
    *,
    myopic: bool = False,
) -> dict[Site, Components]:
    """The three parts of the gradient of the mean loss at each site.

    Args:
        tokens, loss_mask: of a `Batch`.
        sites: (k, i) with ``0 ≤ k ≤ n_layers`` and ``0 ≤ i < pos``.
        myopic: of the gradient that a model follows which trains with ``TrainConfig.myopic``.

    Raises:
        ParameterError: a site outside the model, or a mixer other than attention.
    """
    sites = list(sites)
    require_sites(sites, model.config.n_layers, loss_mask.shape[1])
    passes = backward_passes(model, tokens, loss_mask, myopic=myopic)
    return {
        site: Components(direct, precached, _less(passes.full, direct, precached))
        for site, direct, precached in through_sites(model, tokens, passes, sites, myopic=myopic)
    }


def through_sites(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    passes: Passes,
    sites: Sequence[Site],
    *,
    myopic: bool,
) -> Iterable[tuple[Site, Gradients, Gradients]]:
    """(site, direct, pre-cached) of each site, by position: Jᵀ times the two residual gradients.

    One forward pass a site, over the positions up to it and the blocks below it.
    """
    names, parameters = zip(*model.named_parameters(), strict=True)
    for k, i in sorted(sites, key=lambda site: (site[1], site[0])):
        stream = model.residual(tokens[:, : i + 1], k, myopic=myopic, last_only=True)[:, 0]
        direct, precached = (
            dict(zip(names, _pulled_back(stream, parameters, part[k, :, i]), strict=True))
            for part in (passes.direct, passes.precached)
        )
        yield (k, i), direct, precached


def _pulled_back(
    residual: Float[Tensor, "batch d_model"],
    parameters: tuple[Tensor, ...],
    cotangent: Float[Tensor, "batch d_model"],
) -> tuple[Tensor, ...]:
    """Jᵀ times the cotangent; it is 0 at k = L, at uncounted positions and in myopic models."""
    if not cotangent.any():
        return tuple(map(torch.zeros_like, parameters))
    return torch.autograd.grad(
        residual, parameters, cotangent, retain_graph=True, materialize_grads=True
    )


def require_sites(sites: Sequence[Site], n_layers: int, n_pos: int) -> None:
    """Raise `ParameterError` unless there are sites and all lie in the model."""
    if not sites:
        raise ParameterError("sites", sites, "at least one (layer, position)")
    for k, i in sites:
        if not (0 <= k <= n_layers and 0 <= i < n_pos):
            allowed = f"(k, i) with k from 0 to {n_layers} and i from 0 to {n_pos - 1}"
            raise ParameterError("sites", (k, i), allowed)


def _backward(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    loss_mask: Bool[Tensor, "batch pos"],
    *,
    myopic: bool,
    attn_bias: Float[Tensor, "query key"] | None,
) -> tuple[Gradients, Float[Tensor, "layer+1 batch pos d_model"]]:
    """Gradient of the mean loss by parameter and by residual vector, through one of the graphs.

    Taps of the patterns keep ordinary attention as explicit as myopic attention always is: both
    passes then round alike, and their difference is exactly 0 where it has to be.
    """
    resid = [f"resid.{k}" for k in range(model.config.n_layers + 1)]
    patterns = [name for name in model.tap_names() if name.startswith("pattern.")]
    tap: dict[str, Tensor | None] = dict.fromkeys([*resid, *patterns])
    logits = model(tokens[:, :-1], attn_bias=attn_bias, myopic=myopic, tap=tap)
    loss = masked_loss(logits, Batch(tokens, loss_mask))
    names, parameters = zip(*model.named_parameters(), strict=True)
    streams = [stream for name in resid if (stream := tap[name]) is not None]
    found = torch.autograd.grad(loss, (*streams, *parameters), materialize_grads=True)
    return dict(zip(names, found[len(streams) :], strict=True)), torch.stack(found[: len(streams)])


def _less(full: Gradients, *parts: Gradients) -> Gradients:
    """What is left of `full` without the parts."""
    return {name: value - sum(part[name] for part in parts) for name, value in full.items()}
