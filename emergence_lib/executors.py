"""Where points are computed: processes of this machine, or this very thread for brief work.

Either is a `concurrent.futures.Executor` with one torch thread, so the numbers are the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from emergence_lib.errors import ParameterError

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of mallopt(3)


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
        super().__init__(workers or cores(), context, _start_worker, (lifeline,))

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        """As any executor's. Workers start here, deaf to Ctrl-C, which their parent handles."""
        with _sigint_deferred():  # a new process inherits this from its first moment
            return super().submit(*arguments, **named)

    def abandon(self) -> None:
        """End the workers now. Points in flight are lost."""
        self._lifeline.close()
        self.shutdown(wait=True, cancel_futures=True)


class InlineExecutor(Executor):
    """This very thread, with one torch thread as a worker has, so that the numbers are the same."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Computes before it returns."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            future: Future[Any] = Future()
            future.set_result(fn(*arguments, **named))
            return future
        finally:
            torch.set_num_threads(threads)


def cores() -> int:
    """Cores this process may use: the workers of `local_executor` by default."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start_worker(lifeline: Connection) -> None:
    """Prepare a local worker process."""
    torch.set_num_threads(1)
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # not in musl
        # Keep freed blocks: by default each step maps its activations anew and faults every page,
        # a sixth of the time of the small models here.
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)

    def follow_parent() -> None:
        lifeline.poll(None)  # returns when the parent closes its end or dies
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()


@contextmanager
def _sigint_deferred() -> Iterator[None]:
    """Ctrl-C takes effect after the block. Processes that start in it stay deaf to it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # The mask alone will not do: a thread of a library takes the signal instead, and Python then
    # interrupts the main thread, maybe between a worker's start and its instructions.
    arrived: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda n, _: arrived.append(n)) if in_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if arrived:
            signal.raise_signal(signal.SIGINT)
