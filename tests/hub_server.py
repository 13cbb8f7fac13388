"""A Hub on this machine: the requests `huggingface_hub` makes, tiny repositories, faults on order.

    GET /api/models/<repo>/revision/<branch>?blobs=true     commit, files with sizes and hashes
    GET /api/models/<repo>/tree/<commit>                    the same files, for snapshots
    GET /api/models/<repo>/refs                             the branches
    HEAD, GET /<repo>/resolve/<branch or commit>/<file>     small files; large ones redirect to
    GET /cdn/<sha256>                                       where they are served, with ranges

`Hub.add` puts a checkpoint on a branch, `Hub.fault` makes answers to matching paths go wrong.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
import torch
from huggingface_hub import close_session, constants
from safetensors.torch import save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

FOREVER = 10**9
LARGE = (".safetensors", ".bin")


@dataclass
class Fault:
    """What happens to the next `times` answers whose path matches."""

    path: str
    times: int = 1
    status: int = 0  # answer with this instead
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = -1  # send so many bytes of the body, then close the connection …
    reset: bool = False  # … without ceremony
    keep: int = -1  # send so many bytes and say that they are all
    corrupt: bool = False  # turn the last byte


class Hub(ThreadingHTTPServer):
    """Repositories by name, each a dict of branches, each a dict of files."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.cdn = self.url.replace("127.0.0.1", "localhost")  # another host, as in truth
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []  # "GET /path" or "GET /path from 1234"

    def add(self, repo: str, branch: str, files: dict[str, bytes]) -> None:
        """Put files on a branch, in place of what was there."""
        self.repos.setdefault(repo, {})[branch] = files

    def fault(self, path: str, **what: object) -> None:
        self.faults.append(Fault(path, **what))  # type: ignore[arg-type]

    def heal(self) -> None:
        self.faults.clear()

    def asked(self, pattern: str) -> list[str]:
        """The requests so far that match."""
        return [request for request in self.requests if re.search(pattern, request)]

    def branch(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        for name, files in self.repos[repo].items():
            commit = commit_of(name, files)
            if revision in (name, commit):
                return commit, files
        return None

    def blob(self, sha256: str) -> bytes:
        for branches in self.repos.values():
            for files in branches.values():
                for content in files.values():
                    if hashlib.sha256(content).hexdigest() == sha256:
                        return content
        raise KeyError(sha256)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def respond(self) -> None:
        path = unquote(urlsplit(self.path).path)
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.server.requests.append(
            f"{self.command} {path}" + (f" from {start[1]}" if start else "")
        )
        fault = self.fault_for(path)
        if fault.status:
            return self.answer(fault.status, b"", fault.headers, fault)
        status, body, headers = self.find(path)
        if fault.corrupt:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if fault.keep >= 0:
            body = body[: fault.keep]
        if start and status == 200 and path.startswith("/cdn/"):
            first = int(start[1])
            if first >= len(body):
                return self.answer(416, b"", {}, fault)
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            status, body = 206, body[first:]
        self.answer(status, body, headers, fault)
        return None

    def fault_for(self, path: str) -> Fault:
        for fault in self.server.faults:
            if fault.times and re.search(fault.path, path):
                fault.times -= 1
                return fault
        return Fault("")

    def answer(self, status: int, body: bytes, headers: dict[str, str], fault: Fault) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: fault.cut] if fault.cut >= 0 else body)
        if fault.cut >= 0:
            self.wfile.flush()
            if fault.reset:  # lingering for no time at all sends RST instead of FIN
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.rfile.close()
                self.wfile.close()
                self.connection.close()
                self.wfile = io.BytesIO()  # the base class will want to flush it
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def find(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers for a path."""
        if found := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            return 200, self.server.blob(found[1]), {"ETag": f'"{found[1]}"'}
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree|refs)(?:/(.+))?", path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = api or resolve
        if match is None or match[1] not in self.server.repos:
            return 404, b"", {"X-Error-Code": "RepoNotFound"}
        if api and api[2] == "refs":
            branches = refs(self.server.repos[api[1]])
            return self.json({"branches": branches, "tags": [], "converts": []})
        branch = self.server.branch(match[1], api[3] if api else resolve[2])  # type: ignore[index]
        if branch is None:
            return 404, b"", {"X-Error-Code": "RevisionNotFound"}
        commit, files = branch
        if api and api[2] == "tree":
            entries = [{**tree_entry(n, c), "type": "file", "path": n} for n, c in files.items()]
            return self.json(entries)
        if api:
            siblings = [{**entry(n, c), "rfilename": n} for n, c in files.items()]
            return self.json({"id": api[1], "sha": commit, "siblings": siblings})
        assert resolve is not None
        return self.file(commit, files, resolve[3])

    def file(
        self, commit: str, files: dict[str, bytes], name: str
    ) -> tuple[int, bytes, dict[str, str]]:
        headers = {"X-Repo-Commit": commit}
        if name not in files:
            return 404, b"", {**headers, "X-Error-Code": "EntryNotFound"}
        content = files[name]
        if not name.endswith(LARGE):
            return 200, content, {**headers, "ETag": f'"{git_hash(content)}"'}
        sha256 = hashlib.sha256(content).hexdigest()
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256}"'}
        return 302, b"", {**headers, "Location": f"{self.server.cdn}/cdn/{sha256}"}

    def json(self, content: object) -> tuple[int, bytes, dict[str, str]]:
        return 200, json.dumps(content).encode(), {"Content-Type": "application/json"}


@contextmanager
def serve() -> Iterator[Hub]:
    """A running Hub without repositories."""
    with Hub() as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def connect(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make `hub` the Hub and `cache` the cache for one test; returns the pauses that were made.

    `huggingface_hub` reads its settings when it is imported, which is long past: the endpoint must
    work all the same. Pauses last no time.
    """
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("EMERGENCE_CACHE", str(cache))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1_000)  # files here are small
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    close_session()  # it keeps connections, and the proxies of its time
    return pauses


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def commit_of(branch: str, files: dict[str, bytes]) -> str:
    names = "".join(f"{name} {git_hash(content)}\n" for name, content in sorted(files.items()))
    return hashlib.sha1((branch + names).encode()).hexdigest()


