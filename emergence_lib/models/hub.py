"""Checkpoints from the Hugging Face Hub, in a local cache that never holds a bad file.

    <cache>/hub/EleutherAI--pythia-14m/step1000/
        config.json  model.safetensors  tokenizer.json
        checkpoint.json                   written last: commit, size and hash of every file, digest
        .model.safetensors.<hash>.part    what an interrupted download left; the next goes on there

A folder with `checkpoint.json` is complete and is never looked up again: it needs no network, and
a branch that changes on the Hub does not change here (delete the folder to fetch it anew). A file
gets its name only when its length and its hash are those the Hub lists (SHA-256 for weights, git's
SHA-1 for the small ones).

`huggingface_hub` makes the requests. What it does itself (versions 1.31 to 2.4) is not done twice:
it waits out 429 and, for listings, 5xx with growing pauses, or as long as Retry-After says; it goes
on where a connection was cut; its progress bar shows on a terminal only. But it keeps nothing of a
download that failed for good, gives up at once when a file is answered with 5xx, and compares
lengths but no hashes: these three are added here. It reads HF_ENDPOINT and HF_HUB_OFFLINE when it
is imported; here it is also enough to set them later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor
from tqdm import tqdm

from emergence_lib.errors import StoreError
from emergence_lib.files import whole_file
from emergence_lib.models.transformer import Transformer
from emergence_lib.provenance import cache_folder

FORMAT = 1
RETRIES = 3  # after which the Hub counts as unreachable: with the pauses below, 7 seconds
PAUSE = 1.0  # seconds before the first retry, doubled each time
BAR_FROM = 10_000_000  # bytes; a smaller file is there before its progress bar is read
RECORD = "checkpoint.json"

OTHER_SOURCES = (
    "Without a network, use the pocket suite, which needs none (source='pocket'), or give a local "
    "folder of checkpoints as the source."
)


@dataclass(frozen=True)
class RemoteFile:
    """A file as the Hub lists it: `hash` is the SHA-256 of a large file, git's SHA-1 of others."""

    size: int
    hash: str

    def matches(self, path: Path) -> bool:
        """Whether `path` holds exactly this file."""
        if not path.exists() or path.stat().st_size != self.size:
            return False
        sha: Any = hashlib.sha256()
        if len(self.hash) == 40:
            sha = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                sha.update(chunk)
        return sha.hexdigest() == self.hash


# --- fetching ------------------------------------------------------------------------------------


def fetch(repo: str, revision: str, only: Sequence[str] = (), quiet: bool = False) -> Path:
    """The folder of a checkpoint, downloaded unless it is in the cache.

    Safe to call from several threads and processes: one downloads, the others wait for it.

    Args:
        repo, revision: as on the Hub, ``"EleutherAI/pythia-14m"`` and ``"step1000"``.
        only: names of the files to fetch; none means configuration, tokenizer and weights, of
            which safetensors are preferred to pickled ones.
        quiet: show no progress bar even on a terminal.

    Raises:
        StoreError: no such branch (the nearest are named), no network, a Hub that keeps failing, a
            file that is not what the Hub lists, or a full disk. What was downloaded of a file stays
            for the next call, except when it is wrong; no such file ever gets its name.
    """
    folder = _folder(repo, revision)
    if (folder / RECORD).exists():
        return folder
    lock = cache_folder() / "hub" / ".locks" / f"{folder.parent.name}--{revision}.lock"
    with _explained(repo, revision):
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if not (folder / RECORD).exists():
                _fetch(repo, revision, only, quiet, folder)
    return folder


def discard(folder: Path) -> None:
    """Remove a fetched checkpoint, so that the next `fetch` downloads it again."""
    (folder / RECORD).unlink(missing_ok=True)  # first: without it the folder is incomplete
    shutil.rmtree(folder, ignore_errors=True)


def _folder(repo: str, revision: str) -> Path:
    return cache_folder() / "hub" / repo.replace("/", "--") / revision


