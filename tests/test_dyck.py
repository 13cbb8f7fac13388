"""k-shuffle Dyck against counters walked token by token and the probability of every sequence of
a small language."""

import math
from collections import Counter

import pytest
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.tasks import TASKS, Batch, Dyck, make_task
from emergence_lib.training import masked_loss

torch.set_num_threads(1)

TASKS_TO_TRY = [
    Dyck(seq_len=300),
    Dyck(k=2, p_open=0.6, max_depth=2, seq_len=40),
    Dyck(k=1, p_open=0.3, max_depth=5, seq_len=50),
    Dyck(k=3, p_open=0.9, max_depth=16, seq_len=60),
    Dyck(k=5, p_open=0.5, max_depth=1, seq_len=20),
]
SMALL = [
    Dyck(k=2, p_open=0.6, max_depth=2, seq_len=6),
    Dyck(k=3, p_open=0.3, max_depth=3, seq_len=5),
    Dyck(k=1, p_open=0.7, max_depth=2, seq_len=8),
]


def draw(task, batch_size=100, seed=0):
    return task.sample(batch_size, torch.Generator().manual_seed(seed))


def next_tokens(task, open_now):
    """Probability of each next token by the rules, from a counter of the kinds open."""
    depth, kinds = sum(open_now.values()), [kind for kind, n in open_now.items() if n]
    p_open = 1.0 if depth == 0 else 0.0 if depth == task.max_depth else task.p_open
    chances = dict.fromkeys(range(task.k), p_open / task.k)
    chances |= {kind + task.k: (1 - p_open) / len(kinds) for kind in kinds}
    return {token: p for token, p in chances.items() if p > 0}


def after(task, open_now, token):
    changed = Counter(open_now)
    changed[token % task.k] += 1 if token < task.k else -1
    return changed


def every_sequence(task):
    """All sequences of the language with their probabilities."""
    found = [((), 1.0, Counter())]
    for _ in range(task.seq_len):
        found = [
            ((*tokens, token), p * q, after(task, open_now, token))
            for tokens, p, open_now in found
            for token, q in next_tokens(task, open_now).items()
        ]
    assert math.isclose(sum(p for _, p, _ in found), 1)
    return {tokens: p for tokens, p, _ in found}


def slow_legal(task, row):
    """The prefixes that are legal, by the definition."""
    open_now, fine, found = Counter(), True, []
    for token in row:
        fine = fine and 0 <= token < 2 * task.k
        open_now = after(task, open_now, token)
        fine = fine and min(open_now.values()) >= 0 and sum(open_now.values()) <= task.max_depth
        found.append(fine)
    return found


@pytest.mark.parametrize("task", TASKS_TO_TRY, ids=str)
def test_every_prefix_of_every_sample_is_legal(task):
    batch = draw(task)
    assert batch.tokens.dtype == torch.int64
    assert batch.tokens.shape == (100, task.seq_len)
    assert batch.loss_mask.shape == (100, task.seq_len - 1)
    assert batch.loss_mask.all()
    assert task.legal(batch.tokens).all()
    for row in batch.tokens.tolist():
        open_now = Counter()
        for token in row:
            assert token in next_tokens(task, open_now)
            open_now = after(task, open_now, token)
    depth = torch.where(batch.tokens < task.k, 1, -1).cumsum(1)
    assert (depth.min(), depth.max()) == (0, task.max_depth)
    assert set(batch.tokens.unique().tolist()) == set(range(task.vocab_size))


def test_the_legality_check_agrees_with_the_definition_on_random_brackets():
    task = Dyck(k=2, max_depth=3, seq_len=12)
    tokens = torch.randint(-1, 5, (4000, 12), generator=torch.Generator().manual_seed(0))
    tokens[:2000] = tokens[:2000].clamp(0, 3)
    legal = task.legal(tokens)
    assert legal.tolist() == [slow_legal(task, row) for row in tokens.tolist()]
    assert 0.05 < legal.float().mean() < 0.5
    assert legal[:2000, -1].any()


def test_the_legality_check_finds_each_fault():
    task = Dyck(k=2, max_depth=2, seq_len=4)
    faults = {
        (0, 1, 2, 3): [True] * 4,  # ( [ ) ]: kinds may cross
        (0, 3, 1, 2): [True, False, False, False],  # ( ] …: not open, and nothing repairs it
        (0, 0, 1, 2): [True, True, False, False],  # too deep
        (0, 2, 2, 0): [True, True, False, False],
        (0, 4, 2, 0): [True, False, False, False],  # no bracket
        (-1, 0, 2, 0): [False] * 4,
    }
    assert task.legal(torch.tensor(list(faults))).tolist() == list(faults.values())


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_sequences_come_as_often_as_the_rules_say(task):
    n = 40_000
    expected = every_sequence(task)
    counts = Counter(map(tuple, draw(task, n).tokens.tolist()))
    assert set(counts) <= set(expected)
    common = {tokens: n * p for tokens, p in expected.items() if n * p >= 5}
    assert sum(common.values()) > 0.9 * n
    chi_square = sum((counts[tokens] - e) ** 2 / e for tokens, e in common.items())
    # 99.9 % point of chi-square by its normal approximation, generous for few degrees of freedom.
    assert chi_square < len(common) + 3.1 * math.sqrt(2 * len(common)) + 8


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_the_floor_is_the_entropy_of_the_small_languages(task):
    entropy = -sum(p * math.log(p) for p in every_sequence(task).values())
    assert task.floor == pytest.approx((entropy - math.log(task.k)) / (task.seq_len - 1))


