"""The results store: what is written is read back, and no accident loses a finished point."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from fake_experiments import FakeGrid, area, make
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

import emergence_lib.store as store_module
from emergence_lib.errors import ParameterError, StoreError, UnknownNameError
from emergence_lib.experiments.base import Point
from emergence_lib.recorded import best_profile, coverage
from emergence_lib.store import Store, default_root

HOW = {
    "profile": "quick",
    "seconds": 1.5,
    "date": "2026-11-30T09:00:00+00:00",
    "commit": "abc1234",
    "device": "cpu",
    "host": "2 cores x86_64",
    "versions": "python 3.11",
}


def point(seed: int = 0, version: int = 1, **params: object) -> Point:
    return Point("fake", version, params or {"width": 3}, seed)


def same(a: object, b: object) -> bool:
    """Equality in which NaN equals NaN, None only None, and lists are compared throughout."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return a is b if a is None or b is None else a == b


# --- round trips ---------------------------------------------------------------------------------


def test_a_point_is_missing_until_written(tmp_path):
    store, points = Store(tmp_path), [point(seed) for seed in range(3)]
    assert store.missing(points) == points
    assert not store.has(points[1])
    path = store.write(points[1], {"loss": 0.25}, HOW)
    assert path == tmp_path / "points" / "fake" / f"{points[1].key}.json"
    assert store.has(points[1])
    assert store.missing(points) == [points[0], points[2]]
    (row,) = Store(tmp_path).rows(points).to_dict("records")
    expected = {"key": points[1].key, "seed": 1, "width": 3, "loss": 0.25} | HOW
    assert row == expected
    columns = ["key", "profile", "seed", "width", "loss"]
    columns += ["seconds", "date", "commit", "device", "host", "versions"]
    assert list(store.rows(points)) == columns


def test_nothing_recorded_is_an_empty_frame_and_makes_no_folder(tmp_path):
    rows = Store(tmp_path / "results").rows([point()])
    assert len(rows) == 0
    assert {"key", "profile", "seed", "seconds", "commit"} <= set(rows)
    assert not (tmp_path / "results").exists()


def test_rows_follow_the_order_asked_for_and_each_point_counts_once(tmp_path):
    store = Store(tmp_path)
    for seed in range(4):
        store.write(point(seed), {"loss": 0.0}, HOW)
    assert list(store.rows([point(2), point(0), point(2)]).seed) == [2, 0]


VALUES = {
    "number": 0.1,
    "not_a_number": math.nan,
    "infinite": -math.inf,
    "nothing": None,
    "count": 2**62,
    "flag": True,
    "text": "a “quoted” word",
    "curve": [0.1, math.nan, None, math.inf],
    "heads": [[1.0, 2.0], [], [math.nan]],
    "empty": [],
    "words": ["a", None],
}


@pytest.mark.parametrize("compacted", [False, True])
def test_every_kind_of_value_survives(tmp_path, compacted):
    store = Store(tmp_path)
    store.write(point(0), VALUES, HOW)
    # A second row of other types forces the columns that parquet cannot type.
    other = VALUES | {"number": "three", "flag": 7, "curve": "none", "count": 2**70}
    store.write(point(1), other, {})
    if compacted:
        store.compact("fake")
        assert not list((tmp_path / "points" / "fake").iterdir())
    recorded = Store(tmp_path)._recorded([point(0)])
    for seed, row in enumerate([VALUES, other]):
        read = recorded[point(seed).key]["row"]
        assert list(read) == list(row)
        assert {name for name in row if not same(read[name], row[name])} == set()


def test_numpy_becomes_numbers_and_lists(tmp_path):
    row = {
        "half": np.float32(0.5),
        "count": np.int64(3),
        "flag": np.bool_(True),
        "grid": np.eye(2),
        "pair": (1, np.float64(2.5)),
    }
    Store(tmp_path).write(point(), row, HOW | {"seconds": np.float64(2.0)})
    read = Store(tmp_path).rows([point()]).iloc[0]
    assert (read["half"], read["count"], read["flag"], read["seconds"]) == (0.5, 3, True, 2.0)
    assert read["grid"] == [[1.0, 0.0], [0.0, 1.0]]
    assert read["pair"] == [1, 2.5]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
cells = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
tables = st.lists(st.fixed_dictionaries({"a": cells, "b": cells}), min_size=1, max_size=4)


