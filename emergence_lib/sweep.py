"""Run the missing points of an experiment on any `concurrent.futures.Executor`.

    sweep(experiment, experiment.points("cpu"), store=Store())

The worker that computes a point also records it, so a finished point survives whatever happens to
the sweep. Sweeps at once on one store share the work: a worker claims a point before it starts,
leaves claimed ones for the end, and computes those only if their owner died.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout
from tqdm import tqdm

from emergence_lib.errors import EmergenceError, StoreError
from emergence_lib.executors import InlineExecutor, LocalExecutor
from emergence_lib.experiments.base import Experiment, Point
from emergence_lib.provenance import provenance, require_device
from emergence_lib.store import Store, check_columns, unusable

_LINE_EVERY = 10.0  # seconds between progress lines where there is no terminal
_START_SECONDS = 5.0  # that a worker process takes to import this library


class SweepError(EmergenceError):
    """Some points could not be computed; all others were, and are recorded.

    Attributes:
        failures: (point, what happened) of each of them.
    """

    def __init__(self, message: str, failures: list[tuple[Point, str]]) -> None:
        self.failures = failures
        super().__init__(message)


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
        executor: any `concurrent.futures.Executor`: processes, threads, or a cluster's, such as
            Dask's ``Client.get_executor()``; None is `LocalExecutor`, or `InlineExecutor` for
            points that take less time than starting its processes.
        profile: recorded with each row as the profile that asked for it.
        device: passed on to the experiment: "cpu", "cuda", "cuda:1", …
        progress: a bar on a terminal, a line now and then elsewhere, nothing in a notebook.

    Returns:
        ``store.rows(points)``.

    Raises:
        ParameterError: `device` is none of this machine.
        SweepError: points failed or a worker died; every other point was computed and recorded.
        StoreError: the store cannot be written; tested before anything is computed.
        KeyboardInterrupt: Ctrl-C; the message says how many points are recorded.
    """
    require_device(device)
    points = list({p.key: p for p in points}.values())
    check_columns({name for p in points for name in p.params}, experiment.schema)
    with ExitStack() as stack:
        if store is None:
            store = Store(stack.enter_context(tempfile.TemporaryDirectory()))
        if missing := store.missing(points):
            store.require_writable()
            if executor is None:
                brief = _are_brief(experiment, missing)
                executor = stack.enter_context(InlineExecutor() if brief else LocalExecutor())
            # Only what a worker needs travels: judges need not be picklable.
            slim = replace(experiment, profiles={}, judges={})
            job = _Job(slim, store.root.resolve(), profile, device, owner=uuid.uuid4().hex)
            bar = _Progress(experiment.name, len(points), len(points) - len(missing), progress)
            _compute(job, missing, store, executor, bar)
        return store.rows(points)


def _are_brief(experiment: Experiment, points: list[Point]) -> bool:
    """Whether a profile names all of these points, and estimates them below a process's start."""
    return any(
        seconds * len(points) < _START_SECONDS
        and {p.key for p in points} <= {p.key for p in experiment.points(profile)}
        for profile, seconds in experiment.seconds.items()
    )


def _compute(
    job: _Job, points: list[Point], store: Store, executor: Executor, progress: _Progress
) -> None:
    """Have the workers compute and record `points`; raise for those that could not be."""
    futures: dict[Future[_Outcome], Point] = {}
    unfinished: list[tuple[Point, _Outcome]] = []
    todo = points
    try:
        # First what nobody else is computing; then wait for the points that others hold.
        for wait in (False, True):
            futures.clear()
            for point in todo:
                futures[_submit(executor, job, point, wait)] = point
            if wait and todo:
                progress.say(f"{len(todo)} points are another sweep's: waiting for it")
            todo = []
            for future in as_completed(futures):
                point, outcome = futures[future], _outcome(future)
                if outcome.status == "claimed":
                    todo.append(point)
                elif outcome.status == "unwritable":
                    raise StoreError(outcome.message)
                else:
                    progress.advance(point, outcome)
                    if outcome.status != "done":
                        unfinished.append((point, outcome))
    except BaseException as error:
        for future in futures:
            future.cancel()
        if isinstance(executor, LocalExecutor):
            executor.abandon()
        if isinstance(error, KeyboardInterrupt):
            left = len(store.missing(points))
            raise KeyboardInterrupt(
                f"{job.experiment.name}: interrupted. {len(points) - left} of {len(points)} points "
                f"were computed and are kept; the same call computes the other {left}."
            ) from None
        raise
    finally:
        progress.close()
    if unfinished:
        raise _sweep_error(job, unfinished, store)


