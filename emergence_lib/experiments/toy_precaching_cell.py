"""One run of the toy pre-caching experiment: a task, an ablation, and what is read from the model.

The paper's run (fact sheet C3): 2 layers, d_model 128, 4 heads, GPT-2 style, Adam at 1e-3, batch
256, 3,000 steps, cut at m = 10. Its numbers are the `paper` profile's; `ToyCell`'s defaults are
smaller, chosen so that the plain model learns Majority on one CPU core in well under a minute.

Probes are ridge regressions (α = 1) a layer and position on the residual stream, fitted on 70 % of
fresh sequences; r is Pearson's over the rest. The same is done for the model before training, whose
uniform attention already makes counts decodable: what training adds is the difference. A penalty
of fixed strength reads a weak signal worse than a strong one, so weights that grow, for whatever
reason, raise r. The same probes on streams scaled to unit root mean square, which is how the next
norm sees them, stand beside it as a control (ours, not the paper's).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emergence_lib.analysis.gradients import PARTS
from emergence_lib.analysis.influence import RULES, Integrated, integrated_influence
from emergence_lib.analysis.probes import Probe, correlation, fit_ridge
from emergence_lib.analysis.stop_gradient import identity_errors
from emergence_lib.errors import UnknownNameError
from emergence_lib.experiments.base import Point
from emergence_lib.experiments.linear_map_cell import rounded
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.models.untied import UntiedConfig
from emergence_lib.tasks import Batch, ConditionedMajority, Majority
from emergence_lib.training import Run, TrainConfig, train
from emergence_lib.training.train import step_generator

TASK_TYPES: dict[str, type[Majority]] = {
    task.name: task for task in (Majority, ConditionedMajority)
}
FEATURES = {"majority": "is_majority", "conditioned_majority": "follows_zero"}
"""The label that is probed in each task (fact sheet C3)."""

ABLATIONS = ("plain", "myopic", "untied", "both")
"""Both mechanisms; without pre-caching; without sharing across the cut; without either."""

FIT_SHARE = 0.7
CHECKED_SEQUENCES = 8


@dataclass(frozen=True)
class ToyCell:
    """Parameters of one run.

    Args:
        task: "majority" or "conditioned_majority".
        ablation: of `ABLATIONS`; untied models are cut where the outputs begin to be predicted.
        muon_lr: of `TrainConfig`; the paper's Adam (None) leaves Conditioned Majority on a plateau
            for longer than the small profiles train, and Muon on the mixers shortens it.
        init_std, embed_std: of the initial weights; GPT-2's by default.
        tracked: positions whose integrated influence is followed at every layer from 1 on, which
            takes a second training; none where empty.

    Raises (when used):
        UnknownNameError: an unknown task or ablation.
        ParameterError: from the task, model or training settings it is turned into.
    """

    task: str = "majority"
    ablation: str = "plain"
    n_layers: int = 2
    d_model: int = 64
    n_heads: int = 4
    steps: int = 600
    batch_size: int = 64
    lr: float = 2e-3
    muon_lr: float | None = None
    init_std: float = 0.02
    embed_std: float = 0.02
    probe_sequences: int = 2_000
    tracked: tuple[int, ...] = ()

    def majority(self) -> Majority:
        """The task itself."""
        if self.task not in TASK_TYPES:
            raise UnknownNameError("toy task", self.task, TASK_TYPES)
        return TASK_TYPES[self.task]()

    def model_config(self) -> ModelConfig:
        """GPT-2 style: learned positions, tied embeddings, GELU."""
        if self.ablation not in ABLATIONS:
            raise UnknownNameError("ablation", self.ablation, ABLATIONS)
        task = self.majority()
        shape: dict[str, Any] = {
            "n_layers": self.n_layers,
            "d_model": self.d_model,
            "n_heads": self.n_heads,
            "vocab_size": task.vocab_size,
            "max_pos": task.seq_len - 1,
            "tied_embeddings": True,
            "activation": "gelu_tanh",
            "init_std": self.init_std,
            "embed_std": self.embed_std,
        }
        if self.ablation in ("untied", "both"):
            return UntiedConfig(**shape, cut=task.n_inputs)
        return ModelConfig(**shape)

    @property
    def myopic(self) -> bool:
        """Whether pre-caching is off."""
        return self.ablation in ("myopic", "both")

    def train_config(self, seed: int) -> TrainConfig:
        """A constant rate, as the paper's, and no clipping."""
        return TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            muon_lr=self.muon_lr,
            warmup_steps=0,
            grad_clip=None,
            myopic=self.myopic,
            eval_every=max(1, self.steps // 20),
            eval_batch_size=1_000,
            seed=seed,
        )

    def validate(self) -> None:
        """Raise now rather than in the middle of a sweep."""
        self.model_config()
        self.train_config(0)

    def params(self) -> dict[str, Any]:
        """Canonical parameters of a `Point`."""
        return asdict(self) | {"tracked": list(self.tracked)}


