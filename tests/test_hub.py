"""Fetching from a Hub that misbehaves: the right files or a clear error, and a clean cache."""

from __future__ import annotations

import hashlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import FOREVER, checkpoint, connect, git_hash, serve, tiny_model

from emergence_lib.errors import StoreError
from emergence_lib.models import hub
from emergence_lib.provenance import cache_folder

REPO = "EleutherAI/pythia-14m"
WANTED = {"config.json", "tokenizer.json", "model.safetensors"}
FILES = checkpoint(tiny_model(1))
WEIGHTS = FILES["model.safetensors"]


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serve() as server:
        server.pauses = connect(server, tmp_path, monkeypatch)
        server.add(REPO, "main", FILES)
        server.add(REPO, "step1000", FILES)
        yield server


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_good(folder: Path) -> None:
    """The checkpoint and its record, and nothing that was left on the way."""
    found = files(folder)
    assert found.keys() == WANTED | {"checkpoint.json"}
    assert all(found[name] == FILES[name] for name in WANTED)


def assert_clean(cache: Path) -> None:
    """No file has its name, though a part of one may be there."""
    named = [p for p in cache.rglob("*") if p.is_file() and not p.name.startswith(".")]
    assert not [p for p in named if p.name in ("model.safetensors", "checkpoint.json")], named


# --- without faults ------------------------------------------------------------------------------


def test_the_server_is_a_hub_to_huggingface_hub_itself(server, tmp_path, monkeypatch):
    monkeypatch.undo()  # its own settings, but for the address
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    where = {"endpoint": server.url, "token": False}
    folder = huggingface_hub.snapshot_download(
        REPO, revision="step1000", cache_dir=tmp_path / "theirs", **where
    )
    assert files(Path(folder)) == FILES
    listed = huggingface_hub.HfApi(**where).list_repo_refs(REPO).branches
    assert [branch.name for branch in listed] == ["main", "step1000"]
    info = huggingface_hub.HfApi(**where).model_info(REPO, revision="main", files_metadata=True)
    large = next(s for s in info.siblings if s.rfilename == "model.safetensors")
    assert large.lfs.size == len(WEIGHTS)


def test_a_checkpoint_is_fetched_once(server, tmp_path):
    folder = hub.fetch(REPO, "step1000")
    assert folder == tmp_path / "hub" / "EleutherAI--pythia-14m" / "step1000"
    assert_good(folder)
    record = json.loads((folder / "checkpoint.json").read_text())
    assert record["files"]["config.json"]["hash"] == git_hash(FILES["config.json"])
    before = len(server.requests)
    assert hub.fetch(REPO, "step1000") == folder
    assert len(server.requests) == before
    assert not server.pauses


def test_safetensors_are_preferred_and_pickles_left_where_they_are(server):
    server.add(REPO, "step1", checkpoint(tiny_model(1), "both"))
    server.add(REPO, "step2", checkpoint(tiny_model(1), "pickled"))
    server.add(REPO, "step4", checkpoint(tiny_model(1), "sharded"))
    assert "pytorch_model.bin" not in files(hub.fetch(REPO, "step1"))
    assert "pytorch_model.bin" in files(hub.fetch(REPO, "step2"))
    shards = {name for name in files(hub.fetch(REPO, "step4")) if name.startswith("model")}
    assert len(shards) == 3


def test_only_some_files(server):
    folder = hub.fetch(REPO, "main", only=["tokenizer.json"])
    assert files(folder).keys() == {"tokenizer.json", "checkpoint.json"}


def test_several_threads_fetch_a_checkpoint_once(server):
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: hub.fetch(REPO, "step1000"), range(4)))
    assert len(folders) == 1
    assert_good(folders.pop())
    assert len(server.asked("/cdn/")) == 1


def test_no_progress_bar_off_a_terminal(server, monkeypatch, capsys):
    monkeypatch.setattr(hub, "BAR_FROM", 0)
    hub.fetch(REPO, "step1000")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TQDM_POSITION", "-1")  # what makes huggingface_hub take this for one
    hub.fetch(REPO, "main")
    assert "model.safetensors: 100%" in capsys.readouterr().err
    server.add(REPO, "step2", FILES)
    hub.fetch(REPO, "step2", quiet=True)
    assert capsys.readouterr() == ("", "")


# --- a Hub that is busy, or a line that is cut ---------------------------------------------------


