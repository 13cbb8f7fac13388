"""Models with another token mixer and as many parameters: what a comparison of mixers compares.

A mixer has more or fewer parameters than attention. What it has more is taken from the hidden units
of the MLPs behind it and what it has fewer is given to them, so that the whole models agree to one
hidden unit a layer. An MLP-Mixer's matrices grow with the square of the length: where they would
leave the MLP less than `d_model` units, it gets half as many of them, and half again.

Source: paper A, section on architectures, compares mixers and says nothing of their sizes (fact
sheet A5); the matching is our choice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from emergence_lib.errors import ParameterError
from emergence_lib.models import ModelConfig
from emergence_lib.models.transformer import Transformer


def n_parameters(config: ModelConfig) -> int:
    """Parameters of a whole model, embeddings included."""
    return sum(parameter.numel() for parameter in Transformer(config).parameters())


@lru_cache(maxsize=256)
def matched_config(config: ModelConfig, mixer: str) -> ModelConfig:
    """`config` with `mixer` in every layer, and `d_mlp` such that its parameters stay as many.

    Args:
        config: the model to match, usually with attention.
        mixer: a name of `models.mixers.MIXERS`.

    Raises:
        ParameterError: the mixer alone has more parameters than `config` with its MLPs.
        UnknownNameError: no such mixer.
    """
    wanted = n_parameters(config)
    n_heads = config.n_heads
    while True:
        d_mlp = _matched_d_mlp(config, mixer, n_heads, wanted)
        if d_mlp >= config.d_model or mixer != "mlp_mixer" or n_heads % 2:
            break
        n_heads //= 2
    if d_mlp < 1:
        raise ParameterError(
            "mixer",
            mixer,
            "one with fewer parameters than attention and MLP together",
            "Give it a larger d_mlp, or a shorter sequence.",
        )
    return _with(config, mixer, n_heads, d_mlp)


def _matched_d_mlp(config: ModelConfig, mixer: str, n_heads: int, wanted: int) -> int:
    """Hidden units that bring the total nearest to `wanted`; it is linear in them."""
    one, two = (n_parameters(_with(config, mixer, n_heads, d_mlp)) for d_mlp in (1, 2))
    return 1 + round((wanted - one) / (two - one))


def _with(config: ModelConfig, mixer: str, n_heads: int, d_mlp: int) -> ModelConfig:
    if n_heads == config.n_heads:
        return replace(config, mixer=mixer, d_mlp=d_mlp)
    return replace(config, mixer=mixer, d_mlp=d_mlp, n_heads=n_heads, d_head=None)
