"""Which part of the gradient built a feature: influence, step by step and over a whole training.

A feature w at a site (k, i) is built when ⟨w, r⟩ comes closer to what it is in the trained model.
Its mismatch on a batch, and the influence of a part c of the gradient on it at one step:

    R = ½ mean_b (⟨w, r_θ⟩ - ⟨w, r_θ*⟩)²          θ* the weights that training ends with
    influence of c = ⟨∇_θ R, Δ_c⟩                  Δ_c the step of c: θ ← θ - Σ_c Δ_c

so a positive influence takes mismatch away, to first order as much as its number says. Summed over
all training steps, each on the batch it is about to learn from, it is the integrated influence of
c; over the parts it sums to about the mismatch at the start (as far as steps are small).

    sgd     Δ_c = lr · g_c
    adam    Δ_c = lr · m̂_c / (√v̂ + ε): a first moment for each part, one second moment from the
            whole gradient, so that the parts' steps sum to the optimizer's step

The influence on all features of a site is one Jacobian–vector product a part,
⟨∇_θ R, Δ⟩ = mean_b (⟨w, r_θ⟩ - ⟨w, r_θ*⟩) ⟨w, J Δ⟩, and J Δ is linear in Δ: what is shared is the
rest, from one product of the whole step for all sites.

θ* comes from a first run and the influences from a second one, which must repeat the first bit for
bit; `integrated_influence` checks that it did.

Source: paper C (Rofin et al. 2026, arXiv 2603.14087), section on influence; fact sheet C1. The
products are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
import torch.nn as nn
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call, jvp, vmap

from emergence_lib.analysis.gradients import (
    PARTS,
    Gradients,
    Site,
    backward_passes,
    require_sites,
    through_sites,
)
from emergence_lib.errors import ParameterError, TrainingError, UnknownNameError
from emergence_lib.models.transformer import ModelConfig, Transformer
from emergence_lib.tasks.base import Batch, Task
from emergence_lib.training.train import Run, TrainConfig, lr_share, train

RULES = ("adam", "sgd")
ADAM_EPS = 1e-8

Directions = Mapping[Site, Float[Tensor, "feature d_model"]]
"""The features w to follow, at each site any number of them."""


def influence(
    model: Transformer,
    final: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    directions: Directions,
    steps: Mapping[Site, Gradients],
) -> dict[Site, Float[Tensor, "step feature"]]:
    """⟨∇R, Δ⟩ for steps of the parameters at each site.

    Args:
        model, final: θ and θ*, of one shape.
        tokens: of a `Batch`; the last token is a target only.
        directions: w of each site.
        steps: each site's steps Δ, stacked: parameter name → [step, *shape].
    """
    errors = read_out_errors(model, final, tokens, directions)
    return {
        site: _weighted(errors[site], site_changes(model, tokens, site, steps[site]), w)
        for site, w in directions.items()
    }


@torch.no_grad()
def read_out_errors(
    model: Transformer,
    final: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    directions: Directions,
) -> dict[Site, Float[Tensor, "batch feature"]]:
    """⟨w, r_θ⟩ - ⟨w, r_θ*⟩ at each site; half its mean square is the mismatch R."""
    layers = sorted({k for k, _ in directions})
    streams = []
    for net in (model, final):
        tap: dict[str, Tensor | None] = {f"resid.{k}": None for k in layers}
        net.residual(tokens[:, :-1], layers[-1], tap=tap)
        streams.append(tap)
    now, then = streams
    return {
        (k, i): (now[f"resid.{k}"][:, i] - then[f"resid.{k}"][:, i]) @ w.T  # type: ignore[index]
        for (k, i), w in directions.items()
    }


def site_changes(
    model: Transformer,
    tokens: Int[Tensor, "batch pos+1"],
    site: Site,
    steps: Gradients,
) -> Float[Tensor, "step batch d_model"]:
    """J Δ: how r at the site changes along each of the stacked steps."""
    k, i = site
    stream = _Streams(model, (k,), last_only=True)
    return _along(stream, tokens[:, : i + 1], steps)[0, :, :, 0]


class _Streams(nn.Module):
    """``resid.k`` for some k as the output of a module, which is what functional_call takes.

    With the patterns tapped attention is explicit: the fused kernel has no forward derivative.
    """

    def __init__(self, model: Transformer, layers: Sequence[int], last_only: bool) -> None:
        super().__init__()
        self.model, self.layers, self.last_only = model, layers, last_only

    def forward(
        self, tokens: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "layer batch query d_model"]:
        last = max(self.layers)
        names = [f"resid.{k}" for k in self.layers] + [f"pattern.{n}" for n in range(last)]
        tap: dict[str, Tensor | None] = dict.fromkeys(names)
        top = self.model.residual(tokens, last, tap=tap, last_only=self.last_only)
        if self.last_only:
            return top[None]
        return torch.stack([x for k in self.layers if (x := tap[f"resid.{k}"]) is not None])

    def used(self) -> dict[str, Tensor]:
        """The parameters that the streams depend on."""
        blocks = tuple(f"blocks.{layer}." for layer in range(max(self.layers)))
        return {
            name: value.detach()
            for name, value in self.model.named_parameters()
            if name.startswith(("embed.", "pos_embed.", *blocks))
        }


def _along(
    stream: _Streams, tokens: Int[Tensor, "batch pos"], steps: Gradients
) -> Float[Tensor, "layer step batch pos d_model"]:
    """The Jacobian–vector product of the streams with each of the stacked steps."""
    parameters = stream.used()

    def at(values: Gradients) -> Tensor:
        named = {f"model.{name}": value for name, value in values.items()}
        return functional_call(stream, named, (tokens,))

    def change(step: Gradients) -> Tensor:
        return jvp(at, (parameters,), (step,))[1]

    with torch.no_grad():
        used = {name: steps[name] for name in parameters}
        return vmap(change, out_dims=1)(used)


def _weighted(
    errors: Float[Tensor, "batch feature"],
    changes: Float[Tensor, "step batch d_model"],
    directions: Float[Tensor, "feature d_model"],
) -> Float[Tensor, "step feature"]:
    """mean_b error_b ⟨w, change_b⟩."""
    return (changes @ directions.T * errors).mean(1)


class Tracker:
    """Follows a training as its `BeforeStep` and sums influences.

    Attributes:
        history: a tensor a training step, [rule, site, part, feature] in the order of `rules`,
            `sites` and `PARTS`; unused features of a site are NaN.
        mismatch: R at the first step, by site and feature.
    """

    def __init__(
        self,
        final: Transformer,
        config: TrainConfig,
        directions: Directions,
        rules: Sequence[str] = RULES,
    ) -> None:
        """
        Args:
            final: the model that the same training ended with.
            config: of the training to follow.
            directions: w of each site.
            rules: the optimizers to follow, of `RULES`; training itself is always Adam.

        Raises:
            ParameterError: no site or one outside the model, or a training other than plain Adam,
                whose steps are not linear in the gradient's parts: with clipping, weight decay,
                Muon or attention bias.
            UnknownNameError: an unknown rule.
        """
        require_sites(list(directions), final.config.n_layers, final.config.max_pos)
        for name, plain in (
            ("grad_clip", None),
            ("muon_lr", None),
            ("weight_decay", 0.0),
            ("attention_bias", 0.0),
        ):
            if getattr(config, name) != plain:
                advice = "Only the steps of plain Adam split into those of the parts."
                raise ParameterError(name, getattr(config, name), str(plain), advice)
        for rule in rules:
            if rule not in RULES:
                raise UnknownNameError("rule", rule, RULES)
        self.final, self.config, self.rules = final, config, tuple(rules)
        self.sites = sorted(directions, key=lambda site: (site[1], site[0]))
        self.directions = {site: directions[site] for site in self.sites}
        self.history: list[Float[Tensor, "rule site part feature"]] = []
        self.mismatch: dict[Site, Float[Tensor, " feature"]] = {}
        self._moments: _AdamMoments | None = None

    def __call__(self, step: int, model: Transformer, batch: Batch) -> None:
        myopic, tokens = self.config.myopic, batch.tokens
        passes = backward_passes(model, tokens, batch.loss_mask, myopic=myopic)
        found = through_sites(model, tokens, passes, self.sites, myopic=myopic)
        layout = _Layout(model)
        full = layout.flat(passes.full)
        parts = torch.stack([torch.stack([layout.flat(d), layout.flat(p)]) for _, d, p in found])
        lr = self.config.lr * lr_share(step, self.config)
        steps = []
        for rule in self.rules:
            if rule == "sgd":
                steps.append((lr * full, lr * parts))
            else:
                if self._moments is None:
                    self._moments = _AdamMoments(full, parts, self.config.betas)
                steps.append(self._moments.steps(full, parts, lr))
        whole = torch.stack([a for a, _ in steps])
        by_part = torch.stack([b for _, b in steps])
        errors = read_out_errors(model, self.final, tokens, self.directions)
        if not self.history:
            self.mismatch = {site: e.pow(2).mean(0) / 2 for site, e in errors.items()}
        self.history.append(self._influences(model, tokens, layout, errors, whole, by_part))

    def _influences(
        self,
        model: Transformer,
        tokens: Int[Tensor, "batch pos+1"],
        layout: _Layout,
        errors: Mapping[Site, Float[Tensor, "batch feature"]],
        whole: Float[Tensor, "rule parameter"],
        by_part: Float[Tensor, "rule site part parameter"],
    ) -> Float[Tensor, "rule site part feature"]:
        n_rules, widest = len(self.rules), max(len(w) for w in self.directions.values())
        table = whole.new_full((n_rules, len(self.sites), len(PARTS), widest), torch.nan)
        layers = sorted({k for k, _ in self.sites})
        last = max(i for _, i in self.sites) + 1
        changes = _along(_Streams(model, layers, False), tokens[:, :last], layout.named(whole))
        for s, (site, w) in enumerate(self.directions.items()):
            k, i = site
            total = _weighted(errors[site], changes[layers.index(k), :, :, i], w)
            flat = by_part[:, s].flatten(0, 1)
            moving = flat.any(1)  # what is pre-cached is 0 at the last layer
            two = whole.new_zeros(2 * n_rules, len(w))
            if moving.any():
                through = site_changes(model, tokens, site, layout.named(flat[moving]))
                two[moving] = _weighted(errors[site], through, w)
            two = two.unflatten(0, (n_rules, 2))
            table[:, s, :2, : len(w)] = two
            table[:, s, 2, : len(w)] = total - two.sum(1)
        return table

    def table(self) -> pd.DataFrame:
        """The integrated influence so far.

        Returns:
            Columns rule, layer, position, part, feature (its index at the site), influence (units
            of R: squared units of the read-out).
        """
        total = torch.stack(self.history).double().sum(0)
        rows = [
            (rule, k, i, part, feature, total[r, s, p, feature].item())
            for r, rule in enumerate(self.rules)
            for s, (k, i) in enumerate(self.sites)
            for p, part in enumerate(PARTS)
            for feature in range(len(self.directions[k, i]))
        ]
        columns = ["rule", "layer", "position", "part", "feature", "influence"]
        return pd.DataFrame(rows, columns=columns)


class _Layout:
    """Between named tensors and one long vector."""

    def __init__(self, model: Transformer) -> None:
        self.shapes = {name: value.shape for name, value in model.named_parameters()}

    def flat(self, named: Gradients) -> Float[Tensor, " parameter"]:
        return torch.cat([named[name].flatten() for name in self.shapes])

    def named(self, stacked: Float[Tensor, "step parameter"]) -> Gradients:
        pieces = stacked.split([shape.numel() for shape in self.shapes.values()], dim=1)
        return {
            name: piece.reshape(-1, *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }


class _AdamMoments:
    """First moments of the whole gradient and of each site's parts; the second of the whole."""

    def __init__(
        self,
        full: Float[Tensor, " parameter"],
        parts: Float[Tensor, "site part parameter"],
        betas: tuple[float, float],
    ) -> None:
        self.whole, self.parts, self.square = map(torch.zeros_like, (full, parts, full))
        self.betas, self.count = betas, 0

    def steps(
        self,
        full: Float[Tensor, " parameter"],
        parts: Float[Tensor, "site part parameter"],
        lr: float,
    ) -> tuple[Float[Tensor, " parameter"], Float[Tensor, "site part parameter"]]:
        """Adam's step of the whole gradient and of each part."""
        self.count += 1
        first, second = self.betas
        self.whole.lerp_(full, 1 - first)
        self.parts.lerp_(parts, 1 - first)
        self.square.mul_(second).addcmul_(full, full, value=1 - second)
        size = (self.square / (1 - second**self.count)).sqrt_().add_(ADAM_EPS)
        scale = lr / (1 - first**self.count) / size
        return self.whole * scale, self.parts * scale