@given(tables)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_table_survives_json_and_parquet(tmp_path_factory, table):
    store = Store(tmp_path_factory.mktemp("store"))
    for seed, row in enumerate(table):
        store.write(point(seed), row, {})
    for _ in range(2):
        recorded = Store(store.root)._recorded([point(0)])
        for seed, row in enumerate(table):
            read = recorded[point(seed).key]["row"]
            assert same(read["a"], row["a"])
            assert same(read["b"], row["b"])
        store.compact("fake")


def test_params_of_different_points_are_united_and_keep_their_types(tmp_path):
    points = [
        point(0, width=3, big=2**60 + 1, rate=1),
        point(0, width="wide", layers=[1, 2]),
        point(1, width=None, big=0.5, rate=0.5),
    ]
    store = Store(tmp_path)
    for p in points:
        store.write(p, {"loss": 1.0}, HOW)
    loose = store.rows(points)
    assert loose["width"].tolist() == [3, "wide", None]
    assert loose["layers"].tolist()[1] == [1, 2]
    assert pd.isna(loose["layers"][0])
    assert loose["big"][0] == 2**60 + 1
    assert pd.isna(loose["big"][1])
    store.compact("fake")
    assert_frame_equal(Store(tmp_path).rows(points), loose)
    alone = Store(tmp_path).rows(points[:1])
    assert list(alone)[3:6] == ["width", "big", "rate"]
    assert alone["rate"].dtype == np.int64  # not widened by the other point's 0.5


def test_loose_and_merged_points_make_one_frame(tmp_path):
    store, points = Store(tmp_path), [point(seed) for seed in range(6)]
    for p in points[:3]:
        store.write(p, {"loss": float(p.seed), "curve": [1.0, math.nan]}, HOW)
    store.compact("fake")
    for p in points[3:]:
        store.write(p, {"loss": float(p.seed), "curve": []}, HOW)
    assert store.rows(points).loss.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    summary = store.compact("fake")
    assert summary["points"] == 6
    assert summary["seconds"] == 9.0
    assert Store(tmp_path).rows(points).loss.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("value", [{"a": 1}, object(), [1, {2}], 1j])
def test_other_values_are_refused_by_name(tmp_path, value):
    with pytest.raises(ParameterError, match="curve="):
        Store(tmp_path).write(point(), {"curve": value}, HOW)
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize("name", ["width", "seed", "key", "seconds"])
def test_a_column_that_would_hide_another_is_refused(tmp_path, name):
    with pytest.raises(ParameterError, match=name):
        Store(tmp_path).write(point(), {name: 1}, HOW)


def test_unknown_provenance_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'second'.*Did you mean 'seconds'"):
        Store(tmp_path).write(point(), {"loss": 1}, {"second": 1})


# --- compact -------------------------------------------------------------------------------------


def test_the_summary_says_where_the_points_came_from(tmp_path):
    store = Store(tmp_path)
    store.write(point(0), {"loss": 1.0}, HOW)
    store.write(point(1), {"loss": 1.0}, HOW | {"commit": "def5678-dirty", "profile": "cpu"})
    store.write(point(2), {"loss": 1.0}, HOW | {"date": "2026-12-01T09:00:00+00:00"})
    assert (
        store.compact("fake")
        == {
            "format": 1,
            "experiment": "fake",
            "version": 1,
            "points": 3,
            "superseded": 0,
            "profiles": {"quick": 2, "cpu": 1},
            "seconds": 4.5,
            "dates": ["2026-11-30T09:00:00+00:00", "2026-12-01T09:00:00+00:00"],
            "commit": ["abc1234", "def5678-dirty"],
            "device": ["cpu"],
            "host": ["2 cores x86_64"],
            "versions": ["python 3.11"],
        }
        == json.loads((tmp_path / "fake.json").read_text()) | {}
    )
    table = pq.read_table(tmp_path / "fake.parquet").to_pandas()  # readable without this library
    assert sorted(table.seed) == [0, 1, 2]
    assert set(table.width) == {3}


def test_compacting_again_or_nothing_changes_nothing(tmp_path):
    store = Store(tmp_path)
    assert store.compact("fake")["points"] == 0
    assert not list(tmp_path.glob("fake.*"))
    store.write(point(), {"loss": 1.0}, HOW)
    store.compact("fake")
    before = [(tmp_path / f"fake.{end}").read_bytes() for end in ("parquet", "json")]
    Store(tmp_path).compact("fake")
    assert before == [(tmp_path / f"fake.{end}").read_bytes() for end in ("parquet", "json")]


