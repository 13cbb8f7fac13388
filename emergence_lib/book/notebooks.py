"""Notebooks as files: found by name, read from their Jupytext source, paired, parameterised."""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from emergence_lib.arguments import parse_value
from emergence_lib.errors import BuildError, ParameterError, UnknownNameError
from emergence_lib.files import whole_file
from emergence_lib.provenance import checkout

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
"""Written into every notebook, whatever the kernel is called on this machine."""


def book_root(root: Path | None = None) -> Path:
    """The checkout with the book's sources.

    Raises:
        BuildError: the package is installed without them.
    """
    found = root or checkout()
    if found is None or not (found / "_toc.yml").exists():
        raise BuildError(
            "The book's sources are not here: this package is installed without them. Clone the "
            "repository and run this in it."
        )
    return found.resolve()


def notebook_names(root: Path) -> list[str]:
    """Names (``02_sparsity``) of the notebooks in the checkout, sorted."""
    return sorted(path.stem for path in (root / "notebooks").glob("*.py"))


def source_path(root: Path, name: str) -> Path:
    """The Jupytext source of a notebook, which may be given as 02_sparsity, sparsity or a path.

    Raises:
        UnknownNameError: no such notebook; the nearest is named.
    """
    known = notebook_names(root)
    stem = Path(name).name.removesuffix(".ipynb").removesuffix(".py")
    for candidate in known:
        if stem in (candidate, candidate.partition("_")[2]):
            return root / "notebooks" / f"{candidate}.py"
    raise UnknownNameError("notebook", name, known)


def read_notebook(source: Path) -> NotebookNode:
    """The notebook of a Jupytext percent file: no outputs, the same ids and metadata every time.

    A cell's id is the hash of its text, so an edit changes the ids of the edited cells only.
    """
    config = tomllib.loads(source.with_name("jupytext.toml").read_text())
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata = nbformat.from_dict({"jupytext": config, "kernelspec": KERNELSPEC})
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    return notebook


def paired_text(notebook: NotebookNode) -> str:
    """The tracked ``.ipynb`` text of a notebook that `read_notebook` gave."""
    return nbformat.writes(notebook) + "\n"


def source_text(notebook: NotebookNode) -> str:
    """The Jupytext text of a notebook as `jupytext --sync` itself would write it."""
    return jupytext.writes(nbformat.reads(paired_text(notebook), as_version=4), "py:percent")


def sync(root: Path | None = None) -> list[Path]:
    """Write every notebook's ``.ipynb`` from its ``.py``; returns the files that changed.

    The ``.py`` is put into Jupytext's own form (order of metadata, header) where it is not.

    Raises:
        BuildError: an ``.ipynb`` was edited after its ``.py``, and would lose the edits.
    """
    root = book_root(root)
    changed: list[Path] = []
    for name in notebook_names(root):
        source = source_path(root, name)
        notebook = read_notebook(source)
        pair = source.with_suffix(".ipynb")
        texts = {pair: paired_text(notebook), source: source_text(notebook)}
        stale = [p for p in texts if not p.exists() or p.read_text("utf-8") != texts[p]]
        if pair in stale and pair.exists() and pair.stat().st_mtime > source.stat().st_mtime:
            raise BuildError(
                f"notebooks/{pair.name} was changed after {source.name}, its source. Take the "
                f"edits over with `jupytext --sync notebooks/{pair.name}`, or delete "
                f"notebooks/{pair.name} to discard them."
            )
        for path in stale:
            write_atomically(path, texts[path])
        changed += stale
    return changed


def write_atomically(path: Path, text: str) -> None:
    """Write under a temporary name, then rename: a reader sees the old text or the new."""
    with whole_file(path) as temporary:
        temporary.write_text(text, "utf-8")


def default_parameters(notebook: NotebookNode, name: str) -> dict[str, Any]:
    """Names and plain values assigned in the notebook's one cell tagged ``parameters``.

    Raises:
        BuildError: not exactly one such cell, or it assigns something else than plain literals.
    """
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise BuildError(
            f"{name} has {len(cells)} cells tagged 'parameters'; it needs exactly one, because "
            "parameters given from outside are put after it."
        )
    values = {}
    for statement in ast.parse(cells[0].source).body:
        try:
            if not isinstance(statement, ast.Assign):
                raise ValueError
            (target,) = statement.targets
            values[ast.unparse(target)] = ast.literal_eval(statement.value)
        except ValueError as error:
            raise BuildError(
                f"{name}: the cell tagged 'parameters' holds {ast.unparse(statement)!r}. Each of "
                "its lines must be: name = plain literal."
            ) from error
    return values


def typed_parameters(notebook: NotebookNode, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with text turned into the type of the notebook's own default.

    Raises:
        UnknownNameError: the notebook has no such parameter; the nearest is named.
        ParameterError: text that is no value of the default's type.
    """
    defaults = default_parameters(notebook, name)
    for parameter in given:
        if parameter not in defaults:
            raise UnknownNameError(f"parameter of the notebook {name}", parameter, defaults)
    return {
        parameter: _typed(parameter, value, defaults[parameter])
        for parameter, value in given.items()
    }


def _typed(parameter: str, value: Any, default: Any) -> Any:
    if not isinstance(value, str):
        return value
    if isinstance(default, (bool, int, float, str)):
        return parse_value(parameter, value, type(default))
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError) as error:
        allowed = "a Python literal, such as 12, 0.5, [1, 2], 'text' or None"
        raise ParameterError(parameter, value, allowed) from error
