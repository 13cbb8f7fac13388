"""The pocket suite's shapes and checkpoints: what is written is what is loaded, or nothing is."""

import pytest
import torch

from emergence_lib.errors import StoreError, UnknownNameError
from emergence_lib.models import Transformer, pocket
from emergence_lib.models.pocket import (
    POCKET_SIZES,
    checkpoint_path,
    checkpoint_steps,
    load_pocket,
    pocket_config,
    save_run,
)

torch.set_num_threads(1)
SEED = 97  # of no shipped run


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EMERGENCE_CACHE", str(tmp_path))
    return tmp_path


def make(seed: int) -> Transformer:
    return Transformer(pocket_config("98k", 50), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", POCKET_SIZES)
def test_sizes_are_named_after_their_non_embedding_parameters(size):
    model = Transformer(pocket_config(size, 10))
    body = sum(p.numel() for p in model.blocks.parameters())
    L, d, _ = POCKET_SIZES[size]
    by_hand = L * (12 * d * d + 13 * d)  # four matrices, their biases, two norms
    assert body == by_hand
    # "98k" leaves biases and norms out, which the table of the module counts.
    named = float(size[:-1]) * {"k": 1e3, "m": 1e6}[size[-1]]
    assert 12 * L * d * d == pytest.approx(named, rel=0.02)
    assert f"{body:,}" in pocket.__doc__


def test_the_largest_has_the_body_of_pythia_14m():
    config = pocket_config("1.2m", 10)
    assert (config.n_layers, config.d_model, config.n_heads) == (6, 128, 4)
    assert config.rotary_dim == config.d_head == 32  # Pythia's would be 8, see the docstring
    assert config.parallel_residual
    assert not config.tied_embeddings


def test_the_initial_scale_is_gpt_neoxs_small_one():
    weight = Transformer(pocket_config("1.2m", 10)).blocks[0].mlp.up.weight
    assert weight.std().item() == pytest.approx((2 / (5 * 128)) ** 0.5, rel=0.02)


def test_a_saved_run_is_loaded_again(cache):
    models = {0: make(0), 20: make(1)}
    folder = save_run("98k", SEED, {step: model.state_dict() for step, model in models.items()})
    assert checkpoint_steps("98k", SEED) == (0, 20)
    tokens = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(2))
    for step, model in models.items():
        loaded = load_pocket("98k", SEED, step)
        assert not loaded.training
        assert torch.equal(loaded(tokens), model(tokens))
    assert folder.parent.parent == cache
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]  # nothing temporary


def test_saving_again_replaces_the_run():
    save_run("98k", SEED, {step: make(step).state_dict() for step in (0, 20)})
    save_run("98k", SEED, {40: make(40).state_dict()})
    assert checkpoint_steps("98k", SEED) == (40,)


def test_a_run_that_cannot_be_written_leaves_nothing(cache, monkeypatch):
    written = []

    def full_disk(tensors, path):
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        path.write_bytes(b"")

    monkeypatch.setattr(pocket, "save_file", full_disk)
    with pytest.raises(StoreError, match="No space left"):
        save_run("98k", SEED, {0: {}, 20: {}})
    assert list((cache / "checkpoints").iterdir()) == []


def test_a_missing_checkpoint_says_what_is_here_and_how_to_make_it():
    save_run("98k", SEED, {20: make(0).state_dict()})
    with pytest.raises(StoreError, match=r"step 40 .*\(here: 20\).*emergence sweep pythia"):
        checkpoint_path("98k", SEED, 40)
    with pytest.raises(StoreError, match="none of this run"):
        checkpoint_path("442k", SEED, 40)


def test_a_file_of_another_size_or_cut_short_is_refused():
    folder = save_run("98k", SEED, {0: make(0).state_dict()})
    path = folder / "step-00000000.safetensors"
    (folder.parent / f"442k-seed{SEED}").mkdir()
    path.rename(folder.parent / f"442k-seed{SEED}" / path.name)
    with pytest.raises(StoreError, match="no checkpoint of size '442k'"):
        load_pocket("442k", SEED, 0)
    save_run("98k", SEED, {0: make(0).state_dict()})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match="no checkpoint of size '98k'"):
        load_pocket("98k", SEED, 0)


def test_an_unknown_size_names_the_nearest():
    with pytest.raises(UnknownNameError, match="'98k'"):
        load_pocket("98", 0, 0)
    with pytest.raises(UnknownNameError):
        pocket_config("14m", 10)
