"""In how many directions the gradients of single sequences point: Fisher rank and covariance rank.

    G = per_sequence_gradients(model, batch)       one gradient a sequence, every parameter
    effective_rank(G)                              of the empirical Fisher matrix, mean of g gᵀ
    effective_rank(G, centred=True)                of the gradients' covariance

Both are exp of the entropy of the matrix's eigenvalues, taken as shares of their sum: 1 where all
gradients are parallel, n where n of them are orthogonal and equally long, and never more than the
number of sequences. (`geometry.rankme` takes shares of the singular values, not of their squares,
unless centred: then the two are the same number.)

Paper B computes the covariance on the first 50,000 parameters only (fact sheet B2), that is on the
embeddings and part of the first mixer: `FIRST`. `sketch` keeps every parameter in few numbers, by a
random projection that has the same inner products on average (count sketch; Charikar, Chen and
Farach-Colton 2002), and is what to compare it with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, grad, vmap

from emergence_lib.errors import ParameterError
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import Batch, require_int

FIRST = 50_000
"""Parameters of paper B's variant, in the order of `Transformer.parameters`."""


def per_sequence_gradients(model: Transformer, batch: Batch) -> Float[Tensor, "batch parameter"]:
    """Gradient of each sequence's mean loss over its counted predictions, all parameters in a row.

    Takes 4 bytes a sequence and parameter: 64 sequences of 404,992 parameters are 100 MiB.

    Raises:
        ParameterError: a sequence has no counted prediction.
    """
    if not batch.loss_mask.any(1).all():
        raise ParameterError("batch.loss_mask", "a row of False", "True somewhere in every row")
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    taps = [name for name in model.tap_names() if name.startswith("pattern.")]  # vmap: not fused

    def loss(weights: dict[str, Tensor], tokens: Tensor, counted: Tensor) -> Tensor:
        call = {"tap": dict.fromkeys(taps)}
        logits = functional_call(model, weights, (tokens[None, :-1],), call)[0]
        losses = F.cross_entropy(logits, tokens[1:], reduction="none")
        return (losses * counted).sum() / counted.sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, batch.tokens, batch.loss_mask)
    return torch.cat([gradients[name].flatten(1) for name in weights], dim=1)


def sketch(
    vectors: Float[Tensor, "n d"], width: int, generator: torch.Generator
) -> Float[Tensor, "n width"]:
    """A random projection: every coordinate is added to one of `width` sums, with a random sign.

    Inner products are right on average, to about 1/√width of the lengths; it needs d random numbers
    where a Gaussian projection needs d · width.

    Args:
        vectors: one a row.
        width: sums; many times n, or the error hides the ranks.
        generator: source of places and signs (CPU).

    Raises:
        ParameterError: `width` < 1.
    """
    require_int("width", width, 1)
    d = vectors.shape[1]
    place = torch.randint(width, (d,), generator=generator).to(vectors.device)
    sign = (2 * torch.randint(2, (d,), generator=generator) - 1).to(vectors)
    return vectors.new_zeros(len(vectors), width).index_add_(1, place, vectors * sign)


def effective_rank(vectors: Float[Tensor, "n d"], *, centred: bool = False) -> float:
    """exp of the entropy of the eigenvalues of the second-moment matrix, as shares of their sum.

    Through the n × n matrix of inner products, which has the same non-zero eigenvalues, in float64.

    Args:
        vectors: one a row, at least two.
        centred: take their mean off first: the covariance, of rank n - 1 at most.

    Returns:
        From 1 to n; NaN where all vectors are zero.

    Raises:
        ParameterError: fewer than two vectors, or one that is not finite.
    """
    if len(vectors) < 2 or not bool(vectors.isfinite().all()):
        raise ParameterError("vectors", tuple(vectors.shape), "two or more rows of finite numbers")
    if centred:
        vectors = vectors - vectors.mean(0)
    eigenvalues = torch.linalg.eigvalsh((vectors @ vectors.T).double()).clamp(min=0)
    shares = eigenvalues / eigenvalues.sum()
    return float(torch.special.entr(shares).sum().exp())
