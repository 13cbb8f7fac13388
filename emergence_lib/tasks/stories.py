"""Generated stories in which every word carries its grammar: text with a known analysis.

    text       Mary and John went to the mill , and John gave a ring to Mary .
    speech     PROPN   PROPN V       DET N        PROPN V    DET N     PROPN
    role       subj    conj  root    det oblique  subj  clause  obj    oblique
    entity     Mary    John              mill     John          ring   Mary
    sentence   0 ……………………………………………………………………………………………………………………………………………………… 0

A story has two or three people, things, places, often an invented name that exists nowhere else
("Tilvo", several tokens long), dialogue, and in many a numbered list, a repeated string of digits,
a repeated row of words or a gift told as in indirect object identification. Those are the forms a
model must have met for the capabilities of `prompts` to emerge. How often each occurs (`SHARES`) is
our choice, made so that small models acquire them in mid-training. Lexicon and sentences are in
`story_grammar`.

    >>> story(torch.Generator().manual_seed(0)).text
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch

from emergence_lib.tasks import story_grammar as grammar
from emergence_lib.tasks.story_grammar import PARTS_OF_SPEECH, ROLES

__all__ = ["PARTS_OF_SPEECH", "ROLES", "SHARES", "Story", "Word", "story"]

T = TypeVar("T")


class Word(NamedTuple):
    """A word (or punctuation mark) of a story.

    Attributes:
        text: as it stands in the story, capital letter included.
        start, end: character offsets, ``story.text[start:end] == text``.
        part_of_speech: one of `PARTS_OF_SPEECH`.
        role: one of `ROLES`.
        entity: name of the person, animal, thing or place it refers to ("Mary" for "she" too), or
            "" for a word that refers to none.
        sentence: index of the sentence; a line of a list, and speech with its "said", count as one.
    """

    text: str
    start: int
    end: int
    part_of_speech: str
    role: str
    entity: str
    sentence: int


@dataclass(frozen=True)
class Story:
    """A story and its words in order. Whatever lies between words is white space."""

    text: str
    words: tuple[Word, ...]


SHARES = {
    "invented name": 0.6,
    "gift to one of two": 0.7,
    "repeated digits": 0.8,
    "numbered list": 0.3,
    "packing list": 0.2,
    "chant": 0.8,
    "counting": 0.1,
}
"""Probability that a story contains the form (once).

Repeated digits and chants are in most stories because at half of that, and fewer repeats, the
smallest models did not learn to repeat a string within 6 million tokens.
"""


def story(generator: torch.Generator) -> Story:
    """Draw a story of about 260 words.

    Args:
        generator: on the CPU; the same state gives the same story.
    """
    return _Storyteller(generator).tell()


class _Part(NamedTuple):
    """A word that fills (part of) a slot; role -1 takes the slot's."""

    text: str
    part_of_speech: int
    role: int
    entity: str