def test_superseded_versions_leave_the_table_and_no_loose_point_is_lost(tmp_path):
    store = Store(tmp_path)
    store.write(point(0, version=1), {"loss": 1.0}, HOW)
    store.compact("fake")
    store.write(point(1, version=1), {"loss": 2.0}, HOW)
    store.write(point(0, version=2), {"loss": 3.0}, HOW)
    assert store.rows([point(0, version=2), point(1, version=2)]).loss.tolist() == [3.0]
    summary = store.compact("fake")
    assert (summary["version"], summary["points"], summary["superseded"]) == (2, 1, 2)
    assert pq.read_table(tmp_path / "fake.parquet").column("version").to_pylist() == [2]
    old = Store(tmp_path).rows([point(0, version=1), point(1, version=1)])
    assert old.loss.tolist() == [2.0]


def test_a_compaction_that_fails_at_any_write_loses_nothing(tmp_path, monkeypatch):
    store, points = Store(tmp_path), [point(seed) for seed in range(4)]
    for p in points[:2]:
        store.write(p, {"loss": 1.0}, HOW)
    store.compact("fake")
    for p in points[2:]:
        store.write(p, {"loss": 1.0}, HOW)
    write = store_module._write
    for fails_at in ("fake.parquet", "fake.json"):

        def failing(path: Path, data: bytes, fails_at: str = fails_at) -> None:
            if path.name == fails_at:
                raise StoreError("disk full")
            write(path, data)

        monkeypatch.setattr(store_module, "_write", failing)
        with pytest.raises(StoreError):
            Store(tmp_path).compact("fake")
        assert Store(tmp_path).missing(points) == []
    monkeypatch.setattr(store_module, "_write", write)
    assert Store(tmp_path).compact("fake")["points"] == 4


def test_a_compaction_between_a_readers_two_reads_hides_nothing(tmp_path, monkeypatch):
    Store(tmp_path).write(point(), {"loss": 1.0}, HOW)
    reader, reads = Store(tmp_path), []

    def compacting_before_the_second(read):
        def wrapped(experiment: str) -> object:
            if reads:
                Store(tmp_path).compact("fake")
            reads.append(experiment)
            return read(experiment)

        return wrapped

    for name in ("_loose", "_merged"):
        monkeypatch.setattr(reader, name, compacting_before_the_second(getattr(reader, name)))
    assert reader.missing([point()]) == []
    assert reads == ["fake", "fake"]


def test_one_compaction_at_a_time(tmp_path):
    store = Store(tmp_path)
    store.write(point(), {"loss": 1.0}, HOW)
    store.compact("fake")
    with FileLock(tmp_path / ".locks" / "fake.lock"):
        second = threading.Thread(target=Store(tmp_path).compact, args=("fake",))
        second.start()
        second.join(0.3)
        assert second.is_alive()
    second.join(10)
    assert not second.is_alive()


def test_no_reader_misses_a_point_while_others_write_and_compact(tmp_path):
    points = [point(seed) for seed in range(40)]
    written: list[Point] = []
    finished, problems = threading.Event(), []

    def reader(store: Store) -> None:
        while not finished.is_set():
            expected = list(written)
            if missing := store.missing(expected):
                problems.append(f"missing {missing}")
            if len(rows := store.rows(expected)) != len(expected):
                problems.append(f"{len(rows)} rows of {len(expected)}")

    def compactor(store: Store) -> None:
        while not finished.is_set():
            store.compact("fake")

    jobs = [reader, reader, compactor, compactor]
    threads = [threading.Thread(target=job, args=(Store(tmp_path),)) for job in jobs]
    for thread in threads:
        thread.start()
    writer = Store(tmp_path)
    for p in points:
        writer.write(p, {"loss": float(p.seed), "curve": [1.0] * 50}, HOW)
        written.append(p)
    finished.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert writer.compact("fake")["points"] == 40
    assert sorted(Store(tmp_path).rows(points).loss) == [float(seed) for seed in range(40)]


def test_what_killed_writers_left_is_ignored_and_cleared_in_time(tmp_path):
    store = Store(tmp_path)
    path = store.write(point(), {"loss": 1.0}, HOW)
    old, new = path.with_name(f".{path.name}-1.tmp"), path.with_name(f".{path.name}-2.tmp")
    for half_written in (old, new):
        half_written.write_text('{"format": 1, "exp')
    os.utime(old, (time.time() - 7200,) * 2)
    assert len(store.rows([point()])) == 1
    assert not store.problems
    store.compact("fake")
    assert not old.exists()
    assert new.exists()


