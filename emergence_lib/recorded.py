"""How much of an experiment the store holds, and the rows that its pages show."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from emergence_lib.errors import StoreError
from emergence_lib.experiments.base import PROFILES, Experiment
from emergence_lib.store import Store


def coverage(experiment: Experiment, profile: str, store: Store) -> tuple[int, int]:
    """How many of a profile's points are recorded, and how many there are."""
    points = experiment.points(profile)
    return len(points) - len(store.missing(points)), len(points)


def best_profile(experiment: Experiment, store: Store) -> str | None:
    """The largest profile with at least half of its points recorded.

    A larger one of which less is recorded is preferred where that is still five times as many
    points: a third of a long sweep says more than the run of a notebook's live part. None when
    nothing is recorded.
    """
    ladder = [profile for profile in reversed(PROFILES) if profile in experiment.profiles]
    counts = {profile: coverage(experiment, profile, store) for profile in ladder}
    half = (p for p, (recorded, total) in counts.items() if recorded and 2 * recorded >= total)
    enough = next(half, ladder[-1])
    best = max(ladder[: ladder.index(enough) + 1], key=lambda profile: counts[profile][0])
    best = best if counts[best][0] >= 5 * counts[enough][0] else enough
    return best if counts[best][0] else None


@dataclass(frozen=True)
class Recorded:
    """What is recorded of an experiment in its best profile.

    Attributes:
        experiment: its name.
        rows: as `Store.rows` gives them; none only from `recorded_if_any`.
        profile: the profile.
        total: points the profile has.
    """

    experiment: str
    rows: pd.DataFrame
    profile: str
    total: int

    @property
    def label(self) -> str:
        """Profile, number of runs and days, for a caption."""
        days = sorted({date[:10] for date in self.rows.date})
        if not days:
            return f"profile {self.profile}, nothing recorded yet"
        return (
            f"profile {self.profile}, {len(self.rows)} of {self.total} runs, recorded "
            f"{days[0]}{f' to {days[-1]}' if days[1:] else ''}"
        )

    @property
    def gap(self) -> str:
        """What is not recorded yet and the command that records it; "" when all is there."""
        missing = self.total - len(self.rows)
        if not missing:
            return ""
        command = f"emergence sweep {self.experiment} --profile {self.profile}"
        return f"{missing} runs of this grid are not recorded yet; `{command}` computes them."


def recorded(experiment: Experiment, store: Store | None = None) -> Recorded:
    """The rows of the experiment's `best_profile`.

    Raises:
        StoreError: nothing is recorded; the message names the command that records it.
    """
    store = store or Store()
    profile = best_profile(experiment, store)
    if profile is None:
        raise StoreError(
            f"Nothing is recorded of {experiment.name!r} in {store.root}. "
            f"Record it with: emergence sweep {experiment.name} --profile cpu"
        )
    points = experiment.points(profile)
    return Recorded(experiment.name, store.rows(points), profile, len(points))


def recorded_if_any(experiment: Experiment, store: Store | None = None) -> Recorded:
    """`recorded`, or its columns without a row: for pages that are built before the first run."""
    store = store or Store()
    if best_profile(experiment, store) is not None:
        return recorded(experiment, store)
    points = experiment.points("cpu")
    columns = ["seed", "date", *points[0].params, *experiment.schema]
    return Recorded(experiment.name, pd.DataFrame(columns=columns), "cpu", len(points))
