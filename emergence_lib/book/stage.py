"""The book as jupyter-book is to read it: pages, executed notebooks and generated tables.

The stage mirrors the checkout (``book/…``, ``notebooks/…``): jupyter-book takes a page's path on
the stage for its path in the repository when it makes the launch buttons.

A page asks for generated text with a line of its own:

    <!-- generated: claims -->
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import yaml

from emergence_lib.book.execute import Execution, executed_path
from emergence_lib.book.explorer import (
    DATA_FILE,
    explorer_markup,
    explorer_rows,
    explorer_script,
)
from emergence_lib.claims import PAPERS, Entry, ledger, ledger_markdown
from emergence_lib.errors import BuildError, UnknownNameError
from emergence_lib.experiments import EXPERIMENTS
from emergence_lib.experiments.base import STATUSES
from emergence_lib.status import profile_status
from emergence_lib.store import Store

_PLACEHOLDER = re.compile(r"^<!-- generated: (\S+) -->$", re.MULTILINE)
_CITATION = re.compile(r"\[[^\]]+\]\(\.\./book/references\.md#([\w:-]+)\)")
_LINK = re.compile(r"\]\((?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?\)")


def read_config(root: Path) -> dict[str, Any]:
    """``_config.yml`` of the checkout."""
    return yaml.safe_load((root / "_config.yml").read_text("utf-8"))


def toc_pages(root: Path) -> list[str]:
    """Pages of ``_toc.yml`` in order, as paths without suffix.

    Raises:
        BuildError: a page has no source, or a notebook or page is in no table of contents.
    """

    def files(node: Any) -> list[str]:
        if isinstance(node, list):
            return [page for item in node for page in files(item)]
        if isinstance(node, dict):
            own = [node[k] for k in ("root", "file") if k in node]
            return own + [page for value in node.values() for page in files(value)]
        return []

    pages = files(yaml.safe_load((root / "_toc.yml").read_text("utf-8")))
    sources = {
        str(path.relative_to(root).with_suffix(""))
        for pattern in ("book/*.md", "notebooks/*.py")
        for path in root.glob(pattern)
    }
    problems = [
        f"_toc.yml names {page}, which has no source" for page in pages if page not in sources
    ]
    problems += [f"{page} is not in _toc.yml" for page in sorted(sources - set(pages))]
    if problems:
        raise BuildError("\n".join(problems))
    return pages


def write_stage(root: Path, stage: Path, executions: Sequence[Execution]) -> None:
    """Bring the stage up to date; files that would not change keep their time stamps.

    Raises:
        BuildError: an executed notebook holds what a page must not show.
        UnknownNameError: a page asks for generated text that does not exist.
    """
    files: dict[Path, bytes] = {}
    for path in (root / "_config.yml", root / "_toc.yml", *(root / "book").rglob("*")):
        relative = path.relative_to(root)
        if path.is_file() and relative.parts[:2] != ("book", "results"):
            files[relative] = path.read_bytes()
    notebooks = {e.name: nbformat.read(executed_path(root, e.name), 4) for e in executions}
    problems = [
        p for name, notebook in notebooks.items() for p in notebook_problems(name, notebook)
    ]
    if problems:
        raise BuildError("\n".join(problems))
    pages = {Path("notebooks", f"{name}.ipynb"): notebook for name, notebook in notebooks.items()}
    explored = explorer_rows()
    files[Path("book", "_static", DATA_FILE)] = explorer_script(explored).encode()
    links = _Links(root, {*files, *pages})
    for path, notebook in pages.items():
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                text = _CITATION.sub(r"{cite:t}`\1`", cell.source)
                cell.source = links.to_repository(text, path)
        files[path] = nbformat.writes(notebook).encode()
    entries = ledger()
    generated: dict[str, Callable[[], str]] = {
        "claims": lambda: ledger_markdown(entries),
        "glance": lambda: glance_table(entries),
        "executions": lambda: executions_table(executions),
        "coverage": coverage_table,
        "api": lambda: api_pages(root),
        "explorer": lambda: explorer_markup(explored),
    }
    for path in [path for path in files if path.suffix == ".md"]:
        text = links.to_repository(files[path].decode(), path)
        files[path] = _PLACEHOLDER.sub(lambda m: _generate(m[1], generated), text).encode()
    _write_changed(stage, files)


def _write_changed(stage: Path, files: Mapping[Path, bytes]) -> None:
    """Sphinx reads a page again when its file is newer, so unchanged ones are left alone."""
    for path in stage.rglob("*"):
        if path.is_file() and path.relative_to(stage) not in files:
            path.unlink()
    for relative, content in files.items():
        path = stage / relative
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def notebook_problems(name: str, notebook: nbformat.NotebookNode) -> list[str]:
    """Outputs that must not reach a page: progress bars, widgets, anything written to stderr."""
    problems = []
    if "widgets" in notebook.metadata:
        problems.append(f"{name}: metadata of interactive widgets; turn progress bars off")
    for number, cell in enumerate(notebook.cells, 1):
        outputs = cell.get("outputs", [])
        if "figure" in cell.metadata.get("mystnb", {}) and len(outputs) != 1:
            problems.append(
                f"{name}, cell {number} has a figure's label and {len(outputs)} outputs; the "
                "label needs a cell with one output, the figure"
            )
        for output in outputs:
            if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
                problems.append(f"{name}, cell {number}: an interactive widget")
            if output.get("name") == "stderr":
                text = output.text.strip()[-300:]
                problems.append(f"{name}, cell {number} wrote to standard error: {text}")
    return problems


def glance_table(entries: Sequence[Entry]) -> str:
    """Claims by verdict and paper, and what was found on those that are tested."""
    counts = Counter((e.verdict.status, e.claim.paper) for e in entries)
    lines = [f"| Verdict | {' | '.join(f'Paper {p}' for p in PAPERS)} |"]
    lines.append(f"|:--|{'--:|' * len(PAPERS)}")
    for status in STATUSES:
        lines.append(f"| {status} | {' | '.join(str(counts[status, p]) for p in PAPERS)} |")
    tested = [e for e in entries if e.verdict.status != STATUSES[-1]]
    found = [f"- **{e.claim.id}** {e.claim.statement} *{e.verdict.status}*" for e in tested]
    return "\n".join([*lines, "", *found])


def executions_table(executions: Sequence[Execution]) -> str:
    """The table of the status page: a notebook, its time, its memory, whether it ran."""
    rows = [
        f"| [{e.name}](../notebooks/{e.name}.ipynb) | {e.seconds:.1f} | {e.peak_mb:.0f} | {e.date} "
        f"| {'reused, nothing it depends on changed' if e.reused else 'executed'} |"
        for e in executions
    ]
    head = ["| Notebook | Seconds | Peak memory, MB | Executed on | In this build |"]
    return "\n".join([*head, "|:--|--:|--:|:--|:--|", *rows])


def coverage_table() -> str:
    """Recorded and missing points of every experiment and profile."""
    store = Store()
    rows = []
    for experiment in EXPERIMENTS.values():
        for profile in experiment.profiles:
            status = profile_status(experiment, profile, store)
            rows.append(
                f"| `{experiment.name}` | `{profile}` | {status.recorded} of {status.total} "
                f"| {status.seconds_spent / 3600:.2f} | {status.seconds_left / 3600:.2f} "
                f"| {f'`{status.command}`' if status.command else ''} |"
            )
    head = ["| Experiment | Profile | Points | Core hours spent | Estimated left | Fill the gap |"]
    return "\n".join([*head, "|:--|:--|--:|--:|--:|:--|", *rows])


def api_pages(root: Path) -> str:
    """Documentation of every public module in the checkout, from its docstrings."""
    lines = []
    package = root / "emergence_lib"
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        if path == package / "__init__.py" or any(re.match("_[^_]", p) for p in parts):
            continue
        module = ".".join(parts[:-1] if is_package else parts)
        level = "##" if module.count(".") == 1 else "###"
        options = [] if is_package else ["   :members:"]
        lines += [f"{level} {module}", "", "```{eval-rst}", f".. automodule:: {module}", *options]
        lines += ["```", ""]
    return "\n".join(lines)


def _generate(name: str, generated: dict[str, Callable[[], str]]) -> str:
    if name not in generated:
        raise UnknownNameError("generated text", name, generated)
    return generated[name]()


class _Links:
    """Relative links of pages, where the stage has fewer files than the checkout."""

    def __init__(self, root: Path, staged: set[Path]) -> None:
        repository = read_config(root)["repository"]
        self.blob = f"{repository['url']}/blob/{repository['branch']}"
        self.root, self.staged = root, staged

    def to_repository(self, text: str, page: Path) -> str:
        """Point links to files of the checkout that are no page (code, say) to the repository."""

        def replace(match: re.Match[str]) -> str:
            target = Path(os.path.normpath(page.parent / match[1]))
            if target in self.staged or not (self.root / target).exists():
                return match[0]
            return f"]({self.blob}/{target.as_posix()}{match[2] or ''})"

        return _LINK.sub(replace, text)