# --- damage --------------------------------------------------------------------------------------


def damaged(kind: str, path: Path) -> bytes:
    data = path.read_bytes()
    record = json.loads(data)
    if kind == "another point":
        record["seed"] += 1
    elif kind == "a column short":
        del record["row"]
    elif kind == "format not a number":
        record["format"] = "one"
    else:
        return {"empty": b"", "cut short": data[:-20], "zeros": bytes(len(data)), "list": b"[1]"}[
            kind
        ]
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "cut short",
        "zeros",
        "list",
        "another point",
        "a column short",
        "format not a number",
    ],
)
def test_a_corrupt_point_is_set_aside_and_the_rest_kept(tmp_path, kind):
    store, points = Store(tmp_path), [point(seed) for seed in range(3)]
    paths = [store.write(p, {"loss": 1.0}, HOW) for p in points]
    content = damaged(kind, paths[1])
    paths[1].write_bytes(content)
    reader = Store(tmp_path)
    with pytest.warns(UserWarning, match=f"{points[1].key}.json is corrupt"):
        assert reader.rows(points).seed.tolist() == [0, 2]
    assert reader.missing(points) == [points[1]]
    assert not reader.has(points[1])
    (message,) = reader.problems
    (aside,) = (tmp_path / "corrupt").iterdir()
    assert str(aside) in message
    assert aside.read_bytes() == content
    assert not paths[1].exists()
    reader.write(points[1], {"loss": 2.0}, HOW)
    assert reader.missing(points) == []


def test_has_sees_corruption_too(tmp_path):
    Store(tmp_path).write(point(), {"loss": 1.0}, HOW).write_bytes(b"")
    with pytest.warns(UserWarning, match="corrupt"):
        assert not Store(tmp_path).has(point())


@pytest.mark.parametrize("kind", ["cut short", "one bit", "foreign", "empty"])
def test_a_corrupt_table_is_set_aside_and_loose_points_kept(tmp_path, kind):
    store, points = Store(tmp_path), [point(seed) for seed in range(3)]
    store.write(points[0], {"loss": 1.0, "curve": [0.5] * 1000}, HOW)
    store.compact("fake")
    store.write(points[1], {"loss": 2.0, "curve": []}, HOW)
    table = tmp_path / "fake.parquet"
    data = bytearray(table.read_bytes())
    data[60] ^= 1  # inside the first column's values: only a checksum can tell
    if kind == "foreign":
        pd.DataFrame({"a": [1]}).to_parquet(table)
    else:
        table.write_bytes({"cut short": data[:-30], "one bit": data, "empty": b""}[kind])
    reader = Store(tmp_path)
    with pytest.warns(UserWarning, match="fake.parquet is corrupt"):
        assert reader.rows(points).loss.tolist() == [2.0]
    assert reader.missing(points) == [points[0], points[2]]
    assert len(reader.problems) == 1
    assert len(list((tmp_path / "corrupt").iterdir())) == 1
    assert not table.exists()
    reader.compact("fake")
    assert Store(tmp_path).rows(points).loss.tolist() == [2.0]


def test_a_newer_format_is_refused_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "FORMAT", 2)
    store = Store(tmp_path)
    path = store.write(point(), {"loss": 1.0}, HOW)
    monkeypatch.undo()
    with pytest.raises(StoreError, match=rf"{path.name} has format 2.*reads up to 1.*upgrade"):
        Store(tmp_path).missing([point()])
    monkeypatch.setattr(store_module, "FORMAT", 2)
    store.compact("fake")
    monkeypatch.undo()
    for read in (Store(tmp_path).rows, Store(tmp_path).missing):
        with pytest.raises(StoreError, match=r"fake.parquet has format 2.*upgrade"):
            read([point()])
    with pytest.raises(StoreError, match="upgrade"):
        Store(tmp_path).compact("fake")
    assert (tmp_path / "fake.parquet").exists()
    assert not (tmp_path / "corrupt").exists()


