"""The book: notebooks are executed where something they depend on changed, then the pages made.

    notebooks/NN_name.py ─► paired NN_name.ipynb (no outputs, tracked: what Colab and Binder open)
            │ key of everything it depends on
            ▼
    _build/executed/NN_name.ipynb ─┐
    book/*.md, _toc.yml ───────────┴─► _build/stage ─► jupyter-book ─► checks ─► _build/html

Nothing under ``_build`` is tracked, and ``_build/html`` is only ever replaced by a book that passed
every check.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emergence_lib.book.execute import run_notebook
    from emergence_lib.book.notebooks import sync
    from emergence_lib.book.pipeline import build, html_folder

__all__ = ["build", "html_folder", "run_notebook", "sync"]

_HOMES = {
    "build": "pipeline",
    "html_folder": "pipeline",
    "run_notebook": "execute",
    "sync": "notebooks",
}


def __getattr__(name: str) -> Any:
    """Import on first use: Sphinx loads `docstrings` from this package, and torch takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