@dataclass(frozen=True)
class Integrated:
    """A training and what built its features.

    Attributes:
        run: the first run, which the second repeated bit for bit.
        influences: `Tracker.table`.
        mismatch: R at the first step, by site and feature.
    """

    run: Run
    influences: pd.DataFrame
    mismatch: dict[Site, Float[Tensor, " feature"]]


def integrated_influence(
    task: Task,
    model_config: ModelConfig,
    config: TrainConfig,
    features: Callable[[Transformer], Directions],
    *,
    rules: Sequence[str] = RULES,
    device: str = "cpu",
) -> Integrated:
    """Train, choose features in what came out, train again and follow what builds them.

    Args:
        task, model_config, config: as for `training.train`; plain Adam (see `Tracker`).
        features: the trained model → w of each site, for instance the weights of probes.

    Raises:
        TrainingError: the second run did not repeat the first bit for bit.
        ParameterError: what `Tracker` and `train` refuse.
    """
    first = train(task, model_config, config, device=device)
    tracker = Tracker(first.model, config, features(first.model), rules)
    second = train(task, model_config, config, before_step=tracker, device=device)
    require_same(first, second)
    return Integrated(first, tracker.table(), tracker.mismatch)


def require_same(first: Run, second: Run) -> None:
    """Raise `TrainingError` unless two runs ended with the same weights and numbers."""
    theirs = dict(second.model.named_parameters())
    differ = [n for n, p in first.model.named_parameters() if not torch.equal(p, theirs[n])]
    if differ or not first.trajectory.equals(second.trajectory):
        raise TrainingError(
            f"The second run did not repeat the first: {len(differ)} parameters differ. Influences "
            "need the same training twice; use one device and one number of threads for both."
        )