# --- disks ---------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    store = Store(tmp_path)
    kept = store.write(point(0), {"loss": 1.0}, HOW)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left.*Free some space.*EMERGENCE_RESULTS"):
        store.write(point(1), {"loss": 1.0}, HOW)
    with pytest.raises(StoreError, match=r"fake\.parquet"):
        store.compact("fake")
    assert [path for path in tmp_path.rglob("*.*") if path.suffix in (".json", ".tmp")] == [kept]


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system needs privileges")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_full(tiny_disk):
    store, points = Store(tiny_disk), [point(seed) for seed in range(50)]

    def fill() -> None:
        for p in points:
            store.write(p, {"curve": [0.123456789] * 500}, HOW)

    with pytest.raises(StoreError, match="Free some space"):
        fill()
    files = [path for path in tiny_disk.rglob("*") if path.is_file()]
    rows = Store(tiny_disk).rows(points)
    assert 1 < len(rows) == len(files)
    assert all(len(curve) == 500 for curve in rows.curve)


def test_an_unwritable_root_names_the_path_and_the_remedy(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file" / "results")
    for act in (
        store.require_writable,
        lambda: store.write(point(), {"loss": 1.0}, HOW),
        lambda: store.compact("fake"),
    ):
        with pytest.raises(StoreError, match=r"file/results.*EMERGENCE_RESULTS"):
            act()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_root_can_still_be_read(tmp_path):
    store = Store(tmp_path)
    store.write(point(), {"loss": 1.0}, HOW)
    folders = [tmp_path, tmp_path / "points", tmp_path / "points" / "fake"]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert len(Store(tmp_path).rows([point()])) == 1
        with pytest.raises(StoreError, match="permissions"):
            store.write(point(1), {"loss": 1.0}, HOW)
    finally:
        for folder in folders:
            folder.chmod(0o700)


# --- speed, places, profiles ---------------------------------------------------------------------


def test_each_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    points = [point(seed) for seed in range(4)]
    writer = Store(tmp_path)
    for p in points[:2]:
        writer.write(p, {"loss": 1.0}, HOW)
    writer.compact("fake")
    writer.write(points[2], {"loss": 1.0}, HOW)
    reads: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda p: (reads.append(p.suffix), read_bytes(p))[1])
    store = Store(tmp_path)
    for _ in range(3):
        assert len(store.rows(points)) == 3
        assert store.missing(points) == [points[3]]
        assert store.has(points[0])
    assert sorted(reads) == [".json", ".parquet"]
    writer.write(points[3], {"loss": 1.0}, HOW)
    assert len(store.rows(points)) == 4
    assert sorted(reads) == [".json", ".json", ".parquet"]
    writer.compact("fake")
    reads.clear()
    assert len(store.rows(points)) == 4
    assert reads == [".parquet"]


def test_the_root_is_named_by_the_environment_the_checkout_or_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMERGENCE_RESULTS", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine" == Store().root
    monkeypatch.delenv("EMERGENCE_RESULTS")
    repository = Path(__file__).resolve().parents[1]
    assert default_root() == repository / "book" / "results"
    monkeypatch.setattr(store_module, "checkout", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_root() == tmp_path / "cache" / "emergence" / "results"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == Path.home() / ".cache" / "emergence" / "results"


def test_the_best_profile_is_the_largest_that_is_half_recorded(tmp_path):
    experiment, store = make(area), Store(tmp_path)  # smoke 2, quick 4, cpu 10 points

    def record(points: list[Point]) -> None:
        for p in points:
            store.write(p, {"area": 1}, HOW)

    assert best_profile(experiment, store) is None
    record(FakeGrid(1, width=7).points())  # 1 of 10, and the others have none
    assert best_profile(experiment, store) == "cpu"
    record(FakeGrid(2).points())  # all of smoke, half of quick, 3 of 10
    assert best_profile(experiment, store) == "quick"
    assert coverage(experiment, "cpu", store) == (3, 10)
    record(FakeGrid(4).points())  # 5 of 10
    assert best_profile(experiment, store) == "cpu"
    assert coverage(experiment, "quick", store) == (4, 4)


def test_a_third_of_a_long_sweep_beats_a_complete_short_one(tmp_path):
    fake, store = make(area), Store(tmp_path)
    experiment = dataclasses.replace(
        fake, profiles={"quick": (FakeGrid(1),), "cpu": (FakeGrid(20),)}
    )
    for n, best in ((1, "quick"), (4, "quick"), (5, "cpu"), (7, "cpu")):
        for point in FakeGrid(n).points():
            store.write(point, {"area": 1}, HOW)
        assert best_profile(experiment, store) == best
