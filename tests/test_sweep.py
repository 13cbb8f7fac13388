"""The sweep: any executor, nothing computed twice, nothing lost whatever ends it."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import fake_experiments as fakes
import numpy as np
import pytest
import torch
from fake_experiments import FakeGrid, computed, make

import emergence_lib.provenance as provenance_module
from emergence_lib.errors import ParameterError, StoreError
from emergence_lib.executors import LocalExecutor
from emergence_lib.provenance import provenance, require_device
from emergence_lib.store import Store
from emergence_lib.sweep import SweepError, sweep


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def processes():
    with LocalExecutor(2) as executor:
        yield executor


@pytest.fixture
def log(tmp_path):
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


def eventually(condition, seconds: float = 240.0) -> None:
    """Wait until `condition()` holds; workers import torch first, slowly on a busy machine."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


# --- executors -----------------------------------------------------------------------------------


def test_missing_points_are_computed_once_and_all_rows_returned(tmp_path, log, threads):
    experiment, store = make(fakes.area), Store(tmp_path / "results")
    points = FakeGrid(4, log=str(log)).points()
    first = sweep(experiment, points[1:3], store=store, executor=threads)
    assert first.area.tolist() == [10, 11]
    rows = sweep(experiment, points, store=store, executor=threads, profile="quick")
    assert rows.area.tolist() == [9, 10, 11, 12]
    assert rows.profile.tolist() == ["quick", "", "", "quick"]
    assert computed(log) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_local_processes_use_one_thread_each(tmp_path, processes):
    experiment = make(fakes.where, schema=("pid", "threads", "half"))
    rows = sweep(experiment, FakeGrid(6).points(), store=Store(tmp_path), executor=processes)
    assert os.getpid() not in set(rows.pid)
    assert set(rows.threads) == {1}
    assert rows.half.isna().all()