SCHEMA = {
    "eval_steps": "list of int: evaluation steps",
    "eval_loss": "list of float: held-out loss in nats at those steps, over all predictions",
    "eval_accuracy": "list of float: accuracy of the first output at those steps",
    "floor": "float: loss in nats of a perfect predictor",
    "guess_accuracy": "float: accuracy of the first output of the best constant guess",
    "accuracy": "float: accuracy of the first output at the end, on the probes' sequences",
    "probe_r": "[layer 0 … L][position]: held-out r of the feature's probe, null where constant",
    "untrained_r": "[layer 0 … L][position]: the same in the model before training",
    "normed_r": "[layer 0 … L][position]: as probe_r, each residual vector scaled to unit RMS",
    "untrained_normed_r": "[layer 0 … L][position]: the same in the model before training",
    "sum_error": "float: largest |sum of the parts by definition - gradient| / largest |gradient|",
    "scheme_error": "float: largest |part in two passes - by definition| / largest |gradient|",
    "mismatch": "[layer 1 … L][tracked position]: R of the probes before training, or null",
    "influence": "[rule][layer 1 … L][tracked position][part]: integrated influence, or null",
}


def run_toy(point: Point, device: str) -> dict[str, Any]:
    """Train the cell of a point with its seed, twice where it is tracked.

    Returns:
        The columns of `SCHEMA`.
    """
    cell = ToyCell(**dict(point.params) | {"tracked": tuple(point.params["tracked"])})
    seed, task = point.seed, cell.majority()
    probed = task.sample(cell.probe_sequences, step_generator(seed, "probe"))
    labels = features(cell, probed)
    untrained = cell.model_config().build(step_generator(seed, "weights"))

    integrated = None
    if cell.tracked:
        integrated = _followed(cell, seed, probed, labels, device)
        run = integrated.run
    else:
        run = train(task, cell.model_config(), cell.train_config(seed), device=device)
    model = run.model.to("cpu")
    before, after = streams(untrained, probed), streams(model, probed)
    of_sum, of_scheme = checked(cell, model, seed)
    with torch.no_grad():
        accuracy = task.accuracy(model(probed.tokens[:, :-1]), probed)
    return {
        **_curve(run),
        "floor": task.floor,
        "guess_accuracy": task.guess_accuracy,
        "accuracy": accuracy,
        "probe_r": _held_out(after, labels),
        "untrained_r": _held_out(before, labels),
        "normed_r": _held_out(unit(after), labels),
        "untrained_normed_r": _held_out(unit(before), labels),
        "sum_error": of_sum,
        "scheme_error": of_scheme,
        "mismatch": None if integrated is None else _mismatch(cell, integrated),
        "influence": None if integrated is None else _influence(cell, integrated),
    }


def features(cell: ToyCell, batch: Batch) -> Float[Tensor, "pos sample feature"]:
    """The probed labels as numbers, for the positions that the model sees."""
    label = batch.labels[FEATURES[cell.task]][:, :-1].float()
    return label.reshape(*label.shape[:2], -1).transpose(0, 1)


