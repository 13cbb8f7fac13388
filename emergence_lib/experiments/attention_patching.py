"""Attention patching across an emergence: do the new attention patterns carry it (A-5, A-6)?

Source: paper A, Pythia section (fact sheet A1): pre is the last failing checkpoint, post the first
passing one of the same run; one head's attention map from post is put into pre. Heads are ranked by
Δp of the target, and the top K are patched together.

Here `strides` widens the bracket: 1 is the paper's, neighbouring checkpoints; 7 leaves about 5 % of
training on either side, so that there is more of a gap to recover. Beside patterns, head outputs z
and values v are moved; beside the ranking, random orders; and post's patterns are put back (post ←
pre).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from emergence_lib.analysis.capability import score
from emergence_lib.analysis.emergence import emergence_point
from emergence_lib.analysis.patching import (
    COMPONENTS,
    patch_heads,
    patch_top_k,
    random_order,
    rank_heads,
    recovered_fraction,
    target_probability,
)
from emergence_lib.experiments.base import Experiment, Grid, Point
from emergence_lib.experiments.linear_map_cell import int_tuple, rounded
from emergence_lib.experiments.patching_evidence import judge_many_heads, judge_patterns_cause
from emergence_lib.experiments.pocket_suite import PocketRun, train_checkpoints
from emergence_lib.experiments.pythia import HUB_SIZES, names_of, require_seeds, sizes_of
from emergence_lib.experiments.pythia_evidence import solves
from emergence_lib.models import Transformer
from emergence_lib.models.pocket import POCKET_SIZES, checkpoint_steps
from emergence_lib.models.pythia import STEPS, download_size, load
from emergence_lib.tasks.base import require_int
from emergence_lib.tasks.prompts import CAPABILITIES, Prompts
from emergence_lib.training.train import step_generator

RANDOM_ORDERS = 20
RESAMPLES = 1_000


@dataclass(frozen=True)
class PatchingGrid(Grid):
    """Runs of one source, the capabilities whose emergence is patched, and how far apart.

    Args:
        source: "pocket" or "hub", as in `experiments.pythia`.
        sizes: of the source, one or several.
        capabilities: of `tasks.prompts`, one or several.
        seeds: runs a size, seeded 0, 1, …
        strides: checkpoints between pre and the first passing one, and from there to post less
            one; one or several.
        n_prompts: prompts, and as many controls.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        UnknownNameError: an unknown source, size or capability.
    """

    source: str = "pocket"
    sizes: tuple[str, ...] = tuple(POCKET_SIZES)
    capabilities: tuple[str, ...] = tuple(CAPABILITIES)
    seeds: int = 10
    strides: tuple[int, ...] = (1, 7)
    n_prompts: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", sizes_of(self.source, self.sizes))
        object.__setattr__(
            self, "capabilities", names_of("capability", self.capabilities, CAPABILITIES)
        )
        require_seeds(self.source, self.seeds)
        object.__setattr__(self, "strides", int_tuple("strides", self.strides, 1, 70))
        require_int("n_prompts", self.n_prompts, 2)

    def points(self) -> list[Point]:
        """Small sizes first, all points of a run together."""
        return [
            Point(
                "attention_patching",
                1,
                {
                    "source": self.source,
                    "size": size,
                    "capability": capability,
                    "strides": strides,
                    "n_prompts": self.n_prompts,
                },
                seed,
            )
            for size in self.sizes
            for seed in range(self.seeds)
            for capability in self.capabilities
            for strides in self.strides
        ]


@dataclass(frozen=True)
class Bracket:
    """Steps of the checkpoints before and after an emergence."""

    pre: int
    post: int


def bracket(
    source: str, size: str, seed: int, capability: str, strides: int, n_prompts: int
) -> Bracket | None:
    """Where a capability emerges in a run, by the paper's bisection; None if it does not.

    Trains a pocket run whose checkpoints are not on this machine.
    """
    schedule = STEPS if source == "hub" else PocketRun(size).schedule()

    def solved(step: int) -> bool:
        loaded = load(size, seed, step, source)
        shares = {
            f"{name}.{capability}": float(
                score(loaded.model, p.tokens, p.target).solved.float().mean()
            )
            for name, p in zip(
                ("solved", "control_solved"),
                prompts_of(capability, loaded.tokenizer, n_prompts),
                strict=True,
            )
        }
        return solves(shares, capability, "many")

    def available() -> tuple[int, ...]:
        return schedule if source == "hub" else checkpoint_steps(size, seed)

    if not available():
        train_checkpoints(size, seed)
    found = emergence_point(solved, available())
    if found.first_passing is None or found.last_failing is None:
        return None
    passing = schedule.index(found.first_passing)
    pre, post = max(passing - strides, 0), min(passing + strides - 1, len(schedule) - 1)
    wanted = {schedule[pre], schedule[passing - 1], schedule[post]}
    if not wanted <= set(available()):  # only a few were shipped, and not these
        train_checkpoints(size, seed)
        return bracket(source, size, seed, capability, strides, n_prompts)
    return Bracket(schedule[pre], schedule[post])


def prompts_of(capability: str, tokenizer: Tokenizer, n: int) -> tuple[Prompts, Prompts]:
    """The prompts of a capability and their controls, the same for every run."""
    generator = step_generator(0, "patching")
    asked = CAPABILITIES[capability].prompts(tokenizer, n, generator)
    return asked, CAPABILITIES[capability].control(tokenizer, n, generator)


def run(point: Point, device: str) -> dict[str, Any]:
    """Find the emergence of one run, patch across it, and keep every curve."""
    where = bracket(seed=point.seed, **point.params)
    if where is None:
        return dict.fromkeys(SCHEMA)
    source, size = point.params["source"], point.params["size"]
    pre, post = (load(size, point.seed, step, source) for step in (where.pre, where.post))
    prompts, control = prompts_of(
        point.params["capability"], pre.tokenizer, point.params["n_prompts"]
    )
    return {"pre_step": where.pre, "post_step": where.post} | curves(
        pre.model, post.model, prompts, control, step_generator(point.seed, "random heads")
    )


def curves(
    pre: Transformer,
    post: Transformer,
    prompts: Prompts,
    control: Prompts,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Every patching measure of a pair of models: the columns of `SCHEMA` but the steps."""
    p_pre = target_probability(pre, prompts.tokens, prompts.target)
    p_post = target_probability(post, prompts.tokens, prompts.target)
    n_heads = pre.config.n_layers * pre.config.n_heads
    ks = range(n_heads + 1)
    row: dict[str, Any] = {"p_pre": p_pre.mean().item(), "p_post": p_post.mean().item()}
    for component in COMPONENTS:
        delta = patch_heads(pre, post, prompts.tokens, prompts.target, component)
        moved = patch_top_k(
            pre, post, prompts.tokens, prompts.target, rank_heads(delta), ks, component
        )
        low, high = _over_prompts(moved, p_pre, p_post)
        row |= {
            f"delta_{component}": rounded(delta.mean(0).flatten().numpy(), 6),
            f"recovered_{component}": _fractions(moved, p_pre, p_post),
            f"low_{component}": low,
            f"high_{component}": high,
        }
    orders = [
        random_order(pre.config.n_layers, pre.config.n_heads, generator)
        for _ in range(RANDOM_ORDERS)
    ]
    shuffled = [patch_top_k(pre, post, prompts.tokens, prompts.target, o, ks) for o in orders]
    row["recovered_random"] = _fractions(torch.stack(shuffled).mean(0), p_pre, p_post)
    back = patch_heads(post, pre, prompts.tokens, prompts.target)
    lost = patch_top_k(post, pre, prompts.tokens, prompts.target, rank_heads(-back), ks)
    row["lost_reverse"] = _fractions(lost, p_post, p_pre)
    broken = patch_top_k(pre, post, control.tokens, control.target, orders[0], [0, n_heads]).mean(1)
    row["control_rise"] = float(broken[1] - broken[0])
    return row


