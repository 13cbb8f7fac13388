"""Models: one transformer, its token mixers, and the ways in from and out to other libraries."""

from emergence_lib.models.huggingface import to_huggingface
from emergence_lib.models.transformer import ModelConfig, Transformer
from emergence_lib.models.transformer_lens_view import bridge

__all__ = ["ModelConfig", "Transformer", "bridge", "to_huggingface"]
