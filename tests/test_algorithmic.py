"""Every algorithmic task against answers in plain Python, its chance level against enumeration, and
the mixture of all of them."""

import itertools
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import TASKS, MultiTask, make_task
from emergence_lib.tasks.algorithmic import ALGORITHMS, EQUALS, LEVELS, N_DIGITS, PAD, SEPARATOR

torch.set_num_threads(1)

TASK_LEVELS = [make_task(name, level=level) for name in ALGORITHMS for level in LEVELS]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def number(tokens):
    return int("".join(map(str, tokens)))


def spelled(value, width):
    return [int(c) for c in str(value).zfill(width)]


def operands(tokens):
    """The lists of digits between task token, bars and "="."""
    parts = [[]]
    for token in tokens:
        if token == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def answer_in_plain_python(name, level, given):
    parts = operands(given)
    a = number(parts[0])
    if name == "copy":
        return parts[0]
    if name == "rev":
        return list(reversed(parts[0]))
    if name == "sort":
        return sorted(parts[0])
    if name == "par":
        return [parts[0].count(1) % 2]
    b = number(parts[1])
    if name == "cmp":
        assert a != b
        return [1 if a > b else 0]
    if name == "add":
        return spelled(a + b, level + 1)
    if name == "mul":
        return spelled(a * b, len(parts[0]) + len(parts[1]))
    assert name == "mod"
    modulus = number(parts[2])
    assert a < modulus > b
    return spelled((a + b) % modulus, 2)


def test_the_registry_has_eight_tasks_of_three_levels():
    assert len(TASK_LEVELS) == 24
    assert {type(task) for task in TASK_LEVELS} == {TASKS[name] for name in ALGORITHMS}
    assert len({task.label for task in TASK_LEVELS}) == 24


@pytest.mark.parametrize("task", TASK_LEVELS, ids=lambda task: task.label)
def test_every_answer_is_right_and_only_the_answer_counts(task):
    batch = task.sample(300, generator(1))
    assert batch.tokens.shape == (300, task.seq_len)
    assert batch.tokens.max() < task.vocab_size
    for tokens, mask in zip(batch.tokens.tolist(), batch.loss_mask.tolist(), strict=True):
        assert tokens[0] == N_DIGITS + ALGORITHMS.index(task.name)
        assert tokens.index(EQUALS) == task.prompt_end
        answer = tokens[task.prompt_end + 1 :]
        assert answer == answer_in_plain_python(task.name, task.level, tokens[1 : task.prompt_end])
        assert [t for t, counts in zip(tokens[1:], mask, strict=True) if counts] == answer
    if task.name == "mod":
        assert {number(operands(t[1:-3])[2]) for t in batch.tokens.tolist()} == {task.modulus}


EVERY_INPUT = {
    "copy": lambda level: itertools.product(range(10), repeat=2 * level),
    "rev": lambda level: itertools.product(range(10), repeat=2 * level),
    "sort": lambda level: itertools.product(range(10), repeat=(3, 4, 6)[level - 1]),
    "par": lambda level: itertools.product(range(2), repeat=(7, 8, 10)[level - 1]),
    "cmp": lambda level: itertools.permutations(range(10 ** (1, 2, 4)[level - 1]), 2),
    "add": lambda level: itertools.product(range(10**level), repeat=2),
    "mod": lambda level: itertools.product(range((11, 17, 31)[level - 1]), repeat=2),
    "mul": lambda level: itertools.product(
        range(1, (10, 100, 100)[level - 1]), range(1, (10, 10, 100)[level - 1])
    ),
}
ANSWER = {
    "copy": tuple,
    "rev": tuple,
    "sort": lambda x: tuple(sorted(x)),
    "par": lambda x: sum(x) % 2,
    "cmp": lambda x: x[0] > x[1],
    "add": sum,
    "mul": lambda x: x[0] * x[1],
}


@pytest.mark.parametrize(
    "task",
    [t for t in TASK_LEVELS if t.label not in ("COPY 3", "REV 3", "SORT 3", "CMP 3", "ADD 3")],
    ids=lambda task: task.label,
)
def test_chance_is_the_share_of_the_most_frequent_answer(task):
    inputs = list(EVERY_INPUT[task.name](task.level))
    if task.name == "mod":
        answers = Counter((a + b) % task.modulus for a, b in inputs)
    else:
        answers = Counter(ANSWER[task.name](x) for x in inputs)
    assert task.chance == pytest.approx(max(answers.values()) / len(inputs))


@pytest.mark.parametrize("task", TASK_LEVELS, ids=lambda task: task.label)
def test_inputs_are_uniform(task):
    """No operand digit is rarer than half its share, and small task-levels show every input."""
    tokens = task.sample(6_000, generator(2)).tokens[:, 1 : task.prompt_end]
    total = sum(1 for _ in itertools.islice(EVERY_INPUT[task.name](task.level), 200))
    seen = len(tokens.unique(dim=0))
    if total < 200:
        assert seen == total
    else:
        assert seen > 150
    last = tokens[:, -1] if task.name != "mod" else tokens[:, 1]
    counts = torch.bincount(last[last < N_DIGITS])
    counts = counts[counts > 0]
    assert counts.min() > 0.5 * counts.float().mean()


