"""RankMe against a float64 decomposition and on features whose rank is known, and its observer."""

import math

import numpy as np
import pytest
import torch

from emergence_lib.analysis.geometry import (
    EPSILON,
    POOLINGS,
    RankObserver,
    effective_ranks,
    grouped,
    rankme,
    sequence_vectors,
    unpack,
)
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import Batch, LinearMap
from emergence_lib.training import TrainConfig, train
from emergence_lib.training.train import step_generator

torch.set_num_threads(1)


def by_decomposition(features, centred):
    """The two formulas on numpy's singular values of the float64 matrix."""
    matrix = np.asarray(features, dtype=np.float64)
    if centred:
        matrix = matrix - matrix.mean(0)
    sigma = np.linalg.svd(matrix, compute_uv=False)
    if centred:
        p = sigma[sigma > 1e-12 * sigma[0]] ** 2
        p /= p.sum()
    else:
        p = sigma / sigma.sum() + 1e-7
    return math.exp(-(p * np.log(p)).sum())


def features(kind):
    """Float32 matrices as models give them: generic, steep, of low rank, few distinct rows."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "tall": normal(200, 128),
        "wide": normal(50, 128),
        "with a large mean": normal(200, 64) + 100 * normal(64),
        "a steep spectrum": normal(200, 128) @ torch.diag(2.0 ** -torch.arange(128)),
        "low rank and rounding": normal(200, 3) @ normal(3, 128),
        "few distinct rows": normal(4, 128).repeat(50, 1),
        "one row repeated": normal(1, 128).repeat(200, 1),
        "tiny numbers": 1e-12 * normal(200, 32),
    }[kind]


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        "tall",
        "wide",
        "with a large mean",
        "a steep spectrum",
        "low rank and rounding",
        "few distinct rows",
        "tiny numbers",
    ],
)
def test_equals_the_formula_on_a_decomposition(kind, centred):
    matrix = features(kind)
    expected = by_decomposition(matrix, centred)
    assert rankme(matrix, centred=centred) == pytest.approx(expected, rel=1e-5)


def test_rank_of_known_spectra():
    assert rankme(torch.eye(16)) == pytest.approx(16, rel=1e-4)
    turned = torch.linalg.qr(features("tall")[:128])[0]
    assert rankme(turned[:, :10]) == pytest.approx(10, rel=1e-4)
    # Two directions of σ = 3 and 1: shares 3/4 and 1/4.
    two = torch.zeros(5, 4)
    two[0, 0], two[1, 1] = 3, 1
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert rankme(two) == pytest.approx(math.exp(entropy), rel=1e-4)
    # Centred: ±3 along one axis and ±1 along the other have variances 9 : 1.
    cross = torch.tensor([[3.0, 0], [-3, 0], [0, 1], [0, -1]])
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert rankme(cross, centred=True) == pytest.approx(math.exp(entropy), rel=1e-9)


def test_one_direction_has_rank_one_and_nothing_has_rank_zero():
    same = features("one row repeated")
    assert rankme(same) == pytest.approx(1, abs=3e-4)  # the 1e-7 of 127 empty directions
    assert rankme(same) == pytest.approx(by_decomposition(same, centred=False), rel=1e-5)
    assert rankme(same, centred=True) == 0
    assert rankme(torch.zeros(3, 4)) == 0
    assert rankme(torch.zeros(3, 4), centred=True) == 0


def test_garridos_epsilon_counts():
    empty = 127
    excess = -(1 + EPSILON) * math.log(1 + EPSILON) - empty * EPSILON * math.log(EPSILON)
    assert rankme(features("one row repeated")) == pytest.approx(math.exp(excess), rel=1e-7)


def test_a_growing_mean_looks_like_collapse_unless_centred():
    spread = features("tall")
    shifted = spread + 50
    assert rankme(shifted) < 0.5 * rankme(spread)
    assert rankme(shifted, centred=True) == pytest.approx(rankme(spread, centred=True), rel=1e-4)


def test_batched_is_each_alone():
    kinds = ("tall", "a steep spectrum", "low rank and rounding", "one row repeated")
    stack = torch.stack([features(kind) for kind in kinds]).reshape(2, 2, 200, 128)
    for centred in (False, True):
        found = effective_ranks(stack, centred=centred)
        assert found.shape == (2, 2)
        assert found.dtype == torch.float64
        for rank, kind in zip(found.flatten().tolist(), kinds, strict=True):
            assert rank == pytest.approx(rankme(features(kind), centred=centred), rel=1e-9)


def test_decompositions_are_for_uncentred_sets_near_rank_deficiency_alone(monkeypatch):
    """A centred set has one direction less than samples, which is no reason for one."""
    monkeypatch.setattr(torch.linalg, "svdvals", lambda values: pytest.fail("decomposed"))
    for kind in ("tall", "wide", "low rank and rounding", "few distinct rows"):
        effective_ranks(features(kind), centred=True)
    for kind in ("tall", "wide"):
        effective_ranks(features(kind))


def test_input_is_left_alone_and_needs_no_graph():
    matrix = features("low rank and rounding").requires_grad_()
    before = matrix.detach().clone()
    rankme(matrix, centred=True)
    assert torch.equal(matrix.detach(), before)


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(2, 3, 4), torch.ones(0, 4)])
def test_refuses_what_is_no_matrix(wrong):
    with pytest.raises(ParameterError, match="shape"):
        rankme(wrong)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_refuses_numbers_that_are_not_finite(bad):
    matrix = torch.ones(3, 4)
    matrix[1, 2] = bad
    with pytest.raises(ParameterError, match="finite"):
        rankme(matrix)


def answers_batch():
    """Prompts of 3 and 2 tokens, answers of 2 and 1, the rest padding."""
    mask = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 0, 0, 0]], dtype=torch.bool)
    labels = {"level": torch.tensor([1, 0])}
    return Batch(torch.zeros(2, 6, dtype=torch.long), mask, labels)


@pytest.mark.parametrize(
    ("pooling", "first", "second"),
    [
        ("last_prompt", 2.0, 1.0),
        ("last_answer", 3.0, 1.0),
        ("mean_prompt", 1.0, 0.5),
        ("mean", 2.0, 2.0),
        (0, 0.0, 0.0),
        (-1, 4.0, 4.0),
    ],
)
def test_pooling_takes_the_positions_it_names(pooling, first, second):
    batch = answers_batch()
    resid = torch.arange(5.0).reshape(1, 5, 1).expand(2, 5, 3)  # a vector says its position
    vectors = sequence_vectors(resid, batch, pooling)
    torch.testing.assert_close(vectors, torch.tensor([[first] * 3, [second] * 3]))


def test_every_pooling_is_tried_above():
    assert set(POOLINGS) == {"last_prompt", "last_answer", "mean_prompt", "mean"}


def test_unknown_poolings_are_refused():
    resid = torch.zeros(2, 5, 3)
    with pytest.raises(UnknownNameError, match="last_prompt"):
        sequence_vectors(resid, answers_batch(), "last_promt")
    with pytest.raises(ParameterError, match="pooling"):
        sequence_vectors(resid, answers_batch(), 5)


def test_groups_are_gathered_in_order():
    group = torch.tensor([7, 2, 7, 2])
    vectors = torch.arange(4.0).unsqueeze(-1)
    assert grouped(vectors, group).squeeze(-1).tolist() == [[1, 3], [0, 2]]
    with pytest.raises(ParameterError, match="equally many"):
        grouped(vectors, torch.tensor([7, 2, 7, 7]))


def test_observer_records_what_rankme_says_of_the_tapped_states():
    task = LinearMap(state_size=4, row_weight=2)
    config = ModelConfig(2, 16, 2, task.vocab_size, task.seq_len)
    drawn = task.sample(40, step_generator(0, "eval"))
    labels = {"level": torch.arange(40) % 2 + 3}
    batch = Batch(drawn.tokens, drawn.loss_mask, labels)
    settings = TrainConfig(steps=2, batch_size=4, eval_every=1)
    observer = RankObserver("level", layers=(1, 2))
    run = train(task, config, settings, observers=[observer], eval_batch=batch)
    plain, centred = unpack(run.trajectory), unpack(run.trajectory, "rankme_centred")
    assert list(plain.columns) == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert plain.columns.names == ["layer", "group"]
    assert list(plain.index) == [0, 1, 2]

    model = Transformer(config, step_generator(settings.seed, "weights"))  # as at step 0
    tap = dict.fromkeys(observer.taps)
    with torch.no_grad():
        model(batch.tokens[:, :-1], tap=tap)
    start = int(drawn.loss_mask[0].int().argmax())
    for layer, group in plain.columns:
        states = tap[f"resid.{layer}"][labels["level"] == group][:, start]
        assert plain.loc[0, (layer, group)] == pytest.approx(by_decomposition(states, False), 1e-5)
        assert centred.loc[0, (layer, group)] == pytest.approx(by_decomposition(states, True), 1e-5)


def test_observer_refuses_no_layers():
    with pytest.raises(ParameterError, match="at least one"):
        RankObserver("level", layers=())
    with pytest.raises(ParameterError, match="layers"):
        RankObserver("level", layers=(-1,))