def _fetch(repo: str, revision: str, only: Sequence[str], quiet: bool, folder: Path) -> None:
    from huggingface_hub import hf_hub_url

    commit, listed = _listing(repo, revision)
    names = [name for name in only if name in listed] if only else _checkpoint_files(listed)
    if not names:
        raise StoreError(
            f"The branch {revision} of {repo} holds no {' or '.join(only) or 'weights'}: only "
            f"{', '.join(sorted(listed)) or 'nothing'}."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not listed[name].matches(folder / name):
            url = hf_hub_url(repo, name, revision=commit, endpoint=_endpoint())
            _download(url, folder / name, listed[name], quiet)
    record = {
        "format": FORMAT,
        "repository": repo,
        "revision": revision,
        "commit": commit,
        "files": {name: asdict(listed[name]) for name in names},
        "digest": None,
    }
    _write_json(folder / RECORD, record)


def _listing(repo: str, revision: str) -> tuple[str, dict[str, RemoteFile]]:
    """The commit a branch points at, and its files."""
    answer = _get_json(f"/api/models/{repo}/revision/{revision}?blobs=true")
    try:
        files = {
            file["rfilename"]: RemoteFile(file["lfs"]["size"], file["lfs"]["sha256"])
            if file.get("lfs")
            else RemoteFile(file["size"], file["blobId"])
            for file in answer["siblings"]
        }
        return answer["sha"], files
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"{_endpoint()} does not list {repo} as the Hub does: {error} is missing. "
            "Is HF_ENDPOINT a complete mirror?"
        ) from error


def _checkpoint_files(listed: dict[str, RemoteFile]) -> list[str]:
    """What a model is loaded from; nothing where there are no weights."""
    for pattern in (
        r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?",
        r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?",
    ):
        weights = [name for name in listed if re.fullmatch(pattern, name)]
        if any(not name.endswith(".json") for name in weights):
            small = [name for name in ("config.json", "tokenizer.json") if name in listed]
            return [*small, *sorted(weights)]
    return []


def _download(url: str, path: Path, expected: RemoteFile, quiet: bool) -> None:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get

    partial = path.with_name(f".{path.name}.{expected.hash}.part")
    failures = 0
    while True:
        start = partial.stat().st_size if partial.exists() else 0
        if start > expected.size:  # asking for what follows would be refused for ever
            partial.unlink()
            start = 0
        wait = PAUSE * 2**failures
        try:
            with partial.open("ab") as file:
                http_get(
                    url,
                    file,
                    resume_size=start,
                    headers=_hub_utils().build_hf_headers(),
                    expected_size=expected.size,
                    displayed_filename=f"{path.parent.name}/{path.name}",
                    tqdm_class=_NoBar if quiet or expected.size < BAR_FROM else None,
                )
            break
        except HfHubHTTPError as error:
            if error.response.status_code < 500 or failures == RETRIES:
                raise
            asked = error.response.headers.get("Retry-After", "")
            wait = float(asked) if asked.isdigit() else wait
        except _httpx().ReadError:  # a reset: the one break that http_get does not mend
            if partial.stat().st_size > start:
                failures, wait = 0, PAUSE
            if failures == RETRIES:
                raise
        except OSError as error:
            if error.errno is not None or isinstance(error, ConnectionError):
                raise
            break  # not the announced length: seen below
        failures += 1
        time.sleep(wait)
    if not expected.matches(partial):
        found = partial.stat().st_size
        partial.unlink()
        raise StoreError(
            f"{url} is not the file that the Hub lists: {found:,} bytes of {expected.size:,}"
            + (", with another hash. " if found == expected.size else ". ")
            + "It was not kept. Try again; if it stays so, the branch itself is broken."
        )
    os.replace(partial, path)


