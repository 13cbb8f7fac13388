"""Three papers' instruments on one run, at the queries that have something to predict from.

    lens   measure           at each watched query q                                     unit
    A      alignment.q       attention of the best head on the keys that q needs         share
           entropy.q         entropy of the head that is most certain at q               nats
    B      rankme.q          effective rank of the last residual stream over sequences   directions
           rankme_centred.q  the same of its covariance
    C      direct.q          norm of ∂L_q/∂r at q, all layers below the last block       nats / unit
           precached         ‖∂L_later/∂r‖² / (‖∂L_own/∂r‖² + ‖∂L_later/∂r‖²), all       share
                             positions and layers below the last block together
    all    query_loss.q      cross entropy of the prediction made at q                   nats

The lenses are those of `analysis.attention` (paper A), `analysis.geometry` (paper B) and
`analysis.gradients` (paper C); looking through all of them at the same runs is ours.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.analysis.attention import alignment, entropy
from emergence_lib.analysis.geometry import CONVENTIONS, effective_ranks
from emergence_lib.analysis.gradients import residual_gradients
from emergence_lib.errors import ParameterError
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import Batch, Task, require_int

MEASURES = ("query_loss", "alignment", "entropy", "rankme", "rankme_centred", "direct")
"""What is recorded of each watched query; "precached" is one number for the whole model."""


class LensObserver:
    """Records every measure of the module at up to `n_queries` queries of a task.

    Args:
        task: gives the queries and the keys they need.
        n_layers: of the model, all with attention.
        attention_bias: as in `TrainConfig`: the gradients are those that training follows.
        n_queries: queries watched, spread evenly over those that have something to predict from.
        n_gradient: sequences of the evaluation batch that gradients are taken on.

    Raises:
        ParameterError: a task without a fixed attention target, or a number below 1.
    """

    def __init__(
        self,
        task: Task,
        n_layers: int,
        attention_bias: float = 0.0,
        n_queries: int = 8,
        n_gradient: int = 64,
    ) -> None:
        target = task.attention_target()
        if target is None:
            raise ParameterError("task", task.name, "a task with a fixed attention target")
        for name, value in (("n_queries", n_queries), ("n_gradient", n_gradient)):
            require_int(name, value, 1)
        self.queries = _spread(target.any(-1).nonzero().squeeze(-1), n_queries)
        self.target = target
        self.bias = attention_bias * target.float() if attention_bias else None
        self.n_gradient = n_gradient
        self.patterns = tuple(f"pattern.{layer}" for layer in range(n_layers))
        self.last = f"resid.{n_layers}"
        self.taps = (*self.patterns, self.last)

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Float[Tensor, "batch pos vocab"],
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        queries = self.queries.to(logits.device)
        loss = F.cross_entropy(
            logits[:, queries].mT, batch.tokens[:, queries + 1], reduction="none"
        )
        found = {"query_loss": loss.mean(0)}
        found |= self._attention(tapped, queries)
        resid = tapped[self.last]
        assert resid is not None
        vectors = resid[:, queries].transpose(0, 1)
        for name, centred in CONVENTIONS.items():
            found[name] = effective_ranks(vectors, centred=centred)
        direct, precached = self._gradients(model, batch)
        found["direct"] = direct[:, :, queries].square().sum((0, 1, 3)).sqrt()
        later, own = (part.square().sum().item() for part in (precached, direct))
        by_query = {
            f"{name}.{i}": number
            for name, values in found.items()
            for i, number in enumerate(values.tolist())
        }
        return by_query | {"precached": later / (later + own)}

    def _attention(
        self, tapped: Mapping[str, Tensor | None], queries: Int[Tensor, " query"]
    ) -> dict[str, Float[Tensor, " query"]]:
        """The best head's alignment and the most certain head's entropy, of all layers' heads."""
        target = self.target.to(queries.device)[queries]
        shares, entropies = [], []
        for name in self.patterns:
            pattern = tapped[name]
            assert pattern is not None
            at_queries = pattern[:, :, queries]
            shares.append(alignment(at_queries, target).mean(0))
            entropies.append(entropy(at_queries).mean(0))
        return {"alignment": torch.cat(shares).amax(0), "entropy": torch.cat(entropies).amin(0)}

    @torch.enable_grad()
    def _gradients(
        self, model: Transformer, batch: Batch
    ) -> tuple[Float[Tensor, "layer batch pos d"], Float[Tensor, "layer batch pos d"]]:
        """Direct and pre-cached gradient of the mean loss at every site below the last block.

        At the last block nothing is pre-cached, by definition.
        """
        few = slice(self.n_gradient)
        tokens, counted = batch.tokens[few], batch.loss_mask[few]
        bias = None if self.bias is None else self.bias.to(tokens.device)
        direct, precached = residual_gradients(model, tokens, counted, attn_bias=bias)
        return direct[:-1].detach(), precached[:-1].detach()


class PatternKeeper:
    """Keeps every head's attention from the watched queries at each evaluation.

    Args:
        queries: positions watched, as `LensObserver.queries`.
        n_layers: of the model, all with attention.

    Attributes:
        kept: one array an evaluation, float ``[layer * head, query, key]``: the mean over the
            evaluation batch, each query's shares summing to 1.
    """

    def __init__(self, queries: Int[Tensor, " query"], n_layers: int) -> None:
        require_int("n_layers", n_layers, 1)
        self.queries = queries
        self.taps = tuple(f"pattern.{layer}" for layer in range(n_layers))
        self.kept: list[Float[np.ndarray, "head query key"]] = []

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Float[Tensor, "batch pos vocab"],
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        means = []
        for name in self.taps:
            pattern = tapped[name]
            assert pattern is not None
            means.append(pattern[:, :, self.queries.to(pattern.device)].mean(0).cpu())
        self.kept.append(torch.cat(means).numpy())
        return {}


def _spread(queries: Int[Tensor, " query"], n: int) -> Int[Tensor, " few"]:
    """At most `n` of them, the last among them, evenly."""
    if len(queries) <= n:
        return queries
    return queries[torch.linspace(len(queries) / n - 1, len(queries) - 1, n).round().long()]