@torch.no_grad()
def streams(model: Transformer, batch: Batch) -> Float[Tensor, "layer pos sample d_model"]:
    """The residual stream at every layer from 0 to L and every position."""
    tap: dict[str, Tensor | None] = {f"resid.{k}": None for k in range(model.config.n_layers + 1)}
    model(batch.tokens[:, :-1], tap=tap)
    return torch.stack([x for x in tap.values() if x is not None]).transpose(1, 2)


def unit(x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
    """Each vector scaled to a root mean square of 1."""
    return x / x.pow(2).mean(-1, keepdim=True).sqrt()


def probes(
    activations: Float[Tensor, "layer pos sample d_model"],
    labels: Float[Tensor, "pos sample feature"],
) -> Probe:
    """Ridge read-outs fitted on the leading share of the sequences."""
    n = round(FIT_SHARE * labels.shape[1])
    return fit_ridge(activations[:, :, :n], labels[:, :n].expand(len(activations), -1, -1, -1))


def _held_out(
    activations: Float[Tensor, "layer pos sample d_model"],
    labels: Float[Tensor, "pos sample feature"],
) -> list[list[float | None]]:
    """r on the other sequences, mean over features; None where a label is constant."""
    n = round(FIT_SHARE * labels.shape[1])
    read = probes(activations, labels)(activations[:, :, n:])
    r = correlation(read, labels[:, n:].expand(read.shape)).mean(-1)
    varies = (labels.std(1) > 0).all(-1).tolist()
    return [
        [round(value, 4) if known else None for value, known in zip(row, varies, strict=True)]
        for row in r.tolist()
    ]


def checked(cell: ToyCell, model: Transformer, seed: int) -> tuple[float, float]:
    """The identity's errors in a trained model, in float64, at every layer and four positions."""
    task = cell.majority()
    batch = task.sample(CHECKED_SEQUENCES, step_generator(seed, "identity"))
    double = model.config.build().double()
    double.load_state_dict(model.state_dict())
    at = (1, task.n_inputs - 1, task.n_inputs, task.seq_len - 2)
    sites = [(k, i) for k in range(cell.n_layers + 1) for i in at]
    return identity_errors(double, batch.tokens, batch.loss_mask, sites, myopic=cell.myopic)


def _followed(cell: ToyCell, seed: int, batch: Batch, labels: Tensor, device: str) -> Integrated:
    """Two trainings; the features are the probes of the first one's model."""

    def directions(model: Transformer) -> dict[tuple[int, int], Tensor]:
        weight = probes(streams(model.to("cpu"), batch), labels).weight
        model.to(device)
        layers = range(1, cell.n_layers + 1)
        return {(k, i): weight[k, i].T.to(device) for k in layers for i in cell.tracked}

    config = cell.train_config(seed)
    return integrated_influence(
        cell.majority(), cell.model_config(), config, directions, device=device
    )


def _influence(cell: ToyCell, found: Integrated) -> list[list[list[list[float]]]]:
    """Nested as in `SCHEMA`; mean over the features of a site."""
    index = ["rule", "layer", "position", "part"]
    mean = found.influences.groupby(index).influence.mean()
    layers = range(1, cell.n_layers + 1)
    return [
        [[[float(mean[r, k, i, p]) for p in PARTS] for i in cell.tracked] for k in layers]
        for r in RULES
    ]


def _mismatch(cell: ToyCell, found: Integrated) -> list[list[float]]:
    layers = range(1, cell.n_layers + 1)
    return [[found.mismatch[k, i].mean().item() for i in cell.tracked] for k in layers]


def _curve(run: Run) -> dict[str, Any]:
    loss, accuracy = run.metric("loss"), run.metric("accuracy")
    return {
        "eval_steps": loss.index.tolist(),
        "eval_loss": rounded(loss.to_numpy(), 5),
        "eval_accuracy": rounded(accuracy.to_numpy(), 4),
    }
