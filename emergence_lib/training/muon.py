"""Muon (Jordan et al. 2024): momentum whose matrix update is orthogonalised before it is applied.

    M ← μ M + (1-μ) G              momentum of the gradient, μ = 0.95
    U = orth((1-μ) G + μ M)        nearest orthogonal matrix, by Newton–Schulz iterations
    W ← W - lr · √max(1, rows/columns) · U

All directions of the update have the same size, so that rare, weak directions of the gradient (the
few useful keys on a plateau) are not drowned by common ones. `torch.optim.Muon` is the same update
with its iterations in bfloat16, which takes 15 times as long on a CPU without bfloat16 units.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emergence_lib.errors import ParameterError

MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan et al.: five steps take singular values into about 0.7 … 1.2."""


class Muon(torch.optim.Optimizer):
    """Muon for matrices; leave embeddings, norms and biases to another optimizer.

    Args:
        params: 2-dimensional parameters.
        lr: the root mean square step is about ``lr / √columns`` an entry.

    Raises:
        ParameterError: a parameter is not a matrix.
    """

    def __init__(
        self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ParameterError(
                        "shape of a parameter",
                        tuple(parameter.shape),
                        "that of a matrix, (rows, columns)",
                        "Leave vectors to another optimizer.",
                    )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - MOMENTUM)
                update = orthogonalize(parameter.grad.lerp(buffer, MOMENTUM))
                rows, columns = parameter.shape
                parameter.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonalize(
    matrix: Float[Tensor, "row column"], iterations: int = 5
) -> Float[Tensor, "row column"]:
    """U Vᵀ of the singular value decomposition U Σ Vᵀ, roughly: singular values in 0.7 … 1.2."""
    a, b, c = NEWTON_SCHULZ
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:  # the Gram matrix below should be the small one
        x = x.T
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
