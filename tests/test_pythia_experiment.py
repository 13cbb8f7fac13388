"""The experiment `pythia`: its grid, a run of the suite, a bisection of checkpoints of the Hub."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments import EXPERIMENTS, pocket_suite
from emergence_lib.experiments import pythia as experiment
from emergence_lib.experiments.pocket_suite import PocketRun, sample_text, train_checkpoints
from emergence_lib.experiments.pythia import PYTHIA, PythiaGrid, bisect_row
from emergence_lib.experiments.pythia_evidence import emergence_table
from emergence_lib.models import Transformer
from emergence_lib.models.pocket import checkpoint_steps, load_pocket, pocket_config
from emergence_lib.models.pythia import STEPS, Loaded, download_size
from emergence_lib.tasks.corpus import corpus, pocket_tokenizer
from emergence_lib.tasks.prompts import CAPABILITIES

torch.set_num_threads(1)
TINY = PocketRun("98k", steps=4, batch_size=2, n_strides=2, n_prompts=2)


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """Checkpoints of the suite go to an empty folder; the corpus stays where it is."""
    monkeypatch.setattr(
        pocket_suite, "checkpoint_folders", lambda size, seed: (tmp_path / f"{size}-{seed}",)
    )
    monkeypatch.setattr(
        "emergence_lib.models.pocket.checkpoint_folders",
        lambda size, seed: (tmp_path / f"{size}-{seed}",),
    )
    return tmp_path


def test_the_recorded_grid_is_what_the_issue_asks():
    counts = {}
    for point in PYTHIA.points("cpu"):
        counts[point.params["size"]] = counts.get(point.params["size"], 0) + 1
    assert counts == {"98k": 10, "442k": 10, "1.2m": 5}
    paper = PYTHIA.points("paper")
    assert len(paper) == 5 * 10
    assert {p.params["source"] for p in paper} == {"hub"}


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"source": "disk"}, UnknownNameError, "'disk'"),
        ({"sizes": ("14m",)}, UnknownNameError, "source 'pocket'"),
        ({"source": "hub"}, UnknownNameError, "source 'hub'"),  # with the pocket suite's sizes
        ({"sizes": ()}, ParameterError, "98k"),
        ({"seeds": 0}, ParameterError, "seeds=0"),
        ({"source": "hub", "sizes": "14m", "seeds": 11}, ParameterError, "seeds=11"),
        ({"steps": 100}, ParameterError, "steps=100"),
        ({"lr": "fast"}, ParameterError, "lr='fast'"),
        ({"n_prompts": 0}, ParameterError, "n_prompts=0"),
        ({"n_strides": 0}, ParameterError, "n_strides=0"),
    ],
)
def test_impossible_grids_are_refused(change, error, named):
    with pytest.raises(error, match=named):
        replace(PythiaGrid(), **change)


def test_one_size_may_be_given_as_text_and_lists_come_from_papermill():
    assert PythiaGrid(sizes="442k").sizes == ("442k",)
    assert PythiaGrid(sizes=["98k", "1.2m"]).sizes == ("98k", "1.2m")


def test_a_smoke_run_fills_the_schema_and_keeps_no_checkpoints(checkpoints):
    (point,) = PYTHIA.points("smoke")
    row = PYTHIA.run(point, "cpu")
    PYTHIA.check_row(row)
    assert row["eval_steps"] == [0, 1, 2, 4]
    assert all(len(row[f"p_{name}"]) == 4 for name in CAPABILITIES)
    assert np.shape(row["induction"]) == (4, 2 * 4)
    assert row["loss"][-1] < row["loss"][0]
    assert row["sample"].startswith("One morning")
    assert list(checkpoints.iterdir()) == []  # only the suite's own runs are kept
    table = emergence_table(pd.DataFrame([row | dict(point.params) | {"seed": 0}]), "many")
    assert (table.step == 4).all()
    assert not table.observed.any()


def test_the_same_seed_gives_the_same_run():
    first, again, other = (TINY.train(seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first.trajectory, again.trajectory)
    assert not first.trajectory.value.equals(other.trajectory.value)
    assert first.trajectory.metric.equals(other.trajectory.metric)


def test_every_run_is_evaluated_on_the_same_windows_that_none_is_trained_on():
    batch = pocket_suite.held_out_batch()
    assert torch.equal(batch.tokens, pocket_suite.held_out_batch().tokens)
    trained = corpus().labels["document"][: corpus().n_train].unique()
    assert not torch.isin(batch.labels["document"], trained).any()


def test_checkpoints_are_trained_once_and_are_the_runs_own(checkpoints, monkeypatch):
    monkeypatch.setattr(pocket_suite, "PocketRun", lambda size: replace(TINY, size=size))
    train_checkpoints("98k", 0)
    assert checkpoint_steps("98k", 0) == TINY.schedule()
    run = TINY.train(0)
    tokens = torch.arange(10)[None]
    assert torch.equal(load_pocket("98k", 0, 4)(tokens), run.model(tokens))
    monkeypatch.setattr(PocketRun, "train", None)  # a second call must not need it
    train_checkpoints("98k", 0)


def test_sampled_text_depends_on_the_seed_only():
    model = Transformer(pocket_config("98k", 2048))
    assert sample_text(model, 0, 12) == sample_text(model, 0, 12) != sample_text(model, 1, 12)


def test_the_hub_is_bisected_and_fetched_ahead(monkeypatch):
    """Fake checkpoints that solve everything from step 59,000 on."""
    loaded, ahead = [], []
    tokenizer = pocket_tokenizer()

    class Checkpoint:
        def __init__(self, step):
            self.step = step

        def to(self, device):
            return self

    class Prompts:
        def __init__(self, tokenizer, n_prompts):
            assert n_prompts == 3

        def measure(self, model):
            solved = float(model.step >= 59_000)
            return {
                f"{measure}.{name}": {"solved": solved, "single_rank": 1 - solved}.get(measure, 0.5)
                for name in CAPABILITIES
                for measure in pocket_suite.PROMPT_MEASURES
            }

    class Heads:
        def __init__(self, generator):
            pass

        def measure(self, model):
            return {f"{name}.0.0": 0.1 for name in pocket_suite.HEAD_MEASURES}

    def load(size, seed, step):
        assert (size, seed) == ("14m", 2)
        loaded.append(step)
        return Loaded(Checkpoint(step), tokenizer, "digest", None)

    monkeypatch.setattr(experiment.pythia, "load", load)
    monkeypatch.setattr(experiment.pythia, "prefetch", lambda *given: ahead.append(given))
    monkeypatch.setattr(experiment, "capability_observer", Prompts)
    monkeypatch.setattr(experiment, "HeadObserver", Heads)
    row = bisect_row("14m", 2, 3, "cpu")
    PYTHIA.check_row(row)
    assert len(loaded) == len(set(loaded)) <= 8  # 154 checkpoints, all capabilities together
    assert row["eval_steps"] == sorted(loaded)
    assert {58_000, 59_000} <= set(loaded)
    for step, (size, seed, candidates) in zip(loaded, ahead, strict=True):
        assert (size, seed) == ("14m", 2)
        assert set(candidates) <= set(STEPS) - {step}
    for i, step in enumerate(loaded[1:], start=1):
        assert step in ahead[i - 1][2]  # what comes next was being fetched
    frame = pd.DataFrame([row | {"source": "hub", "size": "14m", "seed": 2}])
    table = emergence_table(frame, "single")
    assert (table.step == 58_500).all()
    assert table.evaluations.max() <= 8


def test_downloads_are_bounded_by_the_tree_of_the_bisections():
    pocket, hub = PYTHIA.points("cpu")[0], PYTHIA.points("paper")[0]
    assert experiment.download(pocket) == 0
    # 8 paths: levels of 1, 2, 4, 8, 16, 16, 16, 16 checkpoints with those fetched ahead.
    assert experiment.download(hub) == (15 + 4 * 16) * download_size("14m")


def test_the_registry_holds_it():
    assert EXPERIMENTS["pythia"] is PYTHIA
