"""Stories against a hand-written analysis, and their forms against independent patterns."""

import hashlib
import re

import pytest
import torch

from emergence_lib.tasks import story_grammar as grammar
from emergence_lib.tasks.stories import PARTS_OF_SPEECH, ROLES, SHARES, story

torch.set_num_threads(1)

N = 1_000


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def many():
    generator = seeded(7)
    return [story(generator) for _ in range(N)]


# --- determinism ---------------------------------------------------------------------------------


def test_the_same_seed_tells_the_same_story():
    torch.manual_seed(1)
    first = [story(g) for g in [seeded(3)] for _ in range(5)]
    torch.manual_seed(2)  # the global generator plays no part
    assert first == [story(g) for g in [seeded(3)] for _ in range(5)]
    assert len({s.text for s in first}) == 5
    assert story(seeded(4)) != first[0]


def test_stories_are_those_of_the_recorded_runs():
    """Runs in the book were trained on these; a change here makes the corpus another one."""
    generator = seeded(0)
    texts = "\f".join(story(generator).text for _ in range(100))
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "5e9b76debb49c147"


# --- the analysis --------------------------------------------------------------------------------

# The beginning of the story of seed 0, analysed by hand: word, part of speech, role, entity.
BY_HAND = """
Diana      | proper noun | subject     | Diana
had        | verb        | root        |
a          | determiner  | determiner  |
warm       | adjective   | modifier    |
watch      | noun        | object      | watch
and        | conjunction | coordinator |
a          | determiner  | determiner  |
dragon     | noun        | conjunct    | dragon
.          | punctuation | punctuation |

The        | determiner  | determiner  |
dragon     | noun        | subject     | dragon
was        | verb        | root        |
called     | verb        | clause      |
Belthelzil | proper noun | name        | Belthelzil
.          | punctuation | punctuation |

"          | punctuation | punctuation |
What       | pronoun     | object      |
did        | auxiliary   | auxiliary   |
you        | pronoun     | subject     |
hear       | verb        | clause      |
at         | adposition  | case        |
the        | determiner  | determiner  |
market     | noun        | oblique     | market
?          | punctuation | punctuation |
"          | punctuation | punctuation |
asked      | verb        | root        |
Diana      | proper noun | subject     | Diana
.          | punctuation | punctuation |

"          | punctuation | punctuation |
I          | pronoun     | subject     |
heard      | verb        | clause      |
a          | determiner  | determiner  |
round      | adjective   | modifier    |
dragon     | noun        | object      | dragon
,          | punctuation | punctuation |
"          | punctuation | punctuation |
said       | verb        | root        |
David      | proper noun | subject     | David
.          | punctuation | punctuation |

"          | punctuation | punctuation |
I          | pronoun     | subject     |
like       | verb        | clause      |
your       | determiner  | determiner  |
black      | adjective   | modifier    |
watch      | noun        | object      | watch
,          | punctuation | punctuation |
"          | punctuation | punctuation |
said       | verb        | root        |
Diana      | proper noun | subject     | Diana
to         | adposition  | case        |
David      | proper noun | oblique     | David
.          | punctuation | punctuation |

"          | punctuation | punctuation |
Thanks     | interjection| discourse   |
,          | punctuation | punctuation |
Diana      | proper noun | vocative    | Diana
,          | punctuation | punctuation |
"          | punctuation | punctuation |
said       | verb        | root        |
David      | proper noun | subject     | David
.          | punctuation | punctuation |

The        | determiner  | determiner  |
dragon     | noun        | subject     | dragon
walked     | verb        | root        |
home       | adverb      | modifier    |
.          | punctuation | punctuation |

Helen      | proper noun | subject     | Helen
opened     | verb        | root        |
the        | determiner  | determiner  |
door       | noun        | object      |
and        | conjunction | coordinator |
looked     | verb        | clause      |
inside     | adverb      | modifier    |
.          | punctuation | punctuation |

They       | pronoun     | subject     |
laughed    | verb        | root        |
together   | adverb      | modifier    |
near       | adposition  | case        |
the        | determiner  | determiner  |
water      | noun        | oblique     |
.          | punctuation | punctuation |

Nobody     | pronoun     | subject     |
liked      | verb        | root        |
Belthelzil | proper noun | object      | Belthelzil
,          | punctuation | punctuation |
but        | conjunction | coordinator |
Helen      | proper noun | subject     | Helen
helped     | verb        | clause      |
Belthelzil | proper noun | object      | Belthelzil
.          | punctuation | punctuation |

"          | punctuation | punctuation |
1          | numeral     | item        |
9          | numeral     | item        |
7          | numeral     | item        |
4          | numeral     | item        |
6          | numeral     | item        |
0          | numeral     | item        |
,          | punctuation | punctuation |
"          | punctuation | punctuation |
answered   | verb        | root        |
Helen      | proper noun | subject     | Helen
.          | punctuation | punctuation |
"""


def test_labels_are_those_of_an_analysis_by_hand():
    expected = [
        (*(field.strip() for field in line.split("|")), sentence)
        for sentence, block in enumerate(BY_HAND.strip().split("\n\n"))
        for line in block.splitlines()
    ]
    found = [
        (w.text, w.part_of_speech, w.role, w.entity, w.sentence)
        for w in story(seeded(0)).words[: len(expected)]
    ]
    assert found == expected


