"""The documents of PocketPile, before tokens: what every Python has, and generated stories.

    code    files of the standard library, until there are 5 million characters     name: their path
    prose   docstrings of at least 200 characters in the other files                name: the path
            the help topics of `pydoc_data`                                         name: topics/…
    story   `stories.story`, 6,500 times                                            name: story/…

Code and docstrings come from different files, so that no text is in the corpus twice. Files are
taken in the order of their names' checksums: a new module in the next Python changes little. The
sources and their amounts are our choice. On CPython 3.11.7 there are 3,795,551 tokens in 6,936
documents: 43 % code, 7 % prose, 49 % story. Held out are 3.7 % of the code, 11 % of the prose
(whole files and topics, so not exactly one in twenty) and 5.1 % of the stories.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from emergence_lib.errors import EmergenceError
from emergence_lib.tasks.stories import Word, story

DOMAINS = ("code", "prose", "story")
N_STORIES = 6_500
CODE_CHARACTERS = 5_000_000
SHORTEST_DOCSTRING = 200
SEED = 2101
"""Of the stories, and of the order of all documents in the corpus."""

# Tests, tables of data, and what Linux distributions leave out or Python 3.12 and 3.13 removed.
_LEFT_OUT = """
test tests idle_test __pycache__ site-packages dist-packages encodings pydoc_data idlelib
tkinter turtledemo lib2to3 distutils ensurepip msilib lib-dynload entities.py
"""


@dataclass(frozen=True)
class Document:
    """A text of the corpus.

    Attributes:
        domain: one of `DOMAINS`.
        name: a file of the standard library, a help topic, or the story's number; decides the
            split.
        text: without the end-of-text token.
        words: the analysis, for stories only.
    """

    domain: str
    name: str
    text: str
    words: tuple[Word, ...] = ()

    @property
    def held_out(self) -> bool:
        """One name in twenty, so a file is held out in every version of Python or in none."""
        return zlib.crc32(self.name.encode()) % 20 == 0


def documents() -> Iterator[Document]:
    """Every document in the order of the sources, before shuffling.

    Raises:
        EmergenceError: this Python comes without the sources of its standard library.
    """
    sources = _standard_library()
    used = 0
    for name, text in sources.items():
        if used < CODE_CHARACTERS:
            used += len(text)
            yield Document("code", name, text)
        elif long := [d for d in _docstrings(text) if len(d) >= SHORTEST_DOCSTRING]:
            yield Document("prose", name, "\n\n".join(long))
    for topic, text in sorted(_topics().items()):
        yield Document("prose", f"topics/{topic}", text)
    generator = torch.Generator().manual_seed(SEED)
    for i in range(N_STORIES):
        told = story(generator)
        yield Document("story", f"story/{i:05d}", told.text, told.words)


def _standard_library() -> dict[str, str]:
    """Source files by name, in an order (of checksums) that new modules barely change."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = set(_LEFT_OUT.split())
    names = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if not left_out & set(path.relative_to(root).parts)
        and not path.name.startswith("_sysconfigdata")  # generated when Python was compiled
    ]
    names.sort(key=lambda name: (zlib.crc32(name.encode()), name))
    found = {name: (root / name).read_text(encoding="utf-8", errors="replace") for name in names}
    if sum(map(len, found.values())) < CODE_CHARACTERS:
        raise EmergenceError(
            f"The standard library's source files are not below {root}, and PocketPile is made "
            "of them. Install Python with its sources (python.org, pyenv, conda, uv, or Debian's "
            "libpython3-stdlib)."
        )
    return {name: text for name, text in found.items() if text.strip()}


def _docstrings(source: str) -> list[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = (
        ast.get_docstring(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented)
    )
    return [text for text in found if text]


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics  # half a megabyte that only building needs

    return topics


def sources_digest() -> str:
    """Digest of the standard library's files and help topics, hexadecimal."""
    sources = hashlib.sha256()
    for texts in (_standard_library(), _topics()):
        for name, text in sorted(texts.items()):
            sources.update(f"{name}\0{text}\0".encode())
    return sources.hexdigest()