@pytest.mark.parametrize("path", ["/api/models", "/resolve/.*/config.json", "/cdn/"])
def test_429_is_waited_out_as_long_as_it_says(server, path):
    server.fault(path, status=429, headers={"Retry-After": "7"}, times=2)
    assert_good(hub.fetch(REPO, "step1000"))
    assert [round(pause) for pause in server.pauses] in ([7, 7], [8, 8])


@pytest.mark.parametrize("path", ["/api/models", "/resolve/.*/config.json", "/cdn/"])
def test_a_server_error_is_waited_out_with_growing_pauses(server, path):
    server.fault(path, status=503, times=3)
    assert_good(hub.fetch(REPO, "step1000"))
    assert len(server.pauses) == 3
    assert 0 < server.pauses[0] < server.pauses[1] < server.pauses[2] <= 8


def test_a_file_answered_with_503_says_when_to_come_back(server):
    server.fault("/cdn/", status=503, headers={"Retry-After": "9"})
    assert_good(hub.fetch(REPO, "step1000"))
    assert server.pauses == [9]


@pytest.mark.parametrize("path", ["/api/models", "/cdn/"])
@pytest.mark.parametrize("status", [429, 500])
def test_a_hub_that_keeps_failing_is_an_error_and_the_next_fetch_is_good(
    server, tmp_path, path, status
):
    server.fault(path, status=status, times=FOREVER)
    with pytest.raises(StoreError, match=rf"answered {status} for .*pocket"):
        hub.fetch(REPO, "step1000")
    assert 3 <= len(server.pauses) <= 5, "retried by one of us, not by both"
    assert_clean(tmp_path)
    server.heal()
    assert_good(hub.fetch(REPO, "step1000"))


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_connection_goes_on_where_it_stopped(server, reset):
    server.fault("/cdn/", cut=20_500, reset=reset, times=2)
    assert_good(hub.fetch(REPO, "step1000"))
    ranges = [int(r.rpartition(" ")[2]) for r in server.asked("/cdn/.* from")]
    assert len(ranges) == 2
    assert 0 < ranges[0] < ranges[1] <= len(WEIGHTS)


@pytest.mark.parametrize("reset", [False, True])
def test_a_line_that_is_cut_again_and_again_is_good_enough_while_bytes_arrive(server, reset):
    server.fault("/cdn/", cut=8_500, reset=reset, times=6)
    assert_good(hub.fetch(REPO, "step1000"))
    assert len(server.asked("/cdn/.* from")) == 6


@pytest.mark.parametrize("reset", [False, True])
def test_what_an_interrupted_download_left_is_not_fetched_again(server, tmp_path, reset):
    server.fault("/cdn/", cut=50_500, reset=reset)
    server.fault("/cdn/", cut=0, reset=reset, times=FOREVER)
    with pytest.raises(StoreError, match="cannot be reached"):
        hub.fetch(REPO, "step1000")
    assert_clean(tmp_path)
    server.heal()
    server.requests.clear()
    assert_good(hub.fetch(REPO, "step1000"))
    (request,) = server.asked("/cdn/")
    assert int(request.rpartition(" ")[2]) >= 40_000
    assert not server.asked("config.json"), "files that were complete are not fetched again"


def test_a_listing_that_is_cut_is_asked_for_again(server):
    server.fault("/api/", cut=10, times=2)
    assert_good(hub.fetch(REPO, "step1000"))


# --- what is not there ---------------------------------------------------------------------------


def test_a_missing_branch_names_its_neighbours(server, tmp_path):
    for step in (0, 512, 2000, 10000):
        server.add(REPO, f"step{step}", FILES)
    with pytest.raises(StoreError, match=r"no branch step3000.*: step2000 and step10000\.$"):
        hub.fetch(REPO, "step3000")
    with pytest.raises(StoreError, match=r"no branch step143000.*: step10000\.$"):
        hub.fetch(REPO, "step143000")
    with pytest.raises(StoreError, match=r"no branch dev\.$"):
        hub.fetch(REPO, "dev")
    assert not [path for path in (tmp_path / "hub").rglob("step*") if path.is_dir()]
    server.add(REPO, "step3000", FILES)
    assert_good(hub.fetch(REPO, "step3000"))


def test_a_missing_branch_is_reported_even_if_the_others_cannot_be_listed(server):
    server.fault("/refs", status=500, times=FOREVER)
    with pytest.raises(StoreError, match=r"no branch step3000\.$"):
        hub.fetch(REPO, "step3000")


