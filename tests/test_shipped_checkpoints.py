"""The checkpoints that come with the book: few, small, and those of the recorded run."""

import pytest
import torch

from emergence_lib.experiments.attention_patching import ATTENTION_PATCHING, bracket
from emergence_lib.experiments.pocket_suite import capability_observer
from emergence_lib.experiments.pythia import PYTHIA
from emergence_lib.experiments.pythia_evidence import curve, one_run
from emergence_lib.models.pocket import checkpoint_folders, checkpoint_steps, load_pocket
from emergence_lib.provenance import checkout
from emergence_lib.store import Store
from emergence_lib.tasks.corpus import pocket_tokenizer
from emergence_lib.tasks.prompts import CAPABILITIES

torch.set_num_threads(1)
SHIPPED = checkout() / "book" / "checkpoints"


@pytest.fixture(autouse=True)
def only_what_is_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "emergence_lib.models.pocket.checkpoint_folders",
        lambda size, seed: checkpoint_folders(size, seed)[:1],
    )


def test_they_are_small():
    sizes = [path.stat().st_size for path in SHIPPED.rglob("*.safetensors")]
    assert len(sizes) >= 3
    assert sum(sizes) <= 25e6


def test_they_hold_the_emergence_that_is_patched_live():
    for profile in ("smoke", "quick"):
        (point,) = ATTENTION_PATCHING.points(profile)
        found = bracket(seed=point.seed, **point.params)  # trains nothing
        assert {found.pre, found.post} <= set(checkpoint_steps(point.params["size"], point.seed))


def test_they_are_the_recorded_runs():
    """Loaded and asked again, they give the probabilities that training recorded."""
    row = one_run(Store().rows(PYTHIA.points("cpu")), "442k", 0).iloc[0]
    observer = capability_observer(pocket_tokenizer(), int(row.n_prompts))
    for step in checkpoint_steps("442k", 0):
        metrics = observer.measure(load_pocket("442k", 0, step))
        for name in CAPABILITIES:
            recorded = curve(row, f"p_{name}")[step]
            assert metrics[f"p.{name}"] == pytest.approx(recorded, abs=1e-4)
