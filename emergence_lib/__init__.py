"""Re-tests of three papers on how transformers acquire capabilities: one call a test."""

from importlib.metadata import version

__version__ = version("emergence-companion")
