"""What an executed notebook depends on, as one key: while it is the same, it need not run again.

The key covers the notebook's source, its parameters, the modules of this library that it imports
directly or through others (read from their syntax, so nothing is executed), the data files those
modules name, the recorded results it shows, and the versions of the packages underneath.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARY = "emergence_lib"


def notebook_key(source: Path, parameters: Mapping[str, Any], root: Path, results: Path) -> str:
    """The key of a notebook: 64 hex digits.

    Args:
        source: its Jupytext file.
        parameters: what is set from outside.
        root: the folder that holds the package `LIBRARY`.
        results: the results store's folder.
    """
    text = source.read_text("utf-8")
    files = library_files(text, root)
    sources = [text, *(f.read_text("utf-8") for f in files if f.suffix == ".py")]
    parts = {
        "source": text,
        "parameters": dict(parameters),
        "library": {str(f.relative_to(root)): _digest(f) for f in files},
        "results": recorded_results(text, results),
        "versions": package_versions(sources),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def library_files(source: str, root: Path) -> list[Path]:
    """Files of the library that `source` imports, directly or through others, sorted.

    Importing a.b.c also runs the ``__init__`` of a and of a.b. A data file counts when a module
    that is imported names it and it lies beside that module.
    """
    found: set[Path] = set()
    queue = list(_library_modules(source, ""))
    seen = set(queue)
    while queue:
        module = queue.pop()
        path = _module_file(module, root)
        if path is None:
            continue
        found.add(path)
        text = path.read_text("utf-8")
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found.update(_data_files(text, path.parent))
        for imported in _library_modules(text, package):
            if imported not in seen:
                seen.add(imported)
                queue.append(imported)
    return sorted(found)


def recorded_results(source: str, results: Path) -> dict[str, str]:
    """Digests of the recorded experiments that `source` names, by file.

    An experiment counts as named when the notebook's code imports it or has its name as a string.
    Loose points are addressed by content, so their file names say enough.
    """
    names = _names(source)
    digests = {}
    for path in sorted(results.glob("*.parquet")):
        if path.stem in names:
            digests[path.name] = _digest(path)
    for folder in sorted((results / "points").glob("*")):
        if folder.name in names:
            points = ",".join(sorted(p.name for p in folder.glob("*.json")))
            digests[f"points/{folder.name}"] = hashlib.sha256(points.encode()).hexdigest()
    return digests


def package_versions(sources: list[str]) -> dict[str, str]:
    """Versions of Python and of the packages outside this library that `sources` import."""
    versions = {"python": platform.python_version()}
    tops = {name.partition(".")[0] for text in sources for name in _imports(text, "")}
    for top in tops - {LIBRARY, ""} - sys.stdlib_module_names:
        for distribution in _distributions().get(top, []):
            versions[distribution] = metadata.version(distribution)
    return versions


@cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _library_modules(source: str, package: str) -> Iterator[str]:
    """Modules of the library named in imports, each with the packages around it."""
    for name in _imports(source, package):
        parts = name.split(".")
        if parts[0] == LIBRARY:
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


def _imports(source: str, package: str) -> Iterator[str]:
    """Every dotted name that an import may mean: ``from a import b`` gives a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                above = parents[: len(parents) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _module_file(module: str, root: Path) -> Path | None:
    """The file of a module; None where the name is a function or class inside one."""
    path = root.joinpath(*module.split("."))
    for candidate in (path / "__init__.py", path.with_suffix(".py")):
        if candidate.exists():
            return candidate
    return None


def _data_files(source: str, folder: Path) -> Iterator[Path]:
    for text in _strings(source):
        if re.fullmatch(r"[\w-]+\.[a-z]+", text) and (folder / text).is_file():
            yield folder / text


def _names(source: str) -> set[str]:
    """Names that may mean an experiment: parts of imports and whole string literals."""
    return {part for name in _imports(source, "") for part in name.split(".")} | _strings(source)


def _strings(source: str) -> set[str]:
    constants = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    return {value for value in constants if isinstance(value, str)}
