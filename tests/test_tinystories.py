"""TinyStories from local files, analysed by something with spaCy's interface."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emergence_lib.errors import EmergenceError, ParameterError, StoreError, UnknownNameError
from emergence_lib.experiments.text_cell import DEPENDENCIES, TAGS, TextCell, made_from
from emergence_lib.experiments.text_features import TextFeaturesGrid
from emergence_lib.tasks import TinyStories, make_task, tinystories
from emergence_lib.tasks.corpus import END_OF_TEXT, pocket_tokenizer
from emergence_lib.tasks.stories import PARTS_OF_SPEECH, ROLES
from emergence_lib.tasks.tinystories import PART_OF_SPEECH, ROLE, analysed, read_stories

torch.set_num_threads(1)

GRAMMAR = {
    "Lily": ("PROPN", "nsubj"),
    "Ben": ("PROPN", "pobj"),
    "she": ("PRON", "nsubj"),
    "saw": ("VERB", "ROOT"),
    "was": ("AUX", "ROOT"),
    "a": ("DET", "det"),
    "red": ("ADJ", "amod"),
    "happy": ("ADJ", "acomp"),
    "ball": ("NOUN", "dobj"),
    "with": ("ADP", "prep"),
    "zzz": ("X", "dep"),
    "oh": ("INTJ", "intj"),
    ".": ("PUNCT", "punct"),
    ",": ("PUNCT", "punct"),
    "\n\n": ("SPACE", "dep"),
}


class FakeSpacy:
    """`pipe` as spaCy has it, for texts whose words `GRAMMAR` knows."""

    def pipe(self, texts):
        for text in texts:
            sentences, at = [[]], 0
            while at < len(text):
                if text[at] == " ":
                    at += 1
                    continue
                word = max((w for w in GRAMMAR if text.startswith(w, at)), key=len)
                pos, dep = GRAMMAR[word]
                sentences[-1].append(SimpleNamespace(text=word, idx=at, pos_=pos, dep_=dep))
                at += len(word)
                if word == ".":
                    sentences.append([])
            yield SimpleNamespace(text=text, sents=[s for s in sentences if s])


TEXTS = [
    "Lily saw a red ball with Ben.\n\n" + "Lily saw a ball. " * (n % 3) + "she was happy."
    for n in range(45)
]


@pytest.fixture
def stories(tmp_path, monkeypatch):
    """A local file in the text format, read with the fake pipeline."""
    path = tmp_path / "TinyStories-train.txt"
    path.write_text(f"\n{END_OF_TEXT}\n".join(TEXTS) + f"\n{END_OF_TEXT}\n", encoding="utf-8")
    monkeypatch.setattr(tinystories, "pipeline", FakeSpacy)
    tinystories._labelled.cache_clear()
    yield str(path)
    tinystories._labelled.cache_clear()


def test_a_text_file_and_a_parquet_file_hold_the_same_stories(stories, tmp_path):
    assert list(read_stories(stories)) == TEXTS
    table = pa.table({"text": [*TEXTS[:3], "", *TEXTS[3:]], "other": [0] * 46})
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=7)
    assert list(read_stories(str(tmp_path / "train.parquet"))) == TEXTS


def test_only_what_is_asked_for_is_read(stories):
    found = read_stories(stories)
    assert next(found) == TEXTS[0]
    found.close()


def test_files_that_hold_no_stories_are_named(tmp_path):
    with pytest.raises(StoreError, match=r"none\.txt"):
        list(read_stories(str(tmp_path / "none.txt")))
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(StoreError, match=r"bad\.parquet"):
        list(read_stories(str(tmp_path / "bad.parquet")))
    pq.write_table(pa.table({"story": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(StoreError, match="'story'"):
        list(read_stories(str(tmp_path / "other.parquet")))


def test_the_analysis_takes_spacy_s_names_to_ours():
    (story,) = analysed(["oh, Lily saw a red ball with Ben. zzz was happy."], FakeSpacy())
    assert [(w.text, w.part_of_speech, w.role, w.sentence) for w in story.words] == [
        ("oh", "interjection", "discourse", 0),
        (",", "punctuation", "punctuation", 0),
        ("Lily", "proper noun", "subject", 0),
        ("saw", "verb", "root", 0),
        ("a", "determiner", "determiner", 0),
        ("red", "adjective", "modifier", 0),
        ("ball", "noun", "object", 0),
        ("with", "adposition", "case", 0),
        ("Ben", "proper noun", "oblique", 0),
        (".", "punctuation", "punctuation", 0),
        ("was", "auxiliary", "root", 1),
        ("happy", "adjective", "modifier", 1),
        (".", "punctuation", "punctuation", 1),
    ]
    assert all(story.text[w.start : w.end] == w.text for w in story.words)


def test_every_name_is_one_of_ours_and_the_paper_s_features_are_covered():
    assert set(PART_OF_SPEECH.values()) <= set(PARTS_OF_SPEECH)
    assert set(ROLE.values()) <= set(ROLES)
    assert set(TAGS) <= set(PART_OF_SPEECH.values())
    # The paper's labels (fact sheet C5).
    labels = ["nsubj", "ROOT", "det", "dobj", "pobj", "advmod", "prep", "cc", "conj", "aux"]
    assert {ROLE[name] for name in labels} == set(DEPENDENCIES)


def test_windows_hold_the_stories_and_their_labels(stories):
    task = TinyStories(seq_len=12, source=stories)
    batch = task.sample(200, torch.Generator().manual_seed(0))
    tokenizer = pocket_tokenizer()
    end = tokenizer.token_to_id(END_OF_TEXT)
    held_out = {TEXTS[19], TEXTS[39]}
    train = "\0".join(text for n, text in enumerate(TEXTS) if n % 20 != 19)
    for tokens in batch.tokens[:40]:
        text = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        assert text.replace(END_OF_TEXT, "\0") in train + "\0"
    ended = batch.tokens[:, :-1] == end
    index = batch.labels["token_index"]
    assert (index[:, 1:][ended] == 0).all()
    assert (index[:, 1:][~ended] == index[:, :-1][~ended] + 1).all()
    speech, role = batch.labels["part_of_speech"], batch.labels["role"]
    for word, name, place in (
        (" ball", "noun", "object"),
        (" saw", "verb", "root"),
        (" was", "auxiliary", "root"),
        (" red", "adjective", "modifier"),
    ):
        (token,) = tokenizer.encode(word).ids
        here = batch.tokens == token
        assert here.any()
        assert (speech[here] == PARTS_OF_SPEECH.index(name)).all()
        assert (role[here] == ROLES.index(place)).all()
    assert (speech[batch.tokens == end] == -1).all()
    position = batch.labels["story_position"]
    assert ((position >= 0) & (position <= 1)).all()
    other = TinyStories(seq_len=12, split="held out", source=stories)
    tokens, _ = other.stories()
    split = tokenizer.decode(tokens.tolist(), skip_special_tokens=False).split(END_OF_TEXT)[:-1]
    assert set(split) <= held_out
    assert len(split) == 2


def test_the_experiment_on_text_takes_it(stories, monkeypatch):
    monkeypatch.setattr(TinyStories, "source", stories)
    monkeypatch.setattr(TinyStories.__init__, "__defaults__", (65, "train", stories, 45))
    cell = TextFeaturesGrid(corpus="tinystories", steps=2, track_every=1).cell(myopic=False)
    assert isinstance(cell.task(), TinyStories)
    assert cell == TextCell(
        "tinystories", steps=2, track_every=1, batch_size=16, lr=2e-3, n_layers=3
    )
    batch = cell.task().sample(2, torch.Generator().manual_seed(0))
    assert set(batch.labels) >= {"part_of_speech", "role", "token_index", "story_position"}
    said = made_from(cell.task())
    assert "TinyStories-train.txt" in said
    assert stories not in said  # a record names no folder of this machine
    with pytest.raises(UnknownNameError, match="pile"):
        TextFeaturesGrid(corpus="pile")


def test_too_few_stories_and_windows_too_long_are_refused(stories, tmp_path):
    with pytest.raises(StoreError, match="fewer than a window"):
        TinyStories(seq_len=4_000, source=stories).sample(1, torch.Generator())
    few = tmp_path / "few.txt"
    few.write_text(TEXTS[0], encoding="utf-8")
    with pytest.raises(StoreError, match="holds 1 stories"):
        TinyStories(source=str(few)).sample(1, torch.Generator())
    with pytest.raises(ParameterError, match="n_stories"):
        make_task("tinystories", n_stories=19)


def test_without_spacy_or_its_model_the_message_says_how_to_install_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(EmergenceError, match=r"pip install.*spacy download en_core_web_sm"):
        tinystories.pipeline()
    module = ModuleType("spacy")

    def load(name, disable):
        raise OSError(name)

    module.load = load
    monkeypatch.setitem(sys.modules, "spacy", module)
    with pytest.raises(EmergenceError, match="no model en_core_web_sm"):
        tinystories.pipeline()


def test_the_hub_s_file_is_fetched_and_without_it_a_local_file_is_advised(stories, monkeypatch):
    asked = []

    def download(*args, **kwargs):
        asked.append((*args, kwargs))
        return stories

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert next(read_stories("hub")) == TEXTS[0]
    assert asked == [("roneneldan/TinyStories", "TinyStories-train.txt", {"repo_type": "dataset"})]

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(StoreError, match="name a local"):
        next(read_stories("hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EmergenceError, match=r"emergence-companion\[hub\]"):
        next(read_stories("hub"))