class _Dice:
    """Uniform numbers from a `torch.Generator`, drawn many at a time because a call costs 5 µs."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._numbers: list[float] = []

    def uniform(self) -> float:
        if not self._numbers:
            drawn = torch.rand(512, generator=self._generator, dtype=torch.float64)
            self._numbers = drawn.tolist()
        return self._numbers.pop()

    def between(self, low: int, high: int) -> int:
        """Uniform on low … high, both included."""
        return low + int(self.uniform() * (high - low + 1))

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.uniform() * len(options))]

    def sample(self, options: Sequence[T], n: int) -> list[T]:
        """`n` different ones in random order."""
        pool = list(options)
        for i in range(n):
            j = i + int(self.uniform() * (len(pool) - i))
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]


# Indices, looked up once.
_NOUN, _PROPER, _PRONOUN = map(PARTS_OF_SPEECH.index, ("noun", "proper noun", "pronoun"))
_ADJECTIVE, _NUMERAL, _DETERMINER = map(
    PARTS_OF_SPEECH.index, ("adjective", "numeral", "determiner")
)
_CONJUNCTION, _PUNCTUATION = map(PARTS_OF_SPEECH.index, ("conjunction", "punctuation"))
_ITEM = ROLES.index("item")
_SLOTS_ROLE = -1
_COMMA = _Part(",", _PUNCTUATION, ROLES.index("punctuation"), "")
_AND = _Part("and", _CONJUNCTION, ROLES.index("coordinator"), "")
_ARTICLE = _Part("a", _DETERMINER, ROLES.index("determiner"), "")

_PRONOUNS = {
    "she": {"he": "she", "his": "her", "him": "her"},
    "he": {"he": "he", "his": "his", "him": "him"},
}
_ATTACHED_LEFT = frozenset(".,!?:")
_CHANT_WORDS = grammar.OBJECTS + grammar.PLACES + grammar.ADJECTIVES + grammar.ANIMALS


class _Storyteller:
    """Writes one story sentence by sentence, keeping offsets and the analysis of every word."""

    def __init__(self, generator: torch.Generator) -> None:
        self._dice = dice = _Dice(generator)
        self._text: list[str] = []
        self._length = 0
        self._words: list[Word] = []
        self._sentence = 0
        self._cast = dice.sample(grammar.NAMES, dice.between(2, 3))
        self._objects = dice.sample(grammar.OBJECTS, 4)
        self._places = dice.sample(grammar.PLACES, 2)
        self._animal = dice.pick(grammar.ANIMALS)
        self._invented = self._invent().capitalize()
        self._bound: dict[str, list[_Part]] = {}

    # --- the plot --------------------------------------------------------------------------------

    def tell(self) -> Story:
        dice = self._dice
        self._scene()
        self._say(dice.pick(grammar.OPENINGS))
        events: list[Callable[[], None]] = []
        if dice.uniform() < SHARES["invented name"]:
            self._scene()
            self._say(dice.pick(grammar.NAMING))
            events += [self._rare] * dice.between(2, 3)
        for name, event in (
            ("gift to one of two", self._gift),
            ("repeated digits", self._code),
            ("numbered list", self._list),
            ("packing list", self._packing),
            ("chant", self._chant),
            ("counting", self._counting),
        ):
            if dice.uniform() < SHARES[name]:
                events.append(event)
        events += [self._narrate] * dice.between(2, 3)
        events += [self._talk] * dice.between(1, 2)
        for event in dice.sample(events, len(events)):
            self._scene()
            event()
            if dice.uniform() < 0.3:
                self._break()
        self._scene()
        self._say(dice.pick(grammar.ENDINGS))
        return Story("".join(self._text), tuple(self._words))

    def _scene(self) -> None:
        """Who and what the next sentences are about, drawn from the story's own."""
        dice = self._dice
        first, second = dice.sample(self._cast, 2)
        thing, other = dice.sample(self._objects, 2)
        place = dice.pick(self._places)
        while grammar.held_out_pair(thing, place):
            thing, place = dice.pick(grammar.OBJECTS), dice.pick(grammar.PLACES)
        people = {"A": first, "B": second, "R": self._invented}
        things = {"O": thing, "Q": other, "P": place, "K": self._animal}
        self._bound = {
            slot: [_Part(name, speech, _SLOTS_ROLE, name)]
            for named, speech in ((people, _PROPER), (things, _NOUN))
            for slot, name in named.items()
        }

    def _several(self, templates: Sequence[str], low: int, high: int) -> None:
        for template in self._dice.sample(templates, self._dice.between(low, high)):
            self._say(template)

    def _narrate(self) -> None:
        self._several(grammar.NARRATION, 2, 4)

    def _talk(self) -> None:
        for exchange in self._dice.sample(grammar.TALK, self._dice.between(1, 2)):
            for template in exchange:
                self._say(template)

    def _rare(self) -> None:
        self._several(grammar.RARE, 1, 3)

    def _gift(self) -> None:
        for _ in range(self._dice.between(1, 2)):
            if self._dice.uniform() < 0.3:
                self._say(self._dice.pick(grammar.GIFTS))
                self._scene()
            self._say(self._dice.pick(grammar.IOI))
            self._scene()

    # --- forms that repeat or count --------------------------------------------------------------

    def _code(self) -> None:
        """A string of 4 to 9 random digits, two to five times: in lines, or in sentences."""
        dice = self._dice
        digits = [str(dice.between(0, 9)) for _ in range(dice.between(4, 9))]
        row = [_Part(digit, _NUMERAL, _ITEM, "") for digit in digits]
        self._repeat("D", row, grammar.CODE_INTRO, grammar.CODE)

    def _chant(self) -> None:
        """A row of 4 to 8 random words, or of invented ones, two to five times."""
        dice = self._dice
        if dice.uniform() < 0.7:
            words = dice.sample(_CHANT_WORDS, dice.between(4, 8))
        else:
            words = [self._invent() for _ in range(dice.between(2, 4))]
        parts = [
            _Part(
                word,
                _ADJECTIVE if word in grammar.ADJECTIVES else _NOUN,
                _ITEM,
                word if word in grammar.ENTITIES else "",
            )
            for word in words
        ]
        self._repeat("C", parts, grammar.CHANT_INTRO, grammar.CHANT)

    def _packing(self) -> None:
        """The things "a lamp, a rope, and a map", two or three times in sentences."""
        parts: list[_Part] = []
        things = self._things(self._dice.between(3, 5))
        for i, thing in enumerate(things):
            if i:
                parts.append(_COMMA)
            if i == len(things) - 1:
                parts.append(_AND)
            parts += [_ARTICLE, _Part(thing, _NOUN, _ITEM, thing)]
        self._bound["L"] = parts
        self._several(grammar.PACKING, 2, 3)

    def _repeat(
        self, slot: str, row: list[_Part], intro: Sequence[str], sentences: Sequence[str]
    ) -> None:
        self._bound[slot] = row
        if self._dice.uniform() < 0.4:
            self._several(sentences, 2, 4)
            return
        self._say(self._dice.pick(intro))
        for _ in range(self._dice.between(3, 5)):
            self._break()
            self._say(f"{{{slot}/item}}")
        self._break()

    def _list(self) -> None:
        """Three to six numbered things: ``1. lamp``, ``Step 4: rope`` or "door 2 had …"."""
        dice = self._dice
        things = self._things(dice.between(3, 6))
        first = 1 if dice.uniform() < 0.5 else dice.between(1, 10 - len(things))
        form = dice.uniform()
        label = dice.pick(grammar.LABELS)
        if form < 0.75:
            self._say(dice.pick(grammar.LIST_INTRO))
            template = "{M/item} . {X/item}" if form < 0.25 else "{L/item} {M/modifier} : {X/item}"
        else:
            template = dice.pick(grammar.DOORS)
        for number, thing in enumerate(things, start=first):
            self._bound["L"] = [_Part(label, _NOUN, _SLOTS_ROLE, "")]
            self._bound["M"] = [_Part(str(number), _NUMERAL, _SLOTS_ROLE, "")]
            self._bound["X"] = self._bound["O"] = [_Part(thing, _NOUN, _SLOTS_ROLE, thing)]
            if form < 0.75:
                self._break()
            self._say(template)
        if form < 0.75:
            self._break()
            asked, other = dice.sample(things, 2)
            self._bound["X"] = [_Part(asked, _NOUN, _SLOTS_ROLE, asked)]
            self._bound["Y"] = [_Part(other, _NOUN, _SLOTS_ROLE, other)]
            self._say(dice.pick(grammar.AFTER_LIST))

    def _counting(self) -> None:
        """The numbers "3, 4, 5, 6", upwards from a random number, with or without commas."""
        dice = self._dice
        n = dice.between(4, 7)
        first = dice.between(0, 10 - n)
        commas = dice.uniform() < 0.5
        parts: list[_Part] = []
        for number in range(first, first + n):
            if parts and commas:
                parts.append(_COMMA)
            parts.append(_Part(str(number), _NUMERAL, _ITEM, ""))
        self._bound["N"] = parts
        self._say(dice.pick(grammar.COUNTING))

    def _things(self, n: int) -> list[str]:
        """Different objects for a list that does not begin as an evaluation prompt may."""
        while True:
            things = self._dice.sample(grammar.OBJECTS, n)
            if not grammar.held_out_pair(things[0], things[1]):
                return things

    def _invent(self) -> str:
        """A word of two or three random syllables."""
        return "".join(self._dice.pick(grammar.SYLLABLES) for _ in range(self._dice.between(2, 3)))

    # --- writing ---------------------------------------------------------------------------------

    def _break(self) -> None:
        """A new line."""
        self._text.append("\n")
        self._length += 1

    def _say(self, template: str) -> None:
        """Write one sentence."""
        dice = self._dice
        glued = not self._text or self._text[-1] == "\n"
        capital = True
        for piece in grammar.compiled(template):
            if piece.slot:
                if piece.form:
                    parts = [self._pronoun(piece.slot, piece.form)]
                elif piece.slot == "J":
                    adjective = dice.pick(grammar.ADJECTIVES)
                    parts = [_Part(adjective, _ADJECTIVE, _SLOTS_ROLE, "")]
                else:
                    parts = self._bound[piece.slot]
            else:
                options = piece.options
                text, speech, entity = options[0] if len(options) == 1 else dice.pick(options)
                parts = [_Part(text, speech, _SLOTS_ROLE, entity)]
            for text, part_of_speech, role, entity in parts:
                opens = text == "<<"
                if opens or text == ">>":
                    glued = glued or not opens
                    text = '"'
                elif text in _ATTACHED_LEFT:
                    glued = True
                elif capital:
                    if role != _ITEM:  # strings and chants recur letter by letter
                        text = text[0].upper() + text[1:]
                    capital = False
                if not glued:
                    self._text.append(" ")
                    self._length += 1
                start = self._length
                self._length = end = start + len(text)
                self._text.append(text)
                self._words.append(
                    Word(
                        text,
                        start,
                        end,
                        PARTS_OF_SPEECH[part_of_speech],
                        ROLES[piece.role if role == _SLOTS_ROLE else role],
                        entity,
                        self._sentence,
                    )
                )
                glued = opens
                if opens:
                    capital = True
        self._sentence += 1

    def _pronoun(self, slot: str, form: str) -> _Part:
        name = self._bound[slot][0].entity
        nominative = "she" if name in grammar.WOMEN else "he"
        return _Part(_PRONOUNS[nominative][form], _PRONOUN, _SLOTS_ROLE, name)
