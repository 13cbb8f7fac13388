"""Recorded results: one file a finished point, merged into one parquet file an experiment.

    <root>/points/<experiment>/<key>.json   a finished point, renamed into place when complete
    <root>/<experiment>.parquet             all points after `Store.compact`
    <root>/<experiment>.json                where those came from: commits, hosts, versions, hours
    <root>/corrupt/                         files that could not be read, kept for inspection
    <root>/.locks/                          locks of what runs now; safe to delete when nothing does

A point is addressed by what it computes (`Point.key`), so nothing here is ever updated: a file is
there and complete, or not there. Files written by a newer format are refused, never guessed at.
"""

from __future__ import annotations

import errno
import io
import json
import os
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from emergence_lib.errors import ParameterError, StoreError, UnknownNameError
from emergence_lib.experiments.base import Point
from emergence_lib.files import whole_file
from emergence_lib.provenance import PROVENANCE, checkout

FORMAT = 1
"""Raised when a change makes older programs misread the files; older files stay readable."""

_LEADING = ("key", "version", "profile", "seed")
_ABANDONED_AFTER = 3600.0  # seconds after which a temporary file has no writer any more

Record = dict[str, Any]
"""A point as stored: key, version, profile, seed, params and row (dicts), and `PROVENANCE`."""


def default_root() -> Path:
    """``$EMERGENCE_RESULTS``, else the checkout's ``book/results``, else the user's cache."""
    if named := os.environ.get("EMERGENCE_RESULTS"):
        return Path(named).expanduser()
    if (source := checkout()) is not None:
        return source / "book" / "results"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "emergence" / "results"


