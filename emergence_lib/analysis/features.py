"""What a latent does: its ablation, its Q, steering by it, and the model's look-ahead.

    tokens       t       t+1     …    t+9
    latent w     ablated here, in the residual stream
    effect       d_0     d_1     …    d_9        d_j = KL(original ‖ ablated) of prediction t+j
    Q(w)         (d_1 + … + d_9) / d_0

A latent of large Q matters more for later predictions than for the one at hand. Source: paper C
(Rofin et al. 2026, arXiv 2603.14087), section on language models; fact sheet C6. Where we differ:

- Only what the latent itself writes, f_w W_dec[w], is subtracted. Putting the autoencoder's
  reconstruction in place of the residual stream, as the original does, adds its error to every d_j.
- Beside the mean of the examples' ratios stands the ratio of their sums, which no single example
  with a tiny d_0 can decide.
- Ablation and look-ahead read the residual stream at the same hook point.

A `model` here is a `Transformer`, or anything that is called like one with `tap` and `edit`: for a
model of `transformers` there is `models.residual_hooks.HookedCausalLM`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.analysis.sparse_autoencoder import SparseAutoencoder
from emergence_lib.errors import ParameterError
from emergence_lib.models.transformer import Edit, Tap
from emergence_lib.tasks.base import require_int

HORIZON = 9
"""Later predictions whose change counts (paper C)."""

BATCH_ROWS = 128
"""Sequences in one forward pass."""


class HookedModel(Protocol):
    """Logits at every position, with named values recorded and edited on the way."""

    def __call__(
        self, tokens: Tensor, *, tap: Tap | None = None, edit: Edit | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Examples:
    """Where latents are most active, a row an example.

    Attributes:
        latent: which latent.
        window: row of the tokens that were searched.
        position: input position of the latent's largest activation in that window.
        activation: that activation, above 0.
    """

    latent: Int[Tensor, " row"]
    window: Int[Tensor, " row"]
    position: Int[Tensor, " row"]
    activation: Float[Tensor, " row"]


@torch.no_grad()
def residuals(
    model: HookedModel, hook: str, tokens: Int[Tensor, "window pos"]
) -> Float[Tensor, "window pos d_model"]:
    """The residual stream at a hook point such as "resid.2"."""
    kept = []
    for part in tokens.split(BATCH_ROWS):
        tap: Tap = {hook: None}
        model(part, tap=tap)
        found = tap[hook]
        assert found is not None
        kept.append(found)
    return torch.cat(kept)


@torch.no_grad()
def top_examples(
    sae: SparseAutoencoder,
    residual: Float[Tensor, "window pos d_model"],
    latents: Sequence[int],
    n_examples: int,
    *,
    horizon: int = HORIZON,
) -> Examples:
    """The windows in which each latent is most active, and its most active token in each.

    Only tokens with `horizon` later predictions in the window are looked at. A latent that is
    active in fewer windows has fewer examples, or none.

    Raises:
        ParameterError: windows too short for `horizon`, or no such latent.
    """
    n_windows, n_pos, _ = residual.shape
    require_int("n_examples", n_examples, 1)
    require_int("horizon", horizon, 1, n_pos - 1)
    for latent in latents:
        require_int("latents", int(latent), 0, sae.n_latents - 1)
    wanted = torch.as_tensor(list(latents))
    peaks, places = [], []
    for part in residual[:, : n_pos - horizon].split(BATCH_ROWS):
        peak = sae.encode(part)[..., wanted].max(dim=1)
        peaks.append(peak.values)
        places.append(peak.indices)
    activation, position = torch.cat(peaks), torch.cat(places)  # [window, latent]
    top = activation.topk(min(n_examples, n_windows), dim=0)
    found = Examples(
        wanted.expand_as(top.indices).T.flatten(),
        top.indices.T.flatten(),
        position.gather(0, top.indices).T.flatten(),
        top.values.T.flatten(),
    )
    active = found.activation > 0
    return Examples(
        found.latent[active],
        found.window[active],
        found.position[active],
        found.activation[active],
    )


@torch.no_grad()
def ablation_effects(
    model: HookedModel,
    hook: str,
    sae: SparseAutoencoder,
    tokens: Int[Tensor, "window pos"],
    examples: Examples,
    *,
    horizon: int = HORIZON,
) -> Float[Tensor, "row offset"]:
    """KL(original ‖ ablated) in nats of the prediction at the latent's token and the next ones.

    Each example's latent is ablated at its position alone.

    Returns:
        Columns d_0 … d_horizon.
    """
    effects = []
    for rows in torch.arange(len(examples.latent)).split(BATCH_ROWS):
        at = examples.position[rows]
        each = torch.arange(len(rows))
        window = tokens[examples.window[rows]]
        tap: Tap = {hook: None}
        original = model(window, tap=tap)
        resid = tap[hook]
        assert resid is not None
        change = torch.zeros_like(resid)
        change[each, at] = sae.contribution(resid[each, at], examples.latent[rows])
        ablated = model(window, edit={hook: (-change).add})
        near = at[:, None] + torch.arange(horizon + 1)
        before, after = (
            logits[each[:, None], near].log_softmax(-1) for logits in (original, ablated)
        )
        # Never below 0 but for rounding.
        effects.append((before.exp() * (before - after)).sum(-1).clamp(min=0))
    return torch.cat(effects) if effects else torch.zeros(0, horizon + 1)


def q_table(examples: Examples, effects: Float[Tensor, "row offset"]) -> pd.DataFrame:
    """Q of each latent from its examples' effects.

    Returns:
        A line a latent that has examples: latent; n (examples); immediate (mean d_0, nats); later
        (mean of d_1 + … , nats); total (their sum); q_mean (the mean of the examples' ratios: the
        paper's Q); q_sum (the ratio of the sums). An example whose d_0 is exactly 0 has no ratio
        and leaves q_mean infinite.
    """
    immediate, later = effects[:, 0].double(), effects[:, 1:].double().sum(-1)
    rows = pd.DataFrame(
        {
            "latent": examples.latent.numpy(),
            "immediate": immediate.numpy(),
            "later": later.numpy(),
            "ratio": (later / immediate).nan_to_num(0.0, posinf=torch.inf).numpy(),
        }
    )
    table = rows.groupby("latent", as_index=False).agg(
        n=("latent", "size"),
        immediate=("immediate", "mean"),
        later=("later", "mean"),
        q_mean=("ratio", "mean"),
    )
    table["total"] = table.immediate + table.later
    table["q_sum"] = table.later / table.immediate
    return table


def q_ratio(
    model: HookedModel,
    hook: str,
    sae: SparseAutoencoder,
    tokens: Int[Tensor, "window pos"],
    latents: Sequence[int],
    *,
    n_examples: int = 16,
    horizon: int = HORIZON,
) -> pd.DataFrame:
    """Q of each latent at its most active tokens among `tokens`; see `q_table` for the columns.

    Raises:
        ParameterError: windows too short for `horizon`, or no such latent.
    """
    residual = residuals(model, hook, tokens)
    examples = top_examples(sae, residual, latents, n_examples, horizon=horizon)
    return q_table(examples, ablation_effects(model, hook, sae, tokens, examples, horizon=horizon))


@torch.no_grad()
def steered_continuation(
    model: HookedModel,
    hook: str,
    push: Float[Tensor, "row d_model"],
    prompt: Int[Tensor, "row pos"],
    n_tokens: int,
    generator: torch.Generator,
) -> Int[Tensor, "row new"]:
    """Sample from a model to whose residual stream a vector is added at every position.

    Args:
        push: what is added at `hook`, a vector a row; 0 does not steer.
        prompt: prompt and continuation must fit the model's context.
        n_tokens: tokens to draw, at temperature 1.
        generator: source of the draws (CPU).

    Returns:
        The new tokens.
    """
    tokens = prompt
    for _ in range(n_tokens):
        logits = model(tokens, edit={hook: push[:, None].add})[:, -1]
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, drawn], dim=1)
    return tokens[:, prompt.shape[1] :]


def look_ahead_map(
    source: Float[Tensor, "window pos d_model"],
    target: Float[Tensor, "window pos d_out"],
    ahead: int,
    ridge: float = 1e-2,
) -> Float[Tensor, "d_model d_out"]:
    """The linear map from a residual stream to the one that will predict token t + `ahead`.

    Ridge regression of target[t + ahead - 1] on source[t], both centred; the last residual stream
    at t + ahead - 1 is what token t + ahead is read from. ``ahead = 1`` is the model's own next
    token, the control.

    Args:
        source, target: at one hook point and at the last, of the same windows.
        ridge: penalty, as a share of the source's mean variance.

    Raises:
        ParameterError: `ahead` is below 1 or leaves no pair of positions.
    """
    require_int("ahead", ahead, 1, source.shape[1])
    x = source[:, : source.shape[1] - ahead + 1].flatten(0, 1).double()
    y = target[:, ahead - 1 :].flatten(0, 1).double()
    x, y = x - x.mean(0), y - y.mean(0)
    gram = x.T @ x
    penalty = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    return torch.linalg.solve(gram + penalty, x.T @ y).float()


def alignment(
    look_ahead: Float[Tensor, "d_model d_out"], directions: Float[Tensor, "latent d_model"]
) -> Float[Tensor, " latent"]:
    """How strongly a map answers to each direction: ‖w A‖ / ‖w‖ over its root mean square.

    1 is the answer to a random direction on average.

    Raises:
        ParameterError: a direction of length 0.
    """
    lengths = directions.norm(dim=-1)
    if not (lengths > 0).all():
        raise ParameterError("directions", 0.0, "directions of positive length")
    typical = look_ahead.norm() / look_ahead.shape[0] ** 0.5
    return (directions @ look_ahead).norm(dim=-1) / lengths / typical
