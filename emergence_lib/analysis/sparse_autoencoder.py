"""Sparse autoencoders: a residual stream as a sum of few directions out of many.

    f = activation(x W_enc + b_enc)          [latent], few of them above 0
    x ≈ f W_dec + b_dec                      W_dec[w] is the direction that latent w writes

Two activations, one set of arrays:

    TopK       keeps the k largest pre-activations (Gao et al. 2024, arXiv 2406.04093); trained here
    JumpReLU   keeps those above the latent's threshold (Rajamanoharan et al. 2024,
               arXiv 2407.14435); what Gemma Scope's files hold (Lieberum et al. 2024,
               arXiv 2408.05147)

Paper C uses Gemma Scope's JumpReLU autoencoders of the residual stream (fact sheet C6). TopK for
our own models, its size and the training recipe are our choice.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError, StoreError
from emergence_lib.tasks.base import require_int

GEMMA_SCOPE_ARRAYS = ("W_enc", "b_enc", "W_dec", "b_dec", "threshold")


@dataclass(frozen=True)
class SparseAutoencoder:
    """The arrays of an autoencoder, and which activation they were trained with.

    Args:
        W_enc, b_enc, W_dec, b_dec: as in the module's docstring.
        k: latents that TopK keeps; None for JumpReLU.
        threshold: what a pre-activation must exceed (JumpReLU); None for TopK.

    Raises:
        ParameterError: shapes that do not fit, or not exactly one of `k` and `threshold`.
    """

    W_enc: Float[Tensor, "d_model latent"]
    b_enc: Float[Tensor, " latent"]
    W_dec: Float[Tensor, "latent d_model"]
    b_dec: Float[Tensor, " d_model"]
    k: int | None = None
    threshold: Float[Tensor, " latent"] | None = None

    def __post_init__(self) -> None:
        if self.W_enc.ndim != 2:
            raise ParameterError("W_enc.shape", tuple(self.W_enc.shape), "[d_model, latent]")
        d_model, n_latents = self.W_enc.shape
        expected = {
            "b_enc": (n_latents,),
            "W_dec": (n_latents, d_model),
            "b_dec": (d_model,),
            "threshold": (n_latents,),
        }
        for name, shape in expected.items():
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != shape:
                raise ParameterError(f"{name}.shape", tuple(array.shape), str(shape))
        if (self.k is None) == (self.threshold is None):
            raise ParameterError("k", self.k, "given for TopK, None beside a threshold")
        if self.k is not None:
            require_int("k", self.k, 1, n_latents)

    @property
    def n_latents(self) -> int:
        return self.W_dec.shape[0]

    def encode(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch latent"]:
        """Activations f ≥ 0."""
        before = x @ self.W_enc + self.b_enc
        if self.threshold is not None:
            return before.relu() * (before > self.threshold)
        assert self.k is not None
        top = before.topk(self.k, dim=-1)
        return torch.zeros_like(before).scatter(-1, top.indices, top.values.relu())

    def decode(self, f: Float[Tensor, "*batch latent"]) -> Float[Tensor, "*batch d_model"]:
        return f @ self.W_dec + self.b_dec

    def contribution(
        self, x: Float[Tensor, "row d_model"], latent: Int[Tensor, " row"]
    ) -> Float[Tensor, "row d_model"]:
        """f_w W_dec[w], what one latent a row writes; subtracting it from x ablates the latent."""
        own: Float[Tensor, "row 1"] = self.encode(x).gather(-1, latent[:, None])
        return own * self.W_dec[latent]


@dataclass(frozen=True)
class Fit:
    """How well an autoencoder describes a sample.

    Attributes:
        unexplained: mean squared error over the variance of x; 0 is perfect, 1 is the mean of x.
        dead: share of latents that are above 0 nowhere in the sample.
        active: mean number of latents above 0.
    """

    unexplained: float
    dead: float
    active: float


@torch.no_grad()
def fit(sae: SparseAutoencoder, x: Float[Tensor, "row d_model"]) -> Fit:
    """Measure an autoencoder on a sample, best one it was not trained on."""
    f = sae.encode(x)
    error = (x - sae.decode(f)).square().sum()
    variance = (x - x.mean(0)).square().sum()
    above = f > 0
    return Fit(
        float(error / variance),
        float((~above.any(0)).double().mean()),
        float(above.double().sum(-1).mean()),
    )


def train_topk(
    x: Float[Tensor, "row d_model"],
    n_latents: int,
    k: int,
    generator: torch.Generator,
    *,
    steps: int = 1_000,
    batch_size: int = 1_024,
    lr: float = 2e-3,
) -> SparseAutoencoder:
    """Train a TopK autoencoder on a fixed sample of residual streams.

    Adam on the squared error, decoder rows kept at length 1. A latent that has not been active for
    an epoch (at least 100 steps) is dead and learns from Gao et al.'s auxiliary loss: the dead ones
    with the largest pre-activations reconstruct what the others leave. The last fifth of the steps
    brings the learning rate linearly to 0.

    Args:
        x: rows, float32; the arrays that come back are in its units.
        n_latents, k: size of the dictionary, and how many of it a row uses.
        generator: source of initial weights and batches (CPU).

    Raises:
        ParameterError: sizes below 1, `k` above `n_latents`, or rows that do not vary.
    """
    require_int("n_latents", n_latents, 1)
    require_int("k", k, 1, n_latents)
    require_int("steps", steps, 1)
    require_int("batch_size", batch_size, 1)
    # One scale for every model: centred rows have mean squared length d_model.
    scale = float((x - x.mean(0)).square().mean().sqrt())
    if not scale > 0:
        raise ParameterError("x", scale, "rows that differ; this is their standard deviation")
    scaled = x / scale
    W_dec = torch.nn.functional.normalize(
        torch.randn(n_latents, x.shape[1], generator=generator, dtype=x.dtype), dim=-1
    )
    b_dec = scaled.mean(0)
    W_enc, b_enc = W_dec.T.clone(), -b_dec @ W_dec.T
    sae = SparseAutoencoder(W_enc, b_enc, W_dec, b_dec, k=k)
    optimizer = torch.optim.Adam([p.requires_grad_() for p in (W_enc, b_enc, W_dec, b_dec)], lr=lr)
    patience = max(100, len(x) // batch_size)
    last_active = torch.zeros(n_latents, dtype=torch.long)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (steps - step) / max(1, steps // 5))
        rows = torch.randint(len(x), (batch_size,), generator=generator)
        batch = scaled[rows]
        f = sae.encode(batch)
        last_active[(f > 0).any(0)] = step
        error = batch - sae.decode(f)
        loss = error.square().sum(-1).mean()
        dead = step - last_active >= patience
        if dead.any():
            loss = loss + _auxiliary(sae, batch, error.detach(), dead)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            W_dec /= W_dec.norm(dim=-1, keepdim=True)
    return SparseAutoencoder(
        W_enc.detach(), scale * b_enc.detach(), W_dec.detach(), scale * b_dec.detach(), k=k
    )


def _auxiliary(
    sae: SparseAutoencoder,
    x: Float[Tensor, "row d_model"],
    error: Float[Tensor, "row d_model"],
    dead: Bool[Tensor, " latent"],
) -> Float[Tensor, ""]:
    """Gao et al.'s AuxK: 1/32 of the error that dead latents make in reconstructing `error`."""
    k = min(int(dead.sum()), x.shape[1] // 2)
    before = (x @ sae.W_enc + sae.b_enc)[:, dead]
    top = before.topk(k, dim=-1)
    f = torch.zeros_like(before).scatter(-1, top.indices, top.values.relu())
    return (error - f @ sae.W_dec[dead]).square().sum(-1).mean() / 32


def read_gemma_scope(path: Path | str) -> SparseAutoencoder:
    """A JumpReLU autoencoder from a Gemma Scope parameter file (``params.npz``).

    Gemma Scope counts layers from 0 and its residual autoencoders read what a layer puts out: layer
    15 is our ``resid.16``.

    Args:
        path: an npz of `GEMMA_SCOPE_ARRAYS`; objects in it are refused, never unpickled.

    Raises:
        StoreError: no such file, not an npz, or an array is missing or of no number type.
        ParameterError: shapes that do not fit.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in GEMMA_SCOPE_ARRAYS if name not in file]
            if missing:
                raise StoreError(
                    f"{path} has no {', '.join(missing)}. A Gemma Scope file has the arrays "
                    f"{', '.join(GEMMA_SCOPE_ARRAYS)}; this one has {', '.join(file)}."
                )
            W_enc, b_enc, W_dec, b_dec, threshold = (
                torch.from_numpy(file[name].astype(np.float32)) for name in GEMMA_SCOPE_ARRAYS
            )
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise StoreError(f"Cannot read {path} as a Gemma Scope npz: {error}") from error
    return SparseAutoencoder(W_enc, b_enc, W_dec, b_dec, threshold=threshold)
