"""Entropy and alignment on known patterns, and the observers against recomputation."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from emergence_lib.analysis.attention import (
    AttentionObserver,
    RowLossObserver,
    alignment,
    change_around,
    entropy,
    head_that_moves,
    uniform_alignment,
    unpack,
)
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import Batch, LinearMap
from emergence_lib.training import TrainConfig, train
from emergence_lib.training.train import step_generator

torch.set_num_threads(1)
TASK = LinearMap(state_size=4, row_weight=2)
N_POS = TASK.seq_len - 1


def test_entropy_of_known_patterns():
    pattern = torch.tensor([[1, 0, 0, 0], [0.5, 0.25, 0.25, 0], [0.25, 0.25, 0.25, 0.25]])
    expected = torch.tensor([0, 1.5 * math.log(2), math.log(4)])
    torch.testing.assert_close(entropy(pattern), expected)
    torch.testing.assert_close(entropy(pattern.expand(2, 3, 3, 4)), expected.expand(2, 3, 3))


def test_alignment_of_known_patterns():
    target = torch.tensor([[False] * 3, [True, False, False], [True, False, True]])
    pattern = torch.tensor([[1, 0, 0], [0.3, 0.7, 0], [0.2, 0.5, 0.3]])
    found = alignment(pattern.expand(2, 3, 3), target)
    assert found[:, 0].isnan().all()
    torch.testing.assert_close(found[:, 1:], torch.tensor([[0.3, 0.5]]).expand(2, 2))


def test_uniform_alignment_is_needed_keys_over_visible_keys():
    found = uniform_alignment(TASK.attention_target())
    assert found[:3].isnan().all()
    torch.testing.assert_close(found[3:], torch.tensor([2 / 4, 2 / 5, 2 / 6, 2 / 7]))


def perfect_pattern():
    """Heads: 0 spreads evenly over the needed keys, 1 attends to the first position only."""
    needed = TASK.attention_target().float()
    even = needed / needed.sum(-1, keepdim=True).clamp(min=1)
    first = torch.zeros(N_POS, N_POS)
    first[:, 0] = 1
    return torch.stack([even, first]).expand(3, 2, N_POS, N_POS)


def test_attention_observer_on_a_known_pattern():
    observer = AttentionObserver(TASK, n_layers=2)
    assert observer.taps == ("pattern.0", "pattern.1")
    tapped = {"pattern.0": None, "pattern.1": perfect_pattern()}  # layer 0 is no attention layer
    found = observer(None, None, None, tapped)
    starts_with_key_0 = TASK.matrix[:, 0].float()
    for row in range(4):
        assert found[f"row_entropy.1.0.{row}"] == pytest.approx(math.log(2))
        assert found[f"row_alignment.1.0.{row}"] == pytest.approx(1)
        assert found[f"row_entropy.1.1.{row}"] == 0
        assert found[f"row_alignment.1.1.{row}"] == starts_with_key_0[row]
    assert found["entropy.1.0"] == pytest.approx(math.log(2))
    assert found["alignment.1.1"] == pytest.approx(starts_with_key_0.mean().item())
    assert len(found) == 2 * 2 * (1 + 4)


def test_row_loss_counts_only_what_the_mask_counts():
    tokens = torch.tensor([[0, 0, 0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1]])
    mask = torch.ones(2, N_POS, dtype=torch.bool)
    mask[0, 4] = False  # output row 1 counts in the second sequence only
    logits = torch.zeros(2, N_POS, 2)
    logits[..., 1] = math.log(3)  # probability 3/4 of a 1
    found = RowLossObserver(TASK)(None, Batch(tokens, mask), logits, {})
    right = math.log(4 / 3)
    assert found == pytest.approx({f"row_loss.{row}": right for row in range(4)})
    found = RowLossObserver(TASK)(None, Batch(tokens, torch.ones_like(mask)), logits, {})
    assert found["row_loss.1"] == pytest.approx((right + math.log(4)) / 2)


@pytest.fixture(scope="module")
def run():
    model = ModelConfig(n_layers=2, d_model=16, n_heads=2, vocab_size=2, max_pos=N_POS)
    config = TrainConfig(steps=30, batch_size=16, eval_every=10, eval_batch_size=32, seed=3)
    observers = [AttentionObserver(TASK, n_layers=2), RowLossObserver(TASK)]
    return train(TASK, model, config, observers=observers)


def test_observers_record_what_a_recomputation_gives(run):
    batch = TASK.sample(32, step_generator(3, "eval"))
    tap = dict.fromkeys(["pattern.0", "pattern.1"])
    with torch.no_grad():
        logits = run.model(batch.tokens[:, :-1], tap=tap)
    for layer in range(2):
        pattern = tap[f"pattern.{layer}"].double().numpy()
        for head, row in ((0, 0), (1, 3)):
            weights = pattern[:, head, 3 + row, : 4 + row]
            spread = -(weights * np.log(weights)).sum(-1).mean()
            needed = weights[:, TASK.matrix[row].nonzero().squeeze(-1).numpy()].sum(-1).mean()
            last = unpack(run.trajectory, "row_entropy")[layer, head, row].iloc[-1]
            assert last == pytest.approx(spread, abs=1e-5)
            last = unpack(run.trajectory, "row_alignment")[layer, head, row].iloc[-1]
            assert last == pytest.approx(needed, abs=1e-5)
    p = logits.softmax(-1).double().numpy()
    b, t = np.ogrid[:32, :N_POS]
    by_position = -np.log(p[b, t, batch.tokens[:, 1:].numpy()]).mean(0)
    rows = unpack(run.trajectory, "row_loss").iloc[-1]
    assert rows.to_numpy() == pytest.approx(by_position[3:], abs=1e-5)
    assert run.metric("loss").iloc[-1] == pytest.approx(by_position.mean(), abs=1e-5)


def test_unpack_gives_tables_by_step(run):
    assert unpack(run.trajectory, "row_entropy").shape == (4, 2 * 2 * 4)
    assert unpack(run.trajectory, "row_entropy").columns.names == ["layer", "head", "row"]
    by_head = unpack(run.trajectory, "entropy")
    assert by_head.columns.tolist() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert by_head.index.tolist() == [0, 10, 20, 30]
    mean = unpack(run.trajectory, "row_entropy").T.groupby(["layer", "head"]).mean().T
    pd.testing.assert_frame_equal(by_head, mean)
    assert unpack(run.trajectory, "row_loss").columns.tolist() == [0, 1, 2, 3]
    with pytest.raises(UnknownNameError, match="'row_entropy'"):
        unpack(run.trajectory, "row_entropi")


def test_columns_are_sorted_as_numbers():
    trajectory = pd.DataFrame([(0, f"row_loss.{i}", i) for i in (10, 2, 0)])
    trajectory.columns = ["step", "metric", "value"]
    assert unpack(trajectory, "row_loss").columns.tolist() == [0, 2, 10]


def test_the_head_that_moves():
    steps = np.arange(0, 1_001, 50)
    columns = pd.MultiIndex.from_product([[0], range(3), range(2)], names=["layer", "head", "row"])
    table = pd.DataFrame(2.0, index=steps, columns=columns)
    table.loc[steps >= 300, (0, 2, 0)] = 0.5  # head 2 at row 0, the jump in question
    table.loc[steps >= 300, (0, 1, 0)] = 1.8
    table.loc[steps >= 300, (0, 0, 0)] = 1.7
    table.loc[steps >= 800, (0, 0, 0)] = 0.0  # a larger drop at another time does not count
    table.loc[steps >= 700, (0, 1, 1)] = 1.0
    found = head_that_moves(table, {1: 710, 0: 300}, margin=100)
    assert found["row"].tolist() == [0, 1]
    assert found["head"].tolist() == [2, 1]
    assert found["step"].tolist() == [300, 710]
    assert found["drop"].tolist() == pytest.approx([1.5, 1.0])
    assert found["other_drop"].tolist() == pytest.approx([0.25, 0.0])
    assert head_that_moves(table, {0: 0}, margin=5_000)["head"].item() == 0  # ends of the curve
    with pytest.raises(ParameterError, match="rows 0 to 1"):
        head_that_moves(table, {7: 300}, margin=100)
    assert head_that_moves(table, {}, margin=100).empty


class NoTarget(LinearMap):
    def attention_target(self):
        return None


def test_observers_need_a_target():
    for make in (RowLossObserver, lambda task: AttentionObserver(task, 1)):
        with pytest.raises(ParameterError, match="fixed attention target"):
            make(NoTarget(4, 2))
    with pytest.raises(ParameterError, match="n_layers"):
        AttentionObserver(TASK, 0)


def test_watching_does_not_change_the_run(run):
    model = ModelConfig(n_layers=2, d_model=16, n_heads=2, vocab_size=2, max_pos=N_POS)
    config = TrainConfig(steps=30, batch_size=16, eval_every=10, eval_batch_size=32, seed=3)
    alone = train(TASK, model, config)
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(weight, run.model.state_dict()[name])
    assert isinstance(alone.model, Transformer)


@pytest.mark.parametrize(
    ("step", "margin", "change"),
    [(200, 100, 3 - 1), (200, 150, 4 - 0), (0, 100, 1 - 0), (390, 50, 4 - 3), (200, 9_999, 4 - 0)],
    ids=["on evaluations", "at or beyond", "from the start", "between", "ends of the table"],
)
def test_a_change_is_read_at_or_beyond_the_margins(step, margin, change):
    table = pd.DataFrame({"a": [0.0, 1, 2, 3, 4], "b": 7.0}, index=[0, 100, 200, 300, 400])
    assert change_around(table, step, margin).to_dict() == {"a": change, "b": 0}
    with pytest.raises(ParameterError, match="margin=0 "):
        change_around(table, step, 0)
