"""Whether a language model can do something: the next token after prompts with a known answer.

    prompt   0 7 3 1 2 0 2 3 ⏎ 0 7 3 1 2 0 2      target " 3"
    model    p(target) = .61, rank 0              rank 0: the greedy next token, "solved"

Solved is paper A's criterion (Pythia section). p(target) and the rank move before it does, so they
tell an abrupt change of the model from an abrupt criterion (Schaeffer et al. 2023,
arXiv 2304.15004).

Observers for `training.train` write, where c is a capability:

    p.c  solved.c  rank.c       mean p(target), share solved and median rank over many prompts
    single_p.c  single_rank.c   of the single prompt
    control_p.c  control_solved.c    of the control prompts, which look alike and have no answer
    loss.d                      held-out loss in nats of the tokens of domain d
    icl                         loss late in the context minus loss early (`analysis.heads`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from emergence_lib.analysis.heads import (
    ModelObserver,
    head_scores,
    in_context_learning_score,
)
from emergence_lib.models.transformer import Transformer
from emergence_lib.tasks.base import Batch, require_int
from emergence_lib.tasks.prompts import CAPABILITIES, Prompts


@dataclass(frozen=True)
class Scores:
    """How a model does on prompts.

    Attributes:
        p: probability of the target.
        rank: how many tokens are at least as likely as the target; 0 is the greedy choice. A tie
            counts against the target, so that a model of equal logits solves nothing.
    """

    p: Float[Tensor, " prompt"]
    rank: Int[Tensor, " prompt"]

    @property
    def solved(self) -> Bool[Tensor, " prompt"]:
        """Whether the greedy next token is the target."""
        return self.rank == 0


@torch.no_grad()
def score(
    model: Transformer, tokens: Int[Tensor, "prompt pos"], target: Int[Tensor, " prompt"]
) -> Scores:
    """The model's next token after each prompt, against the target."""
    return score_logits(model(tokens)[:, -1], target)


def score_logits(logits: Float[Tensor, "prompt vocab"], target: Int[Tensor, " prompt"]) -> Scores:
    """`score` from the logits at the last token of each prompt."""
    of_target = logits.gather(1, target[:, None])
    return Scores(
        p=logits.softmax(-1).gather(1, target[:, None]).squeeze(1),
        rank=(logits >= of_target).sum(-1) - 1,
    )


@torch.no_grad()
def answer_attention(
    model: Transformer, tokens: Int[Tensor, "prompt pos"], target: Int[Tensor, " prompt"]
) -> Float[Tensor, "layer head"]:
    """Attention from the last position to where the answer stands in the prompt, mean over prompts.

    A head that copies the answer, as IOI's name movers do (Wang et al. 2022), has to look at it.
    Prompts without the answer count as 0.
    """
    tap: dict[str, Tensor | None] = {f"pattern.{layer}": None for layer in range(len(model.blocks))}
    model(tokens, tap=tap)
    at_answer = (tokens == target[:, None]).float()
    patterns = [pattern for pattern in tap.values() if pattern is not None]
    return torch.stack(
        [torch.einsum("phk,pk->h", p[:, :, -1], at_answer) / len(tokens) for p in patterns]
    )


def progress(
    models: Mapping[int, Transformer],
    tokens: Int[Tensor, "prompt pos"],
    target: Int[Tensor, " prompt"],
    generator: torch.Generator,
) -> pd.DataFrame:
    """One line a checkpoint: how it does on prompts, and its best heads.

    Args:
        models: step → model.
        tokens, target: see `score`.
        generator: source of the random tokens that heads are scored on, the same for all.

    Returns:
        Columns step, p (mean p(target)), solved (share), on_answer (the best head's
        `answer_attention`) and, for each score of `analysis.heads.head_scores`, that of the best
        head.
    """
    lines = []
    for step, model in models.items():
        found = score(model, tokens, target)
        heads = head_scores(model, generator.clone_state())
        lines.append(
            {
                "step": step,
                "p": found.p.mean().item(),
                "solved": found.solved.float().mean().item(),
                "on_answer": answer_attention(model, tokens, target).max().item(),
            }
            | {name: scores.max().item() for name, scores in heads.items()}
        )
    return pd.DataFrame(lines)


class CapabilityObserver(ModelObserver):
    """Scores a model on every capability of `tasks.prompts`, with the same prompts each time.

    Args:
        tokenizer: the models'.
        n_prompts: prompts, and as many controls, of each capability.
        generator: source of the prompts.
    """

    def __init__(self, tokenizer: Tokenizer, n_prompts: int, generator: torch.Generator) -> None:
        require_int("n_prompts", n_prompts, 1)
        self.prompts: dict[str, dict[str, Prompts]] = {
            name: {
                "many": capability.prompts(tokenizer, n_prompts, generator),
                "control": capability.control(tokenizer, n_prompts, generator),
                "single": capability.single(tokenizer),
            }
            for name, capability in CAPABILITIES.items()
        }

    def measure(self, model: Transformer) -> dict[str, float]:
        """The metrics of the module's docstring that start with p, solved, rank and so on."""
        metrics: dict[str, float] = {}
        for name, kinds in self.prompts.items():
            found = {kind: score(model, p.tokens, p.target) for kind, p in kinds.items()}
            many, control, single = found["many"], found["control"], found["single"]
            metrics |= {
                f"p.{name}": many.p.mean().item(),
                f"solved.{name}": many.solved.float().mean().item(),
                f"rank.{name}": many.rank.median().item(),
                f"single_p.{name}": single.p.item(),
                f"single_rank.{name}": single.rank.item(),
                f"control_p.{name}": control.p.mean().item(),
                f"control_solved.{name}": control.solved.float().mean().item(),
            }
        return metrics


class DomainLossObserver:
    """Records the held-out loss of each domain's tokens, and the in-context-learning score.

    Args:
        domains: names of the values of ``batch.labels["domain"]``, which labels every token; a
            domain without tokens in the batch is NaN.
        early, late: positions for `analysis.heads.in_context_learning_score`.
    """

    def __init__(self, domains: Sequence[str], early: int, late: int) -> None:
        self.domains, self.early, self.late = tuple(domains), early, late

    def __call__(
        self,
        model: Transformer,
        batch: Batch,
        logits: Float[Tensor, "batch pos vocab"],
        tapped: Mapping[str, Tensor | None],
    ) -> dict[str, float]:
        loss = F.cross_entropy(logits.transpose(1, 2), batch.tokens[:, 1:], reduction="none")
        domain = batch.labels["domain"][:, 1:]
        metrics = {
            f"loss.{name}": loss[domain == i].mean().item() for i, name in enumerate(self.domains)
        }
        metrics["icl"] = float(in_context_learning_score(loss.mean(0), self.early, self.late))
        return metrics
