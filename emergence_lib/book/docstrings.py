"""Sphinx extension: docstrings are plain text with `code`, not reStructuredText.

So ``**changes`` or ``loss_mask[:, t]`` in a docstring is shown as it stands, a name in single
backticks is code, and an indented block (a drawing, an example) keeps its shape. The section
headings of Google style (Args, Attributes, Raises, …) are left to napoleon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_SECTION = re.compile(r"(Args|Attributes|Examples?|Notes?|Raises|Returns|Yields):\s*$")
_NAMED = re.compile(r" {4}(\w+): (.*)")
_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_MARKUP = re.compile(r"([*|]|(?<=\w)_(?!\w))")


def plain_to_rst(lines: Sequence[str]) -> list[str]:
    """A docstring's lines as reStructuredText that shows what the docstring says."""
    return list(_convert(lines))


def _convert(lines: Sequence[str]) -> Iterator[str]:
    section, in_block, last = "", False, ""
    for line in lines:
        indented = line.startswith((" ", "\t"))
        if line and not indented:
            heading = _SECTION.match(line)
            section, in_block = heading[1] if heading else "", False
        elif line and not section and not in_block and not last:
            in_block = True
            yield from (".. code-block:: text", "")
        if in_block and indented:
            yield line
        elif indented and section == "Returns" and (named := _NAMED.match(line)):
            # With a colon napoleon would take the first name for a type, the rest for a sentence.
            yield f"    | ``{named[1]}`` – {_inline(named[2])}"
        else:
            yield _inline(line)
        last = line


def _inline(line: str) -> str:
    parts = _CODE.split(line)  # text, code, text, …
    for i, part in enumerate(parts):
        parts[i] = f"``{part.strip('`')}``" if i % 2 else _MARKUP.sub(r"\\\1", part)
        if i and not i % 2 and part[:1].isalnum():
            parts[i] = rf"\ {parts[i]}"  # code ends at a word's end only: `Executor`s
    return "".join(parts)


def _process(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    if hasattr(obj, "_fields"):  # autodoc lists a NamedTuple's fields itself
        lines[:] = ["Args:" if line == "Attributes:" else line for line in lines]
    lines[:] = plain_to_rst(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx; napoleon listens at priority 500 and must come after."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
