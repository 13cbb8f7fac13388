"""The linear map against numpy integers, brute force and a transformer whose weights are set by
hand so that it reaches the floor."""

import itertools
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import TASKS, Batch, LinearMap, Task, make_task
from emergence_lib.training import masked_loss

torch.set_num_threads(1)

SIZES = [(2, 1), (4, 2), (8, 1), (16, 3), (16, 16), (40, 37)]


def draw(task, batch_size=200, seed=0):
    return task.sample(batch_size, torch.Generator().manual_seed(seed))


def every_state(task):
    """x0 → x1 for each of the 2^S inputs, read off the sampler's own sequences."""
    tokens = draw(task, 40 * 2**task.state_size).tokens.tolist()
    table = {tuple(row[: task.state_size]): tuple(row[task.state_size :]) for row in tokens}
    assert len(table) == 2**task.state_size
    return table


@pytest.mark.parametrize(("state_size", "row_weight"), SIZES)
def test_sequences_are_x0_then_a_x0_mod_2(state_size, row_weight):
    task = LinearMap(state_size, row_weight, matrix_seed=3)
    batch = draw(task)
    assert batch.tokens.dtype == torch.int64
    assert batch.tokens.shape == (200, task.seq_len) == (200, 2 * state_size)
    x0, x1 = np.split(batch.tokens.numpy(), 2, axis=1)
    matrix = np.array([[int(entry) for entry in row] for row in task.matrix.tolist()])
    assert (matrix.sum(1) == row_weight).all()
    assert (x1 == (matrix @ x0.T % 2).T).all()
    assert batch.loss_mask.dtype == torch.bool
    assert batch.loss_mask.shape == (200, 2 * state_size - 1)
    assert batch.loss_mask.all()
    assert task.vocab_size == 2
    assert set(batch.tokens.unique().tolist()) == {0, 1}


def test_the_matrix_can_be_read_off_unit_vectors():
    task = LinearMap(5, 3, matrix_seed=1)
    table = every_state(task)
    assert table[(0,) * 5] == (0,) * 5
    for j in range(5):
        assert table[tuple(int(k == j) for k in range(5))] == tuple(
            task.matrix[:, j].int().tolist()
        )


@pytest.mark.parametrize("row_weight", [1, 2, 5, 6])
def test_attention_target_marks_the_inputs_whose_flip_changes_the_output(row_weight):
    task = LinearMap(6, row_weight, matrix_seed=2)
    table = every_state(task)
    target = task.attention_target()
    assert target.shape == (11, 11)
    assert target.dtype == torch.bool
    for i, j in itertools.product(range(6), range(6)):
        changes = {table[x0][i] != table[(*x0[:j], 1 - x0[j], *x0[j + 1 :])][i] for x0 in table}
        assert changes == {bool(target[5 + i, j])}
    assert not target[:5].any()  # inside x0 nothing can be predicted
    assert not target[:, 6:].any()
    assert not target.triu(1).any()  # no query needs its future


def chi_square(counts, expected):
    return sum((count - expected) ** 2 / expected for count in counts)


def test_rows_are_independent_uniform_subsets():
    subsets = list(itertools.combinations(range(5), 2))
    rows = []
    for seed in range(2000):
        matrix = LinearMap(5, 2, matrix_seed=seed).matrix
        rows.append([subsets.index(tuple(row.nonzero().flatten().tolist())) for row in matrix])
    rows = np.array(rows)
    # Bounds are the 99.9 % points of chi-square with 9 and 99 degrees of freedom.
    for i in range(5):
        assert chi_square(np.bincount(rows[:, i], minlength=10), 200) < 27.9
    for i, j in itertools.combinations(range(5), 2):
        assert chi_square(np.bincount(10 * rows[:, i] + rows[:, j], minlength=100), 20) < 149


def test_x0_is_uniform():
    tokens = draw(LinearMap(4, 2), 16_000).tokens[:, :4].numpy()
    counts = np.bincount(tokens @ [8, 4, 2, 1], minlength=16)
    assert chi_square(counts, 1000) < 37.7  # 99.9 % point, 15 degrees of freedom


