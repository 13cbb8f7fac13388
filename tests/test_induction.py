"""Induction and unigram tasks against plain loops, a Bayes predictor token by token, and counts."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.tasks import TASKS, Induction, Unigram
from emergence_lib.training import masked_loss

torch.set_num_threads(1)


def draw(task, n=200, seed=0):
    return task.sample(n, torch.Generator().manual_seed(seed))


def test_both_are_registered():
    assert TASKS["induction"] is Induction
    assert TASKS["unigram"] is Unigram


@pytest.mark.parametrize("task", [Induction(), Induction(5, 2, 4, 11), Induction(3, 1, 1, 6)])
def test_every_token_after_the_first_period_is_the_one_a_period_before(task):
    batch = draw(task)
    assert batch.tokens.shape == (200, task.seq_len)
    assert batch.loss_mask.all()
    for row, period in zip(batch.tokens.tolist(), batch.labels["period"].tolist(), strict=True):
        assert task.min_period <= period <= task.max_period
        for t in range(period, task.seq_len):
            assert row[t] == row[t - period]
    periods = Counter(batch.labels["period"].tolist())
    assert set(periods) == set(range(task.min_period, task.max_period + 1))


def test_the_segment_is_uniform_and_independent_of_the_period():
    batch = draw(Induction(4, 3, 6, 20), 8000)
    for place in range(3):
        counts = batch.tokens[:, place].bincount(minlength=4) / 8000
        assert counts.tolist() == pytest.approx([0.25] * 4, abs=0.02)
    long = batch.labels["period"] == 6
    assert batch.tokens[long].float().mean().item() == pytest.approx(1.5, abs=0.05)


def bayes_by_tokens(task, row):
    """Loss of the posterior predictive, one token after the other, starting with the second."""
    periods = range(task.min_period, task.max_period + 1)
    posterior = {p: 1 / len(periods) for p in periods}
    total = 0.0
    for t in range(1, len(row)):
        probability = {}
        for p in periods:
            copied = t >= p
            probability[p] = float(row[t] == row[t - p]) if copied else 1 / task.n_tokens
        likelihood = sum(posterior[p] * probability[p] for p in periods)
        total -= math.log(likelihood)
        posterior = {p: posterior[p] * probability[p] / likelihood for p in periods}
    return total / (len(row) - 1)


def test_the_bayes_loss_is_that_of_a_predictor_that_keeps_its_posterior():
    task = Induction(4, 2, 6, 15)
    batch = draw(task, 50)
    expected = [bayes_by_tokens(task, row) for row in batch.tokens.tolist()]
    assert task.bayes_loss(batch).tolist() == pytest.approx(expected)
    assert task.bayes_loss(draw(task, 4000)).mean().item() > task.floor


def told_the_period(task, batch):
    """Logits of a predictor that knows each period."""
    logits = torch.zeros(*batch.loss_mask.shape, task.n_tokens)
    for b, period in enumerate(batch.labels["period"].tolist()):
        for t in range(period, task.seq_len):
            logits[b, t - 1, batch.tokens[b, t - period]] = 50.0
    return logits


def test_the_floor_is_the_loss_of_a_predictor_that_knows_the_period():
    task = Induction(7, 3, 8, 18)
    batch = draw(task, 4000)
    loss = masked_loss(told_the_period(task, batch), batch).item()
    assert loss == pytest.approx(task.floor, rel=0.02)
    one_period = Induction(7, 5, 5, 18)  # then it is exact
    batch = draw(one_period)
    loss = masked_loss(told_the_period(one_period, batch), batch).item()
    assert loss == pytest.approx(one_period.floor, rel=1e-5)
    assert one_period.bayes_loss(batch).mean().item() == pytest.approx(one_period.floor)


def test_accuracy_counts_tokens_whose_predecessor_has_been_seen():
    task = Induction(9, 4, 4, 10)
    batch = draw(task)
    assert task.accuracy(told_the_period(task, batch), batch) == 1
    early = told_the_period(task, batch)
    early[:, :4] = 0  # tokens up to the first repeated one do not count
    assert task.accuracy(early, batch) == 1
    early[:, 4:7] = torch.nn.functional.one_hot((batch.tokens[:, 5:8] + 1) % 9, 9).float()
    assert task.accuracy(early, batch) == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    "wrong", [{"n_tokens": 1}, {"min_period": 0}, {"max_period": 5}, {"seq_len": 15}]
)
def test_impossible_inductions_are_refused(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        Induction(**wrong)


def test_unigram_tokens_have_their_probabilities_and_the_floor_is_their_entropy():
    task = Unigram(4, 1.0, 50)
    assert task.probabilities.tolist() == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25])
    batch = draw(task, 2000)
    shares = batch.tokens.flatten().bincount(minlength=4) / batch.tokens.numel()
    assert shares.tolist() == pytest.approx(task.probabilities.tolist(), abs=0.005)
    logits = task.probabilities.log().float().expand(2000, 49, 4)
    assert masked_loss(logits, batch).item() == pytest.approx(task.floor, abs=0.01)
    assert task.accuracy(logits, batch) == pytest.approx(12 / 25, abs=0.01)
    assert Unigram(8, 0).floor == pytest.approx(math.log(8))
    assert not task.attention_target().any()
    pairs = batch.tokens[:, :-1] * 4 + batch.tokens[:, 1:]  # neighbours are independent
    joint = (pairs.flatten().bincount(minlength=16) / pairs.numel()).view(4, 4)
    assert torch.allclose(joint, torch.outer(shares, shares), atol=0.005)


@pytest.mark.parametrize(
    "wrong", [{"n_tokens": 1}, {"exponent": -1}, {"exponent": "1"}, {"exponent": math.inf}]
)
def test_impossible_unigrams_are_refused(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        Unigram(**wrong)
