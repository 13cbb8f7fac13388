"""The Pythia suite: its facts, its models against `transformers`, branches with wrong weights."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from threading import Event

import pytest
import torch
from hub_server import FOREVER, TINY, checkpoint, connect, serve, tiny_model, tokenizer
from safetensors.torch import load, save
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from emergence_lib.errors import ParameterError, StoreError, UnknownNameError
from emergence_lib.models import hub, known_bad, pocket, pythia
from emergence_lib.models.transformer import ModelConfig, Transformer
from emergence_lib.training.schedule import pythia_schedule

torch.set_num_threads(1)

REPO = "EleutherAI/pythia-14m"
TINY_CONFIG = ModelConfig(
    n_layers=TINY["num_hidden_layers"],
    d_model=TINY["hidden_size"],
    n_heads=TINY["num_attention_heads"],
    vocab_size=TINY["vocab_size"],
    max_pos=TINY["max_position_embeddings"],
    positional="rotary",
    rotary_fraction=0.25,
    parallel_residual=True,
    activation="gelu",
)
WEIGHTS = "model.safetensors"
MODELS = {f"step{step}": tiny_model(i) for i, step in enumerate((0, 1, 2, 4, 1000, 2000))}
BRANCHES = {branch: checkpoint(model) for branch, model in MODELS.items()}


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A Hub on which the sizes 14m, 410m, 2.8b and 12b are tiny."""
    for size in ("14m", "410m", "2.8b", "12b"):
        monkeypatch.setitem(pythia.SIZES, size, TINY_CONFIG)
    with serve() as server:
        connect(server, tmp_path, monkeypatch)
        for branch, files in BRANCHES.items():
            server.add(REPO, branch, files)
        yield server


def write(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def tokens(vocab_size: int, batch: int = 3, pos: int = 17) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(vocab_size, (batch, pos), generator=generator)


def assert_same_logits(model: Transformer, hf_model: GPTNeoXForCausalLM) -> None:
    x = tokens(model.config.vocab_size)
    with torch.no_grad():
        expected = hf_model(x).logits
        assert expected.std() > 0.5
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-4)


# --- facts of the suite --------------------------------------------------------------------------


def test_steps_are_those_of_the_schedule():
    assert pythia_schedule() == pythia.STEPS
    assert len(pythia.STEPS) == 154


@pytest.mark.parametrize(
    ("size", "without_embeddings"),
    [
        ("14m", 1_189_888),
        ("31m", 4_739_072),
        ("70m", 18_915_328),
        ("160m", 85_056_000),
        ("410m", 302_311_424),
        ("1b", 805_736_448),
        ("1.4b", 1_208_602_624),
        ("2.8b", 2_517_652_480),
        ("6.9b", 6_444_163_072),
        ("12b", 11_327_027_200),
    ],
)
def test_parameters_are_those_of_the_model_cards(size, without_embeddings):
    config = pythia.SIZES[size]
    embeddings = 2 * config.vocab_size * config.d_model
    assert pythia.parameter_count(size) == without_embeddings + embeddings
    assert config.d_head == config.d_model // config.n_heads


def test_the_count_is_that_of_the_model():
    model = Transformer(pythia.SIZES["14m"])
    assert sum(p.numel() for p in model.parameters()) == pythia.parameter_count("14m")


@pytest.mark.parametrize(
    ("size", "megabytes"), [("14m", 53.3), ("160m", 375), ("410m", 911), ("1.4b", 2930)]
)
def test_download_sizes_are_those_the_hub_lists(size, megabytes):
    assert pythia.download_size(size) / 1e6 == pytest.approx(megabytes, rel=0.002)