def test_everything_random_comes_from_the_seeds():
    task = LinearMap(16, 3)
    torch.manual_seed(0)
    first = draw(task).tokens
    torch.manual_seed(1)
    assert torch.equal(first, draw(LinearMap(16, 3)).tokens)
    assert not torch.equal(first, draw(task, seed=1).tokens)
    assert not torch.equal(task.matrix, LinearMap(16, 3, matrix_seed=1).matrix)
    generator = torch.Generator().manual_seed(0)
    assert not torch.equal(task.sample(9, generator).tokens, task.sample(9, generator).tokens)


@pytest.mark.parametrize(("state_size", "floor"), [(8, 0.3235), (16, 0.3354), (32, 0.3411)])
def test_floor_is_the_number_in_the_fact_sheet(state_size, floor):
    assert LinearMap(state_size, 1).floor == pytest.approx(floor, abs=5e-5)


# --- the floor is reached ---------------------------------------------------------------------

GAIN = 1e4
SURE = 20.0


def hand_set_solver(task):
    """A transformer that computes the parity of the bits its attention averages.

    Its residual stream, in pairs (+, -) so that every norm sees mean zero:
    0 own bit ±1 · 2 whether an output is due · 4 mean of the attended bits · 6 a constant so large
    that the norms' scale is constant · 8 the answer.
    Queries and keys are zero: attention is uniform unless it is told where to look.
    """
    S, s = task.state_size, task.row_weight
    config = ModelConfig(
        n_layers=1, d_model=10, n_heads=1, d_head=1, d_mlp=s + 1, vocab_size=2, max_pos=2 * S - 1
    )
    model = Transformer(config).double()
    block = model.blocks[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for norm in (block.norm1, block.norm2, model.final_norm):
            norm.weight.fill_(GAIN * math.sqrt(2 / 10))  # undoes the norm's division
        pair = torch.tensor([1.0, -1.0], dtype=torch.float64)
        model.embed.weight[:, 0:2] = pair * torch.tensor([[-1.0], [1.0]])
        model.pos_embed.weight[S - 1 :, 2:4] = pair
        model.pos_embed.weight[:, 6:8] = GAIN * pair
        block.mixer.qkv.weight[2, 0] = 1.0  # the value is the bit
        block.mixer.out.weight[4:6, 0] = pair
        # n = s (1 + mean) / 2 ones were attended to. Their parity is the zigzag
        # relu(n) - 2 relu(n-1) + 2 relu(n-2) - …, switched off where no output is due.
        for j in range(s):
            block.mlp.up.weight[j, 4] = s / 2
            block.mlp.up.weight[j, 2] = 2.0 * s
            block.mlp.up.bias[j] = s / 2 - j - 2.0 * s
            zigzag = 1.0 if j == 0 else 2.0 * (-1) ** j
            block.mlp.down.weight[8:10, j] = 2 * SURE * zigzag * pair
        block.mlp.up.weight[s, 2] = 1.0
        block.mlp.down.weight[8:10, s] = -SURE * pair
        model.unembed.weight[1, 8] = model.unembed.weight[0, 9] = 1.0
    return model


@pytest.mark.parametrize(("state_size", "row_weight"), [(4, 2), (8, 1), (16, 3), (12, 12)])
def test_the_floor_is_reached_by_a_hand_set_attention_pattern(state_size, row_weight):
    task = LinearMap(state_size, row_weight, matrix_seed=4)
    model, batch = hand_set_solver(task), draw(task, 500)
    inputs, target = batch.tokens[:, :-1], task.attention_target().double()

    def look_where_told(pattern):
        told = target.any(1, keepdim=True)
        return torch.where(told, target / row_weight, pattern)

    with torch.no_grad():
        edited = model(inputs, edit={"pattern.0": look_where_told})
        biased = model(inputs, attn_bias=1e4 * target)
        astray = model(inputs, attn_bias=1e4 * target.roll(1, dims=1).tril())
        blind = model(inputs)
    for logits in (edited, biased):
        assert masked_loss(logits, batch).item() == pytest.approx(task.floor, abs=1e-6)
        assert task.accuracy(logits, batch) == 1.0
        assert task.row_accuracy(logits, batch).tolist() == [1.0] * state_size
    for logits in (astray, blind) if row_weight < state_size else ():
        assert masked_loss(logits, batch).item() > task.floor + 0.1
        assert task.accuracy(logits, batch) < 0.9


def test_accuracy_counts_output_bits_only():
    task = LinearMap(4, 2)
    batch = draw(task)
    right = 5.0 * torch.nn.functional.one_hot(batch.tokens[:, 1:], 2).float()
    assert task.accuracy(right, batch) == 1.0
    wrong_inside_x0 = right.clone()
    wrong_inside_x0[:, :3] *= -1
    assert task.accuracy(wrong_inside_x0, batch) == 1.0
    wrong_output = right.clone()
    wrong_output[:50, 3 + 2] *= -1  # output 2, in a quarter of the sequences
    assert task.row_accuracy(wrong_output, batch).tolist() == [1.0, 1.0, 0.75, 1.0]
    assert task.accuracy(wrong_output, batch) == pytest.approx(15 / 16)


@pytest.mark.parametrize("state_size", [2, 8, 16])
def test_copying_the_first_output_bit_reaches_the_dense_copy_loss(state_size):
    task = LinearMap(state_size, state_size)
    batch = draw(task)
    copy = 40.0 * torch.nn.functional.one_hot(batch.tokens[:, :-1], 2).double()
    copy[:, :state_size] = 0  # no idea up to and including the first output bit
    loss = masked_loss(copy, batch).item()
    assert loss == pytest.approx(task.dense_copy_loss, abs=1e-9)
    assert loss - task.floor == pytest.approx(math.log(2) / (2 * state_size - 1), abs=1e-9)


# --- refusals and the registry ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"row_weight": 17}, r"row_weight=17 .* at most state_size=16"),
        ({"row_weight": 0}, r"row_weight=0 .* an integer ≥ 1"),
        ({"state_size": 1, "row_weight": 1}, r"state_size=1 .* an integer ≥ 2"),
        ({"state_size": 8.0}, r"state_size=8\.0 .* an integer"),
        ({"row_weight": True}, r"row_weight=True .* an integer"),
        ({"row_weight": "3"}, r"row_weight='3' .* an integer"),
        ({"matrix_seed": -1}, r"matrix_seed=-1 .* an integer ≥ 0"),
    ],
)
def test_impossible_parameters_are_refused(parameters, says):
    with pytest.raises(ParameterError, match=says):
        LinearMap(**parameters)


