"""Majority tasks against sequences counted by hand, full enumeration and set predictors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.tasks import ConditionedMajority, Majority, make_task
from emergence_lib.training import masked_loss

torch.set_num_threads(1)
TASKS = [Majority, ConditionedMajority]


def draw(task, n=400, seed=0):
    return task.sample(n, torch.Generator().manual_seed(seed))


def counts_by_hand(symbols, n_inputs, conditioned):
    """Counts after each symbol of a sequence without bos."""
    counts, after = [0, 0, 0], []
    for p, symbol in enumerate(symbols):
        if conditioned:
            if 0 < p < n_inputs and symbols[p - 1] == 0:
                counts[symbol] += 1
        else:
            counts[symbol] += 1
        after.append(list(counts))
    return after


@pytest.mark.parametrize("cls", TASKS)
def test_labels_and_outputs_are_those_counted_by_hand(cls):
    task = cls()
    batch = draw(task)
    assert batch.tokens.shape == (400, 21) == (400, task.seq_len)
    assert batch.loss_mask.shape == (400, 20)
    assert batch.loss_mask.all()
    assert (batch.tokens[:, 0] == 3).all()
    assert task.vocab_size == 4
    for b, tokens in enumerate(batch.tokens.tolist()):
        assert set(tokens[1:]) <= {0, 1, 2}
        counts = counts_by_hand(tokens[1:], 10, cls is ConditionedMajority)
        sets = [[True] * 3] + [[n == max(row) for n in row] for row in counts]
        assert batch.labels["is_majority"][b].tolist() == sets
        zeros = [False] + [token == 0 for token in tokens[:-1]]
        assert batch.labels["follows_zero"][b].tolist() == zeros
        for p in range(11, 21):
            assert sets[p - 1][tokens[p]], "an output is one of the most frequent before it"


def test_a_tie_is_broken_evenly_and_for_good_in_majority_only():
    for cls, changes in ((Majority, False), (ConditionedMajority, True)):
        batch = draw(cls(n_inputs=9), 4000)
        tied = batch.labels["is_majority"][:, 9].sum(1) == 3
        outputs = batch.tokens[tied, 10:]
        n = len(outputs)
        for symbol in range(3):  # within 4 standard deviations of a third
            share = (outputs[:, 0] == symbol).double().mean().item()
            assert abs(share - 1 / 3) < 4 * math.sqrt(2 / 9 / n)
        assert (outputs != outputs[:, :1]).any().item() is changes


@pytest.mark.parametrize("cls", TASKS)
@pytest.mark.parametrize(("symbols", "inputs", "outputs"), [(2, 4, 3), (3, 5, 2)])
def test_the_floor_and_the_guess_are_those_of_every_sequence(cls, symbols, inputs, outputs):
    """Every input sequence, and every way the outputs can go with its probability."""
    task = cls(symbols, inputs, outputs)
    conditioned = cls is ConditionedMajority
    loss, hits = 0.0, [0] * symbols
    for sequence in itertools.product(range(symbols), repeat=inputs):
        counts = [0] * symbols
        for before, symbol in zip((None, *sequence[:-1]), sequence, strict=True):
            counts[symbol] += before == 0 if conditioned else 1
        hits = [h + (n == max(counts)) for h, n in zip(hits, counts, strict=True)]
        ways = [(1.0, counts)]
        for _ in range(outputs):
            following = []
            for p, now in ways:
                best = [s for s in range(symbols) if now[s] == max(now)]
                loss += p * math.log(len(best))
                for s in best:
                    grown = [n + (k == s and not conditioned) for k, n in enumerate(now)]
                    following.append((p / len(best), grown))
            ways = following
    n = symbols**inputs
    expected = (inputs * math.log(symbols) + loss / n) / (inputs + outputs)
    assert task.floor == pytest.approx(expected, abs=1e-12)
    assert task.guess_accuracy == pytest.approx(max(hits) / n)


@pytest.mark.parametrize("cls", TASKS)
def test_a_predictor_that_knows_the_majority_is_at_the_floor(cls):
    task = cls()
    batch = draw(task, 20_000)
    logits = torch.full((20_000, 20, 4), -1e9, dtype=torch.float64)
    logits[:, :10, :3] = 0
    majority = batch.labels["is_majority"][:, 10:20]
    logits[:, 10:, :3] = logits[:, 10:, :3].masked_fill(majority, 0.0)
    assert masked_loss(logits, batch).item() == pytest.approx(task.floor, abs=4e-3)
    assert task.accuracy(logits, batch) == 1.0
    always = torch.nn.functional.one_hot(torch.arange(3), 4)[:, None, None].expand(3, 1, 20, 4)
    constants = [task.accuracy(one.expand(20_000, 20, 4), batch) for one in always]
    assert max(constants) == pytest.approx(task.guess_accuracy, abs=0.015)
    bos = torch.zeros_like(logits)
    bos[:, :, 3] = 1.0
    assert task.accuracy(bos, batch) == 0.0


def test_accuracy_ignores_all_but_the_first_output():
    task = Majority()
    batch = draw(task)
    copied = torch.nn.functional.one_hot(batch.tokens[:, :-1], 4).float()  # repeats the last token
    later = (copied[:, 11:].argmax(-1) == batch.tokens[:, 12:]).float().mean()
    assert later == 1.0
    assert task.accuracy(copied, batch) < 0.75


def test_the_same_seed_gives_the_same_batch_and_names_make_tasks():
    task = make_task("conditioned_majority", n_inputs=6)
    assert task == ConditionedMajority(n_inputs=6)
    assert torch.equal(draw(task).tokens, draw(task).tokens)
    assert not torch.equal(draw(task).tokens, draw(task, seed=1).tokens)
    assert task.attention_target() is None
    for bad in ({"n_symbols": 1}, {"n_inputs": 0}, {"n_outputs": True}):
        with pytest.raises(ParameterError):
            Majority(**bad)
