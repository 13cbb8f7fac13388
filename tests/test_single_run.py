"""`emergence train` below the command line: settings from text, and the folder a run leaves."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from emergence_lib import single_run
from emergence_lib.arguments import describe_type, field_types, parse_value
from emergence_lib.errors import ParameterError, StoreError, TrainingError, UnknownNameError
from emergence_lib.experiments.linear_map_cell import LinearMapCell
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.single_run import describe_parameters, settings_from_text, train
from emergence_lib.tasks import TASKS, LinearMap
from emergence_lib.training import TrainConfig

TINY = {
    "state_size": "3",
    "row_weight": "1",
    "d_model": "16",
    "n_heads": "2",
    "steps": "120",
    "eval_every": "20",
    "lr": "0.01",
    "warmup_steps": "0",
}


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("12", int, 12),
        ("-3", int, -3),
        ("3e-4", float, 3e-4),
        ("2", float, 2.0),
        ("True", bool, True),
        ("false", bool, False),
        ("none", int | None, None),
        ("4", int | None, 4),
        ("0.9,0.95", tuple[float, float], (0.9, 0.95)),
        ("attention", str | tuple[str, ...], "attention"),
        ("a, b,c", str | tuple[str, ...], ("a", "b", "c")),
        ("5", str, "5"),
    ],
)
def test_text_becomes_a_value_of_the_fields_type(text, hint, value):
    found = parse_value("x", text, hint)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "hint", "allowed"),
    [
        ("many", int, "an integer"),
        ("1.5", int, "an integer"),
        ("1e3", int, "an integer"),
        ("", float, "a number"),
        ("1", bool, "true or false"),
        ("x", int | None, "an integer or none"),
        ("0.9", tuple[float, float], "2 values separated by commas, each a number"),
        ("1,2,3", tuple[float, float], "2 values separated by commas, each a number"),
        ("1,x", tuple[int, ...], "values separated by commas, each an integer"),
    ],
)
def test_a_wrong_type_names_parameter_value_and_what_is_allowed(text, hint, allowed):
    with pytest.raises(ParameterError) as error:
        parse_value("x", text, hint)
    assert str(error.value) == f"x={text!r} is not possible: x must be {allowed}."


def test_every_field_can_be_described():
    for cls in (LinearMap, ModelConfig, TrainConfig):
        assert all(describe_type(hint) for hint in field_types(cls).values())


def test_each_name_reaches_the_task_the_model_or_the_training():
    found = settings_from_text("linear_map", TINY | {"betas": "0.8,0.9", "mixer": "attention"})
    assert found.task == LinearMap(state_size=3, row_weight=1)
    assert (found.model.d_model, found.model.n_heads, found.model.n_layers) == (16, 2, 1)
    assert (found.model.vocab_size, found.model.max_pos) == (2, 5)
    assert (found.training.steps, found.training.betas) == (120, (0.8, 0.9))


def test_the_linear_map_is_trained_by_the_book_s_recipe():
    cell, found = LinearMapCell(), settings_from_text("linear_map", {})
    assert found.task == cell.task(0)
    assert found.model == cell.model_config()
    assert found.training == cell.train_config(0)
    assert (found.training.muon_lr, found.training.batch_size, found.model.init_std) == (
        0.005,
        16,
        0.09,
    )
    narrow = settings_from_text("linear_map", {"d_model": "64"}).model
    assert (narrow.d_head, narrow.d_mlp) == (8, 256), "they follow from d_model"
    listed = describe_parameters("linear_map")
    assert re.search(r"^  muon_lr +0\.005 ", listed, re.M)
    assert re.search(r"^  batch_size +16 ", listed, re.M)


def test_another_task_has_only_the_toy_model_s_shape(monkeypatch):
    class Other(LinearMap):
        name = "other"

    monkeypatch.setitem(TASKS, "other", Other)
    found = settings_from_text("other", {})
    shape = ModelConfig(n_layers=1, d_model=128, n_heads=8, vocab_size=2, max_pos=31)
    assert (found.model, found.training) == (shape, TrainConfig())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["Muon for the mixers, muon_lr 0.005", "AdamW, lr 0.001", "batch_size 16"]),
        ({"muon_lr": "none", "attention_bias": "4"}, ["optimizer    AdamW", "attention_bias 4"]),
        ({}, ["attention_bias 0", "within 0.002 nats of the floor", "init_std 0.09"]),
        ({"stop_margin": "none"}, ["stops early  never"]),
    ],
)
def test_the_description_hides_no_part_of_the_recipe(given, words):
    text = settings_from_text("linear_map", given).describe()
    assert all(word in text for word in words), text
    assert max(map(len, text.splitlines())) <= 80


def test_no_parameter_belongs_to_two_of_them():
    names = [re.match(r"  (\w+)", line) for line in describe_parameters("linear_map").split("\n")]
    listed = [match[1] for match in names if match]
    assert len(listed) == len(set(listed))
    assert {"row_weight", "n_heads", "lr", "seed"} <= set(listed)
    assert not {"vocab_size", "max_pos"} & set(listed), "they follow from the task"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"row_wieght": "2"}, UnknownNameError, "Did you mean 'row_weight'?"),
        ({"vocab_size": "2"}, UnknownNameError, "'vocab_size'"),
        ({"steps": "many"}, ParameterError, "steps must be an integer"),
        ({"row_weight": "17"}, ParameterError, "at most state_size=16"),
        ({"n_heads": "3"}, ParameterError, "a divisor of d_model=128"),
        ({"lr": "-1"}, ParameterError, "lr must be a positive number"),
        ({"lr": "nan"}, ParameterError, "lr must be a positive number"),
    ],
)
def test_wrong_settings_say_what_is_possible(given, error, words):
    with pytest.raises(error, match=re.escape(words)):
        settings_from_text("linear_map", given)


def test_a_run_leaves_a_folder_from_which_it_can_be_checked(tmp_path):
    torch.set_num_threads(1)
    folder = tmp_path / "new" / "run"
    settings = settings_from_text("linear_map", TINY | {"tied_embeddings": "true"})
    result = train(settings, folder=folder)

    assert sorted(path.name for path in folder.iterdir()) == [
        "model.safetensors",
        "run.json",
        "trajectory.parquet",
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["run"], "no temporary folder left"
    pd.testing.assert_frame_equal(
        pd.read_parquet(folder / "trajectory.parquet"), result.run.trajectory
    )
    note = json.loads((folder / "run.json").read_text())
    assert note["task"] == {
        "name": "linear_map",
        "state_size": 3,
        "row_weight": 1,
        "matrix_seed": 0,
    }
    assert note["result"]["floor"] == pytest.approx(2 / 5 * 0.693147, abs=1e-6)
    assert note["training"]["steps"] == 120

    # The kept model, rebuilt from the note, predicts what the run's own model does.
    model = Transformer(ModelConfig(**note["model"]))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    tokens = settings.task.sample(8, torch.Generator().manual_seed(1)).tokens[:, :-1]
    torch.testing.assert_close(model(tokens), result.run.model(tokens))


def test_the_report_gives_loss_floor_accuracy_and_the_step_it_was_solved():
    torch.set_num_threads(1)
    result = train(settings_from_text("linear_map", TINY | {"steps": "400"}))
    accuracy = result.run.metric("accuracy")
    above = [
        accuracy.index[i] for i in range(len(accuracy) - 1) if min(accuracy.iloc[i : i + 2]) > 0.99
    ]
    text = result.describe()
    assert f"{result.run.metric('loss').iloc[-1]:.4f} nats (floor 0.2773)" in text
    assert f"at step {above[0]} " in text
    assert "100.0%" in text
    assert result.numbers()["solved_at"] == above[0]


def test_a_run_that_does_not_get_there_says_so():
    result = train(settings_from_text("linear_map", TINY | {"steps": "1", "row_weight": "3"}))
    assert "no, in 1 steps" in result.describe()
    assert result.numbers()["solved_at"] is None


def test_a_folder_in_use_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "precious.txt").write_text("mine")
    monkeypatch.setattr(single_run, "train_model", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(ParameterError, match="a new or an empty folder"):
        train(settings_from_text("linear_map", TINY), folder=tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_an_unwritable_folder_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(single_run, "train_model", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(StoreError, match="cannot be written"):
        train(settings_from_text("linear_map", TINY), folder=tmp_path / "file" / "run")


@pytest.mark.parametrize("error", [TrainingError("step 3: loss nan"), KeyboardInterrupt()])
def test_a_run_that_ends_early_leaves_nothing(tmp_path, monkeypatch, error):
    def stop(*_, **__):
        raise error

    monkeypatch.setattr(single_run, "train_model", stop)
    with pytest.raises(type(error)):
        train(settings_from_text("linear_map", TINY), folder=tmp_path / "run")
    assert not list(tmp_path.iterdir())