def sentence_with(stories, pattern):
    """The words of the first sentence whose text matches."""
    for s in stories:
        for index in range(s.words[-1].sentence + 1):
            words = [w for w in s.words if w.sentence == index]
            if re.fullmatch(pattern, s.text[words[0].start : words[-1].end]):
                return words
    raise AssertionError(f"no sentence like {pattern}")


def test_a_gift_is_analysed(many):
    words = sentence_with(
        many, r"(When|After) (\w+) and (\w+) went to the (\w+), \3 (\w+) a (\w+) to \2\."
    )
    roles = (
        "marker subject coordinator conjunct clause case determiner oblique punctuation "
        "subject root determiner object case oblique punctuation"
    )
    assert " ".join(w.role for w in words) == roles
    assert [w.entity for w in words if w.part_of_speech == "proper noun"] == [
        words[i].text for i in (1, 3, 9, 14)
    ]
    assert [words[i].entity for i in (7, 12)] == [words[i].text for i in (7, 12)]


def test_a_line_of_a_list_is_a_sentence(many):
    words = sentence_with(many, r"Step \d: \w+")
    assert [w.part_of_speech for w in words] == ["noun", "numeral", "punctuation", "noun"]
    assert [w.role for w in words] == ["item", "modifier", "punctuation", "item"]
    assert [bool(w.entity) for w in words] == [False, False, False, True]
    words = sentence_with(many, r"\d\. \w+")
    assert [w.part_of_speech for w in words] == ["numeral", "punctuation", "noun"]
    words = sentence_with(many, r"\d( \d)+")
    assert {(w.part_of_speech, w.role, w.entity) for w in words} == {("numeral", "item", "")}


def test_words_lie_where_they_say_and_leave_only_white_space(many):
    for s in many:
        end = 0
        for word in s.words:
            assert s.text[word.start : word.end] == word.text
            assert s.text[end : word.start].strip() == ""
            end = word.end
        assert s.text[end:] == ""
        assert not re.search(r"[^\S \n]|  |\s$| [.,!?:;]|\n{3}", s.text)
        sentences = [word.sentence for word in s.words]
        assert sorted(set(sentences)) == list(range(sentences[-1] + 1))
        assert sentences == sorted(sentences)


def test_tags_are_the_closed_sets_and_each_is_used(many):
    words = [word for s in many for word in s.words]
    assert {w.part_of_speech for w in words} == set(PARTS_OF_SPEECH)
    assert {w.role for w in words} == set(ROLES)
    assert len(set(PARTS_OF_SPEECH)) == len(PARTS_OF_SPEECH)
    assert len(set(ROLES)) == len(ROLES)


def test_every_name_is_its_own_entity_and_pronouns_agree(many):
    for s in many:
        known = {w.text for w in s.words}
        for w in s.words:
            if w.text in grammar.NAMES:
                assert (w.part_of_speech, w.entity) == ("proper noun", w.text)
            elif w.text in (*grammar.OBJECTS, *grammar.PLACES, *grammar.ANIMALS):
                assert (w.part_of_speech, w.entity) == ("noun", w.text)
            elif w.part_of_speech == "proper noun":
                assert w.text == w.entity
                assert w.text not in grammar.ENTITIES
            elif w.text.lower() in ("she", "her"):
                assert w.entity in set(grammar.WOMEN) & known
            elif w.text.lower() in ("he", "his", "him"):
                assert w.entity in set(grammar.MEN) & known
            else:
                assert w.entity == ""


def test_every_sentence_outside_lists_and_chants_has_one_root(many):
    for s in many[:300]:
        for index in range(s.words[-1].sentence + 1):
            words = [w for w in s.words if w.sentence == index]
            roots = [w.part_of_speech for w in words if w.role == "root"]
            assert roots == ["verb"] or {w.role for w in words} <= {
                "item",
                "modifier",
                "punctuation",
            }


# --- the forms -----------------------------------------------------------------------------------

