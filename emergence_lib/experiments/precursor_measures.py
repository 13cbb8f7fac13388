"""Everything paper B measures on one checkpoint, for one task-level.

    held-out sequences   accuracy, loss, effective rank of the hidden states, probe read-out
    fresh sequences      Hessian, LLC, gradient ranks, what the probe is fitted on

The sequences, the noise of the LLC's walks, the Hessian's start vector and the projection of the
gradients are the same at every checkpoint, so that a curve over training moves by the model alone.

The probe reads the last token of the answer from the hidden state that predicts it, in the last
layer, and is held beside what the model itself says there: one hidden state, one question. (An
answer token further left can be one whose value hardly varies.) Layer, token and ridge regression
on one-hot classes are our choices (fact sheet B2). No sequence of the fit is in the held-out part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.analysis.geometry import rankme, sequence_vectors
from emergence_lib.analysis.gradient_rank import (
    FIRST,
    effective_rank,
    per_sequence_gradients,
    sketch,
)
from emergence_lib.analysis.hessian import explicit_loss, top_eigenvalues
from emergence_lib.analysis.llc import LLC, SGLD, local_learning_coefficient
from emergence_lib.analysis.probes import fit_ridge
from emergence_lib.errors import EstimateError
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.algorithmic import N_DIGITS, Algorithm, exact_match
from emergence_lib.tasks.base import Batch
from emergence_lib.training.train import masked_loss, step_generator

FRESH = 400
"""Fresh sequences of a task-level, drawn as in training: the n of the LLC."""

CURVATURE = 32
"""Of these, those that the Hessian and the gradients are taken on."""

MINI_BATCH = 16
SKETCH_WIDTH = 2_048
TOLERANCE = 0.02
"""Relative, of the Hessian's eigenvalues: far below what moves them from checkpoint to
checkpoint."""


def sgld(n_draws: int) -> SGLD:
    """How the LLC is sampled; chosen on one run whose walks all stayed near.

    A third of the step leaves the LLC of learned task-levels within its standard error of 0.
    In a direction of curvature 500, about the steepest met, ε·nβ·h is 1. The walks are too short to
    fill the flat directions, so λ̂ is too low, in the same way at every checkpoint.
    """
    return SGLD(
        step_size=3e-5,
        n_beta=FRESH / math.log(FRESH),
        localization=300.0,
        n_chains=2,
        burn_in=n_draws // 2,
        n_draws=n_draws,
    )


@dataclass(frozen=True)
class Sample:
    """The sequences of one task-level that every checkpoint is looked at with.

    Attributes:
        label: the task-level.
        held_out: all different.
        fresh: `FRESH` draws, repeats possible.
        fit: which of the fresh ones are not among the held-out ones.
    """

    label: str
    held_out: Batch
    fresh: Batch
    fit: Bool[Tensor, " fresh"]

    @property
    def probe_chance(self) -> float:
        """Share of the most frequent last answer token among the held-out sequences."""
        counts = last_token(self.held_out).bincount()
        return (counts.max() / counts.sum()).item()


def draw_sample(part: Algorithm, held_out: Batch, seed: int) -> Sample:
    """Fresh sequences beside the given held-out ones, which may be padded on the right."""
    end = part.seq_len
    held_out = Batch(held_out.tokens[:, :end], held_out.loss_mask[:, : end - 1])
    fresh = part.sample(FRESH, step_generator(seed, f"fresh {part.label}"))
    same = (fresh.tokens[:, None] == held_out.tokens[None]).all(-1)
    return Sample(part.label, held_out, fresh, ~same.any(1))


def look(model: Transformer, sample: Sample, n_draws: int, seed: int) -> dict[str, float]:
    """All measures of one task-level at the model's present weights; see `MEASURES`."""
    return {
        **_behaviour_and_geometry(model, sample, seed),
        **_gradient_ranks(model, sample, seed),
        **_sharpness(model, sample, seed),
        **_llc(model, sample, n_draws, seed),
    }


MEASURES = {
    "accuracy": "exact match, 0 to 1",
    "loss": "nats an answer token",
    "rankme": "effective rank of the last layer at the last prompt token, uncentred",
    "rankme_centred": "the same of the covariance",
    "said": "accuracy of the last answer token, 0 to 1",
    "probe": "accuracy of the probe for that token, 0 to 1",
    "probe_shuffled": "accuracy of a probe fitted on shuffled answers, 0 to 1",
    "fisher_rank": "effective rank of the gradients of 32 sequences, all parameters",
    "covariance_rank": "effective rank of their covariance, by a random projection",
    "covariance_rank_first": "the same on the first 50,000 parameters, paper B's variant",
    "hessian": "largest Hessian eigenvalue by sign; null where Lanczos did not settle",
    "hessian_magnitude": "the one largest in absolute value; null likewise",
    "llc": "local learning coefficient; null where a chain was not finite",
    "llc_error": "its standard error over two chains",
    "llc_drift": "how much it rises from the first to the second half of the walk",
    "llc_readable": "1 where it can be interpreted (`analysis.llc.LLC.notes`), else 0",
}
"""What `look` gives → what it is."""


