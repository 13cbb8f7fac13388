"""Pythia and PolyPythias: sizes, seeds, checkpoints, and one way to load any of them.

    load("14m", seed=0, step=1000)                      EleutherAI/pythia-14m        branch step1000
    load("14m", seed=3, step=1000)                      EleutherAI/pythia-14m-seed3  branch step1000
    load("98k", seed=3, step=1000, source="pocket")     the suite trained here: no network
    load("14m", 0, 1000, source=Path("runs/mine"))      runs/mine/step1000/

The suite is of Biderman et al. 2023 (arXiv 2304.01373); seeds 1 to 9 of the five smallest sizes are
the PolyPythias of van der Wal et al. 2025 (arXiv 2503.09543). Seed 0 is the original run of a size,
which was trained with the random seed 1234. Paper A (Pythia section) uses the five sizes with ten
seeds, trained on the Pile that is not deduplicated. Two public originals need care: by its model
card `pythia-14m` served a model of the *deduplicated* Pile until 27 February 2026, and the card of
`pythia-31m` calls it deduplicated still. The digest of a checkpoint tells which one a result is of.

Public branches are not always what their name says; see `known_bad` and `check_duplicates`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from tokenizers import Tokenizer

from emergence_lib.errors import ParameterError, StoreError, UnknownNameError
from emergence_lib.models import hub
from emergence_lib.models.huggingface import from_gpt_neox
from emergence_lib.models.known_bad import KNOWN_BAD, Duplicates, find_duplicates, known_fault
from emergence_lib.models.pocket import TOKENIZER_PATH, checkpoint_path, load_pocket
from emergence_lib.models.transformer import ModelConfig, Transformer

__all__ = [
    "KNOWN_BAD",
    "SEEDED_SIZES",
    "SIZES",
    "STEPS",
    "Loaded",
    "check_duplicates",
    "download_size",
    "load",
    "parameter_count",
    "prefetch",
    "repository",
    "revision",
]


def _shape(n_layers: int, d_model: int, n_heads: int, vocab_size: int = 50_304) -> ModelConfig:
    """What all sizes share: rotary on a quarter of the head, parallel residual, exact GELU."""
    return ModelConfig(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        vocab_size=vocab_size,
        max_pos=2048,
        positional="rotary",
        rotary_fraction=0.25,
        parallel_residual=True,
        activation="gelu",
    )


SIZES = {
    "14m": _shape(6, 128, 4),
    "31m": _shape(6, 256, 8),
    "70m": _shape(6, 512, 8),
    "160m": _shape(12, 768, 12),
    "410m": _shape(24, 1024, 16),
    "1b": _shape(16, 2048, 8),
    "1.4b": _shape(24, 2048, 16),
    "2.8b": _shape(32, 2560, 32),
    "6.9b": _shape(32, 4096, 32, vocab_size=50_432),
    "12b": _shape(36, 5120, 40, vocab_size=50_688),
}
"""Shape of every size of the public suite (configurations on the Hub)."""

SEEDED_SIZES = ("14m", "31m", "70m", "160m", "410m")
"""Sizes with seeds 1 to 9 beside the original run."""

STEPS = (0, *(2**i for i in range(10)), *range(1_000, 143_001, 1_000))
"""The 154 checkpoints of a run; the branches are named ``step0`` … ``step143000``."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint.

    Attributes:
        model: float32, on the CPU.
        tokenizer: of the run.
        digest: of the weights, see `hub.digest`.
        path: the file or folder it was read from.
    """

    model: Transformer
    tokenizer: Tokenizer
    digest: str
    path: Path


def repository(size: str, seed: int) -> str:
    """Name of a run on the Hub: seed 0 is the original, 1 to 9 are PolyPythias.

    Raises:
        UnknownNameError: no such size.
        ParameterError: no such seed of this size.
    """
    if size not in SIZES:
        raise UnknownNameError("Pythia size", size, SIZES)
    seeds = range(10 if size in SEEDED_SIZES else 1)
    if isinstance(seed, bool) or seed not in seeds:
        allowed = f"an integer from 0 to {seeds[-1]} for size {size!r}" if seeds[-1] else "0"
        raise ParameterError(
            "seed", seed, allowed, f"Sizes with seeds 0 to 9: {', '.join(SEEDED_SIZES)}."
        )
    return f"EleutherAI/pythia-{size}" + (f"-seed{seed}" if seed else "")


def revision(step: int) -> str:
    """Name of a checkpoint's branch.

    Raises:
        ParameterError: the suite has no checkpoint at this step (the nearest are named).
    """
    if isinstance(step, bool) or step not in STEPS:
        near = ""
        if isinstance(step, int) and not isinstance(step, bool):
            near = hub.nearest_steps(f"step{step}", map(revision, STEPS)).strip()
        raise ParameterError("step", step, f"one of the {len(STEPS)} in pythia.STEPS", near)
    return f"step{step}"


def parameter_count(size: str) -> int:
    """Number of weights of a size, embeddings included (untied: two of them).

    Raises:
        UnknownNameError: no such size.
    """
    if size not in SIZES:
        raise UnknownNameError("Pythia size", size, SIZES)
    c = SIZES[size]
    block = 12 * c.d_model**2 + 13 * c.d_model
    return c.n_layers * block + 2 * c.d_model + 2 * c.vocab_size * c.d_model


def download_size(size: str) -> int:
    """Bytes of one checkpoint's weights on the Hub.

    The public files hold float16 and, for every layer, the causal mask as 2048² bytes, which are
    half of the file at 14M. This gives the listed 53.3 MB (14m), 375 MB (160m), 911 MB (410m) and
    23.9 GB (12b). That all branches of all seeds are stored this way is an assumption: the listings
    seen are of the originals and of pythia-160m-seed1.

    Raises:
        UnknownNameError: no such size.
    """
    return 2 * parameter_count(size) + SIZES[size].n_layers * SIZES[size].max_pos ** 2


def check_duplicates() -> Duplicates:
    """Which checkpoints that were loaded from the Hub hold the same weights (see `known_bad`)."""
    return find_duplicates(hub.recorded_digests())


def load(
    size: str,
    seed: int,
    step: int,
    source: str | Path = "hub",
    *,
    allow_known_bad: bool = False,
) -> Loaded:
    """A checkpoint as a `Transformer`: the logits of `GPTNeoXForCausalLM` to 1e-4 in float32.

    Args:
        size: of `SIZES`, or of the pocket suite. A local folder may hold any; where `size` is one
            of `SIZES` its shape is checked.
        seed: see `repository`. A local folder is one run, so there it has no meaning.
        step: of `STEPS`; for other sources any that is there.
        source: "hub", "pocket", or a folder of folders ``stepN``, each with ``config.json`` and
            ``model.safetensors`` of a GPT-NeoX and, there or one level up, ``tokenizer.json``.
        allow_known_bad: load, with a warning, what is known or found to be another step's weights.

    Raises:
        UnknownNameError, ParameterError: no such size, seed, step or source.
        StoreError: not there; not reachable (see `hub.fetch`); not readable as this size's
            GPT-NeoX; a branch that `KNOWN_BAD` calls wrong; or the same weights as another step
            that was loaded before.
    """
    if source == "hub":
        return _load_from_hub(size, seed, step, allow_known_bad)
    if source == "pocket":
        return _load_from_pocket(size, seed, step)
    if not Path(source).is_dir():
        raise ParameterError("source", str(source), "'hub', 'pocket' or an existing folder")
    folder = Path(source) / f"step{step}"
    if not folder.is_dir():
        there = hub.nearest_steps(folder.name, (path.name for path in Path(source).iterdir()))
        raise StoreError(f"{source} holds no folder {folder.name}.{there}")
    model = _read_gpt_neox(folder, size)
    for path in (folder / "tokenizer.json", folder.parent / "tokenizer.json"):
        if path.exists():
            return Loaded(model, _read_tokenizer(path), hub.digest(model), folder)
    raise StoreError(f"There is no tokenizer.json in {folder} or {folder.parent}; put one there.")


def prefetch(size: str, seed: int, steps: Sequence[int]) -> list[Future[None]]:
    """Download checkpoints from the Hub in the background, one after another in this order.

    Give the steps that a bisection may ask for next; `load` then finds them, or waits for the one
    under way. A failure here is no failure: `load` meets it again and says so. Leaving the program
    stops the download, and a later one goes on where it stopped.

    Returns:
        A future for each step, done when it was fetched or could not be; cancel what is no longer
        wanted.

    Raises:
        UnknownNameError, ParameterError: as `repository` and `revision`.
    """
    repo, revisions = repository(size, seed), [revision(step) for step in steps]
    futures: list[Future[None]] = [Future() for _ in revisions]

    def work() -> None:
        for branch, future in zip(revisions, futures, strict=True):
            if future.set_running_or_notify_cancel():
                with suppress(Exception):
                    hub.fetch(repo, branch, quiet=True)
                future.set_result(None)

    Thread(target=work, name=f"prefetch {repo}", daemon=True).start()
    return futures


# --- sources -------------------------------------------------------------------------------------


def _load_from_hub(size: str, seed: int, step: int, allow_known_bad: bool) -> Loaded:
    repo, branch = repository(size, seed), revision(step)
    if fault := known_fault(repo, step):
        message = f"{branch} of {repo} {fault.finding} ({fault.issue})."
        _refuse_or_warn(message, refuse=fault.kind == "wrong" and not allow_known_bad)
    folder = hub.fetch(repo, branch)
    try:
        model = _read_gpt_neox(folder, size)
    except StoreError:
        hub.discard(folder)  # it may have been put right on the Hub when it is next asked for
        raise
    digest = hub.digest(model)
    hub.record_digest(folder, digest)
    for group in find_duplicates(hub.recorded_digests(repo)).unexpected:
        if (repo, branch) in group:
            others = ", ".join(name for _, name in group if name != branch)
            message = f"{branch} of {repo} serves the same weights as {others}."
            _refuse_or_warn(message, refuse=not allow_known_bad)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():  # the whole suite has one tokenizer; some branches come without
        tokenizer = hub.fetch(repository(size, 0), "main", only=["tokenizer.json"]) / tokenizer.name
    return Loaded(model, _read_tokenizer(tokenizer), digest, folder)


def _load_from_pocket(size: str, seed: int, step: int) -> Loaded:
    model = load_pocket(size, seed, step)
    path = checkpoint_path(size, seed, step)
    return Loaded(model, _read_tokenizer(TOKENIZER_PATH), hub.digest(model), path)


def _refuse_or_warn(message: str, refuse: bool) -> None:
    if refuse:
        raise StoreError(
            f"{message} Choose another step or seed, or pass allow_known_bad=True to load it all "
            "the same; delete its folder in the cache once it is put right."
        )
    warnings.warn(message, stacklevel=4)


def _read_gpt_neox(folder: Path, size: str) -> Transformer:
    """The model in a folder of the Hub's layout, of the shape of `size` where that is Pythia's.

    `transformers` reads it, which knows every layout of the suite: one file or several, safetensors
    or `pytorch_model.bin`, with masks and rotary tables among the weights. The latter is unpickled
    with `weights_only`, which builds tensors and calls nothing else.
    """
    from transformers import GPTNeoXForCausalLM

    if not (folder / "config.json").exists():  # or it would build the default, of 20B weights
        raise StoreError(f"There is no config.json in {folder}.")
    reader: Any = GPTNeoXForCausalLM  # its type leaves out the report
    with _silent_transformers():
        try:
            hf_model, report = reader.from_pretrained(
                folder,
                dtype=torch.float32,  # "auto" believes config.json, even if it says float16
                weights_only=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except Exception as error:  # whatever a broken file does to three readers
            first_line = f"{error}".strip().partition("\n")[0]
            raise StoreError(f"{folder} holds no readable GPT-NeoX: {first_line}") from error
    if wrong := {key: names for key, names in report.items() if names}:
        raise StoreError(f"The weights in {folder} do not fit its config.json: {wrong}.")
    model = from_gpt_neox(hf_model).eval()
    if size in SIZES and model.config != SIZES[size]:
        raise StoreError(
            f"{folder} holds no Pythia of size {size!r}: {model.config} is not {SIZES[size]}."
        )
    return model


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise StoreError(f"{path} is no tokenizer: {error}") from error


@contextmanager
def _silent_transformers() -> Iterator[None]:
    """No progress bar and no report for a read that takes a moment and is checked here."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
