"""Prompts against solvers that read the text, with the pocket tokenizer and one of another make."""

import re
from collections import Counter
from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.corpus import corpus, pocket_tokenizer
from emergence_lib.tasks.prompts import CAPABILITIES
from emergence_lib.tasks.stories import story
from emergence_lib.tasks.story_grammar import NAMES, held_out_pair

torch.set_num_threads(1)
N = 200


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def other_tokenizer(vocab_size, texts):
    """GPT-2's way to cut, a beginning-of-sequence token, and merges of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


@pytest.fixture(scope="module")
def tokenizers():
    generator = seeded(0)
    texts = [story(generator).text for _ in range(400)]
    # Names twice as often: a small vocabulary has room for all of them then.
    texts += [" " + " ".join(NAMES)] * 300
    return {"pocket": pocket_tokenizer(), "other": other_tokenizer(900, texts)}


@pytest.fixture(params=["pocket", "other"])
def tokenizer(request, tokenizers):
    return tokenizers[request.param]


# --- solvers: the answer from the text alone, or None --------------------------------------------


def solve_string_repetition(text):
    first, second = (line.split() for line in text.split("\n"))
    return first[len(second)] if first[: len(second)] == second else None


def solve_in_context_repetition(text):
    *before, last = text.split()
    return before[before.index(last) + 1] if last in before else None


def solve_numbered_pattern(text):
    *lines, label = text.split("\n")
    numbers = [int(re.fullmatch(rf"{label} (\d): \w+", line)[1]) for line in lines]
    steps = {b - a for a, b in pairwise(numbers)}
    return str(numbers[-1] + steps.pop()) if len(steps) == 1 else None


def solve_ioi(text):
    pattern = r"\w+ (\w+) and (\w+) went to the \w+, (\w+) gave a \w+ to"
    first, second, giver = re.fullmatch(pattern, text).groups()
    receivers = {first, second} - {giver}
    return receivers.pop() if len(receivers) == 1 else None


SOLVERS = {
    "string_repetition": solve_string_repetition,
    "in_context_repetition": solve_in_context_repetition,
    "numbered_pattern": solve_numbered_pattern,
    "ioi": solve_ioi,
}
each = pytest.mark.parametrize("name", sorted(CAPABILITIES))


def answers(tokenizer, prompts):
    return [tokenizer.decode([target]) for target in prompts.target.tolist()]


def test_the_four_of_the_paper():
    assert set(CAPABILITIES) == set(SOLVERS)


@each
def test_the_answer_is_one_token_and_follows_from_the_prompt(name, tokenizer):
    prompts = CAPABILITIES[name].prompts(tokenizer, N, seeded(1))
    assert prompts.tokens.shape == (N, prompts.tokens.shape[1])
    assert prompts.tokens.dtype == prompts.target.dtype == torch.int64
    assert prompts.target.shape == (N,)
    assert prompts.tokens.shape[1] < 64
    for tokens, text, answer in zip(
        prompts.tokens.tolist(), prompts.text, answers(tokenizer, prompts), strict=True
    ):
        assert tokenizer.encode(text, add_special_tokens=False).ids == tokens
        assert tokenizer.decode(tokens) == text
        assert answer == " " + SOLVERS[name](text)


@each
def test_the_control_has_the_form_and_not_the_answer(name, tokenizer):
    capability = CAPABILITIES[name]
    prompts = capability.prompts(tokenizer, N, seeded(1))
    control = capability.control(tokenizer, N, seeded(1))
    assert control.tokens.shape[0] == N
    assert torch.equal(control.target, prompts.target)
    if name != "in_context_repetition":  # the others swap digits, numbers and names of one token
        assert control.tokens.shape == prompts.tokens.shape
    for text, clean, answer in zip(
        control.text, prompts.text, answers(tokenizer, control), strict=True
    ):
        assert text != clean
        assert SOLVERS[name](text) is None
        if name == "ioi":
            assert text.count(answer) == 1
        else:
            assert answer.strip() not in text.split()
            assert f"{answer}:" not in text
    assert (control.tokens != prompts.tokens).any(dim=1).all()


def test_the_control_of_ioi_changes_the_giver_alone(tokenizer):
    prompts = CAPABILITIES["ioi"].prompts(tokenizer, N, seeded(2))
    control = CAPABILITIES["ioi"].control(tokenizer, N, seeded(2))
    assert ((prompts.tokens != control.tokens).sum(1) == 1).all()
    for given in (prompts, control):
        for text, wrong in zip(given.text, given.distractor.tolist(), strict=True):
            assert tokenizer.decode([wrong]) in re.findall(r" \w+", text.split(" went")[0])
        assert (given.distractor != given.target).all()
    for text, wrong in zip(prompts.text, prompts.distractor.tolist(), strict=True):
        assert text.count(tokenizer.decode([wrong])) == 2
    receivers_first = sum(
        text.split()[1] == answer.strip()
        for text, answer in zip(prompts.text, answers(tokenizer, prompts), strict=True)
    )
    assert abs(receivers_first - N / 2) < 4 * (N / 4) ** 0.5


def test_the_control_of_numbers_keeps_everything_but_their_order(tokenizer):
    prompts = CAPABILITIES["numbered_pattern"].prompts(tokenizer, N, seeded(2))
    control = CAPABILITIES["numbered_pattern"].control(tokenizer, N, seeded(2))
    orders = Counter()
    for clean, broken in zip(prompts.text, control.text, strict=True):
        assert re.sub(r"\d", "#", clean) == re.sub(r"\d", "#", broken)
        before, after = re.findall(r"\d", clean), re.findall(r"\d", broken)
        assert sorted(after) == before
        orders[tuple(before.index(n) for n in after)] += 1
    assert set(orders) == {(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)}


def test_the_control_of_repeated_words_keeps_the_second_half(tokenizer):
    prompts = CAPABILITIES["in_context_repetition"].prompts(tokenizer, N, seeded(2))
    control = CAPABILITIES["in_context_repetition"].control(tokenizer, N, seeded(2))
    for clean, broken in zip(prompts.text, control.text, strict=True):
        assert clean.split()[10:] == broken.split()[10:] == clean.split()[:5]
        assert len({*clean.split(), *broken.split()}) == 20
    assert prompts.distractor is None


@each
def test_chance_is_what_a_uniform_guess_gets(name, tokenizer):
    """Answers that can come are equally frequent and as many as 1 / chance (IOI: two a prompt)."""
    capability = CAPABILITIES[name]
    chance = capability.chance(tokenizer)
    prompts = capability.prompts(tokenizer, 1_000, seeded(3))
    found = Counter(answers(tokenizer, prompts))
    if name == "ioi":
        assert chance == 0.5
        pick = torch.randint(2, (1_000,), generator=seeded(4)).bool()
        guess = torch.where(pick, prompts.target, prompts.distractor)
        assert (guess == prompts.target).float().mean().item() == pytest.approx(0.5, abs=0.07)
        assert len(found) > 20
        return
    n = round(1 / chance)
    assert chance == pytest.approx(1 / n)
    if n <= 10:
        assert len(found) == n
        assert all(abs(c - 1_000 / n) < 4 * (1_000 / n) ** 0.5 for c in found.values())
    else:
        small = re.compile(r" [a-z]{3,}")
        vocabulary = [tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())]
        assert n == sum(bool(small.fullmatch(word)) for word in vocabulary)
        assert set(found) <= set(vocabulary)
        # Of n equally likely words, 1,000 draws see this many on average.
        assert len(found) == pytest.approx(n * (1 - (1 - 1 / n) ** 1_000), rel=0.1)


@each
def test_the_same_seed_asks_the_same(name, tokenizer):
    capability = CAPABILITIES[name]
    torch.manual_seed(1)
    first = capability.prompts(tokenizer, 20, seeded(5))
    torch.manual_seed(2)
    second = capability.prompts(tokenizer, 20, seeded(5))
    assert first.text == second.text
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.target, second.target)
    assert first.text != capability.prompts(tokenizer, 20, seeded(6)).text
    assert len(set(first.text)) == 20


SINGLE = {
    "string_repetition": ("0 7 3 1 2 0 2 3\n0 7 3 1 2 0 2", " 3", None),  # the paper's
    "ioi": ("When Mary and John went to the store, John gave a drink to", " Mary", " John"),
    "numbered_pattern": ("Step 1: key\nStep 2: rope\nStep 3: map\nStep", " 4", None),
    "in_context_repetition": (" cat tree house water green cat tree house", " water", None),
}


@each
def test_the_single_prompt(name, tokenizers):
    tokenizer = tokenizers["pocket"]
    single = CAPABILITIES[name].single(tokenizer)
    text, answer, distractor = SINGLE[name]
    assert single.text == (text,)
    assert answer == " " + SOLVERS[name](text)
    assert single.tokens.tolist() == [tokenizer.encode(text).ids]
    assert single.target.tolist() == tokenizer.encode(answer).ids
    if distractor is None:
        assert single.distractor is None
    else:
        assert single.distractor.tolist() == tokenizer.encode(distractor).ids


def test_special_tokens_are_not_added(tokenizers):
    prompts = CAPABILITIES["ioi"].single(tokenizers["other"])
    assert len(tokenizers["other"].encode(SINGLE["ioi"][0]).ids) == prompts.tokens.shape[1] + 1


@pytest.fixture(scope="module")
def corpus_text():
    return pocket_tokenizer().decode(corpus().tokens.tolist(), skip_special_tokens=False)


@each
def test_prompts_do_not_stand_in_the_corpus(name, tokenizers, corpus_text):
    capability = CAPABILITIES[name]
    asked = [
        *capability.prompts(tokenizers["pocket"], 100, seeded(8)).text,
        *capability.single(tokenizers["pocket"]).text,
    ]
    assert [text for text in asked if text in corpus_text] == []


def test_the_forms_of_the_prompts_do_stand_in_the_corpus(corpus_text):
    """Else the test above would pass for text of another kind."""
    for form in (
        r"\d( \d){3,8}\n\d( \d){3,8}\n",
        r"Step \d: \w+\nStep \d: \w+\nStep \d",
        r"When \w+ and (\w+) went to the \w+, \1 gave a \w+ to",
        r"(\w+ \w+ \w+ \w+) \1",
    ):
        assert re.search(form, corpus_text)


def test_prompts_begin_with_pairs_that_no_story_has(tokenizer):
    for text in CAPABILITIES["numbered_pattern"].prompts(tokenizer, N, seeded(9)).text:
        assert held_out_pair(*re.findall(r": (\w+)", text)[:2])
    for text in CAPABILITIES["ioi"].prompts(tokenizer, N, seeded(9)).text:
        place, thing = re.search(r"the (\w+),.* a (\w+) to", text).groups()
        assert held_out_pair(thing, place)
    assert held_out_pair("key", "rope")
    assert held_out_pair("drink", "store")


@each
def test_an_answer_of_several_tokens_is_refused(name):
    bytes_only = other_tokenizer(258, ["a"])
    capability = CAPABILITIES[name]
    for ask in (capability.prompts, capability.control):
        with pytest.raises(ParameterError, match="token") as error:
            ask(bytes_only, 3, seeded(0))
        assert len(str(error.value)) < 400  # and not the tokenizer's whole vocabulary
    with pytest.raises(ParameterError, match=r"' (3|water|4|Mary)' behind a prompt is one token"):
        capability.single(bytes_only)


def test_a_tokenizer_that_lacks_only_digits_keeps_the_other_capabilities(tokenizers):
    """Digits that begin a token of two are refused where a digit answers, and only there."""
    texts = [" 12 34 56 78 90"] * 10 + [" " + " ".join(NAMES)] * 9
    texts += [story(g).text.translate({ord(d): None for d in "0123456789"}) for g in [seeded(0)]]
    no_digits = other_tokenizer(800, texts * 3)
    assert len(no_digits.encode(" 3", add_special_tokens=False).ids) == 2
    assert CAPABILITIES["ioi"].prompts(no_digits, 3, seeded(0)).tokens.shape[0] == 3
    for name in ("string_repetition", "numbered_pattern"):
        with pytest.raises(ParameterError, match="one token"):
            CAPABILITIES[name].prompts(no_digits, 3, seeded(0))


@each
def test_n_is_validated(name, tokenizers):
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ParameterError, match="n="):
            CAPABILITIES[name].prompts(tokenizers["pocket"], wrong, seeded(0))


def test_prompts_have_one_length_where_words_are_of_several_tokens():
    generator = seeded(0)
    small = other_tokenizer(450, [story(generator).text for _ in range(200)])
    asked = CAPABILITIES["numbered_pattern"].prompts(small, N, seeded(1))
    assert asked.tokens.shape[0] == N
    things = {thing for text in asked.text for thing in re.findall(r": (\w+)", text)}
    lengths = {len(small.encode(f" {thing}", add_special_tokens=False).ids) for thing in things}
    assert len(lengths) > 1