@torch.no_grad()
def _behaviour_and_geometry(model: Transformer, sample: Sample, seed: int) -> dict[str, float]:
    held_out = sample.held_out
    logits, resid = _forward(model, held_out)
    answer = last_token(held_out)
    _, fresh_resid = _forward(model, sample.fresh)
    states = sequence_vectors(fresh_resid, sample.fresh, "last_answer")[sample.fit]
    classes = last_token(sample.fresh)[sample.fit]
    order = torch.randperm(len(classes), generator=step_generator(seed, f"shuffle {sample.label}"))
    read = {
        name: _probe_accuracy(
            states, labels, sequence_vectors(resid, held_out, "last_answer"), answer
        )
        for name, labels in (("probe", classes), ("probe_shuffled", classes[order]))
    }
    vectors = sequence_vectors(resid, held_out)
    return {
        "accuracy": exact_match(logits, held_out).double().mean().item(),
        "loss": masked_loss(logits, held_out).item(),
        "rankme": rankme(vectors),
        "rankme_centred": rankme(vectors, centred=True),
        "said": (logits[:, -1].argmax(-1) == answer).double().mean().item(),
        **read,
    }


def _forward(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits, and the residual stream after the last block."""
    name = f"resid.{model.config.n_layers}"
    tap: dict[str, Tensor | None] = {name: None}
    logits = model(batch.tokens[:, :-1], tap=tap)
    resid = tap[name]
    assert resid is not None
    return logits, resid


def last_token(batch: Batch) -> Int[Tensor, " batch"]:
    """The last token of the answer, where sequences are of one task-level: a digit."""
    return batch.tokens[:, -1]


def _probe_accuracy(
    states: Float[Tensor, "fit d"],
    labels: Int[Tensor, " fit"],
    held_out: Float[Tensor, "sample d"],
    answer: Int[Tensor, " sample"],
) -> float:
    """A ridge regression on one-hot labels; the largest read-out is the answer."""
    scale = states.std(0).clamp_min(1e-12)  # so that one penalty fits all checkpoints
    probe = fit_ridge(states / scale, F.one_hot(labels, N_DIGITS).to(states))
    return (probe(held_out / scale).argmax(-1) == answer).double().mean().item()


def _gradient_ranks(model: Transformer, sample: Sample, seed: int) -> dict[str, float]:
    gradients = per_sequence_gradients(model, _first(sample.fresh, CURVATURE))
    small = sketch(gradients, SKETCH_WIDTH, step_generator(seed, "sketch"))
    return {
        "fisher_rank": effective_rank(gradients),
        "covariance_rank": effective_rank(small, centred=True),
        "covariance_rank_first": effective_rank(gradients[:, :FIRST], centred=True),
    }


def _sharpness(model: Transformer, sample: Sample, seed: int) -> dict[str, float]:
    """The largest eigenvalue by size; where it is positive it is the largest by sign too."""
    parameters = list(model.parameters())
    loss = explicit_loss(model, _first(sample.fresh, CURVATURE))

    def top(by: Literal["algebraic", "magnitude"]) -> float:
        generator = step_generator(seed, "lanczos")
        try:
            values = top_eigenvalues(loss, parameters, generator, by=by, tolerance=TOLERANCE)
        except EstimateError:
            return math.nan
        return float(values[0])

    by_size = top("magnitude")
    return {
        "hessian": by_size if by_size > 0 else top("algebraic"),
        "hessian_magnitude": by_size,
    }


def _llc(model: Transformer, sample: Sample, n_draws: int, seed: int) -> dict[str, float]:
    fresh = sample.fresh
    batches = [
        Batch(tokens, counted)
        for tokens, counted in zip(
            fresh.tokens.split(MINI_BATCH), fresh.loss_mask.split(MINI_BATCH), strict=True
        )
    ]
    found: LLC = local_learning_coefficient(
        lambda batch: masked_loss(model(batch.tokens[:, :-1]), batch),
        batches,
        list(model.parameters()),
        sgld(n_draws),
        step_generator(seed, f"llc {sample.label}"),
    )
    return {
        "llc": found.value,
        "llc_error": found.standard_error,
        "llc_drift": found.drift,
        "llc_readable": float(found.interpretable),
    }


def _first(batch: Batch, n: int) -> Batch:
    return Batch(batch.tokens[:n], batch.loss_mask[:n])


def table(
    model: Transformer, samples: Sequence[Sample], n_draws: int, seed: int
) -> dict[str, list[float]]:
    """`look` at every task-level: measure → one number each."""
    looks = [look(model, sample, n_draws, seed) for sample in samples]
    return {name: [found[name] for found in looks] for name in MEASURES}