def test_names_of_runs_and_checkpoints():
    assert pythia.repository("410m", 0) == "EleutherAI/pythia-410m"
    assert pythia.repository("14m", 9) == "EleutherAI/pythia-14m-seed9"
    assert pythia.repository("12b", 0) == "EleutherAI/pythia-12b"
    assert pythia.revision(143_000) == "step143000"


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: pythia.repository("15m", 0), UnknownNameError, "no Pythia size '15m'"),
        (lambda: pythia.repository("14m", 10), ParameterError, "from 0 to 9"),
        (lambda: pythia.repository("14m", -1), ParameterError, "from 0 to 9"),
        (lambda: pythia.repository("14m", True), ParameterError, "from 0 to 9"),
        (lambda: pythia.repository("1b", 1), ParameterError, "must be 0.*14m, 31m"),
        (lambda: pythia.revision(1500), ParameterError, "step1000 and step2000"),
        (lambda: pythia.revision(200_000), ParameterError, "nearest: step143000"),
        (lambda: pythia.revision(True), ParameterError, "154"),
        (lambda: pythia.download_size("15m"), UnknownNameError, "15m"),
        (lambda: pythia.load("14m", 0, 3), ParameterError, "step2 and step4"),
        (lambda: pythia.load("14m", 0, 0, "pockte"), ParameterError, "existing folder"),
        (lambda: pythia.prefetch("14m", 0, [0, 3]), ParameterError, "step2 and step4"),
    ],
)
def test_what_the_suite_does_not_have_is_refused_in_words(call, error, named):
    with pytest.raises(error, match=named):
        call()


# --- the same function as transformers -----------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("layout", ["safetensors", "pickled", "sharded"])
def test_every_layout_of_the_suite_gives_the_same_logits(server, layout, dtype):
    hf_model = tiny_model(7)
    if dtype == torch.float32:  # config.json says float16 all the same
        with torch.no_grad():
            hf_model.gpt_neox.embed_in.weight.add_(1e-4)
    server.add(REPO, "step512", checkpoint(hf_model, layout, dtype))
    loaded = pythia.load("14m", 0, 512)
    assert_same_logits(loaded.model, hf_model)
    assert loaded.model.embed.weight.equal(hf_model.gpt_neox.embed_in.weight)
    assert loaded.model.embed.weight.dtype == torch.float32
    assert loaded.tokenizer.encode("3 1 4").ids == [3, 1, 4]
    assert loaded.path == hub.fetch(REPO, "step512")
    assert loaded.digest == hub.digest(Transformer.from_huggingface(hf_model))


def test_a_folder_with_the_shape_of_14m_gives_the_same_logits(tmp_path):
    torch.manual_seed(0)
    config = pythia.SIZES["14m"]
    hf_model = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=config.vocab_size,
            hidden_size=128,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=512,
            rotary_pct=0.25,
            initializer_range=0.1,
        )
    ).eval()
    hf_model.save_pretrained(tmp_path / "step8")  # as transformers writes it today
    tokenizer(10).save(str(tmp_path / "tokenizer.json"))
    loaded = pythia.load("14m", 0, 8, source=tmp_path)
    assert loaded.model.config == config
    assert_same_logits(loaded.model, hf_model)
    assert loaded.path == tmp_path / "step8"
    with pytest.raises(StoreError, match="no Pythia of size '31m'"):
        pythia.load("31m", 0, 8, source=tmp_path)


def test_a_folder_may_hold_another_run_than_pythia(tmp_path):
    hf_model = tiny_model(1)
    write(checkpoint(hf_model), tmp_path / "step5")
    assert_same_logits(pythia.load("mine", 0, 5, source=str(tmp_path)).model, hf_model)
    with pytest.raises(StoreError, match=r"no folder step7\. The nearest: step5\."):
        pythia.load("mine", 0, 7, source=tmp_path)
    (tmp_path / "step5" / "tokenizer.json").unlink()
    with pytest.raises(StoreError, match=r"no tokenizer\.json"):
        pythia.load("mine", 0, 5, source=tmp_path)