def entry(name: str, content: bytes) -> dict[str, object]:
    """A file as the Hub lists it."""
    listed: dict[str, object] = {"size": len(content), "blobId": git_hash(content)}
    if name.endswith(LARGE):
        sha256 = hashlib.sha256(content).hexdigest()
        listed["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 134}
    return listed


def tree_entry(name: str, content: bytes) -> dict[str, object]:
    """The same in the listing of a folder, where two names differ."""
    listed = entry(name, content)
    listed["oid"] = listed.pop("blobId")
    if "lfs" in listed:
        lfs = dict(listed["lfs"])  # type: ignore[call-overload]
        listed["lfs"] = {**lfs, "oid": lfs["sha256"]}
    return listed


def refs(branches: dict[str, dict[str, bytes]]) -> list[dict[str, str]]:
    return [
        {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit_of(name, files)}
        for name, files in branches.items()
    ]


# --- repositories --------------------------------------------------------------------------------

TINY = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
}
"""A shape whose checkpoint is 60 kB without masks; `max_position_embeddings` is Pythia's."""


def tiny_model(seed: int, **shape: int) -> GPTNeoXForCausalLM:
    """A GPT-NeoX with weights large enough that a permuted matrix shows in the logits."""
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**{**TINY, **shape}, rotary_pct=0.25))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_((noise + parameter.mean().round()).half())  # norms stay around 1
    return model.eval()


def checkpoint(
    model: GPTNeoXForCausalLM, layout: str = "safetensors", dtype: torch.dtype = torch.float16
) -> dict[str, bytes]:
    """Files of a branch as the public suite has them.

    Args:
        layout: "safetensors", "pickled", "both", or "sharded" (two files and an index).
    """
    config = model.config
    tensors = {
        name.replace("lm_head", "embed_out"): value.detach().to(dtype)
        for name, value in model.state_dict().items()
    }
    for layer in range(config.num_hidden_layers):
        prefix = f"gpt_neox.layers.{layer}.attention"
        mask = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()  # 2048² in the public files
        tensors[f"{prefix}.bias"] = mask
        tensors[f"{prefix}.masked_bias"] = torch.tensor(-1e9).to(dtype)
        tensors[f"{prefix}.rotary_emb.inv_freq"] = torch.ones(1)
    files = {
        ".gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n",
        "README.md": b"# A tiny GPT-NeoX\n",
        "config.json": json.dumps(
            {
                "architectures": ["GPTNeoXForCausalLM"],
                "bos_token_id": 0,
                "eos_token_id": 0,
                "hidden_act": "gelu",
                "hidden_size": config.hidden_size,
                "initializer_range": 0.02,
                "intermediate_size": config.intermediate_size,
                "layer_norm_eps": 1e-05,
                "max_position_embeddings": config.max_position_embeddings,
                "model_type": "gpt_neox",
                "num_attention_heads": config.num_attention_heads,
                "num_hidden_layers": config.num_hidden_layers,
                "rotary_emb_base": 10000,
                "rotary_pct": 0.25,
                "tie_word_embeddings": False,
                "torch_dtype": "float16",
                "use_cache": True,
                "use_parallel_residual": True,
                "vocab_size": config.vocab_size,
            }
        ).encode(),
        "tokenizer.json": tokenizer(config.vocab_size).to_str().encode(),
    }
    metadata = {"format": "pt"}
    if layout in ("safetensors", "both"):
        files["model.safetensors"] = save(tensors, metadata)
    if layout in ("pickled", "both"):
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        files["pytorch_model.bin"] = buffer.getvalue()
    if layout == "sharded":
        names = sorted(tensors)
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        weight_map = {}
        for i, half in enumerate(halves, 1):
            file = f"model-{i:05d}-of-00002.safetensors"
            files[file] = save({name: tensors[name] for name in half}, metadata)
            weight_map |= dict.fromkeys(half, file)
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    return files


def tokenizer(vocab_size: int) -> Tokenizer:
    """One token a number, which is its id."""
    made = Tokenizer(WordLevel({str(i): i for i in range(vocab_size)}, unk_token="0"))
    made.pre_tokenizer = Whitespace()
    return made
