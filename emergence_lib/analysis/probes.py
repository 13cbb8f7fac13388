"""Linear probes: ridge regressions from activations to features, at many sites at once.

    read-out = activation · weight + bias,   weight = argmin ‖Y - X W‖² + α ‖W‖²   (X, Y centred)

A feature that a probe reads is *decodable*, which says neither that the model uses it nor that
training put it there: hold the read-out of an untrained model beside it (fact sheet C3: at random
weights uniform attention already makes counts decodable).

Source: paper C (arXiv 2603.14087): ridge with α = 1, one probe a layer and position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from sklearn.linear_model import Ridge
from torch import Tensor

from emergence_lib.errors import ParameterError


@dataclass(frozen=True)
class Probe:
    """Linear read-outs of several features at each of some sites.

    Attributes:
        weight: the direction of each feature.
        bias: the read-out at activation 0.
    """

    weight: Float[Tensor, "... d feature"]
    bias: Float[Tensor, "... feature"]

    def __call__(
        self, activations: Float[Tensor, "*site sample d"]
    ) -> Float[Tensor, "*site sample feature"]:
        """The read-outs."""
        return activations @ self.weight + self.bias.unsqueeze(-2)


def fit_ridge(
    activations: Float[Tensor, "*site sample d"],
    features: Float[Tensor, "*site sample feature"],
    alpha: float = 1.0,
) -> Probe:
    """The ridge regression of each site; the bias is not shrunk.

    Args:
        activations: any float type; the solve is in float64, the probe in the given type.
        features: what to read; its sites broadcast against those of `activations`.
        alpha: strength of the penalty, in the units of a sum over samples of squared activations.

    Raises:
        ParameterError: `alpha` is not positive, or the samples differ in number.
    """
    if not alpha > 0:
        raise ParameterError("alpha", alpha, "a positive number")
    if activations.shape[-2] != features.shape[-2]:
        advice = "One row of features belongs to each activation."
        given, allowed = features.shape[-2], f"{activations.shape[-2]} samples, as activations have"
        raise ParameterError("features.shape[-2]", given, allowed, advice)
    sites = activations.shape[:-2]
    features = features.expand(*sites, *features.shape[-2:])
    probes = [
        Ridge(alpha).fit(x, y)
        for x, y in zip(_by_site(activations), _by_site(features), strict=True)
    ]
    # scikit-learn drops the dimension of a single feature.
    weight = torch.tensor(np.stack([np.atleast_2d(probe.coef_).T for probe in probes]))
    bias = torch.tensor(np.stack([np.atleast_1d(probe.intercept_) for probe in probes]))
    return Probe(
        weight.to(activations).reshape(*sites, *weight.shape[1:]),
        bias.to(activations).reshape(*sites, *bias.shape[1:]),
    )


def _by_site(values: Float[Tensor, "*site sample d"]) -> Float[np.ndarray, "site sample d"]:
    return values.double().cpu().reshape(-1, *values.shape[-2:]).numpy()


def correlation(
    a: Float[Tensor, "*site sample feature"], b: Float[Tensor, "*site sample feature"]
) -> Float[Tensor, "*site feature"]:
    """Pearson's r over samples; 0 where one side is constant."""
    a, b = (x.double() - x.double().mean(-2, keepdim=True) for x in (a, b))
    scale = a.norm(dim=-2) * b.norm(dim=-2)
    return torch.where(scale > 0, (a * b).sum(-2) / scale.clamp_min(1e-300), 0.0)
