"""A small model taken apart into latents: Q of each, and what Q is meant to stand for.

Q of a latent is a ratio of KLs (later predictions over the one at hand), measured on the finished
model. It is held against three measures of what it stands for, the pre-cached over the direct part
of the gradient on the same latent:

    final       squares of both gradients along the latent's direction, finished model
    training    the same summed over checkpoints, the latent and its tokens those of the end
    influence   integrated influence of both parts on the latent's read-out, signed

A KL is of second order in what is ablated, about ½ E[(f ⟨w, ∂L_j/∂r⟩)²] over the model's own
predictions, so it is the *squares* of gradients whose ratio Q can equal. All weights are by the
latent's squared activation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.analysis.features import (
    HORIZON,
    Examples,
    ablation_effects,
    alignment,
    look_ahead_map,
    q_table,
    residuals,
    steered_continuation,
    top_examples,
)
from emergence_lib.analysis.gradients import residual_gradients
from emergence_lib.analysis.sparse_autoencoder import SparseAutoencoder, fit, train_topk
from emergence_lib.experiments.q_ratio_models import Model, ToyModel
from emergence_lib.experiments.text_cell import TextCell, integrated
from emergence_lib.models import Transformer
from emergence_lib.tasks.base import Batch
from emergence_lib.tasks.corpus import VOCAB_SIZE, corpus, pocket_tokenizer
from emergence_lib.tasks.corpus_sources import DOMAINS
from emergence_lib.training import Run
from emergence_lib.training.train import step_generator

LEAST_KL, LEAST_KL_IN_TOYS = 0.05, 0.0001
"""Mean total KL in nats below which a latent is left out: the paper's, and ours in toy tasks, where
no single token decides much."""

AHEAD = (1, 2, 3, 5)
"""Distances of the look-ahead maps; 1 is the model's own next token, the control."""

FOLLOWED, FOLLOWED_IN_TOYS = (16, 28, 40), (3, 6, 9)
"""Positions whose integrated influence is measured."""

INFLUENCES = {"influence_direct": "direct", "influence_precached": "precached"}
STEERED = ("steered_code", "steered_punctuation")
STEERED_GROUPS = ("high Q", "middle Q", "low Q", "not steered")
PROMPT_TOKENS, NEW_TOKENS, PROMPTS = 16, 24, 8
STRENGTH = 2.0
"""What steering adds, in units of the latent's mean activation at its examples."""


@dataclass(frozen=True)
class Latents:
    """An autoencoder of a trained model, and held-out windows seen through it."""

    model: Transformer
    sae: SparseAutoencoder
    batch: Batch
    residual: Float[Tensor, "window pos d_model"]

    @property
    def layer(self) -> int:
        """The latents are those of the residual stream in the middle, after this many blocks."""
        return middle(self.model.config.n_layers)

    @property
    def hook(self) -> str:
        return f"resid.{self.layer}"

    @property
    def tokens(self) -> Int[Tensor, "window pos"]:
        return self.batch.tokens[:, :-1]


def middle(n_layers: int) -> int:
    """Blocks before the latents; as many or one more follow, which later positions read them in."""
    return n_layers // 2


def find_latents(
    cell: Model, run: Run, seed: int, n_latents: int, k: int, n_windows: int, sae_steps: int
) -> Latents:
    """Train an autoencoder on training text, and read held-out windows with it."""
    model = run.model.cpu().eval()
    fitted_on = cell.task().sample(2 * n_windows, step_generator(seed, "autoencoder text"))
    hook = f"resid.{middle(cell.n_layers)}"
    x = residuals(model, hook, fitted_on.tokens[:, :-1])
    if isinstance(cell, ToyModel):  # half of its positions are outputs, which Q never looks at
        x = x[:, : x.shape[1] - HORIZON]
    sae = train_topk(
        x.flatten(0, 1),
        n_latents,
        k,
        step_generator(seed, "autoencoder"),
        steps=sae_steps,
        batch_size=512,
    )
    batch = cell.held_out(n_windows, "latents")
    residual = residuals(model, hook, batch.tokens[:, :-1])
    return Latents(model, sae, batch, residual)


