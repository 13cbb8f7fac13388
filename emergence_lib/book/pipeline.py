"""From sources to a checked book in ``_build/html``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from emergence_lib.book import check
from emergence_lib.book.execute import execute_changed
from emergence_lib.book.notebooks import book_root, sync
from emergence_lib.book.stage import read_config, toc_pages, write_stage
from emergence_lib.errors import BuildError
from emergence_lib.store import default_root


def html_folder(root: Path | None = None) -> Path:
    """Where the built book is.

    Raises:
        BuildError: the package is installed without the book's sources.
    """
    return book_root(root) / "_build" / "html"


def build(profile: str = "quick", force: bool = False, root: Path | None = None) -> Path:
    """Execute the notebooks that changed, make the pages, check them; returns ``_build/html``.

    Prints what it did and how long each part took. A book that fails is not put in the place of
    the last good one.

    Args:
        profile: what the notebooks run live.
        force: execute every notebook, changed or not.
        root: the checkout; None is the one this package runs from.

    Raises:
        BuildError: a failing cell, a warning, a missing page, a broken link, a leftover; all that
            were found are named.
    """
    root = book_root(root)
    folder = root / "_build"
    folder.mkdir(exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _build(root, folder, profile, force)
    except Timeout:
        raise BuildError(f"Another build is running in {folder}. Wait for it to end.") from None


def _build(root: Path, folder: Path, profile: str, force: bool) -> Path:
    started = time.monotonic()
    pages = toc_pages(root)
    names = [page.removeprefix("notebooks/") for page in pages if page.startswith("notebooks/")]
    for path in sync(root):
        _say(f"{path.relative_to(root)}: brought in line with its pair")
    executions = execute_changed(names, profile, root, default_root(), force, _say)
    executed = time.monotonic()
    write_stage(root, folder / "stage", executions)
    fresh = _jupyter_book(root, folder)
    made = time.monotonic()
    _say(f"{len(pages)} pages: made in {made - executed:.1f} s")
    found = check.problems(fresh, pages, read_config(root), root)
    if found:
        raise BuildError("\n".join(found))
    checked = time.monotonic()
    _say(f"links, images and leftovers: checked in {checked - made:.1f} s")
    _replace(folder / "html", fresh)
    ran = sum(not e.reused for e in executions)
    _say(
        f"Done in {checked - started:.1f} s: {ran} of {len(executions)} notebooks executed "
        f"({executed - started:.1f} s).\nThe book: {folder / 'html' / 'index.html'}"
    )
    return folder / "html"


def _jupyter_book(root: Path, folder: Path) -> Path:
    """Make the pages; every one is written, those whose sources changed are read.

    What was read is kept from one good build to the next only: after a warning the next build
    reads everything, else the warning would not come again and the book would pass.

    Raises:
        BuildError: with every warning and error that jupyter-book printed.
    """
    stage, output = folder / "stage", folder / "pages"
    shutil.rmtree(output / "_build" / "html", ignore_errors=True)
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = "from jupyter_book.cli.main import main; main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            start,
            "build",
            stage,
            "--path-output",
            output,
            "-W",
            "--keep-going",
        ],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    printed = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    log = folder / "jupyter-book.log"
    log.write_text(printed, "utf-8")
    lines = printed.replace(f"{stage}/", "").splitlines()
    marks = ("WARNING:", "ERROR:", "CRITICAL:", "Validation errors")
    bad = [line for line in lines if any(mark in line for mark in marks)]
    if done.returncode or bad:
        shutil.rmtree(output)
        raise BuildError("\n".join([*(bad or lines[-15:]), f"All it printed: {log}"]))
    return output / "_build" / "html"


def _replace(target: Path, fresh: Path) -> None:
    old = target.with_name("html.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(fresh, target)
    shutil.rmtree(old, ignore_errors=True)


def _say(line: str) -> None:
    print(line, flush=True)
