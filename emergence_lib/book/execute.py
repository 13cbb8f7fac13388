"""Executing notebooks: each alone in a fresh kernel with one thread, by papermill."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbformat import NotebookNode

from emergence_lib.book.dependencies import notebook_key
from emergence_lib.book.notebooks import (
    KERNELSPEC,
    book_root,
    default_parameters,
    paired_text,
    read_notebook,
    source_path,
    typed_parameters,
    write_atomically,
)
from emergence_lib.errors import BuildError

AT_ONCE = 2
"""Notebooks executed at the same time."""

CELL_SECONDS = 600
"""A cell that runs longer is stopped; long work belongs in a sweep."""

KERNEL_START_SECONDS = 60

_KERNEL_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else a warning about frozen modules at every start
}


@dataclass(frozen=True)
class Execution:
    """How a notebook's executed copy came about.

    Attributes:
        name: of the notebook.
        key: of everything it depends on.
        parameters: what was set from outside.
        seconds: wall time including the kernel's start.
        peak_mb: highest resident memory of its kernel and the processes it started, in MB.
        date: day of the execution, YYYY-MM-DD.
        reused: whether this build took it over unchanged; not stored.
    """

    name: str
    key: str
    parameters: dict[str, Any]
    seconds: float
    peak_mb: float
    date: str
    reused: bool = False


def execute_changed(
    names: Sequence[str],
    profile: str,
    root: Path,
    results: Path,
    force: bool,
    say: Callable[[str], None],
) -> list[Execution]:
    """Execute the notebooks whose key is not that of their executed copy; the rest is reused.

    Args:
        profile: set in each notebook whose default profile is another.
        force: execute all of them.

    Raises:
        BuildError: cells that failed, ran too long or killed their kernel; all are named.
    """
    executions: dict[str, Execution] = {}
    todo: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in names:
        source = source_path(root, name)
        default = default_parameters(read_notebook(source), name).get("profile", profile)
        parameters = {} if default == profile else {"profile": profile}
        key = notebook_key(source, parameters, root, results)
        last = _last_execution(root, name)
        if last is not None and last.key == key and not force:
            executions[name] = replace(last, reused=True)
            say(f"{name}: unchanged, reused")
        else:
            todo[name] = (key, parameters)
    failures = []
    with ProcessPoolExecutor(
        AT_ONCE, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        jobs = {
            pool.submit(_execute_for_book, name, key, parameters, root): name
            for name, (key, parameters) in todo.items()
        }
        for job in as_completed(jobs):
            name = jobs[job]
            try:
                executions[name] = job.result()
            except BuildError as error:
                failures.append(str(error))
            except BrokenProcessPool:
                failures.append(f"{name}: the process that runs it was killed. Is memory short?")
            else:
                done = executions[name]
                say(f"{name}: executed in {done.seconds:.1f} s, peak {done.peak_mb:.0f} MB")
    if failures:
        raise BuildError("\n".join(failures))
    return [executions[name] for name in names]


def executed_path(root: Path, name: str) -> Path:
    """Where the executed copy of a notebook is kept between builds."""
    return root / "_build" / "executed" / f"{name}.ipynb"


def run_notebook(
    name: str,
    parameters: Mapping[str, Any],
    output: Path | None = None,
    root: Path | None = None,
) -> Path:
    """Execute one notebook with parameters of one's own; returns the executed copy's path.

    Args:
        name: 02_sparsity, sparsity or a path to either file of the pair.
        parameters: values, or text that is read as the type of the notebook's default.
        output: where the executed copy goes, an .ipynb file or a folder; None is ``_build/runs``.
        root: the checkout; None is the one this package runs from.

    Raises:
        UnknownNameError: no such notebook or parameter; the nearest is named.
        ParameterError: a value of the wrong type.
        BuildError: a cell failed; the message has the cell and its error.
    """
    root = book_root(root)
    source = source_path(root, name)
    typed = typed_parameters(read_notebook(source), source.stem, parameters)
    target = output or root / "_build" / "runs"
    if target.suffix != ".ipynb":
        target /= f"{source.stem}.ipynb"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        notebook, _, _ = pool.submit(_execute, source.stem, typed, root).result()
    write_atomically(target, paired_text(notebook))
    return target


def _last_execution(root: Path, name: str) -> Execution | None:
    """The record beside an executed copy; None where either is missing or unreadable."""
    path = executed_path(root, name)
    with suppress(OSError, ValueError, TypeError):
        if path.exists():
            return Execution(**json.loads(path.with_suffix(".json").read_text("utf-8")))
    return None


def _execute_for_book(name: str, key: str, parameters: dict[str, Any], root: Path) -> Execution:
    path = executed_path(root, name)
    notebook, seconds, peak_mb = _execute(name, parameters, root)
    done = Execution(name, key, parameters, seconds, peak_mb, date.today().isoformat())
    # The record goes first and comes back last, so that it never describes another copy.
    path.with_suffix(".json").unlink(missing_ok=True)
    write_atomically(path, paired_text(notebook))
    record = {k: v for k, v in asdict(done).items() if k != "reused"}
    write_atomically(path.with_suffix(".json"), json.dumps(record))
    return done


def _execute(
    name: str, parameters: dict[str, Any], root: Path
) -> tuple[NotebookNode, float, float]:
    """Execute in this process, which runs no other kernel, so that memory is this one's.

    A failure leaves the notebook up to the failing cell in ``_build/failed``.
    """
    import papermill  # slow to import, and only these worker processes need it
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    os.environ.update(_KERNEL_ENVIRONMENT)
    # The kernel imports the checkout's own library, installed or not.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    partial = root / "_build" / "failed" / f"{name}.ipynb"
    partial.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    memory = _Memory()
    try:
        notebook = papermill.execute_notebook(
            read_notebook(source_path(root, name)),
            # A path, not text: papermill would fill in {braces} of the text.
            str(partial).replace("{", "{{").replace("}", "}}"),
            parameters=parameters,
            kernel_name=KERNELSPEC["name"],
            progress_bar=False,
            execution_timeout=CELL_SECONDS,
            start_timeout=KERNEL_START_SECONDS,
            cwd=str(root / "notebooks"),
            # Else ipykernel warns about its transport, on this terminal, at every start.
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
    except PapermillExecutionError as error:
        raise BuildError(
            _failure(name, partial, error.cell_index, f"{error.ename}: {error.evalue}")
        ) from None
    except CellTimeoutError:
        why = (
            f"it ran longer than {CELL_SECONDS} s and was stopped. Long work belongs in a sweep, "
            "whose results the notebook then shows."
        )
        raise BuildError(_failure(name, partial, None, why)) from None
    except DeadKernelError:
        why = "the kernel died: memory ran out, or compiled code crashed."
        raise BuildError(_failure(name, partial, None, why)) from None
    except RuntimeError as error:  # what jupyter_client raises for a kernel that does not start
        raise BuildError(
            f"{name}: no kernel answered in {KERNEL_START_SECONDS} s: {error}"
        ) from None
    finally:
        memory.stop()
    partial.unlink()
    return strip_volatile(notebook), time.monotonic() - started, memory.peak_mb


class _Memory(threading.Thread):
    """Watches the memory of this process's descendants: a kernel and whatever it starts.

    The operating system's own record of a child's peak does not do: it begins with the memory of
    the process that started the child.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mb = 0.0
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        parent = os.getppid()
        while not self._stopped.wait(0.2):
            if os.getppid() != parent:  # the build was killed: end, and the kernel ends with us
                os._exit(1)
            total = 0
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):  # it may have ended meanwhile
                    total += child.memory_info().rss
            self.peak_mb = max(self.peak_mb, total / 1e6)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _failure(name: str, partial: Path, index: int | None, why: str) -> str:
    """The message for a failing cell; index None means the last one that was started."""
    cells = nbformat.read(partial, as_version=4).cells if partial.exists() else []
    cells = [c for c in cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])]
    if index is None:
        ran = [i for i, c in enumerate(cells) if c.metadata.get("papermill", {}).get("start_time")]
        index = ran[-1] if ran else None
    why = re.sub(r"\x1b\[[0-9;]*m", "", why)
    if index is None:
        return f"{name}, before its first cell: {why}"
    first_line = next(filter(None, cells[index].source.splitlines()), "")
    return f"{name}, cell {index + 1} ({first_line!r}): {why}\n  Executed so far: {partial}"


def strip_volatile(notebook: NotebookNode) -> NotebookNode:
    """Without what changes at every run: times, absolute paths, the kernel's own description."""
    notebook.metadata = nbformat.from_dict(
        {k: v for k, v in notebook.metadata.items() if k in ("jupytext", "kernelspec", "widgets")}
    )
    notebook.metadata.kernelspec = dict(KERNELSPEC)
    for cell in notebook.cells:
        for volatile in ("papermill", "execution"):
            cell.metadata.pop(volatile, None)
    return notebook
