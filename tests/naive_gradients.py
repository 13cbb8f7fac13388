"""Influence by its definition, one backward pass a feature, for the tests and the benchmark.

The parts of a gradient by definition are in `emergence_lib.analysis.stop_gradient`.
"""

from __future__ import annotations

import torch


def gradient(value, parameters):
    """A tensor a parameter, zeros where the value does not depend on it."""
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    return torch.autograd.grad(value, parameters, materialize_grads=True, retain_graph=True)


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
