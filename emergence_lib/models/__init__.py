"""Models: one transformer, its token mixers, and the ways in from other libraries."""

from emergence_lib.models.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
