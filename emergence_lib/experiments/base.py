"""What an experiment is: a grid of points a profile, a row a point, and the claims it tests.

    Experiment.block(profile, **changes) ─► Grid (validated parameters of a block of points)
    Grid.points()                        ─► [Point(experiment, version, params, seed), …]
    Experiment.run(point, device)        ─► row: {column: number, string or list}
    Experiment.judges[claim](rows)       ─► Verdict

A point is identified by what it computes, never by the profile that asked for it, so profiles share
recorded points, and changing an experiment's `version` retires them all.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pandas as pd

from emergence_lib.errors import ParameterError, UnknownNameError

PROFILES = ("smoke", "quick", "cpu", "paper")
"""From seconds to a GPU: tests, live in a notebook, recorded on two cores, the paper's sizes."""

STATUSES = ("reproduced", "partly", "not reproduced", "not tested here")


@dataclass(frozen=True)
class Point:
    """One computation: what is computed (`params`) and with which seed."""

    experiment: str
    version: int
    params: Mapping[str, Any]
    seed: int

    @property
    def key(self) -> str:
        """Content address: 16 hex digits of the hash of the canonical JSON of all four fields."""
        canonical = json.dumps(
            [self.experiment, self.version, dict(self.params), self.seed],
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Verdict:
    """What the recorded rows say about a claim.

    Attributes:
        status: one of `STATUSES`.
        evidence: one sentence with its numbers, built from the rows.
        n: independent runs the sentence rests on.
    """

    status: str
    evidence: str
    n: int

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise UnknownNameError("verdict", self.status, STATUSES)


class Grid(ABC):
    """Parameters of a block of points: a frozen dataclass, validated on construction.

    Its fields are the knobs a notebook or ``emergence run -p`` may set; every subclass has `seeds`.
    """

    seeds: int

    @abstractmethod
    def points(self) -> list[Point]:
        """The points of this block, cheapest first where that is known."""


@dataclass(frozen=True)
class Experiment:
    """A finding's computations. Instances are registered in `experiments.EXPERIMENTS`.

    Attributes:
        name: as on the command line.
        version: part of every point's key; raise it when the meaning of a row changes.
        question: one line for ``emergence status`` and the docs.
        grid: the `Grid` class, which validates parameters.
        profiles: the blocks of each profile of `PROFILES`.
        run: ``run(point, device) -> row``.
        schema: column of a row → its meaning with type and unit.
        judges: claim id → ``judge(rows) -> Verdict``, where `rows` has a row a recorded point with
            the parameters, the seed and the schema's columns.
        seconds: rough seconds of one point of a profile on one laptop core, for estimates.
        download: point → bytes that it fetches at most from the network; None where none does.
    """

    name: str
    version: int
    question: str
    grid: type[Grid]
    profiles: Mapping[str, tuple[Grid, ...]]
    run: Callable[[Point, str], dict[str, Any]]
    schema: Mapping[str, str]
    judges: Mapping[str, Callable[[pd.DataFrame], Verdict]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    download: Callable[[Point], int] | None = None

    def points(self, profile: str) -> list[Point]:
        """Every point of a profile, without repeats.

        Raises:
            UnknownNameError: no such profile.
            ParameterError: `profile` is not text.
        """
        self._require_profile(profile)
        unique = {p.key: p for block in self.profiles[profile] for p in block.points()}
        return list(unique.values())

    def block(self, profile: str, **changes: Any) -> Grid:
        """The first block of `profile` with some parameters changed: what a notebook runs live.

        Raises:
            UnknownNameError: no such profile or parameter (the nearest is named).
            ParameterError: a wrong type or out of range.
        """
        self._require_profile(profile)
        known = [f.name for f in fields(self.grid)]  # type: ignore[arg-type]
        for name in changes:
            if name not in known:
                raise UnknownNameError(f"parameter of {self.name!r} called", name, known)
        return replace(self.profiles[profile][0], **changes)  # type: ignore[type-var]

    def _require_profile(self, profile: object) -> None:
        if not isinstance(profile, str):  # papermill makes a number of `-p profile 5`
            advice = "Give one of them, in quotes where this is code."
            raise ParameterError("profile", profile, f"one of {', '.join(self.profiles)}", advice)
        if profile not in self.profiles:
            raise UnknownNameError("profile", profile, self.profiles)

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Raise `ParameterError` unless the row has exactly the schema's columns."""
        if set(row) != set(self.schema):
            raise ParameterError(
                f"row of {self.name!r}", sorted(row), f"the columns {sorted(self.schema)}"
            )
