"""The pocket suite: Pythia's design at a size that trains on a laptop.

    size   layers  d_model  heads   non-embedding parameters
    98k         2       64      4                     99,968
    442k        4       96      4                    447,360
    1.2m        6      128      4                  1,189,632      the body of Pythia-14M

GPT-NeoX blocks as Pythia has them (Biderman et al. 2023, arXiv 2304.01373): parallel residual,
GELU, untied embeddings. One thing differs: rotary positions turn whole heads, where Pythia turns a
quarter. A quarter of a head of 16 is two frequencies, 1 and .01, and these cannot tell one token
back from seven, as a previous-token head must (cos 0 = 1, cos 6 = .96). The vocabulary is that of
`tasks.corpus.PocketPile`. `experiments.pocket_suite` trains the suite; its checkpoints lie in

    <checkout>/book/checkpoints/98k-seed0/step-00000140.safetensors  a few, shipped
    <cache>/checkpoints/98k-seed0/…                                  all of a run, made by training
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from emergence_lib.errors import StoreError, UnknownNameError
from emergence_lib.models.transformer import ModelConfig, Transformer
from emergence_lib.provenance import cache_folder, checkout

POCKET_SIZES: dict[str, tuple[int, int, int]] = {
    "98k": (2, 64, 4),
    "442k": (4, 96, 4),
    "1.2m": (6, 128, 4),
}
"""Size → n_layers, d_model, n_heads."""

CONTEXT = 128
"""Input positions of every model of the suite."""

TOKENIZER_PATH = Path(__file__).parents[1] / "tasks" / "pocket_tokenizer.json"


def pocket_config(size: str, vocab_size: int) -> ModelConfig:
    """The shape of a size, with GPT-NeoX's "small" initialisation, N(0, 2 / 5 d_model).

    Pythia divides the two output projections of a block further (Wang's scheme); `Transformer` has
    one scale for all matrices, so here they start as large as the others.

    Raises:
        UnknownNameError: no such size.
    """
    if size not in POCKET_SIZES:
        raise UnknownNameError("pocket size", size, POCKET_SIZES)
    n_layers, d_model, n_heads = POCKET_SIZES[size]
    return ModelConfig(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        vocab_size=vocab_size,
        max_pos=CONTEXT,
        positional="rotary",
        parallel_residual=True,
        activation="gelu",
        init_std=(2 / (5 * d_model)) ** 0.5,
        embed_std=(2 / (5 * d_model)) ** 0.5,
    )


def checkpoint_folders(size: str, seed: int) -> tuple[Path, ...]:
    """Where checkpoints of a run may lie, in the order in which they are looked for.

    ``$EMERGENCE_CACHE`` moves the cache.
    """
    name = f"{size}-seed{seed}"
    made = cache_folder() / "checkpoints" / name
    source = checkout()
    return (made,) if source is None else (source / "book" / "checkpoints" / name, made)


def checkpoint_steps(size: str, seed: int) -> tuple[int, ...]:
    """Steps whose checkpoint of this run is on this machine, in order."""
    found = {
        int(match[1])
        for folder in checkpoint_folders(size, seed)
        for path in folder.glob("step-*.safetensors")
        if (match := re.fullmatch(r"step-(\d+)\.safetensors", path.name))
    }
    return tuple(sorted(found))


def checkpoint_path(size: str, seed: int, step: int) -> Path:
    """The file of a checkpoint.

    Raises:
        StoreError: it is not on this machine; the message says which are and how to make it.
    """
    for folder in checkpoint_folders(size, seed):
        path = folder / f"step-{step:08d}.safetensors"
        if path.exists():
            return path
    here = checkpoint_steps(size, seed)
    raise StoreError(
        f"No checkpoint of the pocket suite for size {size!r}, seed {seed}, step {step} on this "
        f"machine (here: {', '.join(map(str, here)) or 'none of this run'}). Train the run with: "
        f"emergence sweep pythia --profile cpu"
    )


def load_pocket(size: str, seed: int, step: int) -> Transformer:
    """A checkpoint of the suite as a model in evaluation mode.

    Raises:
        UnknownNameError: no such size.
        StoreError: the checkpoint is not on this machine or does not fit the size.
    """
    if size not in POCKET_SIZES:
        raise UnknownNameError("pocket size", size, POCKET_SIZES)
    path = checkpoint_path(size, seed, step)
    try:
        weights = load_file(path)
        model = Transformer(pocket_config(size, weights["embed.weight"].shape[0]))
        model.load_state_dict(weights)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise StoreError(
            f"{path} is no checkpoint of size {size!r}: {error}. Delete it and train the run again."
        ) from error
    return model.eval()


def save_run(size: str, seed: int, checkpoints: Mapping[int, Mapping[str, Tensor]]) -> Path:
    """Write a run's checkpoints to the cache; the folder appears when all are written.

    Args:
        checkpoints: step → the model's state.

    Raises:
        StoreError: the disk is full or the folder not writable; nothing is left behind.
    """
    folder = checkpoint_folders(size, seed)[-1]
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        for step, weights in checkpoints.items():
            save_file(dict(weights), temporary / f"step-{step:08d}.safetensors")
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"Cannot write checkpoints to {folder}: {error}. Free some space, or let "
            "$EMERGENCE_CACHE name a folder you may write to."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