def _fractions(moved: Tensor, p_pre: Tensor, p_post: Tensor) -> list[Any]:
    return rounded(recovered_fraction(moved, p_pre, p_post).numpy(), 4)


def _over_prompts(moved: Tensor, p_pre: Tensor, p_post: Tensor) -> tuple[list[Any], list[Any]]:
    """95 % percentile bootstrap of the recovered fraction over prompts, for each K."""
    drawn = torch.randint(
        len(p_pre), (RESAMPLES, len(p_pre)), generator=step_generator(0, "resample prompts")
    )
    fractions = recovered_fraction(
        moved[:, drawn].transpose(0, 1), p_pre[drawn][:, None], p_post[drawn][:, None]
    )
    low, high = fractions.nanquantile(torch.tensor([0.025, 0.975]), dim=0).numpy()
    return rounded(low, 4), rounded(high, 4)


SCHEMA = {
    "pre_step": "int or null: step of pre; null if the run does not acquire the capability",
    "post_step": "int or null: step of post",
    "p_pre": "float: mean p(target) of pre",
    "p_post": "float: mean p(target) of post",
    "recovered_random": "list [K] of float: patterns, heads in random order, mean of 20 orders",
    "lost_reverse": "list [K] of float: share of the gap lost with pre's patterns put into post",
    "control_rise": "float: rise of p(target) on control prompts with all patterns moved",
} | {
    f"{name}_{component}": f"list [{index}] of float: {meaning}, {component}"
    for component in COMPONENTS
    for name, index, meaning in (
        ("delta", "layer·n_heads + head", "mean Δp of one head"),
        ("recovered", "K", "share of the gap recovered by the top K heads"),
        ("low", "K", "its lower 95 % bound over prompts"),
        ("high", "K", "its upper 95 % bound over prompts"),
    )
}


def download(point: Point) -> int:
    """Bytes that a point fetches at most: one bisection and the two sides of its bracket."""
    if point.params["source"] != "hub":
        return 0
    return (len(STEPS).bit_length() + 2) * download_size(point.params["size"])


ATTENTION_PATCHING = Experiment(
    name="attention_patching",
    version=1,
    question="Do the attention patterns after an emergence carry it into the model before?",
    grid=PatchingGrid,
    profiles={
        # The one emergence whose checkpoints are shipped; other numbers of prompts would move it.
        "smoke": (
            PatchingGrid(
                sizes=("442k",), capabilities=("string_repetition",), seeds=1, strides=(1,)
            ),
        ),
        "quick": (
            PatchingGrid(
                sizes=("442k",), capabilities=("string_repetition",), seeds=1, strides=(7,)
            ),
        ),
        "cpu": (
            PatchingGrid(sizes=("98k",)),
            PatchingGrid(sizes=("442k",)),
            PatchingGrid(sizes=("1.2m",), seeds=5),
        ),
        "paper": (PatchingGrid(source="hub", sizes=HUB_SIZES, strides=(1,)),),
    },
    run=run,
    schema=SCHEMA,
    judges={"A-5": judge_patterns_cause, "A-6": judge_many_heads},
    seconds={"smoke": 5, "quick": 10, "cpu": 10, "paper": 600},
    download=download,
)
