"""The parts of a gradient by their definition: slow, and what `analysis.gradients` is checked by.

Each loss is differentiated twice, through the model as it is and through one in which the residual
vector of the site is a constant for all that lies downstream; what the stop takes away flowed
through the site. The three parts are computed apart, so that they sum to the gradient is a finding.

Source: paper C (Rofin et al. 2026, arXiv 2603.14087), the definition of the decomposition.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.analysis.gradients import (
    PARTS,
    Components,
    Gradients,
    Site,
    decompose,
    require_sites,
)
from emergence_lib.models.transformer import Transformer


def decompose_by_definition(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    loss_mask: Bool[Tensor, "batch pos"],
    site: Site,
    *,
    myopic: bool = False,
) -> Components:
    """`gradients.decompose` at one site by two forward and four backward passes.

    Raises:
        ParameterError: a site outside the model, or myopic without attention.
    """
    require_sites([site], model.config.n_layers, loss_mask.shape[1])
    free, stopped = (
        _losses(model, tokens, loss_mask, stop, myopic=myopic) for stop in (None, site)
    )
    own, others = site[1], torch.arange(loss_mask.shape[1]) != site[1]
    own_free, own_stopped = (_gradient(model, losses[own]) for losses in (free, stopped))
    rest_free, rest_stopped = (_gradient(model, losses[others].sum()) for losses in (free, stopped))
    return Components(
        direct={name: own_free[name] - own_stopped[name] for name in own_free},
        precached={name: rest_free[name] - rest_stopped[name] for name in own_free},
        shared={name: own_stopped[name] + rest_stopped[name] for name in own_free},
    )


def identity_errors(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    loss_mask: Bool[Tensor, "batch pos"],
    sites: Iterable[Site],
    *,
    myopic: bool = False,
) -> tuple[float, float]:
    """How far the split is from an identity, and the two passes from the definition, at most.

    Returns:
        ``(sum, scheme)``: the largest difference between the sum of the three parts by definition
        and the gradient of the loss, and between a part by `gradients.decompose` and by definition;
        both relative to the largest entry of the gradient.
    """
    full = _gradient(model, _losses(model, tokens, loss_mask, None, myopic=myopic).sum())
    scale = max(value.abs().max().item() for value in full.values())
    of_sum = of_scheme = 0.0
    for site, ours in decompose(model, tokens, loss_mask, sites, myopic=myopic).items():
        literal = decompose_by_definition(model, tokens, loss_mask, site, myopic=myopic)
        for name, value in full.items():
            three = [getattr(literal, part)[name] for part in PARTS]
            of_sum = max(of_sum, (sum(three) - value).abs().max().item())
            for part, theirs in zip(PARTS, three, strict=True):
                difference = (getattr(ours, part)[name] - theirs).abs().max().item()
                of_scheme = max(of_scheme, difference)
    return of_sum / scale, of_scheme / scale


def _losses(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    loss_mask: Bool[Tensor, "batch pos"],
    stop: Site | None,
    *,
    myopic: bool,
) -> Float[Tensor, " pos"]:
    """Each position's part of the mean loss, with the gradient stopped at a site or nowhere."""
    edit = None
    if stop is not None:
        k, i = stop
        edit = {
            f"resid.{k}": lambda x: torch.cat(
                [x[:, :i], x[:, i:][:, :1].detach(), x[:, i + 1 :]], 1
            )
        }
    logits = model(tokens[:, :-1], myopic=myopic, edit=edit)
    losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return (losses * loss_mask).sum(0) / loss_mask.sum()


def _gradient(model: Transformer, loss: Float[Tensor, ""]) -> Gradients:
    """By parameter; 0 where the loss does not depend on it."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    if not loss.requires_grad:
        return {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    found = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))