def latent_columns(
    cell: Model, run: Run, found: Latents, seed: int, n_examples: int
) -> dict[str, Any]:
    """Every measure of every latent, as lists over latents; NaN where a latent is never active."""
    sae = found.sae
    every = range(sae.n_latents)
    examples = top_examples(sae, found.residual, every, n_examples)
    effects = ablation_effects(found.model, found.hook, sae, found.tokens, examples)
    q = q_table(examples, effects).set_index("latent").reindex(every)
    weight = _weights(found)
    final = squared_gradient_ratio([found.model], found, weight)
    steps = run.checkpoint_steps
    during = squared_gradient_ratio(_checkpoints(cell, run, steps), found, weight)
    last = residuals(found.model, f"resid.{cell.n_layers}", found.tokens)
    maps = [look_ahead_map(found.residual, last, ahead) for ahead in AHEAD]
    columns = {
        **{name: q[name].to_numpy() for name in ("n", "immediate", "later", "q_mean", "q_sum")},
        "ratio_final": final.numpy(),
        "ratio_training": during.numpy(),
        "alignment": np.stack([alignment(a, sae.W_dec).numpy() for a in maps]),
    }
    of_text: dict[str, Any] = dict.fromkeys((*DOMAINS, *STEERED))
    if "domain" in found.batch.labels:
        columns |= {name: share.numpy() for name, share in _domains(found, weight).items()}
        of_text = steering_columns(found, q, examples, seed)
    influences: dict[str, Any] = dict.fromkeys(INFLUENCES)
    if isinstance(cell, TextCell):
        columns |= _influences(cell, run, found, seed)
    listed = {name: rounded_significantly(values) for name, values in columns.items()}
    return influences | of_text | listed


def _weights(found: Latents) -> Float[Tensor, "window pos latent"]:
    """Squared activations where Q may look: with `HORIZON` later predictions in the window."""
    weight = found.sae.encode(found.residual).square()
    weight[:, weight.shape[1] - HORIZON :] = 0
    return weight


def _checkpoints(cell: Model, run: Run, steps: Iterable[int]) -> Iterable[Transformer]:
    model = cell.model_config().build()
    for step in steps:
        model.load_state_dict(run.checkpoint(step))
        yield model


def squared_gradient_ratio(
    models: Iterable[Transformer], found: Latents, weight: Float[Tensor, "window pos latent"]
) -> Float[Tensor, " latent"]:
    """Σ f² ⟨w, ∂L_{>i}/∂r⟩² over Σ f² ⟨w, ∂L_i/∂r⟩², w the latent's decoder row.

    Sums are over tokens and models; f is the finished model's activation throughout.
    """
    sums = torch.zeros(2, found.sae.n_latents, dtype=torch.float64)
    for model in models:
        parts = zip(
            found.batch.tokens.split(50),
            found.batch.loss_mask.split(50),
            weight.split(50),
            strict=True,
        )
        for tokens, mask, weights in parts:
            gradients = residual_gradients(model, tokens, mask)
            for which, gradient in enumerate(gradients):
                # The loss is a mean; as a sum over predictions parts of any size count alike.
                along = gradient[found.layer] @ found.sae.W_dec.T * int(mask.sum())
                sums[which] += (weights * along.square()).double().sum((0, 1))
    direct, precached = sums
    return precached / direct


def _influences(cell: TextCell, run: Run, found: Latents, seed: int) -> dict[str, np.ndarray]:
    """Integrated influence (Adam) of both parts on each latent's read-out, a mean over positions.

    A latent is read by its encoder column, scaled to variance 1 over the held-out tokens.
    """
    read_out = found.residual.flatten(0, 1) @ found.sae.W_enc
    w = (found.sae.W_enc / read_out.std(0).clamp_min(1e-6)).T.contiguous()
    followed = FOLLOWED_IN_TOYS if isinstance(cell, ToyModel) else FOLLOWED
    table, _ = integrated(cell, run, {(found.layer, i): w for i in followed}, seed)
    means = table[table.rule == "adam"].groupby(["part", "feature"]).influence.mean()
    return {name: means[part].to_numpy() for name, part in INFLUENCES.items()}


