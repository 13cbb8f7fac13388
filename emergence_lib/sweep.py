"""Run the missing points of an experiment on any `concurrent.futures.Executor`.

    sweep(experiment, experiment.points("cpu"), store=Store())

The worker that computes a point also records it, so a finished point survives whatever happens to
the sweep. Sweeps at once on one store share the work: a worker claims a point before it starts,
leaves claimed ones for the end, and computes those only if their owner died.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from emergence_lib.errors import EmergenceError, ParameterError, StoreError
from emergence_lib.experiments.base import Experiment, Point
from emergence_lib.store import Store, check_columns, checkout

_LINE_EVERY = 10.0  # seconds between progress lines where there is no terminal


class SweepError(EmergenceError):
    """Some points could not be computed; all others were, and are recorded.

    Attributes:
        failures: (point, what happened) of each of them.
    """

    def __init__(self, message: str, failures: list[tuple[Point, str]]) -> None:
        self.failures = failures
        super().__init__(message)


class LocalExecutor(ProcessPoolExecutor):
    """Processes on this machine, one torch thread each, that end when their parent does.

    Args:
        workers: how many; None is one for every core this process may use.

    Raises:
        ParameterError: fewer than one worker.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ParameterError("workers", workers, "a positive integer")
        # spawn: forking a process whose torch or BLAS threads are running can deadlock.
        context = get_context("spawn")
        # The parent holds the only writing end, so a worker sees the pipe close when it dies.
        lifeline, self._lifeline = context.Pipe(duplex=False)
        super().__init__(workers or _cores(), context, _start_worker, (lifeline,))

    def abandon(self) -> None:
        """End the workers now. Points in flight are lost."""
        self._lifeline.close()
        self.shutdown(wait=True, cancel_futures=True)


def local_executor(workers: int | None = None) -> LocalExecutor:
    """The default executor of `sweep`: see `LocalExecutor`."""
    return LocalExecutor(workers)


def sweep(
    experiment: Experiment,
    points: Iterable[Point],
    *,
    store: Store | None = None,
    executor: Executor | None = None,
    profile: str = "",
    device: str = "cpu",
    progress: bool = True,
) -> pd.DataFrame:
    """Compute the points that are not recorded yet, in their order, and return all their rows.

    Args:
        experiment: whose points these are; its `run` must be importable by the workers.
        store: where points are recorded; its folder must be visible to the workers. None keeps
            nothing beyond the returned rows.
        executor: anything with the interface of `concurrent.futures.Executor` (Dask's and
            submitit's clients have it); None is `local_executor()`.
        profile: recorded with each row as the profile that asked for it.
        device: passed on to the experiment: "cpu", "cuda", "cuda:1", …
        progress: a bar on a terminal, a line now and then elsewhere, nothing in a notebook.

    Returns:
        ``store.rows(points)``.

    Raises:
        SweepError: points failed or a worker died; every other point was computed and recorded.
        StoreError: the store cannot be written; tested before anything is computed.
        KeyboardInterrupt: Ctrl-C; the message says how many points are recorded.
    """
    points = list({p.key: p for p in points}.values())
    check_columns({name for p in points for name in p.params}, experiment.schema)
    with ExitStack() as stack:
        if store is None:
            store = Store(stack.enter_context(tempfile.TemporaryDirectory()))
        if missing := store.missing(points):
            store.require_writable()
            if executor is None:
                executor = stack.enter_context(local_executor())
            # Only what a worker needs travels: judges and grids need not be picklable.
            slim = replace(experiment, profiles={}, judges={})
            job = _Job(slim, store.root.resolve(), profile, device, owner=uuid.uuid4().hex)
            bar = _Progress(experiment.name, len(points), len(points) - len(missing), progress)
            _compute(job, missing, store, executor, bar)
        return store.rows(points)


def _compute(
    job: _Job, points: list[Point], store: Store, executor: Executor, progress: _Progress
) -> None:
    failures: list[tuple[Point, str]] = []
    lost: list[Point] = []
    futures: dict[Future[_Outcome], Point] = {}
    try:
        # First what nobody else is computing; then wait for the points that others hold.
        for wait in (False, True):
            try:
                futures = {executor.submit(_work, job, p, wait): p for p in points}
            except BrokenExecutor:
                lost += points
                break
            points = []
            for future in as_completed(futures):
                point = futures[future]
                try:
                    outcome = future.result()
                except BrokenExecutor:
                    lost.append(point)
                    continue
                except Exception as error:  # could not be sent to a worker or back
                    outcome = _Outcome("failed", f"{type(error).__name__}: {error}")
                if outcome.status == "claimed":
                    points.append(point)
                elif outcome.status == "unwritable":
                    raise StoreError(outcome.message)
                else:
                    progress.advance()
                    if outcome.status == "failed":
                        failures.append((point, outcome.message))
    except BaseException as error:
        for future in futures:
            future.cancel()
        if isinstance(executor, LocalExecutor):
            executor.abandon()
        if isinstance(error, KeyboardInterrupt):
            everything = [*points, *futures.values()]
            kept = len({p.key for p in everything}) - len(store.missing(everything))
            message = f"{job.experiment.name}: interrupted after {kept} points, which are recorded"
            raise KeyboardInterrupt(f"{message}. The same call computes the rest.") from None
        raise
    finally:
        progress.close()
    if lost or failures:
        raise _sweep_error(job, failures, lost, store)


