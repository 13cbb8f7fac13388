"""One cell of the cellular-automata experiments: a run on `CellularAutomata`, and its row.

The paper's shape is 256 rules, 16 states, 4 layers of width 128 with 8 heads, and a batch of a
fixed number of tokens as the state grows (fact sheet A3). A laptop gets less of everything but
colours and window: 64 rules, 8 states, 2 layers of width 64 with 4 heads. Optimizer, rates, tokens,
positions and initialisation are ours in either case: with Muon for the mixers and rotary positions
a plateau at S = 8 ends after about 1,650 steps of 1,024 tokens (one seed), with learned positions
not within 1,500, and with AdamW alone and 4,096 tokens after 1,700 (one seed, fact sheet).

    loss
    ln 4 ─╮                        nothing learned
          ╰─────────────╮          a neighbourhood's mean over all rules, none told from another
                        ╰── 1.3    rules begin to be told apart: `plateau_level`
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from emergence_lib.analysis.emergence import level
from emergence_lib.experiments.base import Point
from emergence_lib.experiments.linear_map_cell import curve_columns, rounded
from emergence_lib.models import ModelConfig
from emergence_lib.tasks import CellularAutomata
from emergence_lib.tasks.base import require_int
from emergence_lib.training import Observer, Run, TrainConfig, train
from emergence_lib.training.train import attention_bias, step_generator

PAPER_LEVEL = 1.3
"""Loss in nats below which the paper calls the plateau over, at C = 4 (fact sheet A3)."""

PLATEAU_SHARE = (math.log(4) - PAPER_LEVEL) / (math.log(4) - CellularAutomata().floor)
"""The same as a share of the way from ln C to the floor of the paper's default task: 6.6 %."""

EVAL_TOKENS = 8192
"""Held-out tokens of an evaluation, at least one sequence."""

CURVE_SCHEMA = {
    "eval_steps": "list of int: evaluation steps",
    "eval_loss": "list of float: held-out loss in nats at those steps, over all TS-1 predictions",
    "stopped_at": "int: last training step",
    "solved": "bool: training stopped early, at the end of the plateau",
    "plateau_end": "int or null: first of two evaluations in a row below `plateau_level`",
    "final_loss": "float: last held-out loss in nats",
    "bayes_loss": "float: loss in nats of the Bayes predictor, which has to infer the rule",
    "state_accuracy": "list of float: final share of right cells in states 1 … T-1",
}


@dataclass(frozen=True)
class CellularAutomataCell:
    """Parameters of one run.

    Args:
        state_size, colours, window, n_rules, n_states: the task, see `CellularAutomata`.
        tokens: of a batch, at most; the number of sequences follows, so that it falls as S grows.
        stop_after_plateau: end training where the plateau ends, for experiments that ask for no
            more than its length.
        Others: as in `ModelConfig` and `TrainConfig`.

    Raises (when used):
        ParameterError: from the task, model or training settings it is turned into.
    """

    state_size: int = 8
    colours: int = 4
    window: int = 3
    n_rules: int | None = 64
    n_states: int = 8
    attention_bias: float = 0.0
    attention_bias_layers: int | None = None
    n_layers: int = 2
    d_model: int = 64
    n_heads: int = 4
    d_head: int | None = None
    mixer: str = "attention"
    positional: str = "rotary"
    steps: int = 3_000
    tokens: int = 1_024
    lr: float = 2e-3
    muon_lr: float | None = 0.01
    init_std: float = 0.05
    embed_std: float = 1.0
    eval_every: int = 50
    stop_after_plateau: bool = False

    def task(self, seed: int) -> CellularAutomata:
        """The pool of this seed: like the data and weights, the rules change with the seed."""
        return CellularAutomata(
            state_size=self.state_size,
            colours=self.colours,
            window=self.window,
            n_rules=self.n_rules,
            n_states=self.n_states,
            rule_seed=seed,
        )

    def model_config(self) -> ModelConfig:
        return ModelConfig(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            d_head=self.d_head,
            vocab_size=self.colours,
            max_pos=self.n_states * self.state_size - 1,
            mixer=self.mixer,
            positional=self.positional,
            init_std=self.init_std,
            embed_std=self.embed_std,
        )

    def train_config(self, seed: int) -> TrainConfig:
        task = self.task(seed)
        margin = plateau_level(task) - task.floor if self.stop_after_plateau else None
        return TrainConfig(
            steps=self.steps,
            batch_size=task.sequences_for(self.tokens),
            lr=self.lr,
            muon_lr=self.muon_lr,
            attention_bias=self.attention_bias,
            attention_bias_layers=self.attention_bias_layers,
            eval_every=self.eval_every,
            eval_batch_size=task.sequences_for(max(EVAL_TOKENS, task.seq_len)),
            stop_margin=margin,
            seed=seed,
        )

    def validate(self) -> None:
        """Raise `ParameterError` now rather than in the middle of a sweep."""
        require_int("tokens", self.tokens, self.task(0).seq_len)
        self.model_config()
        self.train_config(0)

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self)

    def train(self, seed: int, device: str, observers: Sequence[Observer] = ()) -> Run:
        return train(
            self.task(seed),
            self.model_config(),
            self.train_config(seed),
            observers=observers,
            device=device,
        )


def plateau_level(task: CellularAutomata) -> float:
    """Loss in nats below which a plateau is over: 1.3 at the paper's default task.

    The same share of the way to the floor elsewhere, which the paper need not say since its T and C
    do not change. Below it a rule has been told from others: without that, a pool of N rules allows
    about ln C - (C-1)/2N (its mean at each neighbourhood is not quite uniform).
    """
    return level(math.log(task.colours), task.floor, PLATEAU_SHARE)


def curve_row(cell: CellularAutomataCell, run: Run, seed: int) -> dict[str, Any]:
    """The columns of `CURVE_SCHEMA` for a finished run."""
    task = cell.task(seed)
    n_sequences = task.sequences_for(max(EVAL_TOKENS, task.seq_len))
    batch = task.sample(n_sequences, step_generator(seed, "final"))
    device = next(run.model.parameters()).device
    bias = attention_bias(task, cell.train_config(seed), cell.n_layers, device)
    with torch.no_grad():
        logits = run.model(batch.tokens[:, :-1].to(device), attn_bias=bias).cpu()
    return {
        **curve_columns(run, plateau_level(task)),
        "bayes_loss": task.bayes_loss(batch).mean().item(),
        "state_accuracy": rounded(task.state_accuracy(logits, batch).numpy(), 4),
    }


def run_cell(point: Point, device: str) -> dict[str, Any]:
    """Train the cell of a point with its seed: the `run` of experiments that keep only the curve.

    Returns:
        The columns of `CURVE_SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell = CellularAutomataCell(**point.params)
    return curve_row(cell, cell.train(point.seed, device), point.seed)
