"""Every docstring can be shown: said in seconds here, and at the end of a build of the book."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import pytest
from docutils.core import publish_doctree
from sphinx.ext.napoleon import Config, GoogleDocstring

import emergence_lib
from emergence_lib.book.docstrings import plain_to_rst

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(emergence_lib.__path__, "emergence_lib.")
    if not module.name.endswith("__main__")
)
# Roles and directives that Sphinx has and docutils alone does not know.
SPHINX_ONLY = re.compile(
    r"Unknown (interpreted text role|directive type)|No (role|directive) entry"
)
CONFIG = Config(napoleon_use_param=True, napoleon_use_rtype=True)


def docstrings(module_name: str) -> Iterator[tuple[str, str]]:
    """Name and text of the docstrings of a module, its own classes and functions and their own."""
    module = importlib.import_module(module_name)
    todo = [(module_name, module)]
    while todo:
        name, thing = todo.pop()
        if text := inspect.getdoc(thing):
            yield name, text
        if inspect.ismodule(thing) or inspect.isclass(thing):
            todo += [
                (f"{name}.{key}", value)
                for key, value in vars(thing).items()
                if (inspect.isclass(value) or inspect.isfunction(value))
                and value.__module__ == module_name
                and value.__qualname__.count(".") == int(inspect.isclass(thing))
            ]


def complaints(text: str) -> list[str]:
    """What docutils says of a docstring that went through the steps of the book."""
    source = str(GoogleDocstring(plain_to_rst(text.splitlines()), CONFIG))
    tree = publish_doctree(
        source, settings_overrides={"report_level": 2, "halt_level": 5, "warning_stream": False}
    )
    said = [message.astext() for message in tree.findall(lambda n: n.tagname == "system_message")]
    return [message for message in said if not SPHINX_ONLY.search(message)]


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_have_no_markup_error(module):
    found = {name: complaints(text) for name, text in docstrings(module)}
    assert {name: said for name, said in found.items() if said} == {}


def test_what_fails_a_build_fails_here_and_plain_text_does_not():
    assert complaints("One line.\n\nLabels:\n    one: a line\n        deeper\n    two: another")
    assert complaints("One line.\n\nArgs:\n    state_size: S.")  # read as an item of a list
    assert not complaints("The `Executor`s of *site, `loss_mask[:, t]` and **changes.")
