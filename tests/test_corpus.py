"""PocketPile: labels against the stories they come from, the split, and a cache that is broken."""

import hashlib
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from emergence_lib.errors import EmergenceError, ParameterError
from emergence_lib.provenance import cache_folder
from emergence_lib.tasks import TASKS, PocketPile, corpus_sources, make_task, story_grammar
from emergence_lib.tasks import corpus as module
from emergence_lib.tasks.corpus import (
    DOMAINS,
    END_OF_TEXT,
    PARTS_OF_SPEECH,
    ROLES,
    SEED,
    SPLITS,
    TOKENIZER_FILE,
    Corpus,
    build_corpus,
    corpus,
    corpus_provenance,
    pocket_tokenizer,
    train_tokenizer,
)
from emergence_lib.tasks.corpus_sources import N_STORIES, Document, documents
from emergence_lib.tasks.stories import story

torch.set_num_threads(1)
END = 0


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="session")
def pile():
    """The whole corpus: built once on a machine (half a minute), then read from the cache."""
    return corpus()


def document_spans(pile):
    """First and last+1 token of every document, from the end-of-text tokens alone."""
    ends = (pile.tokens == END).nonzero().squeeze(-1).tolist()
    return list(zip([0, *(e + 1 for e in ends[:-1])], [e + 1 for e in ends], strict=True))


# --- tokenizer -----------------------------------------------------------------------------------


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_survives_a_round_trip(text):
    tokenizer = pocket_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_and_the_words_of_stories_are_single_tokens():
    tokenizer = pocket_tokenizer()
    assert tokenizer.get_vocab_size() == PocketPile().vocab_size == 2048
    for digit in "0123456789":
        assert len(tokenizer.encode(f" {digit}").ids) == 1
    assert [tokenizer.decode([i]) for i in tokenizer.encode("12 345").ids] == [
        "1",
        "2",
        " 3",
        "4",
        "5",
    ]
    words = [*story_grammar.ENTITIES[1:], *story_grammar.ADJECTIVES]
    assert [w for w in words if len(tokenizer.encode(f" {w}").ids) != 1] == []
    assert [w for w in story_grammar.LABELS if len(tokenizer.encode(w).ids) != 1] == []


def test_a_token_with_a_digit_holds_one_and_no_letter():
    for token in pocket_tokenizer().get_vocab():
        if re.search(r"\d", token):
            assert re.fullmatch(r"Ġ?\d", token)


def test_the_shipped_tokenizer_is_that_of_the_recorded_runs():
    digest = hashlib.sha256(TOKENIZER_FILE.read_bytes()).hexdigest()
    assert digest.startswith("f0215972fb375b78")
    assert pocket_tokenizer().token_to_id(END_OF_TEXT) == END


