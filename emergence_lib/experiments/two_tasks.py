"""Experiments that ask the same of the linear map and of cellular automata: one point, one row.

A point names its task and has the parameters of that task's cell. A run waits for what ends it: on
the linear map all rows (the floor), on cellular automata the end of the plateau. The two tasks have
parameters of their own, so a table of both has empty cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from emergence_lib.analysis.emergence import Event
from emergence_lib.experiments import cellular_automata_cell, linear_map_cell
from emergence_lib.experiments.base import Point
from emergence_lib.experiments.cellular_automata_cell import CellularAutomataCell
from emergence_lib.experiments.linear_map_cell import (
    ShapedLinearMapCell,
    plateau_event,
    solve_event,
)

Cell = ShapedLinearMapCell | CellularAutomataCell
CELLS: Mapping[str, type[Cell]] = {
    "linear_map": ShapedLinearMapCell,
    "cellular_automata": CellularAutomataCell,
}
"""Task → its cell; the keys are the values of a point's parameter `task`."""

NAMES = {"linear_map": "linear map", "cellular_automata": "cellular automata"}
"""Task → its name in prose."""

WAITS = {"linear_map": "all rows learned", "cellular_automata": "plateau over"}
"""Task → what its runs wait for."""

CURVE_SCHEMA = {
    "eval_steps": linear_map_cell.CURVE_SCHEMA["eval_steps"],
    "eval_loss": "list of float: held-out loss in nats at those steps, over all predictions",
    "stopped_at": "int: last training step",
    "solved": "bool: training stopped early: linear map within 0.002 nats of the floor, cellular "
    "automata below the plateau",
    "plateau_end": linear_map_cell.CURVE_SCHEMA["plateau_end"],
    "final_loss": linear_map_cell.CURVE_SCHEMA["final_loss"],
    "part_accuracy": "list of float: final accuracy of each output bit of the map, or of the cells "
    "in states 1 … T-1",
}


def params(cell: Cell) -> dict[str, Any]:
    """Canonical parameters of a `Point`."""
    task = next(name for name, kind in CELLS.items() if type(cell) is kind)
    return {"task": task, **cell.params()}


def cell_of(point: Point) -> Cell:
    """The cell whose `params` a point has."""
    given = dict(point.params)
    return CELLS[given.pop("task")](**given)


def run_cell(point: Point, device: str) -> dict[str, Any]:
    """Train the cell of a point with its seed.

    Returns:
        The columns of `CURVE_SCHEMA`.

    Raises:
        TrainingError: the loss is not finite.
    """
    cell = cell_of(point)
    run = cell.train(point.seed, device)
    if isinstance(cell, ShapedLinearMapCell):
        row = linear_map_cell.curve_row(cell, run, point.seed)
        accuracy = row["row_accuracy"]
    else:
        row = cellular_automata_cell.curve_row(cell, run, point.seed)
        accuracy = row["state_accuracy"]
    row["part_accuracy"] = accuracy
    return {column: row[column] for column in CURVE_SCHEMA}


def event(row: pd.Series) -> Event:
    """What a run waited for (`WAITS`), censored where it was not reached."""
    return solve_event(row) if row["task"] == "linear_map" else plateau_event(row)