def test_the_pocket_suite_through_the_same_call(monkeypatch, tmp_path):
    monkeypatch.setenv("EMERGENCE_CACHE", str(tmp_path))
    model = Transformer(pocket.pocket_config("98k", 30))
    pocket.save_run("98k", 987, {5: model.state_dict()})
    tokenizer(30).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(pythia, "TOKENIZER_PATH", tmp_path / "tokenizer.json")
    loaded = pythia.load("98k", 987, 5, source="pocket")
    x = tokens(30)
    assert torch.equal(loaded.model(x), model(x))
    assert loaded.digest == hub.digest(model)
    assert loaded.path.parent.parent == tmp_path / "checkpoints"
    assert loaded.tokenizer.encode("3 1 4").ids == [3, 1, 4]
    with pytest.raises(StoreError, match="step 6"):
        pythia.load("98k", 987, 6, source="pocket")
    with pytest.raises(UnknownNameError, match="pocket size"):
        pythia.load("14m", 0, 5, source="pocket")


def test_loading_says_nothing(server, capfd):
    pythia.load("14m", 0, 1000)
    assert capfd.readouterr() == ("", "")


def test_a_branch_without_a_tokenizer_takes_that_of_the_suite(server):
    files = checkpoint(tiny_model(1))
    server.add(REPO, "main", {"tokenizer.json": files.pop("tokenizer.json")})
    server.add(f"{REPO}-seed1", "step0", files)
    loaded = pythia.load("14m", 1, 0)
    assert loaded.tokenizer.encode("3 1 4").ids == [3, 1, 4]


# --- digests -------------------------------------------------------------------------------------


def test_the_digest_is_of_names_shapes_and_values():
    model = Transformer(TINY_CONFIG)
    sha = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        sha.update(f"{name} {tuple(value.shape)}\n".encode())
        for number in value.flatten().tolist():
            sha.update(torch.tensor(number).numpy().tobytes())
    assert hub.digest(model) == sha.hexdigest()


def test_the_digest_sees_a_weight_but_not_the_sign_of_zero():
    model = Transformer(TINY_CONFIG)
    before = hub.digest(model)
    bias = model.blocks[1].mlp.down.bias
    with torch.no_grad():
        assert bias[3] == 0
        bias[3] = -0.0
        assert hub.digest(model) == before
        bias[3] = 1e-30
        assert hub.digest(model) != before


# --- branches that are not what they say ---------------------------------------------------------


def test_a_branch_that_serves_another_steps_weights_is_refused(server):
    server.add(REPO, "step512", BRANCHES["step1000"])
    first = pythia.load("14m", 0, 1000)
    with pytest.raises(StoreError, match=r"step512 .* same weights as step1000.*allow_known_bad"):
        pythia.load("14m", 0, 512)
    with pytest.raises(StoreError, match=r"step1000 .* same weights as step512"):
        pythia.load("14m", 0, 1000)  # which of the two is wrong cannot be known
    pythia.load("14m", 0, 2000)
    group = ((REPO, "step1000"), (REPO, "step512"))
    assert pythia.check_duplicates() == known_bad.Duplicates((), (group,))
    with pytest.warns(UserWarning, match="same weights"):
        again = pythia.load("14m", 0, 512, allow_known_bad=True)
    assert again.digest == first.digest


def test_a_duplicate_is_seen_in_another_format(server):
    server.add(REPO, "step512", checkpoint(MODELS["step1000"], "pickled", torch.float32))
    pythia.load("14m", 0, 1000)
    with pytest.raises(StoreError, match="same weights as step1000"):
        pythia.load("14m", 0, 512)


def test_a_branch_that_was_put_right_is_loaded_once_its_folder_is_gone(server):
    right = BRANCHES["step1000"]
    server.add(REPO, "step1000", BRANCHES["step2000"])
    pythia.load("14m", 0, 2000)
    with pytest.raises(StoreError, match="same weights"):
        pythia.load("14m", 0, 1000)
    server.add(REPO, "step1000", right)
    hub.discard(hub.fetch(REPO, "step1000"))
    assert_same_logits(pythia.load("14m", 0, 1000).model, MODELS["step1000"])
    pythia.load("14m", 0, 2000)


