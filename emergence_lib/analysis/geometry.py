"""Effective rank of representations (RankMe): how many directions the hidden states of a task use.

    features [sample, d] ─► singular values σ ─► shares p ─► exp(−Σ p log p)

    uncentred   p = σ / Σσ + 1e-7         Garrido et al. 2023 (arXiv 2210.02885), eq. 1; paper B's
    centred     p = σ² / Σσ², mean        the eigenvalues of the covariance: Li et al. 2025
                vector taken off first    (arXiv 2509.23024)

Both lie between 1 and min(sample, d), up to the 1e-7. They are different numbers: squares weigh the
large directions more, and without centring the mean vector counts as one. A mean that grows makes
the uncentred rank fall while the spread around it stays what it was, so read both.

Paper B takes 200 samples of a task at the final layer; which token or pooling it takes is not known
to us. Here it is one vector a sequence, by default that of the last prompt token, where the model
is about to say the first token of its answer.

`RankObserver` writes these metrics during `training.train`, for residual stream k (`resid.k`) and
group g of the evaluation batch (a task-level), and `unpack` gives them back as a table:

    rankme.k.g            uncentred        rankme_centred.k.g      centred
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.analysis import attention
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import Batch, require_int

EPSILON = 1e-7
"""What Garrido et al. add to every share."""

GRAM_SAFE = 1e-12
"""Smallest to largest eigenvalue of a Gram matrix down to which its roots serve: rounding moves an
eigenvalue by 1e-16 of the largest, and its root here by 1e-10 of the largest root."""


def rankme(features: Float[Tensor, "sample d"], *, centred: bool = False) -> float:
    """Effective rank of one set of vectors; see the module for the two conventions.

    Equal to the formula on a float64 singular value decomposition to 1e-5 relative.

    Args:
        features: one vector a row, any float type.
        centred: False is Garrido's, True Li's.

    Raises:
        ParameterError: not a matrix, or a number that is not finite.
    """
    if features.ndim != 2:
        raise ParameterError("features.shape", tuple(features.shape), "[sample, d]")
    return effective_ranks(features, centred=centred).item()


def effective_ranks(
    features: Float[Tensor, "*batch sample d"], *, centred: bool = False
) -> Float[Tensor, "*batch"]:
    """`rankme` of many sets of equally many vectors in one pass.

    The eigenvalues of the smaller Gram matrix in float64 give the squares of the singular values.
    That is enough for the centred rank; for the uncentred one, sets too close to rank-deficient get
    the decomposition itself.

    Returns:
        float64; 0 where nothing is left to have a rank: all vectors zero or, centred, all equal.

    Raises:
        ParameterError: fewer than two dimensions or an empty one, or a number that is not finite.
    """
    if features.ndim < 2 or not features.numel():
        raise ParameterError("features.shape", tuple(features.shape), "[…, sample ≥ 1, d ≥ 1]")
    values = features.detach().double()
    if not values.isfinite().all():
        raise ParameterError("features", "a NaN or an infinity", "finite numbers")
    size = values.abs().amax((-2, -1))
    if centred:
        values = values - values.mean(-2, keepdim=True)
    wide = values.shape[-1] > values.shape[-2]
    gram = values @ values.mT if wide else values.mT @ values
    squares = torch.linalg.eigvalsh(gram).clamp(min=0)  # ascending
    if centred:
        shares = squares / squares.sum(-1, keepdim=True)
    else:
        singular = squares.sqrt()
        risky = squares[..., 0] < GRAM_SAFE * squares[..., -1]
        if risky.any():
            singular[risky] = torch.linalg.svdvals(values[risky])
        shares = singular / singular.sum(-1, keepdim=True) + EPSILON
    # The mean of equal vectors is rounded: what differs by that alone does not differ.
    something = values.abs().amax((-2, -1)) > 1e-14 * size
    return torch.where(something, torch.special.entr(shares).sum(-1).exp(), 0.0)


Pooling = Callable[[Tensor, Batch], Tensor]


def _last_prompt(batch: Batch) -> Int[Tensor, " batch"]:
    """The position whose prediction is the first that counts: the last token of the prompt."""
    return batch.loss_mask.int().argmax(-1)


def _at(resid: Tensor, position: Int[Tensor, " batch"]) -> Tensor:
    return resid[torch.arange(len(resid), device=resid.device), position]


def _last_answer(batch: Batch) -> Int[Tensor, " batch"]:
    last = batch.loss_mask.shape[-1] - 1
    return last - batch.loss_mask.flip(-1).int().argmax(-1)


def _mean_prompt(resid: Tensor, batch: Batch) -> Tensor:
    positions = torch.arange(resid.shape[1], device=resid.device)
    within = (positions <= _last_prompt(batch).unsqueeze(-1)).to(resid.dtype)
    return torch.einsum("bpd,bp->bd", resid, within) / within.sum(-1, keepdim=True)


POOLINGS: dict[str, Pooling] = {
    "last_prompt": lambda resid, batch: _at(resid, _last_prompt(batch)),
    "last_answer": lambda resid, batch: _at(resid, _last_answer(batch)),
    "mean_prompt": _mean_prompt,
    "mean": lambda resid, batch: resid.mean(1),
}
"""Name → how a sequence's hidden states become one vector: that of the last prompt token (which
predicts the first answer token), of the position that predicts the last answer token, the mean over
the prompt, or over all positions."""


def sequence_vectors(
    resid: Float[Tensor, "batch pos d"], batch: Batch, pooling: str | int = "last_prompt"
) -> Float[Tensor, "batch d"]:
    """One vector a sequence.

    Args:
        resid: hidden states at the input positions, all tokens but the last.
        batch: says by its loss mask where the answer starts.
        pooling: a name of `POOLINGS`, or a position (negative from the end).

    Raises:
        UnknownNameError: no such pooling.
        ParameterError: no such position.
    """
    if isinstance(pooling, str):
        if pooling not in POOLINGS:
            raise UnknownNameError("pooling", pooling, POOLINGS)
        return POOLINGS[pooling](resid, batch)
    require_int("pooling", pooling, -resid.shape[1], resid.shape[1] - 1)
    return resid[:, pooling]


def grouped(vectors: Float[Tensor, "batch d"], group: Int[Tensor, " batch"]) -> Tensor:
    """The vectors of each group, [group, sample, d], groups in increasing order of their number.

    Raises:
        ParameterError: groups of different sizes.
    """
    sizes = group.unique(return_counts=True)[1]
    if (sizes != sizes[0]).any():
        advice = "RankMe grows with the number of samples."
        raise ParameterError("sequences a group", sizes.tolist(), "equally many", advice)
    return vectors[group.argsort(stable=True)].unflatten(0, (len(sizes), -1))


CONVENTIONS = {"rankme": False, "rankme_centred": True}
"""Metric → whether it is the centred rank."""


class RankObserver:
    """Records both effective ranks of every group and layer, all in one pass.

    Args:
        group: label of the evaluation batch that numbers the groups, with equally many sequences
            in each; draw them without repeats where a task has few inputs.
        layers: residual streams k to watch, 1 to the number of layers. Stream 0 makes sense for a
            pooling over several tokens only: at one position whose token never changes it is one
            vector.
        pooling: see `sequence_vectors`.

    Raises:
        ParameterError: no layers, or a negative one.
    """

    def __init__(
        self,
        group: str,
        layers: Sequence[int],
        pooling: str | int = "last_prompt",
    ) -> None:
        if not layers:
            raise ParameterError("layers", list(layers), "at least one residual stream")
        for layer in layers:
            require_int("layers", layer, 0)
        self.group, self.layers, self.pooling = group, tuple(layers), pooling
        self.taps = tuple(f"resid.{layer}" for layer in self.layers)

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Float[Tensor, "batch pos vocab"],
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        group = batch.labels[self.group]
        numbers = group.unique().tolist()
        features = []
        for tap in self.taps:
            resid = tapped[tap]
            assert resid is not None
            features.append(grouped(sequence_vectors(resid, batch, self.pooling), group))
        stacked = torch.stack(features)
        return {
            f"{name}.{layer}.{number}": rank
            for name, centred in CONVENTIONS.items()
            for layer, row in zip(
                self.layers, effective_ranks(stacked, centred=centred).tolist(), strict=True
            )
            for number, rank in zip(numbers, row, strict=True)
        }


def unpack(trajectory: pd.DataFrame, name: str = "rankme") -> pd.DataFrame:
    """The metrics of `RankObserver` as a table: index step, columns (layer, group).

    Raises:
        UnknownNameError: the trajectory has no such metric.
    """
    return attention.unpack(trajectory, name).rename_axis(columns=["layer", "group"])
