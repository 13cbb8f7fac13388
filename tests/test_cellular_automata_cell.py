"""One run on cellular automata: its plateau level, its stopping and its row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.experiments.base import Point
from emergence_lib.experiments.cellular_automata_cell import (
    CURVE_SCHEMA,
    CellularAutomataCell,
    plateau_level,
    run_cell,
)
from emergence_lib.tasks import CellularAutomata

torch.set_num_threads(1)
TINY = CellularAutomataCell(
    state_size=4, colours=2, n_rules=1, n_states=4, n_layers=1, d_model=16, n_heads=2, steps=20,
    tokens=70, eval_every=10,
)  # fmt: skip


def test_the_plateau_is_over_at_the_paper_s_level_and_at_its_share_elsewhere():
    assert plateau_level(CellularAutomata()) == pytest.approx(1.3)
    task = CellularAutomata(state_size=8, n_states=8, n_rules=64)
    share = (math.log(4) - 1.3) / (math.log(4) - 15 / 255 * math.log(4))
    assert plateau_level(task) == pytest.approx(math.log(4) * (1 - share * (1 - 7 / 63)))
    # A pool's mean table gives less than this: it is no way off the plateau.
    assert plateau_level(task) < math.log(4) - 3 / (2 * 64)


def test_a_row_has_its_columns_and_seeds_move_task_and_weights():
    rows = [run_cell(Point("x", 1, TINY.params(), seed), "cpu") for seed in (0, 0, 1)]
    assert set(rows[0]) == set(CURVE_SCHEMA)
    assert rows[0] == rows[1] != rows[2]
    assert rows[0]["eval_steps"] == [0, 10, 20]
    assert len(rows[0]["state_accuracy"]) == 3
    # One rule: nothing to infer.
    assert rows[0]["bayes_loss"] == pytest.approx(TINY.task(0).floor)
    assert not torch.equal(TINY.task(0).tables, TINY.task(1).tables)


def test_tokens_are_a_budget():
    assert TINY.train_config(0).batch_size == 4  # 70 tokens hold four sequences of 16
    assert replace(TINY, state_size=8).train_config(0).batch_size == 2
    with pytest.raises(ParameterError, match="tokens"):
        replace(TINY, tokens=15).validate()


def test_a_run_may_stop_where_its_plateau_ends():
    cell = replace(TINY, steps=2_000, tokens=512, lr=1e-2, stop_after_plateau=True)
    row = run_cell(Point("x", 1, cell.params(), 0), "cpu")
    assert row["solved"]
    assert row["stopped_at"] == row["plateau_end"] + cell.eval_every
    assert row["stopped_at"] < 2_000
    assert max(row["eval_loss"][-2:]) < plateau_level(cell.task(0))
    assert TINY.train_config(0).stop_margin is None
