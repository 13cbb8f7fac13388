"""Gradient components and influences by their definition, for the tests and the benchmark.

For each site three forward passes with the gradient stopped there or not, a backward pass of each
loss, and one backward pass a feature. Nothing here is shared with `emergence_lib.analysis`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def mean_losses(model, tokens, loss_mask, *, stop=None, myopic=False):
    """[pos]: each position's share of the mean loss; `stop` = (k, i) makes r_i^k a constant."""
    edit = None
    if stop is not None:
        k, i = stop

        def make_constant(x):
            return torch.cat([x[:, :i], x[:, i : i + 1].detach(), x[:, i + 1 :]], dim=1)

        edit = {f"resid.{k}": make_constant}
    logits = model(tokens[:, :-1], edit=edit, myopic=myopic)
    losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return (losses * loss_mask).sum(0) / loss_mask.sum()


def gradient(value, parameters):
    """A tensor a parameter, zeros where the value does not depend on it."""
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    return torch.autograd.grad(value, parameters, materialize_grads=True, retain_graph=True)


def decompose(model, tokens, loss_mask, site, *, myopic=False):
    """(direct, precached, shared), each a list with a tensor a parameter."""
    parameters = list(model.parameters())
    _, i = site
    free = mean_losses(model, tokens, loss_mask, myopic=myopic)
    stopped = mean_losses(model, tokens, loss_mask, stop=site, myopic=myopic)
    others = [j for j in range(len(free)) if j != i]
    of_own, of_own_stopped = gradient(free[i], parameters), gradient(stopped[i], parameters)
    of_others = gradient(free[others].sum(), parameters)
    of_others_stopped = gradient(stopped[others].sum(), parameters)
    direct = [a - b for a, b in zip(of_own, of_own_stopped, strict=True)]
    precached = [a - b for a, b in zip(of_others, of_others_stopped, strict=True)]
    shared = [a + b for a, b in zip(of_own_stopped, of_others_stopped, strict=True)]
    return direct, precached, shared


def mismatch(model, final, tokens, site, directions):
    """[feature]: R = ½ (⟨w, r⟩ - ⟨w, r of the final model⟩)², mean over the batch."""
    name = f"resid.{site[0]}"
    tap, final_tap = {name: None}, {name: None}
    model(tokens[:, :-1], tap=tap)
    with torch.no_grad():
        final(tokens[:, :-1], tap=final_tap)
    difference = (tap[name] - final_tap[name])[:, site[1]]
    return (difference @ directions.T).pow(2).mean(0) / 2


def influence(model, final, tokens, site, directions, steps):
    """[part, feature]: ⟨∇R, step⟩ with one backward pass a feature."""
    parameters = list(model.parameters())
    rows = []
    for value in mismatch(model, final, tokens, site, directions):
        of_feature = gradient(value, parameters)
        rows.append(
            [sum((a * b).sum() for a, b in zip(of_feature, step, strict=True)) for step in steps]
        )
    return torch.tensor(rows, dtype=directions.dtype).T