def test_a_missing_repository(server):
    with pytest.raises(StoreError, match="no repository EleutherAI/pythia-15m"):
        hub.fetch("EleutherAI/pythia-15m", "step0")


def test_a_branch_without_weights(server):
    server.add(REPO, "step4", {"README.md": b"soon"})
    with pytest.raises(StoreError, match=r"step4 of .* holds no weights: only README\.md"):
        hub.fetch(REPO, "step4")


def test_a_mirror_that_lists_no_hashes_is_refused(server, monkeypatch):
    monkeypatch.setattr("hub_server.entry", lambda name, content: {"size": len(content)})
    with pytest.raises(StoreError, match="'blobId' is missing"):
        hub.fetch(REPO, "step1000")


# --- wrong bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "what", "named"),
    [
        ("/cdn/", {"keep": 40_000}, "40,000 bytes of"),
        ("/cdn/", {"corrupt": True}, "another hash"),
        ("/resolve/.*/tokenizer.json", {"corrupt": True}, "another hash"),
    ],
)
def test_wrong_bytes_never_enter_the_cache(server, tmp_path, path, what, named):
    server.fault(path, times=FOREVER, **what)
    with pytest.raises(StoreError, match=named):
        hub.fetch(REPO, "step1000")
    assert_clean(tmp_path)
    assert not list(tmp_path.rglob("*.part")), "wrong bytes are not gone on from"
    server.heal()
    assert_good(hub.fetch(REPO, "step1000"))


def test_a_damaged_part_is_given_up(server, tmp_path):
    server.fault("/cdn/", cut=50_500)
    server.fault("/cdn/", cut=0, times=FOREVER)
    with pytest.raises(StoreError):
        hub.fetch(REPO, "step1000")
    server.heal()
    (part,) = tmp_path.rglob("*.part")
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(StoreError, match="another hash"):
        hub.fetch(REPO, "step1000")
    assert_good(hub.fetch(REPO, "step1000"))


def test_a_part_longer_than_the_file_is_begun_anew(server, tmp_path):
    folder = tmp_path / "hub" / "EleutherAI--pythia-14m" / "step1000"
    folder.mkdir(parents=True)
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    (folder / f".model.safetensors.{sha256}.part").write_bytes(bytes(len(WEIGHTS) + 1))
    assert_good(hub.fetch(REPO, "step1000"))


# --- no network ----------------------------------------------------------------------------------


def test_no_network_names_the_pocket_suite_unless_the_checkpoint_is_there(
    server, monkeypatch, tmp_path
):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    hub.fetch(REPO, "step1000")
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(StoreError, match=r"cannot be reached.*source='pocket'"):
        hub.fetch(REPO, "main")
    assert sum(server.pauses) < 10, "whoever is offline does not want to wait"
    assert_good(hub.fetch(REPO, "step1000"))


def test_offline_mode_asks_nothing(server, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StoreError, match=r"HF_HUB_OFFLINE.*source='pocket'"):
        hub.fetch(REPO, "step1000")
    assert not server.requests


def test_a_cache_that_cannot_be_written(server, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EMERGENCE_CACHE", str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"Cannot write the cache .*EMERGENCE_CACHE"):
        hub.fetch(REPO, "step1000")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("EMERGENCE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "emergence"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "emergence"


# --- digests -------------------------------------------------------------------------------------


def test_a_digest_is_recorded_and_files_that_change_are_dropped(server):
    folder = hub.fetch(REPO, "step1000")
    assert hub.recorded_digests() == {}
    hub.record_digest(folder, "abc")
    hub.record_digest(folder, "abc")
    assert hub.recorded_digests() == {(REPO, "step1000"): "abc"}
    assert hub.recorded_digests("EleutherAI/pythia-70m") == {}
    with pytest.raises(StoreError, match="changed since"):
        hub.record_digest(folder, "abd")
    assert hub.recorded_digests() == {}
    assert_good(hub.fetch(REPO, "step1000"))


def test_a_record_that_cannot_be_read_or_is_newer(server):
    folder = hub.fetch(REPO, "step1000")
    record = folder / "checkpoint.json"
    record.write_text(record.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match="newer version"):
        hub.record_digest(folder, "abc")
    record.write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        hub.record_digest(folder, "abc")
    assert hub.recorded_digests() == {}
