"""What is recorded, what is missing and what it costs: the numbers behind ``emergence status``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from emergence_lib.experiments import Experiment, Point
from emergence_lib.store import Store


@dataclass(frozen=True)
class MissingCell:
    """Seeds that are missing for one setting of the parameters."""

    cell: str
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        word = "seed" if len(self.seeds) == 1 else "seeds"
        return f"{self.cell}: {word} {ranges(self.seeds)}"


@dataclass(frozen=True)
class Status:
    """One profile of an experiment in the store.

    Attributes:
        experiment, profile: their names.
        recorded, total: points.
        missing: the cells that are not complete.
        seconds_spent: what the recorded points took, summed over cores.
        seconds_left: estimate for the missing ones on one core.
        bytes_left: what the missing ones download at most.
        command: what fills the gap; "" where nothing is missing.
    """

    experiment: str
    profile: str
    recorded: int
    total: int
    missing: tuple[MissingCell, ...]
    seconds_spent: float
    seconds_left: float
    bytes_left: int
    command: str

    def as_dict(self) -> dict[str, Any]:
        """The status for tools: JSON types only. Names in it are never renamed or dropped."""
        return asdict(self)


def profile_status(experiment: Experiment, profile: str, store: Store) -> Status:
    """What `store` holds of a profile.

    Raises:
        UnknownNameError: no such profile.
        StoreError: the store cannot be read.
    """
    points = experiment.points(profile)
    missing = store.missing(points)
    seconds = recorded_seconds(points, store)
    return Status(
        experiment.name,
        profile,
        len(points) - len(missing),
        len(points),
        missing_cells(points, missing),
        sum(seconds.values()),
        estimate_seconds(experiment, profile, missing, seconds),
        sum(map(experiment.download, missing)) if experiment.download else 0,
        f"emergence sweep {experiment.name} --profile {profile}" if missing else "",
    )


def outside_profiles(experiment: Experiment, store: Store) -> int:
    """Recorded points that no profile names: of older grids or versions, or asked for by hand.

    They stay in the store, and no verdict or page reads them.

    Raises:
        StoreError: the store cannot be read.
    """
    named = {point.key for profile in experiment.profiles for point in experiment.points(profile)}
    return len(store.keys(experiment.name) - named)


def recorded_seconds(points: Sequence[Point], store: Store) -> dict[str, float]:
    """Seconds that each recorded point among `points` took, by its key."""
    rows = store.rows(points)
    return dict(zip(rows["key"], rows["seconds"].astype(float), strict=True))


def estimate_seconds(
    experiment: Experiment, profile: str, missing: Sequence[Point], known: Mapping[str, float]
) -> float:
    """Seconds on one core for the `missing` points of a profile.

    A point is taken to cost what other seeds of its cell took, else what the profile's recorded
    points took on average, else what the experiment declares.
    """
    by_cell = defaultdict(list)
    for point in experiment.points(profile):
        if point.key in known:
            by_cell[_cell_id(point)].append(known[point.key])
    otherwise = fmean(known.values()) if known else experiment.seconds.get(profile, 0.0)
    return sum(fmean(by_cell.get(_cell_id(point), [otherwise])) for point in missing)


def missing_cells(points: Sequence[Point], missing: Sequence[Point]) -> tuple[MissingCell, ...]:
    """`missing` grouped by cell, each named by those of its parameters that vary among `points`."""
    values: dict[str, set[str]] = defaultdict(set)
    for point in points:
        for name, value in point.params.items():
            values[name].add(json.dumps(value))
    vary = [name for name, seen in values.items() if len(seen) > 1]
    seeds = defaultdict(list)
    for point in missing:
        named = (f"{name}={point.params[name]}" for name in vary if name in point.params)
        seeds[" ".join(named) or "all"].append(point.seed)
    return tuple(MissingCell(cell, tuple(sorted(s))) for cell, s in seeds.items())


def ranges(numbers: Iterable[int]) -> str:
    """Sorted integers compactly: 0, 1, 2, 5 as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _cell_id(point: Point) -> str:
    return json.dumps(dict(point.params), sort_keys=True)
