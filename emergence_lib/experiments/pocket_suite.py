"""How a run of the pocket suite is trained, and the row it leaves.

    PocketRun(size="98k").train(seed) ─► Run: every metric at every checkpoint, and their weights
    scan_row(run) ─► lists over checkpoints: loss, capabilities, head scores; and a sample of text

Pythia's recipe scaled down (Biderman et al. 2023, arXiv 2304.01373, section 2 and appendix):
AdamW (0.9, 0.95) with weight decay, warm-up over 1 % of the steps, a half cosine down to a tenth of
the peak rate, gradients clipped at 1, checkpoints on its schedule. A seed changes weights and data
order, as PolyPythias' do (arXiv 2503.09543); all seeds share corpus, held-out windows and prompts.
Batch, steps and rate are ours: about 6 million tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import torch
from filelock import FileLock
from tokenizers import Tokenizer

from emergence_lib.analysis.attention import unpack
from emergence_lib.analysis.capability import CapabilityObserver, DomainLossObserver
from emergence_lib.analysis.heads import HeadObserver
from emergence_lib.experiments.linear_map_cell import rounded
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.models.pocket import (
    CONTEXT,
    checkpoint_folders,
    checkpoint_steps,
    pocket_config,
    save_run,
)
from emergence_lib.tasks.base import Batch, require_int
from emergence_lib.tasks.corpus import PocketPile, corpus_provenance, pocket_tokenizer
from emergence_lib.tasks.corpus_sources import DOMAINS
from emergence_lib.tasks.prompts import CAPABILITIES
from emergence_lib.training import Run, TrainConfig, scaled_pythia_schedule, train
from emergence_lib.training.train import step_generator

PROMPT_MEASURES = {
    "p": "mean p(target)",
    "solved": "share of prompts whose greedy next token is the target",
    "rank": "median rank of the target, 0 is the greedy token",
    "single_p": "p(target) of the single prompt",
    "single_rank": "rank of its target",
    "control_p": "mean p(target) of the control prompts",
    "control_solved": "share of them solved",
}
HEAD_MEASURES = ("previous_token", "induction", "duplicate_token")
LOSSES = ("loss", "loss_code", "loss_prose", "loss_story", "icl")
SAMPLE_PROMPT = "One morning"
ICL_POSITIONS = (10, 120)
"""Early and late position of the in-context-learning score in a context of 128; Olsson et al. use
50 and 500 of 512."""

SCAN_SCHEMA = (
    {"eval_steps": "list of int: evaluated checkpoints"}
    | {
        f"{measure}_{capability}": f"list of float: {meaning}, {capability}"
        for capability in CAPABILITIES
        for measure, meaning in PROMPT_MEASURES.items()
    }
    | {
        name: f"list [eval][layer·n_heads + head] of float: {name} score of every head"
        for name in HEAD_MEASURES
    }
    | {name: "list of float: held-out loss in nats" for name in LOSSES if name != "icl"}
    | {
        "icl": "list of float: loss at position 120 minus loss at position 10, nats",
        "grad_norm": "list of float: gradient norm before clipping at the evaluated steps",
        "sample": "str: text drawn from the last model",
        "corpus": "str: what the data were made from",
    }
)


@dataclass(frozen=True)
class PocketRun:
    """Parameters of one training run of the suite.

    Raises (when used):
        ParameterError: from the model or training settings it is turned into.
        UnknownNameError: no such size.
    """

    size: str = "98k"
    steps: int = 2_860
    batch_size: int = 16
    lr: float = 3e-3
    weight_decay: float = 0.1
    n_strides: int = 143
    n_prompts: int = 64

    def task(self) -> PocketPile:
        return PocketPile(seq_len=CONTEXT + 1)

    def model_config(self) -> ModelConfig:
        return pocket_config(self.size, self.task().vocab_size)

    def train_config(self, seed: int) -> TrainConfig:
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            final_lr=0.1,
            warmup_steps=max(1, self.steps // 100),
            weight_decay=self.weight_decay,
            betas=(0.9, 0.95),
            seed=seed,
        )

    def validate(self) -> None:
        """Raise `ParameterError` now rather than in the middle of a sweep."""
        self.model_config()
        self.train_config(0)
        self.schedule()
        require_int("n_prompts", self.n_prompts, 1)

    def schedule(self) -> tuple[int, ...]:
        """Steps of the checkpoints: 0, powers of two, then `n_strides` equal strides."""
        return scaled_pythia_schedule(self.steps, self.n_strides)

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self)

    def train(self, seed: int, device: str = "cpu") -> Run:
        """Train, measuring at every checkpoint and keeping its weights in memory."""
        return train(
            self.task(),
            self.model_config(),
            self.train_config(seed),
            observers=(
                capability_observer(pocket_tokenizer(), self.n_prompts),
                HeadObserver(step_generator(0, "head scores")),
                DomainLossObserver(DOMAINS, *ICL_POSITIONS),
            ),
            checkpoints=self.schedule(),
            evaluations=self.schedule(),
            eval_batch=held_out_batch(),
            device=device,
        )


def held_out_batch() -> Batch:
    """64 windows of documents that are never trained on, the same for every run."""
    return PocketPile(seq_len=CONTEXT + 1, split="held out").sample(
        64, step_generator(0, "held out")
    )


def train_checkpoints(size: str, seed: int) -> None:
    """Train a run of the suite for its checkpoints, unless another process just did.

    Minutes of work; `emergence sweep pythia` leaves them too.
    """
    folder = checkpoint_folders(size, seed)[-1]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if set(PocketRun(size).schedule()) - set(checkpoint_steps(size, seed)):
            keep_checkpoints(size, seed, PocketRun(size).train(seed))


def keep_checkpoints(size: str, seed: int, run: Run) -> None:
    """Write the checkpoints of a run of the suite where `models.pocket` finds them."""
    save_run(size, seed, {step: run.checkpoint(step) for step in run.checkpoint_steps})


def capability_observer(tokenizer: Tokenizer, n_prompts: int) -> CapabilityObserver:
    """The same prompts for every run that shares a tokenizer."""
    return CapabilityObserver(tokenizer, n_prompts, step_generator(0, "prompts"))


def scan_row(run: Run, seed: int) -> dict[str, Any]:
    """The columns of `SCAN_SCHEMA` for a finished run of the suite."""
    return measured(run.trajectory) | {
        "grad_norm": _list(run.metric("grad_norm").reindex(run.metric("loss").index)),
        "sample": sample_text(run.model, seed),
        "corpus": "; ".join(f"{name} {value}" for name, value in corpus_provenance().items()),
    }


def measured(trajectory: pd.DataFrame) -> dict[str, Any]:
    """What capability, head and loss observers wrote, as lists over evaluations.

    Args:
        trajectory: as `Run.trajectory`; the loss columns are empty lists where it has no losses.
    """
    table = trajectory.pivot(index="step", columns="metric", values="value")
    columns: dict[str, Any] = {"eval_steps": table.index.tolist()}
    for capability in CAPABILITIES:
        for measure in PROMPT_MEASURES:
            columns[f"{measure}_{capability}"] = _list(table[f"{measure}.{capability}"])
    for measure in HEAD_MEASURES:
        columns[measure] = rounded(unpack(trajectory, measure).to_numpy(), 4)
    for name in LOSSES:
        metric = "loss" if name == "loss" else name.replace("loss_", "loss.")
        columns[name] = _list(table[metric]) if metric in table else []
    return columns


def prompt_examples() -> pd.DataFrame:
    """One prompt of each capability and its control: columns capability, kind, text, target.

    Line breaks are shown as ⏎.
    """
    tokenizer = pocket_tokenizer()
    lines = []
    for name, capability in CAPABILITIES.items():
        for kind, draw in (("prompt", capability.prompts), ("control", capability.control)):
            asked = draw(tokenizer, 1, step_generator(0, "examples"))
            target = tokenizer.decode(asked.target.tolist())
            lines.append((name.replace("_", " "), kind, asked.text[0].replace("\n", " ⏎ "), target))
    return pd.DataFrame(lines, columns=["capability", "kind", "text", "target"])


def sample_text(model: Transformer, seed: int, n_tokens: int = 100) -> str:
    """What a model of the suite writes after "One morning", drawn at temperature 0.7."""
    tokenizer = pocket_tokenizer()
    generator = step_generator(seed, "sample")
    tokens = torch.tensor([tokenizer.encode(SAMPLE_PROMPT).ids])
    device = next(model.parameters()).device
    with torch.no_grad():
        while tokens.shape[1] < n_tokens:
            logits = model(tokens[:, -CONTEXT:].to(device))[0, -1].cpu()
            drawn = torch.multinomial((logits / 0.7).softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, drawn[None]], dim=1)
    return tokenizer.decode(tokens[0].tolist(), skip_special_tokens=False)


def _list(values: pd.Series) -> list[Any]:
    return rounded(values.to_numpy(), 5)