class _NoBar(tqdm):
    """A progress bar that shows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


# --- talking to the Hub --------------------------------------------------------------------------


def _endpoint() -> str:
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def _hub_utils() -> Any:
    from huggingface_hub import utils

    return utils  # it exports lazily, which a type checker does not see


def _httpx() -> Any:
    """What huggingface_hub makes its requests with: httpx, from its version 2 on httpx2."""
    from huggingface_hub.errors import HfHubHTTPError

    return import_module(HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


def _get_json(path: str) -> Any:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
    utils = _hub_utils()
    response = utils.http_backoff(
        "GET",
        _endpoint() + path,
        headers=utils.build_hf_headers(),
        timeout=10,
        max_retries=RETRIES,
        base_wait_time=PAUSE,
        retry_on_status_codes=(429, 500, 502, 503, 504),
    )
    utils.hf_raise_for_status(response)
    return response.json()


@contextmanager
def _explained(repo: str, revision: str) -> Iterator[None]:
    """Failures of the Hub, the network and the disk as `StoreError`s that say what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError:
        message = f"{repo} has no branch {revision}.{_nearest_branches(repo, revision)}"
        raise StoreError(message) from None
    except errors.RepositoryNotFoundError:
        raise StoreError(
            f"{_endpoint()} has no repository {repo}, or not for you. {OTHER_SOURCES}"
        ) from None
    except errors.HfHubHTTPError as error:
        raise StoreError(
            f"{_endpoint()} answered {error.response.status_code} for {repo} at {revision}, even "
            f"after waiting. Try again later: the download goes on where it stopped. "
            f"{OTHER_SOURCES}"
        ) from error
    except (_httpx().HTTPError, errors.OfflineModeIsEnabled) as error:
        raise StoreError(
            f"{repo} at {revision} is not in the local cache ({_folder(repo, revision)}), and "
            f"{_endpoint()} cannot be reached: {error}. {OTHER_SOURCES}"
        ) from error
    except OSError as error:
        raise StoreError(
            f"Cannot write the cache {cache_folder()}: {error}. "
            "Free some space, or set EMERGENCE_CACHE to a folder you may write to."
        ) from error


def _nearest_branches(repo: str, revision: str) -> str:
    """The existing ``stepN`` branches on either side, as a sentence; nothing where not known."""
    names: list[str] = []
    with suppress(Exception):  # the message about the missing branch must come through
        names = [branch["name"] for branch in _get_json(f"/api/models/{repo}/refs")["branches"]]
    return nearest_steps(revision, names)


def nearest_steps(missing: str, names: Iterable[str]) -> str:
    """Of the `names` like ``step8``, those on either side of `missing`, as a sentence or empty."""
    numbers = [int(name[4:]) for name in names if re.fullmatch(r"step\d+", name)]
    if not numbers or not re.fullmatch(r"step\d+", missing):
        return ""
    step = int(missing[4:])
    near = {max((n for n in numbers if n < step), default=None)}
    near |= {min((n for n in numbers if n > step), default=None)}
    steps = sorted(number for number in near if number is not None)
    return f" The nearest: {' and '.join(f'step{number}' for number in steps)}."


# --- what was fetched ----------------------------------------------------------------------------


def digest(model: Transformer) -> str:
    """SHA-256 of the weights as float32 little-endian, by name in alphabetical order.

    The same for the same function whatever file it came from: float16 or float32, safetensors or
    pickled. −0 counts as 0, in which alone some public copies differ (pythia#203).
    """
    sha = hashlib.sha256()
    weights: dict[str, Tensor] = model.state_dict()
    for name in sorted(weights):
        value = weights[name].to("cpu", torch.float32) + 0.0  # −0 + 0 = 0
        sha.update(f"{name} {tuple(value.shape)}\n".encode())
        sha.update(value.reshape(-1).numpy().astype("<f4", copy=False).data)
    return sha.hexdigest()


def record_digest(folder: Path, found: str) -> None:
    """Enter the digest of a fetched checkpoint; see `recorded_digests`.

    Raises:
        StoreError: another digest is entered: the files in the cache have changed. They are
            removed.
    """
    record = _read_json(folder / RECORD)
    if record["digest"] is None:
        _write_json(folder / RECORD, record | {"digest": found})
    elif record["digest"] != found:
        discard(folder)
        raise StoreError(
            f"The files in {folder} changed since they were first loaded. They were removed; "
            "loading again downloads them anew."
        )


def recorded_digests(repo: str = "*") -> dict[tuple[str, str], str]:
    """(repository, revision) → digest of every checkpoint in the cache that was ever loaded."""
    digests = {}
    for path in (cache_folder() / "hub").glob(f"{repo.replace('/', '--')}/*/{RECORD}"):
        with suppress(StoreError):  # just removed; or broken, which its own load says
            record = _read_json(path)
            if record["digest"]:
                digests[record["repository"], record["revision"]] = record["digest"]
    return digests


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}. Delete its folder to fetch the checkpoint anew."
        ) from error
    if record["format"] > FORMAT:
        raise StoreError(f"{path} was written by a newer version of this library; upgrade it.")
    return record


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1))
