"""Time of the gradient's components and influences, beside their construction by definition.

    python benchmarks/gradients.py                 # two to four minutes
    python benchmarks/gradients.py --batch 64      # less than a minute

Expected: influence in parameter space at least 3 times as fast as the literal construction,
residual components at all sites at least 30 times, equal to 1e-6 in float64; the exit status is 1
where one of these fails. One model of paper C's toy size (2 layers, d_model 128, 4 heads, 21
tokens, tied embeddings), the same batch, float32, one thread. The ways take turns; the best CPU
time of each counts, so that neighbours disturb less.

influence  36 sites (both blocks, positions 1 … 18) with 3 features each: for every site the three
           parts of the gradient, each part's Adam step, and ⟨∇R, step⟩ for each part and feature.
           Literal: forward and backward passes with the gradient stopped at the site and not, and a
           backward pass a feature (`analysis.stop_gradient`, `tests/naive_gradients.py`).
residual   ∂L_i/∂r and ∂L_{>i}/∂r at all 60 sites (k = 0, 1, 2). Literal: the difference of backward
           passes to the stream with and without the stop, for each site.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import naive_gradients as naive

from emergence_lib.analysis.gradients import PARTS, residual_gradients
from emergence_lib.analysis.influence import ADAM_EPS, Tracker
from emergence_lib.analysis.stop_gradient import decompose_by_definition
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import Batch, ConditionedMajority
from emergence_lib.training import TrainConfig, masked_loss

LEAST = {"influence": 3.0, "residual": 30.0}
MOST_DIFFERENCE = 1e-6
TASK = ConditionedMajority()
CONFIG = ModelConfig(
    n_layers=2,
    d_model=128,
    n_heads=4,
    vocab_size=TASK.vocab_size,
    max_pos=TASK.seq_len - 1,
    tied_embeddings=True,
    activation="gelu_tanh",
    embed_std=0.1,
)
TRAINING = TrainConfig(steps=1, grad_clip=None, warmup_steps=0)
SITES = [(k, i) for i in range(1, 19) for k in (1, 2)]
ALL_SITES = [(k, i) for k in range(3) for i in range(CONFIG.max_pos)]
N_FEATURES = 3


def literal_influence(
    model: Transformer, final: Transformer, batch: Batch, directions: dict[tuple[int, int], Tensor]
) -> Tensor:
    """[site, part, feature]: Adam's first step of each part, by definition."""
    parameters = list(model.parameters())
    loss = masked_loss(model(batch.tokens[:, :-1]), batch)
    full = naive.gradient(loss, parameters)
    rates = [TRAINING.lr / (g.abs() + ADAM_EPS) for g in full]  # √v̂ = |g| at the first step
    table = []
    for site, w in directions.items():
        split = decompose_by_definition(model, batch.tokens, batch.loss_mask, site)
        parts = [getattr(split, part).values() for part in PARTS]
        steps = [[r * g for r, g in zip(rates, part, strict=True)] for part in parts]
        table.append(naive.influence(model, final, batch.tokens, site, w, steps))
    return torch.stack(table)


def our_influence(
    model: Transformer, final: Transformer, batch: Batch, directions: dict[tuple[int, int], Tensor]
) -> Tensor:
    """The same through the tracker that follows a training."""
    tracker = Tracker(final, TRAINING, directions, rules=("adam",))
    tracker(1, model, batch)
    return tracker.history[0][0]


def literal_residual(model: Transformer, batch: Batch) -> Tensor:
    """[direct or pre-cached, site, batch, d_model]."""
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for k, i in ALL_SITES:
        name = f"resid.{k}"
        gradients = []
        for stopped in (False, True):
            leaf: dict[str, Tensor] = {}

            def cut(x: Tensor, i: int = i, stopped: bool = stopped, leaf: Any = leaf) -> Tensor:
                leaf["r"] = x[:, i : i + 1].detach().requires_grad_()
                column = leaf["r"].detach() if stopped else leaf["r"]
                return torch.cat([x[:, :i], column, x[:, i + 1 :]], dim=1)

            logits = model(batch.tokens[:, :-1], edit={name: cut})
            log_p = logits.log_softmax(-1).gather(2, batch.tokens[:, 1:, None]).squeeze(2)
            losses = -log_p.mean(0) / log_p.shape[1]
            both = []
            for value in (losses[i], losses[i + 1 :].sum()):
                flows = torch.autograd.grad(
                    value, leaf["r"], retain_graph=True, materialize_grads=True, allow_unused=True
                ) if value.requires_grad else (torch.zeros_like(leaf["r"]),)  # fmt: skip
                both.append(flows[0].squeeze(1))
            gradients.append(both)
        for part in (0, 1):
            found[part].append(gradients[0][part] - gradients[1][part])
    return torch.stack([torch.stack(part) for part in found])


def our_residual(model: Transformer, batch: Batch) -> Tensor:
    """The same from two backward passes."""
    direct, precached = residual_gradients(model, batch.tokens, batch.loss_mask)
    return torch.stack(
        [torch.stack([p[k, :, i] for k, i in ALL_SITES]) for p in (direct, precached)]
    )


def ways(
    batch_size: int, dtype: torch.dtype
) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]:
    """What is compared → (literal, ours) on one model, batch and set of features."""
    model, final = (CONFIG.build(torch.Generator().manual_seed(n)).to(dtype) for n in (0, 1))
    batch = TASK.sample(batch_size, torch.Generator().manual_seed(2))
    draw = torch.Generator().manual_seed(3)
    features = {
        site: torch.randn(N_FEATURES, CONFIG.d_model, generator=draw, dtype=dtype) for site in SITES
    }
    return {
        "influence": (
            lambda: literal_influence(model, final, batch, features),
            lambda: our_influence(model, final, batch, features),
        ),
        "residual": (lambda: literal_residual(model, batch), lambda: our_residual(model, batch)),
    }


def best_seconds(
    literal: Callable[[], Tensor], ours: Callable[[], Tensor], repeats: int
) -> tuple[float, float]:
    """CPU time of each, taking turns."""
    best = [math.inf, math.inf]
    for _ in range(repeats):
        for way, call in enumerate((literal, ours)):
            start = time.process_time()
            call()
            best[way] = min(best[way], time.process_time() - start)
    return best[0], best[1]


def main() -> int:
    """Print a line a comparison; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256, metavar="N")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"2 layers, d_model {CONFIG.d_model}, 21 tokens, batch {options.batch}, one thread")
    print("             literal s    ours s   ratio  asked  difference")
    missed = []
    for (name, timed), exact in zip(
        ways(options.batch, torch.float32).items(), ways(4, torch.float64).values(), strict=True
    ):
        theirs, found = (way() for way in exact)
        difference = ((theirs - found).abs().max() / theirs.abs().max()).item()
        slow, fast = best_seconds(*timed, options.repeats)
        print(
            f"{name:10} {slow:11.3f} {fast:9.3f} {slow / fast:7.1f} {LEAST[name]:6g}"
            f" {difference:11.1e}",
            flush=True,
        )
        if slow / fast < LEAST[name] or difference > MOST_DIFFERENCE:
            missed.append(name)
    print(f"missed: {', '.join(missed)}" if missed else "all as asked")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
