"""The largest eigenvalues of the Hessian of a loss, by Lanczos on Hessian–vector products.

A Hessian of 400,000 parameters fits in no memory, but its product with a vector costs about two
backward passes, and Lanczos' method (scipy's ARPACK) needs nothing else. Two different numbers are
called "the top eigenvalue":

    by="algebraic"   the largest with its sign: the sharpest upward curvature
    by="magnitude"   the largest in absolute value, its sign kept: early in training it may be
                     negative, a direction in which the loss curves down

Power iteration (PyHessian) finds the second. Where it is positive the two are the same. Paper B
(fact sheet B2) uses stochastic Lanczos and does not say which.

Fused attention cannot be differentiated twice: `explicit_loss` runs it in the open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from emergence_lib.errors import EstimateError, ParameterError
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import Batch, require_int
from emergence_lib.training.train import masked_loss

KRYLOV = 11
"""Lanczos vectors beside those asked for: each costs a product before the first look at all."""

WHICH = {"algebraic": "LA", "magnitude": "LM"}
"""The order of eigenvalues → ARPACK's name of it."""


def explicit_loss(model: Transformer, batch: Batch) -> Float[Tensor, ""]:
    """`masked_loss` of a batch with attention unfused, so that it has second derivatives."""
    tap: dict[str, Tensor | None] = {
        name: None for name in model.tap_names() if name.startswith("pattern.")
    }
    return masked_loss(model(batch.tokens[:, :-1], tap=tap), batch)


def hessian_product(
    loss: Float[Tensor, ""], parameters: Sequence[Tensor]
) -> Callable[[np.ndarray], np.ndarray]:
    """The map v ↦ Hv of a loss at its present parameters; the graph is built once.

    Args:
        loss: a scalar whose graph reaches every one of `parameters`.
        parameters: leaves that require gradients; their entries, one after the other, are the
            coordinates of v.

    Returns:
        A function of a vector of as many numbers as there are parameters, of their dtype.
    """
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    gradient = torch.cat([part.reshape(-1) for part in gradients])

    def product(vector: np.ndarray) -> np.ndarray:
        v = torch.as_tensor(vector.reshape(-1), dtype=gradient.dtype, device=gradient.device)
        parts = torch.autograd.grad(
            gradient, parameters, v, retain_graph=True, materialize_grads=True
        )
        return torch.cat([part.reshape(-1) for part in parts]).detach().cpu().numpy()

    return product


def top_eigenvalues(
    loss: Float[Tensor, ""],
    parameters: Sequence[Tensor],
    generator: torch.Generator,
    *,
    by: Literal["algebraic", "magnitude"] = "algebraic",
    n: int = 1,
    tolerance: float = 1e-3,
    max_restarts: int = 50,
) -> Float[np.ndarray, " n"]:
    """The `n` largest eigenvalues of the Hessian, largest first in the order that `by` names.

    Args:
        loss: a scalar with second derivatives (`explicit_loss`), for one fixed batch.
        parameters: leaves that require gradients, at least `n` + 1 numbers in all.
        generator: source of the start vector (CPU); the same one gives the same numbers.
        by: see the module.
        n: how many.
        tolerance: relative accuracy asked of each.
        max_restarts: of the Lanczos iteration, at most `KRYLOV` products each.

    Raises:
        EstimateError: not settled within `max_restarts`.
        ParameterError: `by`, `n`, `tolerance` or `max_restarts` out of range.
    """
    size = sum(parameter.numel() for parameter in parameters)
    require_int("n", n, 1, size - 1)
    require_int("max_restarts", max_restarts, 1)
    if by not in WHICH:
        raise ParameterError("by", by, " or ".join(map(repr, WHICH)))
    if not 0 < tolerance < 1:
        raise ParameterError("tolerance", tolerance, "a number between 0 and 1")
    start = torch.randn(size, generator=generator, dtype=parameters[0].dtype).numpy()
    product = hessian_product(loss, parameters)
    operator = LinearOperator((size, size), matvec=cast(Callable, product), dtype=start.dtype)
    try:
        values = eigsh(
            operator,
            k=n,
            which=WHICH[by],
            v0=start,
            ncv=min(size, n + KRYLOV),
            tol=tolerance,
            maxiter=max_restarts,
            return_eigenvectors=False,
        )
    except ArpackError as error:
        raise EstimateError(
            f"The {n} largest eigenvalues by {by} have not settled to {tolerance:g} in "
            f"{max_restarts} restarts. Raise tolerance or max_restarts."
        ) from error
    order = np.argsort(-values if by == "algebraic" else -np.abs(values))
    return values[order].astype(float)