@pytest.mark.parametrize("task", TASK_LEVELS, ids=lambda task: task.label)
def test_accuracy_is_an_exact_match(task):
    batch = task.sample(40, generator())
    logits = torch.nn.functional.one_hot(batch.tokens[:, 1:], task.vocab_size).float()
    assert task.accuracy(logits, batch) == 1
    wrong = logits.clone()
    wrong[:10, task.seq_len - 2] = wrong[:10, task.seq_len - 2].roll(1, -1)  # last answer token
    assert task.accuracy(wrong, batch) == 0.75
    prompt = logits.clone()
    prompt[:, : task.prompt_end] = 0  # what the prompt's predictions say does not matter
    assert task.accuracy(prompt, batch) == 1


@pytest.mark.parametrize("level", [0, 4, "1", True])
def test_levels_are_one_to_three(level):
    with pytest.raises(ParameterError, match="level"):
        make_task("add", level=level)


# --- the mixture ------------------------------------------------------------------------------


def test_the_mixture_is_its_parts_padded():
    task = MultiTask()
    assert [part.label for part in task.parts] == [part.label for part in TASK_LEVELS]
    batch = task.sample(2_400, generator())
    assert batch.tokens.shape == (2_400, task.seq_len)
    counts = batch.labels["task_level"].bincount()
    assert len(counts) == 24
    assert (counts > 50).all()  # 100 expected
    for tokens, mask, level in zip(
        batch.tokens.tolist(),
        batch.loss_mask.tolist(),
        batch.labels["task_level"].tolist(),
        strict=True,
    ):
        part = task.parts[level]
        own, rest = tokens[: part.seq_len], tokens[part.seq_len :]
        assert own[0] == N_DIGITS + ALGORITHMS.index(part.name)
        answer = own[part.prompt_end + 1 :]
        assert answer == answer_in_plain_python(part.name, part.level, own[1 : part.prompt_end])
        assert [t for t, counts in zip(tokens[1:], mask, strict=True) if counts] == answer
        assert set(rest) <= {PAD}
    assert task.chance == pytest.approx(sum(part.chance for part in TASK_LEVELS) / 24)


def test_one_task_alone_is_no_longer_than_it_needs():
    task = MultiTask(("mod",))
    assert [part.label for part in task.parts] == ["MOD 1", "MOD 2", "MOD 3"]
    assert task.seq_len == 12
    assert task.sample(50, generator()).labels["task_level"].max() == 2


def test_balanced_batches_have_equally_many_different_sequences():
    batch = MultiTask().balanced(80, generator())
    assert batch.labels["task_level"].bincount().tolist() == [80] * 24
    assert len(batch.tokens.unique(dim=0)) == 80 * 24
    with pytest.raises(ParameterError, match=r"per_level=82 .* at most 81\. .*MUL 1"):
        MultiTask(("mul",)).balanced(82, generator())


def test_shuffled_answers_belong_to_other_sequences():
    plain, shuffled = (
        MultiTask(("add",), shuffled=flag).sample(3_000, generator()) for flag in (False, True)
    )
    assert torch.equal(plain.loss_mask, shuffled.loss_mask)
    moved = (plain.tokens != shuffled.tokens)[:, 1:]
    assert not moved[~plain.loss_mask].any()  # prompts and padding stay
    first = plain.labels["task_level"] == 0
    same = (plain.tokens == shuffled.tokens)[first].all(1).float().mean()
    assert same == pytest.approx(0.067, abs=0.03)  # two random pairs have the same sum
    answers = plain.tokens[first][:, 5:7]
    assert torch.equal(shuffled.tokens[first][:, 5:7], answers.roll(1, 0))


def test_the_same_generator_gives_the_same_batch():
    task = MultiTask()
    for draw in (task.sample, task.balanced):
        one, again, other = (draw(30, generator(seed)) for seed in (3, 3, 4))
        assert torch.equal(one.tokens, again.tokens)
        assert not torch.equal(one.tokens, other.tokens)


def test_impossible_mixtures_say_what_is_allowed():
    with pytest.raises(UnknownNameError, match=r"'sotr'\. Did you mean 'sort'"):
        MultiTask(("sotr",))
    for tasks in ((), ("add", "add")):
        with pytest.raises(ParameterError, match="at least one task, each once"):
            MultiTask(tasks)
    with pytest.raises(ParameterError, match="shuffled"):
        replace(MultiTask(), shuffled=1)


def test_a_hundred_thousand_sequences_a_second():
    """On one core, of processor time, so that a busy machine does not matter."""
    task, source = MultiTask(), generator()
    task.sample(4_096, source)
    start = time.process_time()
    for _ in range(10):
        task.sample(4_096, source)
    assert 40_960 / (time.process_time() - start) > 100_000


def test_the_smallest_model_has_the_paper_s_number_of_parameters():
    """Fact sheet B1: 2 layers of 128, tied, with 64 rows of embeddings and positions."""
    task = MultiTask()
    config = ModelConfig(
        n_layers=2,
        d_model=128,
        n_heads=4,
        vocab_size=task.vocab_size,
        max_pos=64 - task.vocab_size,
        tied_embeddings=True,
    )
    assert config.max_pos >= task.seq_len - 1
    assert sum(p.numel() for p in Transformer(config).parameters()) == 404_992