NAME = r"([A-Z]\w+)"
GIVE = r"(?:gave|handed|passed|brought|showed|sold|sent) (?:a|the) \w+ to"
# What each form looks like in the text alone, whoever wrote it.
FORMS = {
    "repeated digits": r"(?<!\d[, ] )(?<!\d )(?<!\d)(\d(?: \d){3,8})\b(?! \d).*?\D\1\b",
    "numbered list": r"\n([A-Z]\w+ )?\d[:.] \w+\n([A-Z]\w+ )?\d[:.] \w+\n|door (\d) .*? door \d ",
    "packing list": r"(?i)((?:a \w+, ){2,4}and a \w+).*\1",
    "counting": r"(\b[A-Z]\w+ counted aloud: |\d,?\" counted |on the doors were )|\d,\" counted",
    "invented name": r"(named|called|called it|My name is|name was) [A-Z][a-z]+\b",
    "gift to one of two": rf"({NAME} and {NAME}|{NAME} met {NAME}|{NAME} saw {NAME}) .*?{GIVE}",
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_forms_occur_as_often_as_documented(form, many):
    found = sum(bool(re.search(FORMS[form], s.text, re.DOTALL)) for s in many) / N
    # Four standard errors, and a little for what looks like a form by accident.
    assert abs(found - SHARES[form]) < 4 * (SHARES[form] * (1 - SHARES[form]) / N) ** 0.5 + 0.02


def rows_of_items(s):
    """Runs of words, not digits, that stand in one sentence as items with nothing between."""
    row: list[str] = []
    for word, following in zip(s.words, (*s.words[1:], None), strict=True):
        if word.role == "item" and word.text.isalpha():
            row.append(word.text)
            same = following is not None and following.sentence == word.sentence
            if not (same and following.role == "item"):
                yield tuple(row)
                row = []
        else:
            row = []


def test_chants_occur_as_often_as_documented_and_repeat(many):
    chanting = 0
    for s in many:
        rows = [row for row in rows_of_items(s) if len(row) > 1]
        chanting += bool(rows)
        shortest = min(rows, key=len, default=())
        for row in rows:
            assert row in (shortest, shortest * 2)
        assert not rows or sum(len(row) for row in rows) >= 2 * len(shortest)
    assert abs(chanting / N - SHARES["chant"]) < 4 * (0.24 / N) ** 0.5
    assert set(FORMS) | {"chant"} == set(SHARES)


def test_digits_are_uniform_and_every_string_is_new(many):
    matches = [re.search(FORMS["repeated digits"], s.text, re.DOTALL) for s in many]
    strings = [match[1] for match in matches if match]
    assert len(strings) > 300
    long = [string for string in strings if len(string) >= 13]  # seven digits or more
    assert len(set(long)) == len(long)
    digits = [digit for string in strings for digit in string.split()]
    for digit in "0123456789":
        assert abs(digits.count(digit) / len(digits) - 0.1) < 4 * (0.09 / len(digits)) ** 0.5


def test_numbered_lists_count_upwards_from_varied_numbers(many):
    starts = set()
    for s in many:
        for block in re.findall(r"(?:\n(?:[A-Z]\w+ )?\d[:.] \w+){3,}", s.text):
            numbers = [int(n) for n in re.findall(r"(\d)[:.]", block)]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            starts.add(numbers[0])
    assert starts >= set(range(1, 7))


def test_invented_names_recur_and_are_new_in_every_story(many):
    names = []
    for s in many:
        found = [w.text for w in s.words if w.entity and w.entity not in grammar.ENTITIES]
        assert len(set(found)) <= 1
        if found:
            names.append(found[0])
            assert len(found) >= 3
    assert len(set(names)) > 0.99 * len(names)


def test_pairs_kept_for_evaluation_never_head_a_list_or_meet_in_a_gift(many):
    line, gifts, lists = r"(?:[A-Z]\w+ )?\d[:.] (\w+)", 0, 0
    for s in many:
        for first, second in re.findall(rf":\n{line}\n{line}", s.text):
            assert not grammar.held_out_pair(first, second)
            lists += 1
        for sentence in re.split(r"[.\n]", s.text):
            match = re.search(
                rf"{NAME} .*(?:to|at|in|near) the (\w+),.* (?:a|the) (\w+) to {NAME}$", sentence
            )
            if match and '"' not in sentence:
                gifts += 1
                assert not grammar.held_out_pair(match[3], match[2])
    assert gifts > N / 2
    assert lists > N / 10


def test_a_quarter_of_the_pairs_is_kept():
    pairs = [(a, b) for a in grammar.OBJECTS for b in grammar.OBJECTS if a != b]
    assert sum(grammar.held_out_pair(*p) for p in pairs) / len(pairs) == pytest.approx(
        0.25, abs=0.05
    )
    assert grammar.held_out_pair("drink", "store")  # the example of Wang et al.


# --- the templates -------------------------------------------------------------------------------


def strings_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for member in value:
            yield from strings_in(member)


TEMPLATES = [
    template
    for name, value in vars(grammar).items()
    if name.isupper()
    for template in strings_in(value)
    if re.search(r"/\w", template)
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_compile_to_known_tags(template):
    pieces = grammar.compiled(template)
    assert len(pieces) == len(template.split())
    for piece, token in zip(pieces, template.split(), strict=True):
        assert bool(piece.slot) == token.startswith("{")
        assert bool(piece.slot) != bool(piece.options)
        assert piece.slot in ("", *"ABOQPKJRDCLNMXY")
        assert piece.form in ("", "he", "his", "him")


def test_all_templates_are_tested():
    assert len(TEMPLATES) > 100


def test_lexicon_names_known_parts_of_speech():
    assert set(grammar.LEXICON.values()) <= set(PARTS_OF_SPEECH)
    words = [w for t in TEMPLATES for w in re.findall(r"(?:^|\s)([^\s{}/]+)", t)]
    used = {option for word in words for option in word.split("|")}
    listed = set(grammar.LEXICON) - set(grammar.ENTITIES) - set(grammar.ADJECTIVES)
    assert listed <= used, "words that no sentence has"