@pytest.fixture
def small_sources(monkeypatch):
    """Forty files and thirty stories instead of everything."""
    files = dict(list(corpus_sources._standard_library().items())[:40])
    size = sum(map(len, files.values()))
    monkeypatch.setattr(corpus_sources, "_standard_library", lambda: files)
    monkeypatch.setattr(corpus_sources, "CODE_CHARACTERS", size // 2)
    monkeypatch.setattr(corpus_sources, "N_STORIES", 30)
    return files


def test_training_a_tokenizer_twice_gives_the_same_file(small_sources, tmp_path):
    train_tokenizer(tmp_path / "a.json")
    train_tokenizer(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    shipped, made = (
        module.Tokenizer.from_file(str(path)) for path in (TOKENIZER_FILE, tmp_path / "a.json")
    )
    assert made.get_vocab_size() == shipped.get_vocab_size()
    text = "def f(x1):\n    return 'Mary’s 12 3½'  # it's"
    for tokenizer in (made, shipped):  # cut into the same pieces before merging
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert [piece for piece, _ in pieces] == (
            "def Ġf ( x 1 ): ĊĠĠĠ Ġreturn Ġ' Mary âĢĻ s Ġ 1 2 Ġ3 Â½ ' Ġ Ġ# Ġit 's".replace(
                "Ġ 1", "Ġ1"
            ).split()
        )


# --- documents and split -------------------------------------------------------------------------


def test_small_corpora_are_the_same_bit_for_bit(small_sources, monkeypatch):
    first, second = build_corpus(), build_corpus()
    assert first.digest == second.digest
    assert first.n_train == second.n_train
    assert torch.equal(first.tokens, second.tokens)
    for name, label in first.labels.items():
        assert torch.equal(label, second.labels[name])
    monkeypatch.setattr(corpus_sources, "SEED", SEED + 1)
    assert build_corpus().digest != first.digest


def test_sources_are_disjoint_and_code_stops_at_its_share(small_sources):
    found = list(documents())
    assert len({d.name for d in found}) == len(found)
    by_domain = {domain: [d for d in found if d.domain == domain] for domain in DOMAINS}
    code = {d.name for d in by_domain["code"]}
    length = sum(len(d.text) for d in by_domain["code"])
    last = len(by_domain["code"][-1].text)
    assert length - last < corpus_sources.CODE_CHARACTERS <= length
    for document in by_domain["code"]:
        assert document.text == small_sources[document.name]
    prose = {d.name for d in by_domain["prose"]}
    assert not code & prose
    assert "topics/assert" in prose
    assert prose <= set(small_sources) | {n for n in prose if n.startswith("topics/")}
    assert not any("def " in d.text.split("\n", 1)[0] for d in by_domain["prose"])
    assert len(by_domain["story"]) == 30
    assert [bool(d.words) for d in found] == [d.domain == "story" for d in found]


def test_docstrings_are_found_wherever_they_stand():
    source = """'Module.'\nclass A:\n  'Class.'\n  async def f(self):\n    'F.'\n  x = 'no'\n"""
    assert sorted(corpus_sources._docstrings(source)) == ["Class.", "F.", "Module."]


def test_tests_and_tables_stay_out():
    names = list(corpus_sources._standard_library())
    assert {"os.py", "json/decoder.py"} <= set(names)
    parts = {part for name in names for part in name.split("/")}
    assert not parts & {"test", "tests", "site-packages", "encodings", "pydoc_data", "idlelib"}
    assert not any(name.startswith("_sysconfigdata") for name in names)


def test_a_python_without_sources_is_told(tmp_path, monkeypatch):
    (tmp_path / "os.py").write_text("x = 1\n")
    monkeypatch.setattr(corpus_sources.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(EmergenceError, match="source files are not below"):
        list(documents())


def test_the_split_follows_the_name_alone():
    held = [i for i in range(4_000) if Document("story", f"story/{i:05d}", "x").held_out]
    assert len(held) / 4_000 == pytest.approx(0.05, abs=0.02)
    for i in held[:5]:
        assert Document("code", f"story/{i:05d}", "other").held_out


def test_domain_shares_are_as_documented(pile):
    share = torch.bincount(pile.labels["domain"].long(), minlength=3) / len(pile.tokens)
    assert share.tolist() == pytest.approx([0.43, 0.07, 0.49], abs=0.03)
    assert 3_000_000 < len(pile.tokens) < 4_500_000
    assert pile.n_train / len(pile.tokens) == pytest.approx(0.95, abs=0.015)


def test_held_out_documents_are_never_in_train(pile):
    spans = document_spans(pile)
    assert spans[-1][1] == len(pile.tokens)
    assert pile.n_train in {end for _, end in spans}
    texts = {"train": Counter(), "held out": Counter()}
    for start, end in spans:
        split = "train" if end <= pile.n_train else "held out"
        texts[split][pile.tokens[start:end].numpy().tobytes()] += 1
    assert not set(texts["train"]) & set(texts["held out"])
    assert len(texts["held out"]) > 250
    assert sum(texts["train"].values()) - len(texts["train"]) < 20  # a few topics share a text


def test_a_text_under_two_names_is_not_in_both_splits(monkeypatch):
    names = [f"story/{i:05d}" for i in range(100)]
    held, train = (next(n for n in names if Document("prose", n, "").held_out == h) for h in (1, 0))
    same = [Document("prose", train, "same text"), Document("prose", held, "same text")]
    other = [Document("prose", train + "x", "other text")]
    monkeypatch.setattr(module, "documents", lambda: iter(same + other))
    built = build_corpus()
    texts = pocket_tokenizer().decode(built.tokens.tolist(), skip_special_tokens=False)
    assert texts.count("same text") == 1
    assert pocket_tokenizer().decode(built.tokens[: built.n_train].tolist()) == "other text"


def test_documents_are_shuffled(pile):
    domain = pile.labels["domain"][pile.tokens == END]
    kinds = [DOMAINS[i] for i in domain.tolist()]
    assert kinds.count("story") == N_STORIES
    for part in (kinds[:2_000], kinds[2_000:4_000], kinds[4_000:6_000]):
        assert part.count("story") / 2_000 == pytest.approx(N_STORIES / len(kinds), abs=0.02)


# --- labels --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def told():
    """The first stories of the corpus with their numbers, told again."""
    generator = seeded(SEED)
    return {i: story(generator) for i in range(60)}


def test_labels_of_stories_are_those_of_their_words(pile, told):
    """Each token's word is looked up by adding up the lengths of the decoded tokens."""
    tokenizer = pocket_tokenizer()
    spans = document_spans(pile)
    by_text = {s.text: s for s in told.values()}
    seen = 0
    for start, end in spans:
        if DOMAINS[pile.labels["domain"][start]] != "story" or seen == len(told):
            continue
        ids = pile.tokens[start : end - 1].tolist()
        text = tokenizer.decode(ids)
        if text not in by_text:
            continue
        seen += 1
        words, position, invented = by_text[text].words, 0, {}
        for offset, token in enumerate(ids, start=start):
            piece = tokenizer.decode([token])
            assert text[position : position + len(piece)] == piece
            first = position + piece.startswith(" ")
            word = next((w for w in words if w.start <= first < w.end), None)
            got = {name: label[offset].item() for name, label in pile.labels.items()}
            assert got["story_position"] == pytest.approx(first / len(text), abs=1e-6)
            position += len(piece)
            if word is None:
                assert piece.isspace()
                assert (got["part_of_speech"], got["role"], got["entity"]) == (-1, -1, -1)
                continue
            assert piece.strip()[0] in word.text
            assert word.text.startswith(piece.strip()) or first > word.start or len(word.text) == 1
            assert PARTS_OF_SPEECH[got["part_of_speech"]] == word.part_of_speech
            assert ROLES[got["role"]] == word.role
            if got["entity"] < len(story_grammar.ENTITIES):
                assert story_grammar.ENTITIES[got["entity"]] == word.entity
            else:
                assert word.entity not in story_grammar.ENTITIES
                number = got["entity"] - len(story_grammar.ENTITIES)
                assert invented.setdefault(word.entity, number) == number
        assert position == len(text)
        assert sorted(invented.values()) == list(range(len(invented)))
    assert seen == len(told)


def test_code_prose_and_ends_carry_no_grammar(pile):
    outside = pile.labels["domain"] != DOMAINS.index("story")
    for name in ("part_of_speech", "role", "entity", "story_position"):
        assert (pile.labels[name][outside] == -1).all()
        assert (pile.labels[name] >= -1).all()
    ends = (pile.tokens == END) & ~outside
    for name in ("part_of_speech", "role", "entity"):
        assert (pile.labels[name][ends] == -1).all()
    assert (pile.labels["story_position"][ends] == 1).all()
    assert pile.labels["story_position"].isfinite().all()
    assert pile.labels["part_of_speech"].max() < len(PARTS_OF_SPEECH)
    assert pile.labels["role"].max() < len(ROLES)


def test_document_numbers_change_behind_every_end(pile):
    number = pile.labels["document"]
    step = number[1:] - number[:-1]
    assert torch.equal(step == 1, pile.tokens[:-1] == END)
    assert set(step.unique().tolist()) == {0, 1}
    domain = pile.labels["domain"]
    assert (step[domain[1:] != domain[:-1]] == 1).all()


def test_stories_in_the_corpus_are_those_of_the_recorded_runs(pile, told):
    """On every version of Python; code and prose differ between versions."""
    stories = pile.tokens[pile.labels["domain"] == DOMAINS.index("story")]
    digest = hashlib.sha256(stories.numpy().tobytes()).hexdigest()
    assert digest.startswith("086a32e883cba194")


# --- the task ------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_windows_are_pieces_of_their_split(pile, split):
    batch = PocketPile(seq_len=33, split=split).sample(512, seeded(1))
    assert batch.tokens.shape == (512, 33)
    assert batch.tokens.dtype == torch.int64
    assert batch.loss_mask.shape == (512, 32)
    assert batch.loss_mask.all()
    low, high = pile.span(split)
    stream = pile.tokens.numpy()
    places = np.flatnonzero(stream[low : high - 32] == batch.tokens[0, 0].item()) + low
    assert any((stream[p : p + 33] == batch.tokens[0].numpy()).all() for p in places)
    held_out_from = pile.labels["document"][pile.n_train].item()
    inside = batch.labels["document"] < held_out_from
    assert inside.all() if split == "train" else not inside.any()
    for name, label in batch.labels.items():
        assert label.shape == batch.tokens.shape
        assert label.dtype == (torch.float32 if name == "story_position" else torch.int64)
    assert set(batch.labels) == set(pile.labels)


@pytest.mark.parametrize("split", SPLITS)
def test_windows_reach_both_ends_of_the_split_and_never_cross_it(monkeypatch, split):
    n = torch.arange(100, dtype=torch.int16)
    tiny = Corpus(n, {"document": n.int()}, n_train=60, digest="")
    monkeypatch.setattr(module, "corpus", lambda: tiny)
    tokens = PocketPile(seq_len=20, split=split).sample(4_000, seeded(0)).tokens
    low, high = tiny.span(split)
    assert (low, high) == ((0, 60) if split == "train" else (60, 100))
    starts = Counter(tokens[:, 0].tolist())
    assert sorted(starts) == list(range(low, high - 19))
    expected = 4_000 / len(starts)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in starts.values())
    assert (tokens[:, 1:] - tokens[:, :-1] == 1).all()


def test_the_same_seed_draws_the_same_windows(pile):
    task = PocketPile()
    first, second = (task.sample(8, seeded(5)) for _ in range(2))
    assert torch.equal(first.tokens, second.tokens)
    assert not torch.equal(first.tokens, task.sample(8, seeded(6)).tokens)
    assert first.tokens.shape == (8, 129)


def test_accuracy_is_the_share_of_right_arg_maxes(pile):
    task = PocketPile(seq_len=9)
    batch = task.sample(4, seeded(2))
    logits = torch.nn.functional.one_hot(batch.tokens[:, 1:], task.vocab_size).float()
    assert task.accuracy(logits, batch) == 1
    logits[0, :4] *= -1  # four of 32 wrong
    assert task.accuracy(logits, batch) == pytest.approx(28 / 32)


def test_the_task_is_registered_and_validated():
    assert TASKS["pocket_pile"] is PocketPile
    assert make_task("pocket_pile", seq_len=65) == PocketPile(65, "train")
    assert PocketPile().floor is None
    assert PocketPile().attention_target() is None
    with pytest.raises(ParameterError, match="'train' or 'held out'"):
        PocketPile(split="test")
    for wrong in (1, 4097, 12.0, True):
        with pytest.raises(ParameterError, match="seq_len"):
            PocketPile(seq_len=wrong)
    with pytest.raises(ParameterError, match="batch_size"):
        PocketPile().sample(0, seeded(0))


def test_importing_builds_nothing():
    code = (
        "import sys, emergence_lib.tasks.corpus as c; "
        "print(c.corpus.cache_info().currsize, c.pocket_tokenizer.cache_info().currsize, "
        "'pydoc_data.topics' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "False"]


def test_provenance_names_what_the_corpus_depends_on(pile):
    found = corpus_provenance()
    assert set(found) == {"python", "sources", "tokenizer", "corpus"}
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["corpus"] == pile.digest
    assert found["tokenizer"] == hashlib.sha256(TOKENIZER_FILE.read_bytes()).hexdigest()
    assert re.fullmatch(r"[0-9a-f]{64}", found["sources"])


# --- the cache -----------------------------------------------------------------------------------

fresh = corpus.__wrapped__  # without the memory of this process


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """An empty cache folder and a quick stand-in for building; a list of the builds made."""
    monkeypatch.setenv("EMERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "sources_digest", lambda: "of these sources")
    made = []

    def build():
        made.append(1)
        time.sleep(0.2)
        tokens = torch.arange(50, dtype=torch.int16)
        labels = {name: torch.zeros(50) + i for i, name in enumerate(module._LABELS)}
        return Corpus(tokens, labels, 40, module._digest(40, tokens))

    monkeypatch.setattr(module, "build_corpus", build)
    return made


def kept_files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_second_process_reads_what_the_first_built(builds):
    first, second = fresh(), fresh()
    assert len(builds) == 1
    assert (first.n_train, first.digest) == (second.n_train, second.digest)
    assert torch.equal(first.tokens, second.tokens)
    assert first.labels.keys() == second.labels.keys()
    for name, label in first.labels.items():
        assert torch.equal(label, second.labels[name])
    [name] = kept_files(cache_folder())
    assert re.fullmatch(r"corpus-[0-9a-f]{16}\.safetensors", name)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-10])


def emptied(path):
    path.write_bytes(b"")


def altered(path):
    """One bit of the labels, which no length betrays."""
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def other_program(path):
    save_file({"weight": torch.zeros(3)}, path)


def without_metadata(path):
    save_file(load_file(path), path)


@pytest.mark.parametrize("break_it", [cut_short, emptied, altered, other_program, without_metadata])
def test_a_broken_file_is_built_again(builds, break_it):
    built = fresh()
    [name] = kept_files(cache_folder())
    break_it(cache_folder() / name)
    assert fresh().digest == built.digest
    assert len(builds) == 2
    assert fresh().digest == built.digest
    assert len(builds) == 2, "the second build was kept"
    assert kept_files(cache_folder()) == [name]


def test_nothing_is_left_when_writing_fails(builds, monkeypatch):
    def full_disk(source, target):
        assert source.parent == target.parent
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.warns(UserWarning, match="not kept on disk.*No space left"):
        built = fresh()
    assert len(built.tokens) == 50
    assert kept_files(cache_folder()) == []


def test_an_interrupted_write_leaves_nothing(builds, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fresh()
    assert kept_files(cache_folder()) == []


def test_a_folder_that_cannot_be_made_costs_only_the_cache(builds, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EMERGENCE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="not kept on disk"):
        assert fresh().n_train == 40


def test_of_two_at_once_one_builds(builds):
    threads = [threading.Thread(target=fresh) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_a_change_of_the_sources_is_another_file(builds, monkeypatch):
    fresh()
    monkeypatch.setattr(module, "sources_digest", lambda: "of other sources")
    fresh()
    assert len(builds) == 2
    assert len(kept_files(cache_folder())) == 2


def test_the_digest_of_the_sources_sees_every_text(monkeypatch):
    files, topics = {"a.py": "x = 1\n", "b.py": "y = 2\n"}, {"assert": "text"}
    monkeypatch.setattr(corpus_sources, "_standard_library", lambda: files)
    monkeypatch.setattr(corpus_sources, "_topics", lambda: topics)
    first = corpus_sources.sources_digest()
    assert corpus_sources.sources_digest() == first
    topics["assert"] = "texts"
    second = corpus_sources.sources_digest()
    files["b.py"] = "y = 3\n"
    assert len({first, second, corpus_sources.sources_digest()}) == 3


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("EMERGENCE_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("EMERGENCE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "b" / "emergence"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "emergence"
