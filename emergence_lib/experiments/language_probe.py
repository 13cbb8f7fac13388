"""One checkpoint of a language model: geometry and behaviour on the same inputs, in one pass.

    code, prose, story              200 held-out texts each, their first 64 tokens
    string_repetition, …            200 prompts of each capability
    control string_repetition, …    as many that look alike and whose answer cannot be told

Of each group: the effective rank of the hidden states at the last token, at every layer, in both
conventions (`analysis.geometry`), and what the model predicts. The inputs are the same for every
checkpoint of every model that shares a tokenizer.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from emergence_lib.analysis.capability import score_logits
from emergence_lib.analysis.geometry import CONVENTIONS, effective_ranks, unpack
from emergence_lib.analysis.heads import ModelObserver
from emergence_lib.experiments.linear_map_cell import rounded
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import require_int
from emergence_lib.tasks.corpus_pieces import domain_windows
from emergence_lib.tasks.corpus_sources import DOMAINS
from emergence_lib.tasks.prompts import CAPABILITIES
from emergence_lib.training.train import step_generator

WINDOW = 64
"""Tokens of a domain's text."""

CONTROLS = {name: f"control {name}" for name in CAPABILITIES}
GROUPS = (*DOMAINS, *CAPABILITIES, *CONTROLS.values())
"""All sets of inputs, in the order of a row's lists."""

PROBE_SCHEMA = {
    "checkpoints": "list of int: training steps looked at; 0 is the untrained model",
    "rankme": "list [group][layer - 1][checkpoint] of float: RankMe, uncentred, as in `GROUPS`",
    "rankme_centred": "the same shape: effective rank of the covariance's eigenvalues",
    "loss": "list [domain][checkpoint] of float: nats a token of the held-out texts",
    "accuracy": "list [domain][checkpoint] of float: share of their next tokens that are right",
    "p": "list [capability][checkpoint] of float: mean p(target) of the prompts",
    "solved": "list [capability][checkpoint] of float: share whose greedy next token is the target",
    "control_solved": "the same shape: that of the control prompts",
}


class LanguageProbe(ModelObserver):
    """Records ``rankme.k.g``, ``rankme_centred.k.g`` and, as in `PROBE_SCHEMA`, ``loss.domain``,
    ``accuracy.domain``, ``p.c``, ``solved.c`` and ``control_solved.c``; g numbers `GROUPS`.

    Args:
        tokenizer: the models'.
        samples: texts or prompts of each group, at least 2; no rank exceeds it.

    Raises:
        ParameterError: `samples` out of range, or more than there are texts of a domain.
    """

    def __init__(self, tokenizer: Tokenizer, samples: int) -> None:
        require_int("samples", samples, 2)
        self.inputs: dict[str, Int[Tensor, "sample pos"]] = {}
        self.targets: dict[str, Int[Tensor, " sample"]] = {}
        for name in DOMAINS:
            generator = step_generator(0, f"texts {name}")
            self.inputs[name] = domain_windows(tokenizer, name, samples, WINDOW, generator)
        for name, capability in CAPABILITIES.items():
            for group, draw in ((name, capability.prompts), (CONTROLS[name], capability.control)):
                asked = draw(tokenizer, samples, step_generator(0, f"prompts {name}"))
                self.inputs[group], self.targets[group] = asked.tokens, asked.target

    @torch.no_grad()
    def measure(self, model: Transformer) -> dict[str, float]:
        layers = range(1, model.config.n_layers + 1)
        device = next(model.parameters()).device
        metrics: dict[str, float] = {}
        vectors = []
        for group in GROUPS:
            tokens = self.inputs[group].to(device)
            tap: dict[str, Tensor | None] = {f"resid.{layer}": None for layer in layers}
            x = model.residual(tokens, model.config.n_layers, tap=tap)
            # Of a prompt the last prediction counts; the others' logits would cost the most.
            needed = x[:, :-1] if group in DOMAINS else x[:, -1]
            logits = model.unembed(model.final_norm(needed))
            metrics |= self._behaviour(group, logits, tokens)
            vectors.append(torch.stack([r[:, -1] for r in tap.values() if r is not None]))
        stacked = torch.stack(vectors, 1)  # [layer, group, sample, d]
        for name, centred in CONVENTIONS.items():
            ranks = effective_ranks(stacked, centred=centred).tolist()
            metrics |= {
                f"{name}.{layer}.{group}": rank
                for layer, row in zip(layers, ranks, strict=True)
                for group, rank in enumerate(row)
            }
        return metrics

    def _behaviour(
        self, group: str, logits: Float[Tensor, "*sample vocab"], tokens: Int[Tensor, "sample pos"]
    ) -> dict[str, float]:
        if group in DOMAINS:
            following = tokens[:, 1:].flatten()
            right = (logits.argmax(-1).flatten() == following).float().mean()
            loss = F.cross_entropy(logits.flatten(0, 1), following)
            return {f"loss.{group}": loss.item(), f"accuracy.{group}": right.item()}
        scores = score_logits(logits, self.targets[group].to(logits.device))
        solved = scores.solved.float().mean().item()
        if group not in CAPABILITIES:
            return {f"control_solved.{group.removeprefix('control ')}": solved}
        return {f"p.{group}": scores.p.mean().item(), f"solved.{group}": solved}


def scan_columns(trajectory: pd.DataFrame) -> dict[str, Any]:
    """The columns of `PROBE_SCHEMA` from what a `LanguageProbe` wrote at several steps.

    Args:
        trajectory: as `Run.trajectory`.
    """
    table = trajectory.pivot(index="step", columns="metric", values="value")
    columns: dict[str, Any] = {}
    for name in CONVENTIONS:
        ranks = unpack(trajectory, name)
        layers = ranks.columns.get_level_values("layer").unique()
        columns[name] = [
            [rounded(ranks[layer, group].to_numpy(), 4) for layer in layers]
            for group in range(len(GROUPS))
        ]
    probed = unpack(trajectory).index  # the training loop evaluates at no other steps than these
    columns["checkpoints"] = [int(step) for step in probed]
    for name in ("loss", "accuracy", "p", "solved", "control_solved"):
        of = DOMAINS if name in ("loss", "accuracy") else CAPABILITIES
        columns[name] = [rounded(table.loc[probed, f"{name}.{c}"].to_numpy(), 5) for c in of]
    return columns