def test_the_first_steps_may_be_equal_and_are_listed_apart(server):
    for step in (0, 1, 2):
        server.add(REPO, f"step{step}", BRANCHES["step4"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        digests = {pythia.load("14m", 0, step).digest for step in (0, 1, 2)}
    assert len(digests) == 1
    expected = tuple((REPO, f"step{step}") for step in (0, 1, 2))
    assert pythia.check_duplicates() == known_bad.Duplicates((expected,), ())
    with pytest.raises(StoreError, match=r"step4 .* same weights as step0, step1, step2"):
        pythia.load("14m", 0, 4)
    assert not pythia.check_duplicates().expected


def test_equal_weights_in_two_runs_are_never_expected():
    digests = {(REPO, "step0"): "a", (f"{REPO}-seed1", "step0"): "a", (REPO, "step1"): "b"}
    found = known_bad.find_duplicates(digests)
    assert found == known_bad.Duplicates((), (((REPO, "step0"), (f"{REPO}-seed1", "step0")),))


def test_the_known_faults_are_those_reported():
    wrong = {s for s in pythia.STEPS if known_bad.known_fault("EleutherAI/pythia-2.8b", s)}
    assert len(wrong) == 86
    assert 66_000 not in wrong
    assert {0, 512, 53_000, 64_000, 103_000, 140_000, 143_000} <= wrong
    assert all(fault.steps <= set(pythia.STEPS) for fault in pythia.KNOWN_BAD)
    assert all("#" in fault.issue for fault in pythia.KNOWN_BAD)
    assert known_bad.known_fault(REPO, 1000) is None


@pytest.mark.parametrize(
    ("size", "step", "issue"), [("2.8b", 1000, "pythia#205"), ("12b", 58_000, "pythia#206")]
)
def test_a_branch_known_to_be_wrong_is_refused_before_anything_is_fetched(
    server, size, step, issue
):
    repo = pythia.repository(size, 0)
    server.add(repo, f"step{step}", checkpoint(tiny_model(1)))
    with pytest.raises(StoreError, match=f"{issue}.*allow_known_bad=True"):
        pythia.load(size, 0, step)
    assert not server.requests
    with pytest.warns(UserWarning, match=issue):
        pythia.load(size, 0, step, allow_known_bad=True)


def test_a_doubtful_branch_is_loaded_with_a_warning(server):
    server.add("EleutherAI/pythia-2.8b", "step143000", checkpoint(tiny_model(1)))
    with pytest.warns(UserWarning, match="pythia#205") as caught:
        pythia.load("2.8b", 0, 143_000)
    assert caught[0].filename == __file__


def test_a_branch_reported_missing_says_so_beside_the_hubs_answer(server):
    server.add("EleutherAI/pythia-410m-seed9", "step40000", {"README.md": b""})
    with pytest.warns(UserWarning, match="pythia#202"), pytest.raises(StoreError, match="weights"):
        pythia.load("410m", 9, 40_000)


# --- weights that cannot be read -----------------------------------------------------------------


class Payload:
    """What a malicious pickle would hold."""

    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def pickled(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def test_the_malicious_file_is_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    torch.load(io.BytesIO(pickled({"a": Payload()})), weights_only=False)
    assert Path("executed").exists()


def without(files: dict[str, bytes], name: str) -> bytes:
    tensors = load(files[WEIGHTS])
    del tensors[name]
    return save(tensors, {"format": "pt"})


@pytest.mark.parametrize(
    "break_it",
    [
        lambda files: files.update({WEIGHTS: files[WEIGHTS][:-500]}),
        lambda files: files.update({WEIGHTS: b""}),
        lambda files: files.update({WEIGHTS: without(files, "embed_out.weight")}),
        lambda files: files.update({"config.json": b"{"}),
        lambda files: files.pop("config.json"),
        lambda files: files.update(
            {"config.json": files["config.json"].replace(b'"vocab_size": 30', b'"vocab_size": 31')}
        ),
        lambda files: files.update(
            {"pytorch_model.bin": pickled({"a": Payload()}), "x": files.pop(WEIGHTS)}
        ),
    ],
    ids=["truncated", "empty", "incomplete", "config", "no config", "misfit", "malicious"],
)
def test_a_broken_upload_is_an_error_and_not_kept(server, monkeypatch, tmp_path, capfd, break_it):
    monkeypatch.chdir(tmp_path)
    good = BRANCHES["step1000"]
    broken = dict(good)
    break_it(broken)
    server.add(REPO, "step1000", broken)  # the Hub vouches for every byte of it
    with pytest.raises(StoreError, match="step1000"):
        pythia.load("14m", 0, 1000)
    assert not Path("executed").exists()
    assert not list(tmp_path.rglob("checkpoint.json"))
    assert capfd.readouterr() == ("", "")
    server.add(REPO, "step1000", good)
    loaded = pythia.load("14m", 0, 1000)
    assert loaded.digest == hub.digest(Transformer.from_huggingface(MODELS["step1000"]))


def test_another_shape_than_the_sizes_is_refused(server):
    server.add(REPO, "step8", checkpoint(tiny_model(1, num_attention_heads=2)))
    with pytest.raises(StoreError, match=r"no Pythia of size '14m'.*n_heads=2"):
        pythia.load("14m", 0, 8)


def test_a_tokenizer_that_cannot_be_read(tmp_path):
    write(checkpoint(tiny_model(1)) | {"tokenizer.json": b"{}"}, tmp_path / "step5")
    with pytest.raises(StoreError, match="is no tokenizer"):
        pythia.load("mine", 0, 5, source=tmp_path)


def test_files_that_change_in_the_cache_are_noticed(server):
    path = pythia.load("14m", 0, 1000).path / WEIGHTS
    path.write_bytes(BRANCHES["step2000"][WEIGHTS])
    with pytest.raises(StoreError, match="changed since"):
        pythia.load("14m", 0, 1000)
    assert_same_logits(pythia.load("14m", 0, 1000).model, MODELS["step1000"])


# --- fetching ahead ------------------------------------------------------------------------------


def test_what_was_fetched_ahead_is_found(server):
    for future in pythia.prefetch("14m", 0, [1000, 4]):
        assert future.result(timeout=60) is None
    server.requests.clear()
    pythia.load("14m", 0, 1000)
    pythia.load("14m", 0, 4)
    assert not server.requests


def test_a_failure_ahead_of_time_comes_when_the_checkpoint_is_asked_for(server):
    server.fault("/cdn/", corrupt=True, times=FOREVER)
    futures = pythia.prefetch("14m", 0, [1000, 8000])
    assert [future.result(timeout=60) for future in futures] == [None, None]
    with pytest.raises(StoreError, match="another hash"):
        pythia.load("14m", 0, 1000)
    with pytest.raises(StoreError, match="no branch step8000"):
        pythia.load("14m", 0, 8000)
    server.heal()
    assert_same_logits(pythia.load("14m", 0, 1000).model, MODELS["step1000"])


def test_what_is_no_longer_wanted_is_not_fetched(server, monkeypatch):
    real, go_on = hub.fetch, Event()

    def fetch(repo, branch, quiet):
        go_on.wait(timeout=60)
        return real(repo, branch, quiet=quiet)

    monkeypatch.setattr(hub, "fetch", fetch)
    futures = pythia.prefetch("14m", 0, [1000, 2000, 4])
    assert futures[1].cancel()  # while the first is under way
    go_on.set()
    futures[2].result(timeout=60)
    assert not server.asked("step2000")
    assert server.asked("step4")