def _domains(
    found: Latents, weight: Float[Tensor, "window pos latent"]
) -> dict[str, Float[Tensor, " latent"]]:
    """How much of a latent's activation is on each domain's text, were all equally common."""
    domain = found.batch.labels["domain"][:, :-1]
    rates = torch.stack(
        [weight.sqrt()[domain == d].double().mean(0).nan_to_num() for d in range(len(DOMAINS))]
    )
    return dict(zip(DOMAINS, rates / rates.sum(0), strict=True))


# --- steering -------------------------------------------------------------------------------------


def steering_columns(
    found: Latents, q: pd.DataFrame, examples: Examples, seed: int
) -> dict[str, Any]:
    """What a model writes while latents of high, middle or low Q are held up.

    A tenth of the latents that pass `LEAST_KL` makes a group; prompts are held-out windows without
    code. Lists over `STEERED_GROUPS`: see the schema.
    """
    kept = q[(q.total > LEAST_KL) & np.isfinite(q.q_sum)].sort_values("q_sum")
    size = max(1, len(kept) // 10)
    middle = (len(kept) - size) // 2
    groups = [kept.index[-size:], kept.index[middle : middle + size], kept.index[:size]]
    code, marks = _code_tokens(), _punctuation()
    prompts = _prompts(found)
    shares = []
    for g, group in enumerate([*groups, [None]]):
        if not len(group) or not len(prompts):
            shares.append((np.nan, np.nan))
            continue
        pushes = torch.stack([_push(found.sae, examples, latent) for latent in group])
        written = steered_continuation(
            found.model,
            found.hook,
            pushes.repeat_interleave(len(prompts), dim=0),
            prompts.repeat(len(pushes), 1),
            NEW_TOKENS,
            step_generator(seed, f"steering {g}"),
        )
        shares.append((float(code[written].mean()), float(marks[written].mean())))
    columns = np.array(shares).T
    return {n: rounded_significantly(c) for n, c in zip(STEERED, columns, strict=True)}


def _push(sae: SparseAutoencoder, examples: Examples, latent: int | None) -> Tensor:
    if latent is None:
        return torch.zeros(sae.W_dec.shape[1])
    return STRENGTH * examples.activation[examples.latent == latent].mean() * sae.W_dec[latent]


def _prompts(found: Latents) -> Int[Tensor, "prompt pos"]:
    """Beginnings of held-out windows that have no code."""
    domain = found.batch.labels["domain"][:, :-1]
    plain = (domain != DOMAINS.index("code")).all(1)
    return found.tokens[plain][:PROMPTS, :PROMPT_TOKENS]


@cache
def _code_tokens() -> Float[Tensor, " vocab"]:
    """P(code | token), were all domains equally common in the corpus."""
    pile = corpus()
    tokens, domain = pile.tokens.long(), pile.labels["domain"]
    counts = torch.stack(
        [torch.bincount(tokens[domain == d], minlength=VOCAB_SIZE) for d in range(len(DOMAINS))]
    ).double()
    rates = counts / counts.sum(1, keepdim=True)
    shares = rates[DOMAINS.index("code")] / rates.sum(0)
    return shares.nan_to_num(1 / len(DOMAINS)).float()


@cache
def _punctuation() -> Float[Tensor, " vocab"]:
    """1 for tokens of marks only: neither letter nor digit, and not white space alone."""
    texts = [pocket_tokenizer().decode([i], skip_special_tokens=False) for i in range(VOCAB_SIZE)]
    marks = [bool(t.strip()) and not any(c.isalnum() for c in t) for t in texts]
    return torch.tensor(marks, dtype=torch.float32)


def quality_columns(found: Latents) -> dict[str, float]:
    """How well the autoencoder describes held-out text."""
    quality = fit(found.sae, found.residual.flatten(0, 1))
    return {
        "unexplained": quality.unexplained,
        "dead": quality.dead,
        "active": quality.active,
    }


def rounded_significantly(values: np.ndarray) -> list[Any]:
    """Nested lists of five significant digits: Q spans orders of magnitude. NaN and ∞ are null."""
    flat = [float(f"{v:.5g}") if np.isfinite(v) else None for v in values.astype(float).flatten()]
    if values.ndim == 1:
        return flat
    return [flat[i : i + values.shape[1]] for i in range(0, len(flat), values.shape[1])]
