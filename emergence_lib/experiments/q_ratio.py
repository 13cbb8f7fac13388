"""Q of latents against what it stands for, and what it says about text (claims C-10 to C-13).

Source: paper C (Rofin et al. 2026, arXiv 2603.14087), section on language models; fact sheet C6:
Gemma-2-2b with a Gemma Scope autoencoder of layer 15. That part reads through the same calls
(`analysis.features.q_ratio` around `models.residual_hooks.HookedCausalLM`, with
`analysis.sparse_autoencoder.read_gemma_scope`) and is not run here: the weights are 5 GB.

Here a model of 3 layers is trained on PocketPile, whose tokens are labelled code, prose or story,
and an autoencoder on its residual stream. That the model is small is what allows the check that the
paper lacks: the gradients of every training step are at hand. The check is made on a toy task too,
and on the largest model of the pocket suite whose checkpoints the book ships (`q_ratio_models`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.linear_map_cell import rounded
from emergence_lib.experiments.q_ratio_cell import (
    AHEAD,
    STEERED_GROUPS,
    find_latents,
    latent_columns,
    quality_columns,
)
from emergence_lib.experiments.q_ratio_evidence import (
    judge_extremes_are_formal,
    judge_look_ahead,
    judge_q_is_the_ratio,
    judge_steering,
)
from emergence_lib.experiments.q_ratio_models import Model, model_from, model_of
from emergence_lib.experiments.text_cell import made_from
from emergence_lib.tasks.base import require_int


@dataclass(frozen=True)
class QRatioGrid(Grid):
    """One model and autoencoder a seed.

    Args:
        seeds: runs.
        corpus: the model, of `q_ratio_models.CORPORA`. One of the pocket suite has its own
            training, and of the next line only the latents' part counts; a toy has two layers.
        n_layers, d_model, steps, batch_size, lr, track_every: of `TextCell`.
        n_latents, k: of the autoencoder, and latents it keeps a token.
        sae_steps: training steps of the autoencoder.
        n_windows: held-out windows in which latents are looked at.
        n_examples: windows a latent's Q is measured in.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: no such corpus.
    """

    seeds: int = 5
    corpus: str = "pile"
    n_layers: int = 3
    d_model: int = 64
    steps: int = 800
    batch_size: int = 16
    lr: float = 2e-3
    track_every: int = 40
    n_latents: int = 256
    k: int = 8
    sae_steps: int = 800
    n_windows: int = 400
    n_examples: int = 16

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, 1)
        require_int("n_layers", self.n_layers, 2)
        require_int("n_latents", self.n_latents, 1)
        require_int("k", self.k, 1, self.n_latents)
        for name in ("sae_steps", "n_windows", "n_examples"):
            require_int(name, getattr(self, name), 1)
        self.cell().validate()

    def cell(self) -> Model:
        return model_of(
            self.corpus,
            n_layers=self.n_layers,
            d_model=self.d_model,
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            track_every=self.track_every,
        )

    def points(self) -> list[Point]:
        names = ("n_latents", "k", "sae_steps", "n_windows", "n_examples")
        params = self.cell().params() | {name: getattr(self, name) for name in names}
        return [Point("q_ratio", 1, params, seed) for seed in range(self.seeds)]


def run_point(point: Point, device: str) -> dict[str, Any]:
    """Train a model (on `device`) and an autoencoder, and measure every latent (on the CPU).

    Raises:
        TrainingError: the loss is not finite.
    """
    params = dict(point.params)
    of_latents = {name: params.pop(name) for name in ("n_latents", "k", "sae_steps", "n_windows")}
    n_examples = params.pop("n_examples")
    cell = model_from(params)
    run = cell.train(point.seed, device)
    found = find_latents(cell, run, point.seed, **of_latents)
    loss = run.metric("loss")
    return {
        "eval_steps": loss.index.tolist(),
        "eval_loss": rounded(loss.to_numpy(), 5),
        "final_loss": float(loss.iloc[-1]),
        "sources": made_from(cell.task()),
        **quality_columns(found),
        **latent_columns(cell, run, found, point.seed, n_examples),
    }


Q_RATIO = Experiment(
    name="q_ratio",
    version=1,
    question="Does Q, the later over the immediate effect of a latent, measure pre-caching?",
    grid=QRatioGrid,
    profiles={
        "smoke": (
            QRatioGrid(
                seeds=1, n_layers=2, d_model=16, steps=4, batch_size=2, track_every=4,
                n_latents=24, k=2, sae_steps=4, n_windows=16, n_examples=2,
            ),
        ),
        "quick": (
            QRatioGrid(
                seeds=1, steps=400, track_every=100, n_latents=128, sae_steps=300, n_windows=150,
                n_examples=8,
            ),
        ),
        "cpu": (
            QRatioGrid(),
            QRatioGrid(corpus="majority", steps=600, batch_size=64, track_every=20),
            QRatioGrid(seeds=1, corpus="pocket 442k", sae_steps=1_000),
        ),
        "paper": (
            QRatioGrid(
                n_layers=6, d_model=256, steps=10_000, batch_size=64, track_every=100,
                n_latents=4_096, k=32, sae_steps=10_000, n_windows=4_000, n_examples=32,
            ),
            QRatioGrid(corpus="pocket 1.2m", n_latents=1_024, k=16, sae_steps=10_000),
        ),
    },
    run=run_point,
    schema={
        "eval_steps": "list of int: evaluation steps",
        "eval_loss": "list of float: held-out loss in nats at those steps",
        "final_loss": "float: last held-out loss in nats",
        "unexplained": "float: the autoencoder's squared error over the variance, held out",
        "dead": "float: share of latents never active on held-out text",
        "active": "float: mean number of active latents a token",
        "n": "list [latent] of float: examples of the latent's Q",
        "immediate": "list [latent] of float or null: mean KL at the latent's token, nats",
        "later": "list [latent] of float or null: mean summed KL of the 9 later predictions, nats",
        "q_mean": "list [latent] of float or null: mean of the examples' ratios, the paper's Q",
        "q_sum": "list [latent] of float or null: ratio of the sums",
        "ratio_final": "list [latent] of float or null: squared pre-cached over direct gradient",
        "ratio_training": "list [latent] of float or null: the same, summed over checkpoints",
        "influence_direct": "list [latent] of float or null: integrated influence (Adam) on the "
        "read-out; null as a whole where training is not followed",
        "influence_precached": "the same for the pre-cached part",
        "code": "list [latent] of float or null: share of activation on code, domains balanced; "
        "null as a whole in a toy task, as the other domains and steering",
        "prose": "list [latent] of float or null: on prose",
        "story": "list [latent] of float or null: on stories",
        "alignment": f"list [ahead {AHEAD}][latent] of float: with the look-ahead map, 1 is random",
        "steered_code": f"list {STEERED_GROUPS} of float or null: mean P(code | token) written",
        "steered_punctuation": "list [group] of float or null: share of tokens that are marks only",
        "sources": "str: what the data were made from",
    },
    judges={
        "C-10": judge_q_is_the_ratio,
        "C-11": judge_extremes_are_formal,
        "C-12": judge_steering,
        "C-13": judge_look_ahead,
    },
    seconds={"smoke": 2, "quick": 30, "cpu": 115, "paper": 3_600},
)  # fmt: skip
