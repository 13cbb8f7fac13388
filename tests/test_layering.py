"""The architecture, read from the syntax of every module: who may import whom, and how long."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[1] / "emergence_lib"
MODULES = sorted(LIBRARY.rglob("*.py"))

# From the bottom up. A room imports only rooms below its own line.
LAYERS = (
    {"errors", "files"},
    {"arguments", "provenance", "executors"},
    {"tasks", "models"},
    {"training"},
    {"analysis"},
    {"experiments"},
    {"store"},
    {"sweep", "recorded"},
    {"single_run", "status"},
    {"claims"},
    {"plotting"},
    {"book"},
    {"terminal"},
    {"cli"},
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
MAX_LINES = 400


def imports(source: str, package: str) -> Iterator[str]:
    """Dotted names that a module of `package` imports, wherever in its text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def rooms(source: str, package: str) -> set[str]:
    """Rooms of the library among the imports. Functions and classes are not rooms."""
    names = (name.split(".") for name in imports(source, package))
    return {n[1] for n in names if n[0] == LIBRARY.name and len(n) > 1 and n[1] in RANK}


def room_of(path: Path) -> str:
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def package_of(path: Path) -> str:
    return ".".join((LIBRARY.name, *path.relative_to(LIBRARY).parts[:-1]))


def forbidden(room: str, imported: set[str]) -> set[str]:
    return {other for other in imported if other != room and RANK[other] >= RANK[room]}


def names(path: Path) -> str:
    return str(path.relative_to(LIBRARY))


each_module = pytest.mark.parametrize("path", MODULES, ids=names)


def test_every_room_has_a_layer():
    assert {room_of(path) for path in MODULES} - {"__init__"} <= set(RANK)


@each_module
def test_imports_point_downwards(path):
    if room_of(path) == "__init__":
        assert not rooms(path.read_text(), LIBRARY.name), "importing the package must stay cheap"
        return
    wrong = forbidden(room_of(path), rooms(path.read_text(), package_of(path)))
    assert not wrong, f"{names(path)} imports {sorted(wrong)}, which lie above or beside it"


@pytest.mark.parametrize(
    ("source", "package", "expected"),
    [
        ("from emergence_lib.store import Store", "emergence_lib", {"store"}),
        ("from emergence_lib import book", "emergence_lib", {"book"}),
        ("import emergence_lib.tasks.base as b", "emergence_lib", {"tasks"}),
        ("def f():\n    from emergence_lib.cli import main", "emergence_lib", {"cli"}),
        ("from ..training import train", "emergence_lib.tasks", {"training"}),
        ("from .base import Task", "emergence_lib.tasks", {"tasks"}),
        ("from . import errors", "emergence_lib", {"errors"}),
        ("import torch\nfrom emergence_lib import __version__", "emergence_lib", set()),
    ],
)
def test_the_checker_sees_every_form_of_import(source, package, expected):
    assert rooms(source, package) == expected


def test_the_checker_refuses_up_and_sideways():
    assert forbidden("analysis", {"experiments", "training", "analysis"}) == {"experiments"}
    assert forbidden("tasks", {"models", "errors"}) == {"models"}
    assert forbidden("models", {"tasks"}) == {"tasks"}


@each_module
def test_a_module_is_short_and_says_what_it_is(path):
    source = path.read_text()
    assert len(source.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(source)), "a module opens with a docstring"


def test_transformer_lens_is_imported_in_one_module():
    users = {
        names(path)
        for path in MODULES
        if any(
            name.split(".")[0] == "transformer_lens"
            for name in imports(path.read_text(), package_of(path))
        )
    }
    assert len(users) <= 1, users


@each_module
def test_nothing_is_unpickled(path):
    source = path.read_text()
    assert not {"pickle", "torch.load", "joblib"} & set(imports(source, package_of(path)))
    assert not re.search(r"\btorch\.load\(|\.read_pickle\(|allow_pickle=True", source)


def test_weights_of_others_are_read_in_one_place_and_never_as_objects():
    """`transformers` falls back on pickled weights, which some public checkpoints only have."""
    calls = [
        (names(path), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords})
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".from_pretrained")
    ]
    assert [(path, given.get("weights_only")) for path, given in calls] == [
        ("models/pythia.py", "True")
    ]


@each_module
def test_only_the_book_and_the_command_line_know_notebooks(path):
    if room_of(path) not in ("book", "cli"):
        assert not re.search(r"\b\d\d_[a-z]+", path.read_text()), "names a notebook's file"