def test_without_a_store_nothing_is_kept(tmp_path, monkeypatch, threads):
    monkeypatch.setenv("EMERGENCE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    points = FakeGrid(3, width=5).points()
    rows = sweep(make(fakes.area), [*points, points[0]], executor=threads, profile="quick")
    assert rows.area.tolist() == [25, 26, 27]
    assert rows[["width", "seed", "profile"]].values.tolist() == [[5, s, "quick"] for s in range(3)]
    assert list(tmp_path.iterdir()) == []


def test_nothing_missing_starts_no_worker(tmp_path, threads):
    store, points = Store(tmp_path), FakeGrid(2).points()
    sweep(make(fakes.area), points, store=store, executor=threads)
    threads.shutdown()  # would refuse any work now
    assert len(sweep(make(fakes.area), points, store=store, executor=threads)) == 2


@pytest.mark.parametrize("workers", [0, -1])
def test_a_worker_is_needed(workers):
    with pytest.raises(ParameterError, match=f"workers={workers}"):
        LocalExecutor(workers)


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_failing_points_are_named_and_the_others_recorded(tmp_path, capsys, request, kind):
    experiment, store, points = make(fakes.odd_fails), Store(tmp_path), FakeGrid(5).points()
    with pytest.raises(SweepError) as caught:
        sweep(experiment, points, store=store, executor=request.getfixturevalue(kind))
    message, said = str(caught.value), capsys.readouterr().err
    assert "2 points of fake failed" in message
    for seed in (1, 3):
        assert f"width=3, seed={seed}: " in message
        assert f"fake: failed at width=3, seed={seed}: " in said
    assert "ParameterError: width=3 is not possible: width must be even." in message
    assert sorted(point.seed for point, _ in caught.value.failures) == [1, 3]
    assert "in odd_fails" in caught.value.failures[0][1]  # the traceback
    assert store.missing(points) == [points[1], points[3]]


def test_a_row_without_its_columns_fails(tmp_path, threads):
    experiment = make(fakes.area, schema=("area", "volume"))
    with pytest.raises(SweepError, match=r"\['area', 'volume'\]"):
        sweep(experiment, FakeGrid(1).points(), store=Store(tmp_path), executor=threads)


def test_what_cannot_work_is_said_before_any_worker_starts(tmp_path, monkeypatch, threads):
    threads.shutdown()  # would refuse any work now
    points = FakeGrid(2).points()
    with pytest.raises(ParameterError, match="width"):
        sweep(make(fakes.area, schema=("width",)), points, executor=threads)
    with pytest.raises(ParameterError, match=r"device='gpu'.*torch sees here: cpu"):
        sweep(make(fakes.area), points, executor=threads, device="gpu")

    def read_only(descriptor: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "fsync", read_only)
    with pytest.raises(StoreError, match=r"Read-only file system.*EMERGENCE_RESULTS"):
        sweep(make(fakes.area), points, store=Store(tmp_path), executor=threads)


def test_a_disk_that_fills_up_ends_the_sweep_and_keeps_what_was_recorded(
    tmp_path, monkeypatch, log
):
    store, points = Store(tmp_path / "results"), FakeGrid(30, log=str(log)).points()
    syncs = iter(range(4))  # the probe and three points

    def fill(descriptor: int) -> None:
        if next(syncs, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill)
    with ThreadPoolExecutor(1) as executor, pytest.raises(StoreError, match="Free some space"):
        sweep(make(fakes.unhurried), points, store=store, executor=executor)
    monkeypatch.undo()
    assert points[3:] == store.missing(points)
    assert len(computed(log)) < 10


def test_any_pool_will_do_and_a_dead_worker_is_reported_with_its_point(
    tmp_path, log, monkeypatch, threads
):
    experiment, store = make(fakes.dies_at_two), Store(tmp_path / "results")
    points = FakeGrid(12, log=str(log)).points()
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        with pytest.raises(SweepError) as caught:
            sweep(experiment, points, store=store, executor=executor)
        assert store.missing(points) == points[2:]
        with pytest.raises(SweepError, match="10 points had not begun"):
            sweep(experiment, points, store=store, executor=executor)  # the pool stays broken
    message = str(caught.value)
    assert "A worker of fake died" in message
    assert f"in flight: width=3, log='{log}', seed=2\n" in message
    assert "9 points had not begun" in message
    assert [point.seed for point, _ in caught.value.failures] == [2]
    monkeypatch.setenv("FAKE_SURVIVE", "1")
    rows = sweep(experiment, points, store=store, executor=threads)
    assert rows.area.tolist() == list(range(9, 21))
    assert computed(log) == dict.fromkeys(range(12), 1)


# --- interruptions -------------------------------------------------------------------------------

SCRIPT = """
import sys
from fake_experiments import FakeGrid, area, make
from emergence_lib.store import Store
from emergence_lib.executors import LocalExecutor
from emergence_lib.sweep import sweep
if __name__ == "__main__":
    root, log, n = sys.argv[1:]
    try:
        with LocalExecutor(1) as executor:
            points = FakeGrid(int(n), log=log).points()
            sweep(make(area), points, store=Store(root), executor=executor)
    except KeyboardInterrupt as interrupt:
        print(interrupt, file=sys.stderr)
        sys.exit(130)
"""


@pytest.fixture
def other_sweep(tmp_path, log):
    """A sweep in a process of its own, whose points take ten minutes each from seed 4 on."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FAKE_SLOW_FROM": "4",
    }
    process = subprocess.Popen(
        [sys.executable, "script.py", str(tmp_path / "results"), str(log), "9"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its workers too, which hold its stderr open
    process.communicate()


def alive(pid: int) -> bool:
    try:
        # A process that has ended and that nobody has waited for is "Z".
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False


def workers_of(log: Path) -> set[int]:
    return {int(path.name.split("-")[1]) for path in log.iterdir()}


linux = pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")


@linux
def test_kill_9_loses_nothing_finished_and_another_sweep_takes_over(
    tmp_path, log, threads, other_sweep
):
    store, points = Store(tmp_path / "results"), FakeGrid(9, log=str(log)).points()
    eventually(lambda: set(computed(log)) == {0, 1, 2, 3, 4})
    theirs = workers_of(log)
    rows = []
    ours = threading.Thread(
        target=lambda: rows.append(
            sweep(make(fakes.area), points, store=store, executor=threads).area.tolist()
        )
    )
    ours.start()
    eventually(lambda: store.missing(points) == [points[4]])
    time.sleep(0.5)
    assert ours.is_alive()  # waits for the point that the other sweep holds
    other_sweep.kill()
    ours.join(60)
    assert rows == [list(range(9, 18))]
    assert computed(log) == dict.fromkeys(range(9), 1) | {4: 2}
    eventually(lambda: not any(map(alive, theirs)), 30)
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert sorted(json.loads(path.read_text())["seed"] for path in files) == list(range(9))


@linux
@pytest.mark.parametrize("when", ["at its start", "later"])
def test_ctrl_c_keeps_the_finished_and_ends_at_once(tmp_path, log, other_sweep, when):
    store, points = Store(tmp_path / "results"), FakeGrid(9, log=str(log)).points()
    children = Path(f"/proc/{other_sweep.pid}/task/{other_sweep.pid}/children")
    if when == "later":
        eventually(lambda: set(computed(log)) == {0, 1, 2, 3, 4})
    else:  # a worker, which is not Python's resource tracker, has begun to import torch
        eventually(lambda: len(children.read_text().split()) == 2)
    theirs = [int(pid) for pid in children.read_text().split()]
    os.killpg(other_sweep.pid, signal.SIGINT)  # as a terminal does: parent and workers
    _, stderr = other_sweep.communicate(timeout=90)  # the point in flight would take longer
    assert other_sweep.returncode == 130
    assert "Traceback" not in stderr
    finished = 9 - len(store.missing(points))
    assert finished == (4 if when == "later" else 0)
    assert f"interrupted. {finished} of 9 points were computed and are kept; the same" in stderr
    eventually(lambda: not any(map(alive, theirs)), 30)  # Python's tracker ends after its parent


def test_ctrl_c_with_threads_cancels_what_has_not_begun(tmp_path, log):
    store, points = Store(tmp_path / "results"), FakeGrid(40, log=str(log)).points()
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(KeyboardInterrupt, match="computes the other"),
    ):
        sweep(make(fakes.interrupts_at_two), points, store=store, executor=executor)
    assert store.missing(points)
    assert computed(log) == {p.seed: 1 for p in points if store.has(p)}


def test_two_sweeps_at_once_share_the_work(tmp_path, log):
    points = FakeGrid(24, log=str(log)).points()

    def run() -> list[int]:
        with ThreadPoolExecutor(2) as executor:
            store = Store(tmp_path / "results")
            return sweep(
                make(fakes.unhurried), points, store=store, executor=executor
            ).area.tolist()

    with ThreadPoolExecutor(2) as both:
        sweeps = [both.submit(run) for _ in range(2)]
    assert [s.result() for s in sweeps] == [list(range(9, 33))] * 2
    assert computed(log) == dict.fromkeys(range(24), 1)
    assert [p for p in (tmp_path / "results" / ".locks").rglob("*") if p.is_file()] == []


# --- brief work ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "here"), [(1.0, True), (3.0, False)])
def test_points_that_take_less_than_starting_a_process_are_computed_in_this_one(log, seconds, here):
    grid = FakeGrid(2, log=str(log))
    experiment = replace(make(fakes.area), profiles={"smoke": (grid,)}, seconds={"smoke": seconds})
    threads = torch.get_num_threads()
    assert sweep(experiment, grid.points()).area.tolist() == [9, 10]
    pids = {int(path.name.split("-")[1]) for path in log.iterdir()}
    assert (pids == {os.getpid()}) == here
    assert torch.get_num_threads() == threads


def test_points_of_no_profile_are_never_brief(log):
    grid = FakeGrid(1, log=str(log))
    experiment = replace(make(fakes.area), seconds={"smoke": 0.0})
    sweep(experiment, grid.points())
    assert {path.name.split("-")[1] for path in log.iterdir()} != {str(os.getpid())}


def test_ctrl_c_during_brief_work_keeps_what_was_computed(tmp_path):
    grid = FakeGrid(4)
    experiment = replace(
        make(fakes.interrupts_at_two), profiles={"smoke": (grid,)}, seconds={"smoke": 0.1}
    )
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt, match="2 of 4 points were computed and are kept"):
        sweep(experiment, grid.points(), store=store)
    assert len(store.missing(grid.points())) == 2


# --- what is said --------------------------------------------------------------------------------


def test_lines_without_a_terminal_and_nothing_when_unwanted(capsys, monkeypatch, threads):
    monkeypatch.setattr("emergence_lib.sweep._LINE_EVERY", 0.0)
    sweep(make(fakes.area), FakeGrid(2).points(), executor=threads)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"fake: {n}/2 points" for n in range(3)]
    sweep(make(fakes.area), FakeGrid(2).points(), executor=threads, progress=False)
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel="of a notebook"))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    sweep(make(fakes.area), FakeGrid(2).points(), executor=threads)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch, threads):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    sweep(make(fakes.area), FakeGrid(2).points(), executor=threads)
    assert re.search(r"\rfake: 100%.*2/2", sys.stderr.getvalue())


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99", "", None, 0, ["cpu"]])
def test_a_device_on_which_nothing_can_train_is_refused(device):
    with pytest.raises(ParameterError) as error:
        require_device(device)
    assert str(error.value).startswith(f"device={device!r} is not possible: ")
    assert "cpu" in str(error.value).partition("torch sees here: ")[2]


def test_the_devices_that_torch_sees_are_taken_and_named(monkeypatch):
    require_device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ParameterError, match="torch sees here: cpu, cuda, cuda:0, cuda:1"):
        require_device("gpu")


def test_provenance_says_how_but_never_which_machine(tmp_path, threads):
    rows = sweep(make(fakes.unhurried), FakeGrid(1).points(), executor=threads)
    row = rows.iloc[0]
    assert 0.05 <= row.seconds < 5
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", row.date)
    assert f"torch {torch.__version__}" in row.versions
    assert f"numpy {np.__version__}" in row.versions
    assert row.host.startswith(f"{os.cpu_count()} cores ")
    assert row.device == "cpu"
    assert socket.gethostname() not in rows.to_csv()


def test_the_commit_is_the_librarys_and_says_if_it_was_edited(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(provenance_module, "checkout", lambda: tmp_path)
    read = provenance.__wrapped__  # past its cache
    assert read("cpu")["commit"] is None  # no repository yet
    git("init", "-q")
    (tmp_path / "emergence_lib").mkdir()
    source = tmp_path / "emergence_lib" / "a.py"
    source.write_text("a = 1")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "--short", "HEAD")
    (tmp_path / "results.json").write_text("{}")  # not code
    assert read("cpu")["commit"] == commit
    source.write_text("a = 2")
    assert read("cpu")["commit"] == f"{commit}-dirty"
    monkeypatch.setattr(provenance_module, "checkout", lambda: None)
    assert read("cpu")["commit"] is None


def test_the_store_reads_a_large_recording_quickly(tmp_path):
    store, points = Store(tmp_path), FakeGrid(500).points()
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for p in points:
        store.write(p, {"area": p.seed, "curve": [0.1] * 200}, {})
    monkeypatch.undo()
    store.compact("fake")
    fresh = Store(tmp_path)
    start = time.perf_counter()
    assert len(fresh.rows(points)) == 500
    first = time.perf_counter() - start
    assert all(map(fresh.has, points))
    assert first < 3
    assert time.perf_counter() - start - first < 1