@dataclass(frozen=True)
class _Job:
    """What a worker is told beside the point."""

    experiment: Experiment
    root: Path
    profile: str
    device: str
    owner: str


@dataclass(frozen=True)
class _Outcome:
    """What a worker answers. Text, because not every exception survives pickling."""

    status: str  # "done", "claimed" (by another sweep), "failed" or "unwritable"
    message: str = ""


def _work(job: _Job, point: Point, wait: bool) -> _Outcome:
    """Compute and record one point, in a worker."""
    store = _store(job.root)
    try:
        with store.claim(point, job.owner, wait) as claimed:
            if not claimed:
                return _Outcome("claimed")
            if store.has(point):  # another sweep recorded it since ours looked
                return _Outcome("done")
            start = time.perf_counter()
            row = job.experiment.run(point, job.device)
            seconds = time.perf_counter() - start
            job.experiment.check_row(row)
            how = provenance(job.device) | {
                "profile": job.profile,
                "seconds": round(seconds, 3),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            store.write(point, row, how)
    except StoreError as error:
        return _Outcome("unwritable", str(error))
    except Exception:
        return _Outcome("failed", traceback.format_exc())
    return _Outcome("done")


_store = cache(Store)  # one a worker, so that a merged file is read once


def _start_worker(lifeline: Connection) -> None:
    """Prepare a local worker process."""
    torch.set_num_threads(1)
    # Ctrl-C reaches the whole process group; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def follow_parent() -> None:
        lifeline.poll(None)  # returns when the parent closes its end or dies
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()


def _sweep_error(
    job: _Job, failures: list[tuple[Point, str]], lost: list[Point], store: Store
) -> SweepError:
    name = job.experiment.name
    parts = [
        f"{name} failed at {_describe(point)}:\n{message.rstrip()}" for point, message in failures
    ]
    if lost:
        # A claim that its owner did not take back: the worker died while computing the point.
        in_flight = [p for p in lost if store.claimed_by(p) == job.owner]
        waiting = len(store.missing(lost)) - len(in_flight)
        failures = failures + [(point, "a worker died") for point in in_flight]
        parts.append(
            f"A worker of {name} died (out of memory, or killed). In flight: "
            + ("; ".join(map(_describe, in_flight)) or "none, so workers may fail to start")
            + f". Not begun: {waiting} points. The same call computes what is missing; fewer "
            "workers need less memory."
        )
    return SweepError("\n".join(parts), failures)


def _describe(point: Point) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in (*point.params.items(), ("seed", point.seed)))


class _Progress:
    """A bar on a terminal, a line now and then elsewhere, nothing in a notebook."""

    def __init__(self, name: str, total: int, recorded: int, wanted: bool) -> None:
        terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=total,
            initial=recorded,
            desc=name,
            unit="point",
            disable=not (wanted and terminal),
        )
        self.lines = wanted and not terminal and "ipykernel" not in sys.modules
        self.name, self.total, self.done = name, total, recorded
        self.start = self.last = time.monotonic()
        if self.lines:
            self._line()

    def advance(self) -> None:
        self.bar.update()
        self.done += 1
        if self.lines and (time.monotonic() - self.last > _LINE_EVERY or self.done == self.total):
            self._line()

    def _line(self) -> None:
        self.last = time.monotonic()
        seconds = self.last - self.start
        print(f"{self.name}: {self.done}/{self.total} points, {seconds:.0f} s", file=sys.stderr)

    def close(self) -> None:
        self.bar.close()


@cache
def provenance(device: str) -> dict[str, str | None]:
    """What this process computes with: the columns commit, device, host and versions.

    Read once a process, when the code that computes is loaded. Never the machine's name.
    """
    packages = ("torch", "numpy", "emergence-companion")
    versions = [f"python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)]
    if device.startswith("cuda"):
        device = f"{device} {torch.cuda.get_device_name(device)}"
    return {
        "commit": _commit(),
        "device": device,
        "host": f"{os.cpu_count()} cores {platform.machine()} {_cpu_model()}".strip(),
        "versions": ", ".join(versions),
    }


def _commit() -> str | None:
    """Short git commit of the library, with "-dirty" if its files differ from it."""
    if (source := checkout()) is None:
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(source), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short", "HEAD")
        return commit + ("-dirty" if git("status", "--porcelain", "--", "emergence_lib") else "")
    except (OSError, subprocess.CalledProcessError):  # no git here, or a source archive
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