def test_an_empty_batch_is_refused():
    with pytest.raises(ParameterError, match="batch_size=0"):
        draw(LinearMap(), 0)


def test_a_task_is_a_frozen_value():
    assert LinearMap(8, 2) == LinearMap(8, 2)
    assert hash(LinearMap(8, 2)) == hash(LinearMap(8, 2))
    with pytest.raises(FrozenInstanceError):
        LinearMap(8, 2).row_weight = 3


def test_tasks_are_made_by_name():
    assert TASKS["linear_map"] is LinearMap
    assert all(issubclass(cls, Task) and cls.name == name for name, cls in TASKS.items())
    assert make_task("linear_map", state_size=8, row_weight=2) == LinearMap(8, 2)
    with pytest.raises(UnknownNameError, match=r"task 'linearmap'. Did you mean 'linear_map'"):
        make_task("linearmap")
    with pytest.raises(UnknownNameError, match=r"'row_wieght'. Did you mean 'row_weight'"):
        make_task("linear_map", row_wieght=2)
    with pytest.raises(ParameterError, match="row_weight=9"):
        make_task("linear_map", state_size=8, row_weight=9)


def test_a_batch_moves_as_a_whole():
    batch = Batch(
        torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 2).bool(), {"rule": torch.ones(2)}
    )
    moved = batch.to("meta")
    assert {x.device.type for x in (moved.tokens, moved.loss_mask, moved.labels["rule"])} == {
        "meta"
    }
    assert moved.labels.keys() == {"rule"}
