"""Six sizes of one design, from 405 thousand to 151 million parameters: the models of paper B.

    size    layers  d_model  heads     parameters
    405k         2      128      4        404,992
    1m           4      144      4      1,012,320
    3.2m         4      256      8      3,175,936
    10.6m        6      384      6     10,672,128
    85m         12      768     12     85,105,152
    151m        12     1024     16    151,222,272

GPT-2's design (Radford et al. 2019): pre-norm, GELU, learned positions, tied embeddings, weights
drawn with standard deviation 0.02. The paper (arXiv 2602.15997; fact sheet B1) names the range and
that there are six sizes (v4). Two layers of 128 with 64 rows of embeddings and positions have its
404,992 parameters exactly, 12 of 768 and of 1024 its 85M and 151M; the sizes between are ours.
"""

from __future__ import annotations

from emergence_lib.errors import UnknownNameError
from emergence_lib.models.transformer import ModelConfig

ALGORITHMIC_SIZES: dict[str, tuple[int, int, int]] = {
    "405k": (2, 128, 4),
    "1m": (4, 144, 4),
    "3.2m": (4, 256, 8),
    "10.6m": (6, 384, 6),
    "85m": (12, 768, 12),
    "151m": (12, 1024, 16),
}
"""Size → n_layers, d_model, n_heads, smallest first."""

EMBEDDING_ROWS = 64
"""Tokens and positions together."""


def algorithmic_config(size: str, vocab_size: int) -> ModelConfig:
    """The shape of a size; what the vocabulary leaves of the 64 rows are positions.

    Raises:
        UnknownNameError: no such size.
    """
    if size not in ALGORITHMIC_SIZES:
        raise UnknownNameError("size", size, ALGORITHMIC_SIZES)
    n_layers, d_model, n_heads = ALGORITHMIC_SIZES[size]
    return ModelConfig(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        vocab_size=vocab_size,
        max_pos=EMBEDDING_ROWS - vocab_size,
        tied_embeddings=True,
        activation="gelu_tanh",
        init_std=0.02,
        embed_std=0.02,
    )