class Store:
    """The results below one folder. Cheap to make; each file is read once.

    Args:
        root: the folder, made on the first write; None is `default_root()`.

    Attributes:
        problems: one message for each file that was set aside because it could not be read.
    """

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.problems: list[str] = []
        self._loose_cache: dict[Path, Record] = {}
        self._merged_cache: dict[Path, tuple[tuple[int, ...], dict[str, Record]]] = {}

    # --- writing ---------------------------------------------------------------------------------

    def write(self, point: Point, row: Mapping[str, Any], provenance: Mapping[str, Any]) -> Path:
        """Record a finished point; after this returns it survives a crash.

        Args:
            row: the schema's columns: numbers (NaN too), strings, booleans, None, lists of these;
                numpy scalars and arrays are stored as numbers and lists.
            provenance: any of `PROVENANCE` and ``profile``, the profile that asked for the point.

        Raises:
            ParameterError: a value that is none of these, or a name used twice.
            StoreError: the folder is not writable or the disk is full; nothing is left behind.
        """
        check_columns(point.params, row)
        for name in provenance:
            if name not in (*PROVENANCE, "profile"):
                raise UnknownNameError("provenance column", name, (*PROVENANCE, "profile"))
        record = {
            "format": FORMAT,
            "experiment": point.experiment,
            "key": point.key,
            "version": point.version,
            "profile": provenance.get("profile", ""),
            "seed": point.seed,
            "params": {name: _plain(name, value) for name, value in point.params.items()},
            "row": {name: _plain(name, value) for name, value in row.items()},
        } | {name: _plain(name, provenance.get(name)) for name in PROVENANCE}
        path = self._point_path(point)
        # NaN and Infinity are written as Python's json writes them, and read back by it.
        _write(path, json.dumps(record).encode())
        return path

    def require_writable(self) -> None:
        """Raise `StoreError` now rather than after an hour of computing."""
        probe = self.root / f".probe-{uuid.uuid4().hex}"
        _write(probe, b"")
        probe.unlink()

    def compact(self, experiment: str) -> dict[str, Any]:
        """Merge an experiment's loose points into its parquet file; safe while sweeps write.

        Only the newest recorded version of the experiment is merged: points of older versions
        leave the parquet file, and older loose points stay where they are. A loose file goes only
        once its point is in the new parquet file.

        Returns:
            Where the merged points came from, as written to ``<root>/<experiment>.json``;
            "superseded" counts the points of older versions that were left out.

        Raises:
            StoreError: not writable, disk full, or a file of a newer format.
        """
        lock = self.root / ".locks" / f"{experiment}.lock"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock):
                return self._compact(experiment)
        except OSError as error:
            raise unusable(Path(error.filename or lock), error) from error

    def _compact(self, experiment: str) -> dict[str, Any]:
        loose = self._loose(experiment)
        found = self._merged(experiment) | {r["key"]: r for r in loose.values()}
        newest = max((r["version"] for r in found.values()), default=0)
        kept = [found[key] for key in sorted(found) if found[key]["version"] == newest]
        dates = sorted(r["date"] for r in kept if r["date"])
        summary: dict[str, Any] = {
            "format": FORMAT,
            "experiment": experiment,
            "version": newest,
            "points": len(kept),
            "superseded": len(found) - len(kept),
            "profiles": dict(Counter(r["profile"] for r in kept)),
            "seconds": round(sum(r["seconds"] or 0.0 for r in kept), 1),
            "dates": [dates[0], dates[-1]] if dates else [],
        }
        for name in ("commit", "device", "host", "versions"):
            summary[name] = sorted({r[name] for r in kept if r[name]})
        if kept:
            _write(self.root / f"{experiment}.parquet", _to_parquet(kept))
            _write(self.root / f"{experiment}.json", json.dumps(summary, indent=1).encode())
        for path, record in loose.items():
            if record["version"] == newest:
                path.unlink(missing_ok=True)
        for path in (self.root / "points" / experiment).glob(".*.tmp"):
            with suppress(FileNotFoundError):  # what a killed writer left
                if time.time() - path.stat().st_mtime > _ABANDONED_AFTER:
                    path.unlink()
        return summary

    # --- reading ---------------------------------------------------------------------------------

    def has(self, point: Point) -> bool:
        """Whether the point is recorded and readable."""
        loose = self._read_point(self._point_path(point))
        return loose is not None or point.key in self._merged(point.experiment)

    def keys(self, experiment: str) -> set[str]:
        """Keys of all recorded points of an experiment, whoever asked for them."""
        return {record["key"] for record in self._loose(experiment).values()} | set(
            self._merged(experiment)
        )

    def missing(self, points: Iterable[Point]) -> list[Point]:
        """Those of `points` that are not recorded, in their order."""
        points = list(points)
        recorded = self._recorded(points)
        return [p for p in points if p.key not in recorded]

    def rows(self, points: Iterable[Point]) -> pd.DataFrame:
        """The recorded ones of `points`, one row each, in their order.

        Returns:
            Columns key, profile, seed; the parameters; the schema's columns; `PROVENANCE`. A
            parameter that a point does not have is NaN. Lists stay Python lists. Empty, with the
            fixed columns, when nothing is recorded.

        Raises:
            StoreError: a file cannot be opened or is of a newer format.
        """
        points = {p.key: p for p in points}.values()
        recorded = self._recorded(points)
        found = [(p, recorded[p.key]) for p in points if p.key in recorded]
        names = {name: None for p, _ in found for name in p.params}
        columns = {name: None for _, record in found for name in record["row"]}
        # The parameters come from the point itself: parquet may have widened an int to a float.
        flat = [record | record["row"] | dict(p.params) for p, record in found]
        return pd.DataFrame(flat, columns=["key", "profile", "seed", *names, *columns, *PROVENANCE])

    def _recorded(self, points: Collection[Point]) -> dict[str, Record]:
        recorded: dict[str, Record] = {}
        for experiment in {p.experiment for p in points}:
            # Loose files first: `compact` puts the parquet file in place before it deletes them,
            # so a point that disappears between the two reads is in the second.
            loose = {r["key"]: r for r in self._loose(experiment).values()}
            recorded |= self._merged(experiment) | loose
        return recorded

    def _loose(self, experiment: str) -> dict[Path, Record]:
        paths = sorted((self.root / "points" / experiment).glob("[!.]*.json"))
        records = {path: self._read_point(path) for path in paths}
        return {path: record for path, record in records.items() if record is not None}

    def _read_point(self, path: Path) -> Record | None:
        if not path.exists():
            self._loose_cache.pop(path, None)
        elif path not in self._loose_cache:
            try:
                record = json.loads(path.read_bytes())
                self._check_format(path, record["format"])
                params, version = record["params"], record["version"]
                point = Point(record["experiment"], version, params, record["seed"])
                if not path.stem == record["key"] == point.key:
                    raise ValueError("its content does not match its name")
                if missing := {"profile", "row", *PROVENANCE} - set(record):
                    raise ValueError(f"it lacks {sorted(missing)}")
                self._loose_cache[path] = record
            except FileNotFoundError:  # compacted a moment ago
                return None
            except OSError as error:
                raise unusable(path, error) from error
            except (ValueError, KeyError, TypeError) as error:
                self._set_aside(path, error)
        return self._loose_cache.get(path)

    def _merged(self, experiment: str) -> dict[str, Record]:
        path = self.root / f"{experiment}.parquet"
        try:
            stamp = _stamp(path)
            if path not in self._merged_cache or self._merged_cache[path][0] != stamp:
                data = path.read_bytes()
                self._merged_cache[path] = (stamp, self._from_parquet(path, data))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise unusable(path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            with suppress(FileNotFoundError):
                if _stamp(path) == stamp:  # else another process has just replaced it
                    self._set_aside(path, error)
            return {}
        return self._merged_cache[path][1]

    def _from_parquet(self, path: Path, data: bytes) -> dict[str, Record]:
        try:
            # An Arrow buffer, not BytesIO: a reading thread that frees a Python object while the
            # interpreter shuts down aborts the process.
            buffer = pa.BufferReader(data)
            table = pq.ParquetFile(buffer, page_checksum_verification=True).read()
        except pa.ArrowMemoryError:  # the file may well be fine
            raise
        except (OSError, pa.ArrowException) as error:  # reading memory: the bytes are at fault
            raise ValueError(str(error)) from error
        notes = json.loads((table.schema.metadata or {})[b"emergence"])
        self._check_format(path, notes["format"])
        rows = table.to_pylist()
        for row in rows:
            row |= {name: json.loads(row[name]) for name in notes["as_json"]}
        fixed, params = (*_LEADING, *PROVENANCE), notes["params"]
        columns = [name for name in table.column_names if name not in (*fixed, *params)]
        return {
            row["key"]: {name: row[name] for name in fixed}
            | {"params": {n: row[n] for n in params}, "row": {n: row[n] for n in columns}}
            for row in rows
        }

    def _check_format(self, path: Path, written: int) -> None:
        if written > FORMAT:
            raise StoreError(
                f"{path} has format {written}, and this version reads up to {FORMAT}. It was "
                "written by a newer emergence-companion: upgrade, or set EMERGENCE_RESULTS to "
                "another folder."
            )

    def _set_aside(self, path: Path, error: Exception) -> None:
        """Move a corrupt file out of the way, and say so; the rest of the store stays usable."""
        aside = self.root / "corrupt" / f"{path.stem}-{time.time_ns()}{path.suffix}"
        try:
            aside.parent.mkdir(parents=True, exist_ok=True)
            path.rename(aside)
            outcome = f"moved to {aside}"
        except FileNotFoundError:  # another process was faster
            return
        except OSError as reason:
            outcome = f"left where it is ({reason.strerror})"
        message = (
            f"{path} is corrupt ({error}) and was {outcome}. Its points count as missing: "
            "restore the file from version control, or `emergence sweep` computes them again."
        )
        self.problems.append(message)
        warnings.warn(message, stacklevel=2)

    def _point_path(self, point: Point) -> Path:
        return self.root / "points" / point.experiment / f"{point.key}.json"


def check_columns(params: Iterable[str], columns: Iterable[str]) -> None:
    """Raise `ParameterError` when a row's column would hide another one in the flat table."""
    params, columns = set(params), set(columns)
    reserved = {*_LEADING, *PROVENANCE}
    if clash := (params & columns) | ((params | columns) & reserved):
        raise ParameterError(
            "columns", sorted(clash), "named once among parameters, schema and provenance",
            f"Rename them; {sorted(reserved)} are taken.",
        )  # fmt: skip


def _plain(name: str, value: Any) -> Any:
    """`value` in JSON's types, so that what is read back equals what was written."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ParameterError(
        name, value, "a number, a string, a boolean, None or a list of these",
        "Convert tensors with .tolist().",
    )  # fmt: skip


def _to_parquet(records: list[Record]) -> bytes:
    params = list({name: None for r in records for name in r["params"]})
    columns = list({name: None for r in records for name in r["row"]})
    flat = [r | r["params"] | r["row"] for r in records]
    arrays, as_json = {}, []
    for name in (*_LEADING, *params, *columns, *PROVENANCE):
        values = [row.get(name) for row in flat]
        try:
            arrays[name] = pa.array(values, from_pandas=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            # Mixed types (a number here, a string there) have no column type of their own.
            arrays[name] = pa.array([json.dumps(value) for value in values])
            as_json.append(name)
    notes = json.dumps({"format": FORMAT, "params": params, "as_json": as_json})
    table = pa.table(arrays).replace_schema_metadata({"emergence": notes})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _write(path: Path, data: bytes) -> None:
    """All of `data` at `path`, or nothing: a temporary file, synced, then renamed."""
    try:
        with whole_file(path) as temporary, temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError) -> StoreError:
    """The `StoreError` for a file that could not be read or written, with its remedy."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "Free some space there" if full else "Check the folder's existence and permissions"
    return StoreError(
        f"{path} cannot be used: {error.strerror or error}. {remedy}, or set EMERGENCE_RESULTS "
        "to another folder. Points recorded earlier are kept."
    )
