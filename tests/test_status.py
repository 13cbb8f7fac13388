"""What is recorded, missing and what it costs, against counts and sums done by hand."""

from __future__ import annotations

import dataclasses

import pytest
from fake_experiments import FakeGrid, area, make

from emergence_lib.errors import UnknownNameError
from emergence_lib.experiments import Point
from emergence_lib.status import (
    MissingCell,
    missing_cells,
    outside_profiles,
    profile_status,
    ranges,
)
from emergence_lib.store import Store
from emergence_lib.terminal import duration, status_text, sweep_plan

# Two cells of five seeds each.
EXPERIMENT = dataclasses.replace(
    make(area),
    profiles={"quick": (FakeGrid(2),), "cpu": (FakeGrid(5, width=3), FakeGrid(5, width=7))},
    seconds={"cpu": 100.0},
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def record(store, width, seeds, seconds):
    for point in FakeGrid(5, width=width).points():
        if point.seed in seeds:
            provenance = {"profile": "cpu", "seconds": seconds, "date": "2026-11-30T00:00:00+00:00"}
            store.write(point, {"area": 1}, provenance)


def test_an_empty_store_is_estimated_from_what_the_experiment_declares(store):
    status = profile_status(EXPERIMENT, "cpu", store)
    assert (status.recorded, status.total, status.seconds_spent) == (0, 10, 0)
    assert status.seconds_left == 10 * 100
    assert status.missing == (
        MissingCell("width=3", (0, 1, 2, 3, 4)),
        MissingCell("width=7", (0, 1, 2, 3, 4)),
    )
    assert status.command == "emergence sweep fake --profile cpu"


def test_missing_seeds_cost_what_their_cell_cost(store):
    record(store, 3, [0, 1, 3], seconds=4)
    record(store, 7, [0, 1], seconds=60)
    status = profile_status(EXPERIMENT, "cpu", store)
    assert (status.recorded, status.seconds_spent) == (5, 3 * 4 + 2 * 60)
    assert status.seconds_left == 2 * 4 + 3 * 60
    assert [str(cell) for cell in status.missing] == ["width=3: seeds 2, 4", "width=7: seeds 2-4"]


def test_a_cell_without_any_seed_costs_the_profiles_mean(store):
    record(store, 3, [0, 1, 2, 3], seconds=6)
    status = profile_status(EXPERIMENT, "cpu", store)
    assert status.seconds_left == 6 + 5 * 6
    assert str(status.missing[0]) == "width=3: seed 4"


def test_profiles_share_points(store):
    record(store, 3, [0, 1], seconds=1)
    status = profile_status(EXPERIMENT, "quick", store)
    assert (status.recorded, status.total, status.missing) == (2, 2, ())
    assert (status.seconds_left, status.command) == (0, "")


def test_points_that_no_profile_names_are_counted(store):
    record(store, 3, [0, 1, 4], seconds=1)
    assert outside_profiles(EXPERIMENT, store) == 0
    record(store, 5, [0, 1], seconds=1)  # a width that no profile has
    assert outside_profiles(EXPERIMENT, store) == 2
    store.compact("fake")
    assert outside_profiles(EXPERIMENT, Store(store.root)) == 2


def test_downloads_are_summed_over_what_is_missing(store):
    fetching = dataclasses.replace(EXPERIMENT, download=lambda p: p.params["width"] * 10**9)
    record(store, 3, range(5), seconds=50)
    status = profile_status(fetching, "cpu", store)
    assert status.bytes_left == 5 * 7 * 10**9
    assert "downloads: at most 35 GB" in status_text(status, 80, False)
    assert "about 50 s, at most 7.0 GB of downloads." in sweep_plan(status, 1, 1)
    assert profile_status(EXPERIMENT, "cpu", store).bytes_left == 0


def test_an_unknown_profile_is_named(store):
    with pytest.raises(UnknownNameError, match="Did you mean 'quick'"):
        profile_status(EXPERIMENT, "qick", store)


def test_a_cell_is_named_by_the_parameters_that_vary():
    points = [
        Point("e", 1, {"size": size, "weight": weight, "steps": 10}, seed)
        for size in (8, 32)
        for weight in (1, 8)
        for seed in range(3)
    ]
    missing = [p for p in points if p.params["size"] == 32 and p.params["weight"] == 8 and p.seed]
    assert [str(cell) for cell in missing_cells(points, missing)] == ["size=32 weight=8: seeds 1-2"]


def test_cells_of_two_tasks_are_named_by_the_parameters_that_each_has():
    points = [
        Point("e", 1, {"task": "map", "weight": 3}, 0),
        Point("e", 1, {"task": "rules", "rules": 16}, 0),
        Point("e", 1, {"task": "rules", "rules": 64}, 0),
    ]
    names = [str(cell) for cell in missing_cells(points, points)]
    assert names == [
        "task=map: seed 0",
        "task=rules rules=16: seed 0",
        "task=rules rules=64: seed 0",
    ]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([4], "4"), ([0, 1, 2, 5], "0-2, 5"), ([0, 2, 3, 9, 10, 11], "0, 2-3, 9-11")],
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (45, "45 s"), (89, "89 s"), (95, "2 min"), (3600, "60 min"),
     (5400, "1 h 30 min"), (12_300, "3 h 25 min")],
)  # fmt: skip
def test_durations_in_the_units_a_person_uses(seconds, text):
    assert duration(seconds) == text


def test_the_plan_of_a_sweep_divides_the_time_by_the_workers_that_have_work(store):
    record(store, 3, range(5), seconds=50)
    status = profile_status(EXPERIMENT, "cpu", store)
    plan = "fake, profile cpu: 5 of 10 points recorded, 5 missing"
    assert sweep_plan(status, 5, 2) == f"{plan}; running 5 with 2 workers, about 2 min."
    assert sweep_plan(status, 1, 8) == f"{plan}; running 1 with 1 worker, about 50 s."
    record(store, 7, range(5), seconds=50)
    done = profile_status(EXPERIMENT, "cpu", store)
    assert sweep_plan(done, 0, 2).endswith("10 of 10 points recorded, 0 missing. Nothing to do.")


def test_long_lists_of_cells_are_cut_unless_asked_for(store):
    wide = dataclasses.replace(
        EXPERIMENT, profiles={"cpu": tuple(FakeGrid(2, width=w) for w in range(12))}
    )
    record(store, 3, [0], seconds=1)
    status = profile_status(wide, "cpu", store)
    short, full = status_text(status, 80, False), status_text(status, 80, True)
    assert "width=5" in short
    assert "width=11" not in short
    assert "and 6 more cells: emergence status fake" in short
    assert "width=11: seeds 0-1" in full
    assert "more cell" not in full