def _submit(executor: Executor, job: _Job, point: Point, wait: bool) -> Future[_Outcome]:
    try:
        return executor.submit(_work, job, point, wait)
    except BrokenExecutor as error:  # a worker died since the last call
        future: Future[_Outcome] = Future()
        future.set_exception(error)
        return future


def _outcome(future: Future[_Outcome]) -> _Outcome:
    try:
        return future.result()
    except BrokenExecutor:
        return _Outcome("lost")
    except Exception as error:  # could not be sent to a worker or back
        return _Outcome("failed", f"{type(error).__name__}: {error}")


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

    status: str  # "done", "claimed" (by another sweep), "failed", "unwritable" or "lost"
    message: str = ""


def _work(job: _Job, point: Point, wait: bool) -> _Outcome:
    """Compute and record one point, in a worker."""
    store = _store(job.root)
    try:
        with _claim(job, point, wait) as claimed:
            if not claimed:
                return _Outcome("claimed")
            if store.has(point):  # another sweep recorded it since ours looked
                return _Outcome("done")
            machine = provenance(job.device)
            start = time.perf_counter()
            row = job.experiment.run(point, job.device)
            seconds = round(time.perf_counter() - start, 3)
            job.experiment.check_row(row)
            date = datetime.now(UTC).isoformat(timespec="seconds")
            how = machine | {"profile": job.profile, "seconds": seconds, "date": date}
            store.write(point, row, how)
    except StoreError as error:
        return _Outcome("unwritable", str(error))
    except Exception:
        return _Outcome("failed", traceback.format_exc())
    return _Outcome("done")


@contextmanager
def _claim(job: _Job, point: Point, wait: bool) -> Iterator[bool]:
    """Hold a point while computing it, so that sweeps at once on a store share the work.

    The claim is a lock of the operating system: it ends with the process that holds it, however
    that ends. Yields False when another sweep holds the point and `wait` is false.
    """
    path = _claim_path(job, point)
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise unusable(path, error) from error
    try:
        with suppress(OSError):  # it only tells `_in_flight` whose claim this was
            path.write_text(job.owner)
        yield True
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


def _in_flight(job: _Job, point: Point) -> bool:
    """Whether a worker of this sweep left a claim behind: it died while computing the point."""
    try:
        return _claim_path(job, point).read_text() == job.owner
    except OSError:
        return False


def _claim_path(job: _Job, point: Point) -> Path:
    return job.root / ".locks" / point.experiment / point.key


_store = cache(Store)  # one a worker, so that a merged file is read once


def _sweep_error(job: _Job, unfinished: list[tuple[Point, _Outcome]], store: Store) -> SweepError:
    name = job.experiment.name
    failures = [(p, outcome.message) for p, outcome in unfinished if outcome.status == "failed"]
    lost = store.missing(p for p, outcome in unfinished if outcome.status == "lost")
    parts = []
    if failures:
        parts = [f"{len(failures)} points of {name} failed; every other one is recorded."]
        parts += [f"  {_describe(point)}: {_last_line(message)}" for point, message in failures]
        parts.append(f"The first one's report:\n{failures[0][1].rstrip()}")
    if lost:
        in_flight = [p for p in lost if _in_flight(job, p)]
        parts.append(f"A worker of {name} died: killed, out of memory, or it could not start.")
        parts += [f"  in flight: {_describe(point)}" for point in in_flight]
        parts.append(
            f"{len(lost) - len(in_flight)} points had not begun. Finished points are recorded; the "
            "same call computes the rest. Fewer workers need less memory."
        )
        failures = failures + [(point, "its worker died") for point in in_flight]
    return SweepError("\n".join(parts), failures)


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def _describe(point: Point) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in (*point.params.items(), ("seed", point.seed)))


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this. Other programs import ipykernel too."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


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
        self.lines = wanted and not terminal and not _in_notebook()
        self.name, self.total, self.done = name, total, recorded
        self.start = self.last = time.monotonic()
        if self.lines:
            self._line()

    def advance(self, point: Point, outcome: _Outcome) -> None:
        self.bar.update()
        if outcome.status == "failed":
            self.say(f"failed at {_describe(point)}: {_last_line(outcome.message)}")
        self.done += 1
        if self.lines and (time.monotonic() - self.last > _LINE_EVERY or self.done == self.total):
            self._line()

    def say(self, text: str) -> None:
        if self.lines or not self.bar.disable:
            tqdm.write(f"{self.name}: {text}", file=sys.stderr)

    def _line(self) -> None:
        self.last = time.monotonic()
        self.say(f"{self.done}/{self.total} points, {self.last - self.start:.0f} s")

    def close(self) -> None:
        self.bar.close()
