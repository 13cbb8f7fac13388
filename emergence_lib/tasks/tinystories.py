"""TinyStories with the grammar that spaCy finds: paper C's text, for those who have both.

    text      One       day   ,            Lily         went   to          the         park
    spaCy     NUM       NOUN  PUNCT        PROPN        VERB   ADP         DET         NOUN
              nummod    npadvmod  punct    nsubj        ROOT   prep        det         pobj
    label     numeral   noun  punctuation  proper noun  verb   adposition  determiner  noun
              modifier  modifier  …        subject      root   case        determiner  oblique

Paper C trains on windows of 64 tokens of TinyStories (Eldan and Li 2023, arXiv 2305.07759) tagged
by spaCy (fact sheet C5). The labels are brought to the names that our generated stories have, so
that an experiment takes either text. The ten dependency labels of the paper are ten of our roles;
two of its tags (VB, VBD) are one part of speech here. The tokenizer is the pocket suite's.

Neither the text nor spaCy comes with this library, and nothing recorded in this book uses them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
import torch
from jaxtyping import Int
from pyarrow import ArrowException
from torch import Tensor

from emergence_lib.errors import EmergenceError, StoreError
from emergence_lib.tasks.base import register, require_int
from emergence_lib.tasks.corpus import END_OF_TEXT, SPLITS, grammar_labels, pocket_tokenizer
from emergence_lib.tasks.corpus_sources import Document
from emergence_lib.tasks.stories import Story, Word
from emergence_lib.tasks.story_windows import StoryWindows

HUB = "hub"
REPOSITORY, TRAIN_FILE = "roneneldan/TinyStories", "TinyStories-train.txt"
SPACY_MODEL = "en_core_web_sm"
HELD_OUT_EVERY = 20

PART_OF_SPEECH = {
    "NOUN": "noun",
    "PROPN": "proper noun",
    "PRON": "pronoun",
    "VERB": "verb",
    "AUX": "auxiliary",
    "ADJ": "adjective",
    "ADV": "adverb",
    "DET": "determiner",
    "ADP": "adposition",
    "CCONJ": "conjunction",
    "SCONJ": "conjunction",
    "NUM": "numeral",
    "PART": "particle",
    "INTJ": "interjection",
    "PUNCT": "punctuation",
    "SYM": "punctuation",
}
"""spaCy's coarse tag → `PARTS_OF_SPEECH`; a word of another tag (X) has no labels."""

ROLE = {
    "ROOT": "root",
    **dict.fromkeys(("advcl", "ccomp", "xcomp", "relcl", "acl", "pcomp"), "clause"),
    **dict.fromkeys(("nsubj", "nsubjpass", "csubj", "expl"), "subject"),
    **dict.fromkeys(("dobj", "attr"), "object"),
    "dative": "indirect object",
    "pobj": "oblique",
    "conj": "conjunct",
    "appos": "name",
    **dict.fromkeys(
        ("amod", "advmod", "nummod", "compound", "npadvmod", "neg", "acomp", "prt"), "modifier"
    ),
    **dict.fromkeys(("det", "predet", "poss"), "determiner"),
    **dict.fromkeys(("prep", "agent", "case"), "case"),
    **dict.fromkeys(("aux", "auxpass"), "auxiliary"),
    "cc": "coordinator",
    "mark": "marker",
    "punct": "punctuation",
}
"""spaCy's English dependency label → `ROLES`; the rest, such as intj, are "discourse"."""


class Pipeline(Protocol):
    """What is used of a spaCy pipeline."""

    def pipe(self, texts: Iterable[str]) -> Iterable[Any]: ...


def pipeline() -> Pipeline:
    """spaCy with its small English model.

    Raises:
        EmergenceError: either is not installed; the message says how to.
    """
    try:
        import spacy
    except ImportError as error:
        raise EmergenceError(
            "The grammar of TinyStories is found by spaCy, which is not installed: "
            "pip install 'emergence-companion[stories]', then "
            f"python -m spacy download {SPACY_MODEL}"
        ) from error
    try:
        return spacy.load(SPACY_MODEL, disable=["ner", "lemmatizer"])
    except OSError as error:
        raise EmergenceError(
            f"spaCy has no model {SPACY_MODEL} here: python -m spacy download {SPACY_MODEL}"
        ) from error


def read_stories(source: str) -> Iterator[str]:
    """The texts of a file, one after another, without reading more than is asked for.

    Args:
        source: path of a ``.parquet`` file with a column "text", or of a text file in which a line
            ``<|endoftext|>`` ends a story; or "hub" for the train file of the Hugging Face Hub,
            which is fetched once (2 GB) and kept in its cache.

    Raises:
        EmergenceError: `huggingface_hub` is not installed.
        StoreError: no such file, one that holds no stories, or the Hub cannot be reached.
    """
    path = _from_hub() if source == HUB else Path(source).expanduser()
    try:
        yield from _parquet(path) if path.suffix == ".parquet" else _text(path)
    except (OSError, ArrowException) as error:
        raise StoreError(f"{path} cannot be read as stories: {error}") from error