def perfect_logits(task, tokens, extra=0):
    """ln of the true next-token probabilities, over `extra` more tokens than the task has."""
    logits = torch.full(
        (*tokens[:, 1:].shape, task.vocab_size + extra), -math.inf, dtype=torch.float64
    )
    for b, row in enumerate(tokens.tolist()):
        open_now = Counter()
        for t, token in enumerate(row[:-1]):
            open_now = after(task, open_now, token)
            for candidate, p in next_tokens(task, open_now).items():
                logits[b, t, candidate] = math.log(p)
    return logits


def test_the_floor_is_reached_by_a_predictor_that_counts():
    task = Dyck(k=8, max_depth=4, seq_len=100)
    batch = draw(task, 300)
    logits = perfect_logits(task, batch.tokens)
    each = torch.stack(
        [
            masked_loss(logits[b : b + 1], Batch(batch.tokens[b : b + 1], batch.loss_mask[:1]))
            for b in range(300)
        ]
    )
    error = each.std().item() / math.sqrt(300)
    assert error < 0.005
    assert abs(each.mean().item() - task.floor) < 4 * error
    assert task.accuracy(logits, batch) == 1.0


def test_the_floor_at_the_published_size():
    """Between the entropy of the choice alone and that of closing any of eight kinds."""
    floor = Dyck().floor
    assert floor == pytest.approx(Dyck(seq_len=8192).floor, rel=0.002)
    assert 0.5 * math.log(64) < floor < 0.5 * math.log(64) + math.log(2) + 0.5 * math.log(8)


def test_accuracy_asks_for_a_kind_that_is_open_where_one_is_closed():
    task = Dyck(k=2, max_depth=2, seq_len=4)
    tokens = torch.tensor([[0, 1, 3, 2], [1, 3, 0, 2]])
    batch = Batch(tokens, torch.ones(2, 3, dtype=torch.bool))
    logits = torch.zeros(2, 3, 6)  # of a model with a larger vocabulary
    logits[..., 5] = 9.0
    logits[..., 2] = 1.0  # always closes the first kind
    # Closings follow after ( [, after ( [ ], after [, and after [ ] (.
    assert task.accuracy(logits, batch) == 3 / 4
    logits[0, 0, 3] = logits[1, 1, 3] = 2.0  # openings follow there: not counted
    assert task.accuracy(logits, batch) == 3 / 4
    logits[1, 0, 3] = 2.0
    assert task.accuracy(logits, batch) == 1.0
    logits[0, 2, 3] = 2.0  # ] is not open any more
    assert task.accuracy(logits, batch) == 3 / 4


def test_accuracy_of_guessing_is_the_share_of_kinds_that_are_open():
    task = Dyck(seq_len=400)
    batch = draw(task, 20)
    guess = torch.rand(20, 399, 128, generator=torch.Generator().manual_seed(0))
    assert 1 / 64 < task.accuracy(guess, batch) < 8 / 64


def test_everything_random_comes_from_the_generator():
    task = Dyck(seq_len=64)
    torch.manual_seed(0)
    first = draw(task).tokens
    torch.manual_seed(1)
    assert torch.equal(first, draw(Dyck(seq_len=64)).tokens)
    assert not torch.equal(first, draw(task, seed=1).tokens)
    generator = torch.Generator().manual_seed(0)
    assert not torch.equal(task.sample(9, generator).tokens, task.sample(9, generator).tokens)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"k": 0}, r"k=0 .* an integer ≥ 1"),
        ({"max_depth": 0}, r"max_depth=0 .* from 1 to 16"),
        ({"max_depth": 17}, r"max_depth=17 .* from 1 to 16"),
        ({"seq_len": 1}, r"seq_len=1 .* an integer ≥ 2"),
        ({"p_open": 0.0}, r"p_open=0\.0 .* between 0 and 1"),
        ({"p_open": 1.0}, r"p_open=1\.0 .* between 0 and 1"),
        ({"p_open": math.nan}, r"p_open=nan .* between 0 and 1"),
        ({"p_open": "half"}, r"p_open='half' .* between 0 and 1"),
    ],
)
def test_impossible_parameters_are_refused(parameters, says):
    with pytest.raises(ParameterError, match=says):
        Dyck(**parameters)


def test_an_empty_batch_is_refused():
    with pytest.raises(ParameterError, match="batch_size=0"):
        draw(Dyck(), 0)


def test_the_task_is_registered_and_has_no_fixed_attention():
    assert TASKS["dyck"] is Dyck
    assert make_task("dyck", k=4) == Dyck(k=4)
    assert Dyck().attention_target() is None
