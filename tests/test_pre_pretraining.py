"""Transfer between tasks, the experiment's runs, and its judge on rows made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.pre_pretraining import (
    PRE_PRETRAINING,
    SOURCES,
    PrePretrainingGrid,
    TransferCell,
)
from emergence_lib.experiments.pre_pretraining_evidence import (
    compare,
    curves,
    events,
    faster,
    judge_pre_pretraining,
    named_events,
    source_table,
)
from emergence_lib.models import ModelConfig
from emergence_lib.models.transferred import TransferredConfig, moved_parameters

torch.set_num_threads(1)

SHAPE = {"n_layers": 2, "d_model": 8, "n_heads": 2, "max_pos": 9, "positional": "rotary"}


def trained(seed=3):
    """A model that stands for a trained one: other numbers everywhere, norms included."""
    model = ModelConfig(**SHAPE, vocab_size=11).build(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5
    return model


def test_blocks_move_and_embeddings_do_not():
    source = trained()
    config = TransferredConfig(**SHAPE, vocab_size=5, moved=moved_parameters(source))
    started = config.build(torch.Generator().manual_seed(0)).state_dict()
    fresh = ModelConfig(**SHAPE, vocab_size=5).build(torch.Generator().manual_seed(0)).state_dict()
    for name, value in started.items():
        moves = name.startswith(("blocks.", "final_norm."))
        assert torch.equal(value, source.state_dict()[name] if moves else fresh[name]), name
    assert {n.split(".")[0] for n in started} == {"embed", "blocks", "final_norm", "unembed"}


def test_what_moves_is_a_copy_and_tells_runs_apart():
    source = trained()
    moved = moved_parameters(source)
    config = TransferredConfig(**SHAPE, vocab_size=5, moved=moved)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.zero_()
    assert config.build().blocks[0].mixer.qkv.weight.abs().sum() > 0
    same = TransferredConfig(**SHAPE, vocab_size=5, moved=moved)
    other = TransferredConfig(**SHAPE, vocab_size=5, moved=moved_parameters(trained(4)))
    assert config.start == same.start != other.start


def test_blocks_of_another_shape_are_refused():
    moved = moved_parameters(trained())
    for wrong in (None, {}, dict(list(moved.items())[1:])):
        with pytest.raises(ParameterError, match="of a model of this shape"):
            TransferredConfig(**SHAPE, vocab_size=5, moved=wrong).build()
    with pytest.raises(ParameterError, match="of a model of this shape"):
        TransferredConfig(**(SHAPE | {"d_mlp": 9}), vocab_size=5, moved=moved).build()


# --- runs -------------------------------------------------------------------------------------

TINY = TransferCell(source="dyck", source_steps=2, steps=3, d_model=16, n_heads=2)


def test_sources_have_sequences_of_one_length():
    assert {task.seq_len for task in SOURCES.values() if task is not None} == {44}


@pytest.mark.parametrize("source", SOURCES)
def test_a_run_leaves_the_row_that_the_schema_says(source):
    grid = PrePretrainingGrid((source,), source_steps=2, seeds=1, steps=3, d_model=16)
    (point,) = grid.points()
    row = PRE_PRETRAINING.run(point, "cpu")
    PRE_PRETRAINING.check_row(row)
    assert row == PRE_PRETRAINING.run(point, "cpu")
    assert row["eval_steps"] == [0, 3]
    assert (row["source_loss"] is None) == (row["source_floor"] is None) == (source == "none")
    assert point.params["source_steps"] == (0 if source == "none" else 2)


def test_the_downstream_run_starts_from_the_source_s_blocks():
    cell = TINY
    source = cell.train_source(0, "cpu")
    at_start = replace(cell, steps=1, lr=1e-12).train(0, "cpu", source).model
    moved = moved_parameters(source.model)
    for name, value in moved_parameters(at_start).items():
        assert torch.allclose(value, moved[name], atol=1e-9)
    plain = replace(cell, steps=1, lr=1e-12).train(0, "cpu", None).model
    assert torch.allclose(plain.embed.weight, at_start.embed.weight)  # drawn alike, not moved
    assert not torch.allclose(plain.blocks[0].mlp.up.weight, at_start.blocks[0].mlp.up.weight)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sources": ("dyk",)}, UnknownNameError),
        ({"sources": ()}, ParameterError),
        ({"source_steps": 0}, ParameterError),
        ({"seeds": 0}, ParameterError),
        ({"lr": "fast"}, ParameterError),
        ({"n_tokens": 1}, ParameterError),
    ],
)
def test_impossible_parameters_are_refused(changes, error):
    with pytest.raises(error):
        PrePretrainingGrid(**changes)


# --- evidence ---------------------------------------------------------------------------------

STEPS, BEFORE = 800, 300


def rows(runs=5, before=BEFORE, **waits):
    """`runs` seeds a source; each waits as given, ten steps more a seed; None is never."""
    made = []
    for source, wait in waits.items():
        for seed in range(runs):
            acquired = math.nan if wait is None else wait + 10 * seed
            made.append(
                {
                    "source": source, "seed": seed, "steps": STEPS,
                    "source_steps": before * (source != "none"),
                    "stopped_at": STEPS, "acquired_at": acquired, "eval_steps": [0, STEPS],
                    "eval_loss": [3.0, 1.0], "eval_accuracy": [0.1, 0.9],
                    "source_loss": math.nan if source == "none" else 2.5,
                    "source_floor": math.nan if source == "none" else 2.0,
                }
            )  # fmt: skip
    return pd.DataFrame(made)


def test_waits_are_counted_with_and_without_the_source_s_steps():
    made = rows(none=600, dyck=200, unigram=None)
    alone, together = events(made), events(made, all_steps=True)
    assert [e.step for e in alone["dyck"]] == [200, 210, 220, 230, 240]
    assert [e.step for e in together["dyck"]] == [500, 510, 520, 530, 540]
    assert together["none"] == alone["none"]
    assert not any(e.observed for e in alone["unigram"])
    assert {e.step for e in together["unigram"]} == {STEPS + BEFORE}
    assert list(alone) == ["none", "dyck", "unigram"]
    assert list(curves(made)) == list(named_events(made)) == ["no source", "Dyck", "unigram tokens"]
    table = source_table(made).set_index("source")
    assert table.loc["Dyck", "downstream wait"].startswith("220 [")
    assert table.loc["Dyck", "with source steps"].startswith("520 [")
    assert table.loc["unigram tokens", "downstream wait"].startswith("not within the 800")
    assert table.loc["Dyck", ["source loss", "source floor"]].tolist() == [2.5, 2.0]


def test_a_ratio_below_one_is_sooner():
    made = rows(none=600, dyck=200)
    test = compare(made, "dyck", "none")
    assert test.ratios["dyck"].value == pytest.approx(220 / 620)
    assert faster(test, "dyck")
    assert compare(made, "dyck", "none", all_steps=True).ratios["dyck"].value == pytest.approx(
        520 / 620
    )
    # A source longer than the arm without one was watched, which got there all the same.
    long = compare(rows(none=400, dyck=300, before=1_000), "dyck", "none", all_steps=True)
    assert long.ratios["dyck"].value == pytest.approx(1_320 / 420)
    assert long.ratios["dyck"].low > 2.9
    # Where runs of one arm never got there, the other counts up to where these were watched.
    never = compare(rows(none=None, dyck=300, before=1_000), "dyck", "none", all_steps=True)
    assert never.ratios["dyck"].value == pytest.approx(1)
    assert not faster(compare(rows(none=600, dyck=595), "dyck", "none"), "dyck")
    assert compare(made[made.seed < 3], "dyck", "none") is None


@pytest.mark.parametrize(
    ("waits", "status"),
    [
        ({"none": 600, "dyck": 200, "neural_ca": 620, "unigram": 600}, "reproduced"),
        ({"none": 600, "dyck": 200, "neural_ca": 620, "unigram": 200}, "partly"),
        ({"none": 600, "dyck": 200}, "partly"),
        ({"none": 600, "dyck": 700, "neural_ca": None, "unigram": 600}, "not reproduced"),
        ({"none": 600, "unigram": 200}, "not tested here"),
        ({"dyck": 600, "unigram": 200}, "not tested here"),
    ],
)
def test_a16_asks_for_a_wait_shorter_than_without_and_than_the_control(waits, status):
    made = rows(**waits)
    verdict = judge_pre_pretraining(made)
    assert verdict.status == status
    assert verdict.n == (0 if status == "not tested here" else len(made))
    assert "None" not in verdict.evidence
    assert (("unigram tokens:" in verdict.evidence) == ("unigram" in waits)) or verdict.n == 0


def test_of_several_lengths_the_longest_counts():
    short = rows(dyck=100, before=100)
    both = pd.concat([rows(none=600, dyck=700), short], ignore_index=True)
    assert judge_pre_pretraining(both).status == "not reproduced"
    assert "Dyck, 300 steps" in judge_pre_pretraining(both).evidence
    assert source_table(both)["source steps"].tolist() == [0, 100, 300]


def test_a16_needs_four_runs():
    assert judge_pre_pretraining(rows(3, none=600, dyck=100)).status == "not tested here"
    assert judge_pre_pretraining(pd.DataFrame()).status == "not tested here"


def test_the_recorded_points_keep_their_keys():
    """A changed key orphans every recorded point; see test_experiments."""
    assert PRE_PRETRAINING.points("cpu")[0].key == "462fbafa22763255"