def _from_hub() -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise EmergenceError(
            "Fetching TinyStories needs huggingface_hub: pip install 'emergence-companion[hub]', "
            "or name a local file as the source."
        ) from error
    try:
        return Path(hf_hub_download(REPOSITORY, TRAIN_FILE, repo_type="dataset"))
    except Exception as error:  # the Hub's client has many kinds, all of which end here
        raise StoreError(
            f"{TRAIN_FILE} of {REPOSITORY} cannot be fetched: {error}. Without a network, name a "
            "local text or parquet file as the source."
        ) from error


def _parquet(path: Path) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        if "text" not in file.schema_arrow.names:
            raise StoreError(f'{path} has no column "text"; it has {file.schema_arrow.names}.')
        for batch in file.iter_batches(columns=["text"]):
            yield from (text.strip() for text in batch.column(0).to_pylist() if text)


def _text(path: Path) -> Iterator[str]:
    lines: list[str] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.strip() != END_OF_TEXT:
                lines.append(line)
            elif story := "".join(lines).strip():
                yield story
                lines = []
    if story := "".join(lines).strip():
        yield story


def analysed(texts: Iterable[str], nlp: Pipeline) -> Iterator[Story]:
    """Stories with spaCy's grammar in the names of our own; entities are not looked for."""
    for doc in nlp.pipe(texts):
        words = [
            Word(
                token.text,
                token.idx,
                token.idx + len(token.text),
                PART_OF_SPEECH[token.pos_],
                ROLE.get(token.dep_, "discourse"),
                "",
                number,
            )
            for number, sentence in enumerate(doc.sents)
            for token in sentence
            if token.pos_ in PART_OF_SPEECH
        ]
        yield Story(doc.text, tuple(words))


@cache
def _labelled(
    source: str, n_stories: int
) -> dict[str, tuple[Int[Tensor, " token"], dict[str, Tensor]]]:
    """Split → tokens of its stories in order, and their labels."""
    tokenizer, nlp = pocket_tokenizer(), pipeline()
    end = tokenizer.token_to_id(END_OF_TEXT)
    parts: dict[str, list[dict[str, Tensor]]] = {split: [] for split in SPLITS}
    for number, story in enumerate(analysed(islice(read_stories(source), n_stories), nlp)):
        encoding = tokenizer.encode(story.text)
        document = Document("story", f"tinystories/{number}", story.text, story.words)
        labels = grammar_labels(document, encoding.offsets)
        held_out = number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        parts["held out" if held_out else "train"].append(
            {
                "tokens": torch.tensor([*encoding.ids, end]),
                "token_index": torch.arange(len(encoding.ids) + 1),
                **{name: torch.from_numpy(values) for name, values in labels.items()},
            }
        )
    if not parts["held out"]:
        raise StoreError(
            f"{source!r} holds {len(parts['train'])} stories; {HELD_OUT_EVERY} at least are "
            "needed, of which one is held out."
        )
    found = {}
    for split, stories in parts.items():
        joined = {name: torch.cat([story[name] for story in stories]) for name in stories[0]}
        found[split] = joined.pop("tokens"), joined
    return found


@register("tinystories")
@dataclass(frozen=True)
class TinyStories(StoryWindows):
    """Random windows of TinyStories; labels, shapes and types as in `StoryWindows`.

    One story in twenty is held out. The first `sample` reads the file and runs spaCy over it, some
    thousand words a second, once a process.

    Args:
        seq_len, split: as in `StoryWindows`.
        source: "hub" or the path of a local file; see `read_stories`.
        n_stories: how many of its first stories are used, at least 20.

    Raises:
        ParameterError: a value of the wrong type or out of range.
        EmergenceError: (from `sample`) spaCy, its English model or `huggingface_hub` is missing.
        StoreError: (from `sample`) the stories cannot be read, or fill no window.
    """

    source: str = HUB
    n_stories: int = 20_000

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("n_stories", self.n_stories, HELD_OUT_EVERY)

    def stories(self) -> tuple[Int[Tensor, " token"], dict[str, Tensor]]:
        tokens, labels = _labelled(self.source, self.n_stories)[self.split]
        if len(tokens) < self.seq_len:
            raise StoreError(
                f"The {self.split} stories of {self.source!r} have {len(tokens)} tokens, fewer "
                f"than a window of {self.seq_len}."
            )
        return tokens, labels

    def provenance(self) -> dict[str, str]:
        """What the stories of this process are: their source, and a digest of tokens and labels."""
        content = hashlib.sha256()
        for tokens, labels in _labelled(self.source, self.n_stories).values():
            for tensor in (tokens, *labels.values()):
                content.update(tensor.numpy().tobytes())
        source = self.source if self.source == HUB else Path(self.source).name
        return {"tinystories": source, "digest": content.hexdigest()}
