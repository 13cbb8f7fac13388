"""Capabilities of a language model, each as many short prompts with a one-token answer.

                           prompt                                                answer
    string_repetition      0 7 3 1 2 0 2 3⏎0 7 3 1 2 0 2                          3
    in_context_repetition   cat tree house water green cat tree house            water
    numbered_pattern       Step 1: key⏎Step 2: rope⏎Step 3: map⏎Step             4
    ioi                    When Mary and John went to the store, John gave …     Mary

Every capability also has controls: the same form, in which nothing says the answer any more. A
model that has the capability loses it there, and one that only likes the answer does not:

    string_repetition      other digits in both lines, the answer nowhere among them
    in_context_repetition  other words in the first half, so that the answer did not occur
    numbered_pattern       the same numbers out of order
    ioi                    a third name gives: "When Mary and John went …, Tom gave … to"

Sources: paper A (arXiv 2606.25010) names the four and gives the string-repetition prompt, all but
its separator, which here is a line break; random repeated tokens after Olsson et al. 2022
(arXiv 2209.11895); IOI and its three-name control after Wang et al. 2022 (arXiv 2211.00593). The
numbered pattern, the sizes and the word lists are our choice.

Generators work with any tokenizer: they keep prompts of one length, so that nothing is padded, and
refuse a tokenizer that cuts an answer into several tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import require_int
from emergence_lib.tasks.story_grammar import LABELS, NAMES, OBJECTS, PLACES, held_out_pair

T = TypeVar("T")


@dataclass(frozen=True)
class Prompts:
    """Prompts of one length and what should follow each.

    Attributes:
        tokens: int64 ids, no padding and no special tokens.
        target: int64 id of the token that answers the prompt (in a control: of the unbroken one).
        distractor: int64 id of the answer that a model without the capability may give, or None
            where there is no such one.
        text: the prompts as text.
    """

    tokens: Int[Tensor, "prompt pos"]
    target: Int[Tensor, " prompt"]
    distractor: Int[Tensor, " prompt"] | None
    text: tuple[str, ...]


@dataclass(frozen=True)
class _Draft:
    """A prompt and its control as text. Answer and distractor begin with their space."""

    clean: str
    control: str
    answer: str
    distractor: str | None = None


class Capability(ABC):
    """Something a model can or cannot do, asked in many prompts.

    The same generator state gives the same prompts in `prompts` and `control`, one beside the
    other.
    """

    def prompts(self, tokenizer: Tokenizer, n: int, generator: torch.Generator) -> Prompts:
        """Draw `n` prompts.

        Raises:
            ParameterError: `n` < 1, or the tokenizer cuts an answer into several tokens.
        """
        return _encoded(tokenizer, self._draw(tokenizer, n, generator), broken=False)

    def control(self, tokenizer: Tokenizer, n: int, generator: torch.Generator) -> Prompts:
        """Draw `n` prompts of the same form whose answer cannot be told from the prompt.

        Raises:
            ParameterError: as `prompts`.
        """
        return _encoded(tokenizer, self._draw(tokenizer, n, generator), broken=True)

    def single(self, tokenizer: Tokenizer) -> Prompts:
        """One fixed prompt: the paper's where it is known, else the field's standard form.

        Raises:
            ParameterError: the tokenizer cuts the answer into several tokens.
        """
        return _encoded(tokenizer, [self._standard()], broken=False)

    @abstractmethod
    def chance(self, tokenizer: Tokenizer) -> float:
        """Probability that a uniform guess among the answers which the form leaves open is right.

        Open are the ten digits, the words that can be drawn, the numbers that can come next, and
        the two names of the prompt.
        """

    @abstractmethod
    def _writer(self, tokenizer: Tokenizer) -> Callable[[torch.Generator], _Draft]:
        """A function that draws one prompt and its control."""

    @abstractmethod
    def _standard(self) -> _Draft:
        """The fixed prompt; its control is not used."""

    def _draw(self, tokenizer: Tokenizer, n: int, generator: torch.Generator) -> list[_Draft]:
        """The first `n` drafts whose prompt and control have the most common lengths in tokens."""
        require_int("n", n, 1)
        write = self._writer(tokenizer)
        drafts: list[_Draft] = []
        lengths: list[tuple[int, int]] = []
        while True:
            more = [write(generator) for _ in range(n + 32)]
            clean, control = (
                map(len, _ids(tokenizer, texts))
                for texts in ([d.clean for d in more], [d.control for d in more])
            )
            drafts += more
            lengths += zip(clean, control, strict=True)
            usual, count = Counter(lengths).most_common(1)[0]
            if count >= n:
                fitting = [d for d, length in zip(drafts, lengths, strict=True) if length == usual]
                return fitting[:n]


class StringRepetition(Capability):
    """Eight random digits, a line break, seven of them again: which is the eighth?"""

    n_digits = 8

    def chance(self, tokenizer: Tokenizer) -> float:
        return 1 / 10

    def _writer(self, tokenizer: Tokenizer) -> Callable[[torch.Generator], _Draft]:
        digits = [str(digit) for digit in range(10)]

        def write(generator: torch.Generator) -> _Draft:
            string = [_pick(digits, generator) for _ in range(self.n_digits)]
            others = [digit for digit in digits if digit != string[-1]]
            foreign = [_pick(others, generator) for _ in range(2 * self.n_digits - 1)]
            return _Draft(
                f"{' '.join(string)}\n{' '.join(string[:-1])}",
                f"{' '.join(foreign[: self.n_digits])}\n{' '.join(foreign[self.n_digits :])}",
                f" {string[-1]}",
            )

        return write

    def _standard(self) -> _Draft:
        return _Draft("0 7 3 1 2 0 2 3\n0 7 3 1 2 0 2", "", " 3")


class InContextRepetition(Capability):
    """Ten random words and the first five again: which is the sixth?

    The words are the tokenizer's own: every token that is a space and at least three small letters,
    some five hundred in the pocket tokenizer, four in five of which stand in no row of a story.
    """

    n_words = 10
    n_again = 5

    def chance(self, tokenizer: Tokenizer) -> float:
        return 1 / len(self._words(tokenizer))

    def _words(self, tokenizer: Tokenizer) -> list[str]:
        texts = tokenizer.decode_batch([[i] for i in range(tokenizer.get_vocab_size())])
        words = sorted({t for t in texts if t[:1] == " " and len(t) >= 4 and _is_small(t[1:])})
        return _of_one_token(tokenizer, words, 4 * self.n_words, "words")

    def _writer(self, tokenizer: Tokenizer) -> Callable[[torch.Generator], _Draft]:
        words = self._words(tokenizer)

        def write(generator: torch.Generator) -> _Draft:
            drawn = _sample(words, 2 * self.n_words, generator)
            row, foreign = drawn[: self.n_words], drawn[self.n_words :]
            again = "".join(row[: self.n_again])
            return _Draft("".join(row) + again, "".join(foreign) + again, row[self.n_again])

        return write

    def _standard(self) -> _Draft:
        return _Draft(" cat tree house water green cat tree house", "", " water")


class NumberedPattern(Capability):
    """Three numbered things and the label of the next line: which number?"""

    n_lines = 3
    last_start = 6  # so that the answer has one digit

    def chance(self, tokenizer: Tokenizer) -> float:
        return 1 / self.last_start

    def _writer(self, tokenizer: Tokenizer) -> Callable[[torch.Generator], _Draft]:
        def write(generator: torch.Generator) -> _Draft:
            label = _pick(LABELS, generator)
            things = _sample(OBJECTS, self.n_lines, generator)
            while not held_out_pair(things[0], things[1]):
                things = _sample(OBJECTS, self.n_lines, generator)
            first = 1 + _below(self.last_start, generator)
            # Of the six orders of three numbers, those with no constant step.
            shuffled = _pick([(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)], generator)
            return _Draft(
                _numbered(label, things, [first + i for i in range(self.n_lines)]),
                _numbered(label, things, [first + i for i in shuffled]),
                f" {first + self.n_lines}",
            )

        return write

    def _standard(self) -> _Draft:
        return _Draft(_numbered("Step", ["key", "rope", "map"], [1, 2, 3]), "", " 4")


class IndirectObject(Capability):
    """Two go somewhere, one of them gives something: to whom?

    Both orders of the names and four opening words; the distractor is the giver. In the control a
    third one gives, so that either of the two may receive.
    """

    openings = ("When", "After", "While", "Once")

    def chance(self, tokenizer: Tokenizer) -> float:
        return 1 / 2

    def _writer(self, tokenizer: Tokenizer) -> Callable[[torch.Generator], _Draft]:
        names = _of_one_token(tokenizer, [f" {name}" for name in NAMES], 8, "names")
        gifts = [(o, p) for o in OBJECTS for p in PLACES if held_out_pair(o, p)]

        def write(generator: torch.Generator) -> _Draft:
            receiver, giver, third = _sample(names, 3, generator)
            first, second = _sample([receiver, giver], 2, generator)
            thing, place = _pick(gifts, generator)
            scene = f"{_pick(self.openings, generator)}{first} and{second} went to the {place},"
            gift = f" gave a {thing} to"
            return _Draft(
                f"{scene}{giver}{gift}", f"{scene}{third}{gift}", answer=receiver, distractor=giver
            )

        return write

    def _standard(self) -> _Draft:
        text = "When Mary and John went to the store, John gave a drink to"
        return _Draft(text, "", " Mary", " John")


CAPABILITIES: dict[str, Capability] = {
    "string_repetition": StringRepetition(),
    "in_context_repetition": InContextRepetition(),
    "numbered_pattern": NumberedPattern(),
    "ioi": IndirectObject(),
}
"""The four capabilities of paper A by name."""


def _numbered(label: str, things: Sequence[str], numbers: Sequence[int]) -> str:
    lines = [f"{label} {i}: {thing}" for i, thing in zip(numbers, things, strict=True)]
    return "\n".join([*lines, label])


def _is_small(text: str) -> bool:
    return text.isascii() and text.isalpha() and text.islower()


def _below(high: int, generator: torch.Generator) -> int:
    return int(torch.randint(high, (1,), generator=generator, device=generator.device))


def _pick(options: Sequence[T], generator: torch.Generator) -> T:
    return options[_below(len(options), generator)]


def _sample(options: Sequence[T], n: int, generator: torch.Generator) -> list[T]:
    """`n` different ones in random order."""
    chosen: dict[int, None] = {}
    while len(chosen) < n:
        chosen[_below(len(options), generator)] = None
    return [options[i] for i in chosen]


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [e.ids for e in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def _refusal(tokenizer: Tokenizer, needed: str) -> ParameterError:
    return ParameterError(
        "tokenizer",
        f"one with {tokenizer.get_vocab_size()} tokens",
        needed,
        "An answer of several tokens has no one probability to follow over training.",
    )


def _of_one_token(tokenizer: Tokenizer, words: list[str], at_least: int, what: str) -> list[str]:
    """The words (each with its space) that are one token; the others cannot be answers."""
    found = [w for w, ids in zip(words, _ids(tokenizer, words), strict=True) if len(ids) == 1]
    if len(found) < at_least:
        needed = f"one in which at least {at_least} {what} are single tokens with their space"
        raise _refusal(tokenizer, f"{needed} (this one has {len(found)})")
    return found


def _encoded(tokenizer: Tokenizer, drafts: list[_Draft], *, broken: bool) -> Prompts:
    text = [draft.control if broken else draft.clean for draft in drafts]
    tokens = _ids(tokenizer, text)

    def next_token(answers: list[str]) -> Tensor:
        whole = _ids(tokenizer, [t + a for t, a in zip(text, answers, strict=True)])
        for ids, with_answer, answer in zip(tokens, whole, answers, strict=True):
            if with_answer[:-1] != ids:
                raise _refusal(tokenizer, f"one in which {answer!r} behind a prompt is one token")
        return torch.tensor([ids[-1] for ids in whole])

    with_distractor = [d.distractor for d in drafts if d.distractor is not None]
    return Prompts(
        torch.tensor(tokens),
        next_token([draft.answer for draft in drafts]),
        next_token(with_distractor) if with_distractor else None,
        tuple(text),
    )
