"""Moved parts against models put together by hand, jumps in made-up curves, and what is said."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

from emergence_lib.analysis.moved_parts import OUTPUTS, PARTS, logits_with, target_probability
from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.experiments.toy_patching import (
    TOY_PATCHING,
    ToyPatchingGrid,
    find_jump,
    p_by_jump,
)
from emergence_lib.experiments.toy_patching_evidence import (
    n_jumps,
    parts_table,
    share,
    share_groups,
    toy_sentence,
)
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks import CellularAutomata, LinearMap

torch.set_num_threads(1)


# --- moving parts -----------------------------------------------------------------------------


def model(seed, n_layers=2, **changes):
    config = ModelConfig(
        n_layers=n_layers, d_model=8, n_heads=2, vocab_size=3, max_pos=6, init_std=0.5, **changes
    )
    return Transformer(config, torch.Generator().manual_seed(seed))


TOKENS = torch.randint(0, 3, (4, 6), generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_same_model_changes_nothing(part):
    own = model(0)
    assert torch.allclose(logits_with(own, own, TOKENS, part), own(TOKENS), atol=1e-6)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_another_model_changes_the_logits(part):
    receiver, donor = model(0), model(1)
    moved = logits_with(receiver, donor, TOKENS, part)
    assert not torch.allclose(moved, receiver(TOKENS), atol=1e-3)
    assert not torch.allclose(moved, donor(TOKENS), atol=1e-3)


def grafted(receiver, donor, beginnings):
    """The receiver with the donor's parameters whose names begin so, put together by hand."""
    theirs = donor.state_dict()
    state = {
        name: theirs[name] if name.startswith(beginnings) else own
        for name, own in receiver.state_dict().items()
    }
    both = model(2, receiver.config.n_layers)
    both.load_state_dict(state)
    return both


def test_weights_are_those_of_a_model_put_together_by_hand():
    receiver, donor = model(0), model(1)
    for part, inner in {
        "weights of attention": ("norm1", "mixer"),
        "weights of MLP": ("norm2", "mlp"),
        "weights of attention and MLP": ("norm1", "mixer", "norm2", "mlp"),
    }.items():
        names = tuple(f"blocks.{layer}.{name}" for layer in (0, 1) for name in inner)
        expected = grafted(receiver, donor, names)(TOKENS)
        assert torch.allclose(logits_with(receiver, donor, TOKENS, part), expected, atol=1e-6)


def test_outputs_are_those_of_a_single_layer_put_together_by_hand():
    """With one layer and shared embeddings both models' blocks read the same stream."""
    receiver = model(0, 1)
    donor = grafted(model(1, 1), receiver, ("embed", "pos_embed", "final_norm", "unembed"))
    assert torch.allclose(
        logits_with(receiver, donor, TOKENS, "attention block"),
        grafted(receiver, donor, ("blocks.0.norm1", "blocks.0.mixer"))(TOKENS),
        atol=1e-5,
    )
    whole = logits_with(receiver, donor, TOKENS, "attention block and MLP")
    assert torch.allclose(whole, donor(TOKENS), atol=1e-5)
    # Patterns come from queries and keys, a third of the fused weight each; values are the rest.
    for part, taken in {
        "patterns": [0, 1],
        "values": [2],
        "patterns and values": [0, 1, 2],
    }.items():
        by_hand = grafted(receiver, donor, ("blocks.0.norm1",))
        for name in ("weight", "bias"):
            own = getattr(by_hand.blocks[0].mixer.qkv, name).data.unflatten(0, (3, -1))
            theirs = getattr(donor.blocks[0].mixer.qkv, name).data.unflatten(0, (3, -1))
            own[taken] = theirs[taken]
        assert torch.allclose(
            logits_with(receiver, donor, TOKENS, part), by_hand(TOKENS), atol=1e-5
        )


def test_what_cannot_be_moved_is_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'patterns'"):
        logits_with(model(0), model(1), TOKENS, "pattern")
    with pytest.raises(ParameterError, match="shape"):
        logits_with(model(0), model(1, 1), TOKENS, "patterns")


def test_the_probability_is_that_of_the_next_token():
    tokens = torch.tensor([[0, 2, 1]])
    logits = torch.tensor([[[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]]).log()
    assert target_probability(logits, tokens)[0].tolist() == pytest.approx([0.7, 0.3])


# --- jumps ------------------------------------------------------------------------------------


def test_a_jump_lies_between_a_tenth_and_nine_tenths_of_the_way():
    curve = torch.tensor([0.40, 0.53, 0.70, 0.54, 0.56, 0.80, 0.96, 0.90, 1.00])
    assert find_jump(curve, 0.5, 0.5) == (3, 6)
    assert find_jump(curve - 0.5, 0.5, 0.5) is None
    assert find_jump(torch.tensor([0.5, 0.6, 0.7]), 0.5, 0.5) is None  # 40 % of the way to 1
    assert find_jump(torch.tensor([0.5, 0.6, 0.7]), 0.5, 0.3) == (0, 2)
    assert find_jump(torch.tensor([0.95, 1.0]), 0.5, 0.5) is None  # never seen below


def test_each_output_row_has_its_own_probability():
    task = LinearMap(4, 2)
    batch = task.sample(5, torch.Generator().manual_seed(0))
    logits = torch.zeros(5, task.seq_len - 1, 2)
    logits[:, 5] = torch.nn.functional.one_hot(batch.tokens[:, 6], 2) * 100.0  # output row 2
    p = p_by_jump(logits, batch, task).mean(1)
    assert p.tolist() == pytest.approx([0.5, 0.5, 1.0, 0.5])


def test_the_cells_of_an_automaton_count_from_the_third_state():
    task = CellularAutomata(4, 3, n_states=4)
    batch = task.sample(5, torch.Generator().manual_seed(0))
    logits = torch.zeros(5, task.seq_len - 1, 3)
    logits[:, 7:11] = torch.nn.functional.one_hot(batch.tokens[:, 8:12], 3) * 100.0
    (p,) = p_by_jump(logits, batch, task).mean(1)
    assert p.item() == pytest.approx((1 + 1 / 3) / 2)


@pytest.fixture(scope="module")
def smoke_row():
    (point,) = TOY_PATCHING.points("smoke")
    return TOY_PATCHING.run(point, "cpu")


def test_a_run_leaves_the_row_that_the_schema_says(smoke_row):
    TOY_PATCHING.check_row(smoke_row)
    n = len(smoke_row["jumps"])
    for name in ("pre_steps", "post_steps", "p_pre", "p_post", "forward", "reverse", "control"):
        assert len(smoke_row[name]) == n
    for pre, post in zip(smoke_row["pre_steps"], smoke_row["post_steps"], strict=True):
        assert pre < post
    for low, high in zip(smoke_row["p_pre"], smoke_row["p_post"], strict=True):
        assert low < high
    for shares in [*smoke_row["forward"], *smoke_row["reverse"]]:
        assert len(shares) == len(PARTS) == len(smoke_row["parts"])


def test_the_smoke_profile_sees_a_jump(smoke_row):
    assert smoke_row["jumps"]
    block_and_mlp = smoke_row["parts"].index("attention block and MLP")
    assert all(share[block_and_mlp] > 0.5 for share in smoke_row["forward"])


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"task": "linear"}, UnknownNameError), ({"seeds": 0}, ParameterError),
     ({"row_weight": 9}, ParameterError), ({"every": 0}, ParameterError)],
)  # fmt: skip
def test_impossible_parameters_are_refused(changes, error):
    with pytest.raises(error):
        ToyPatchingGrid(**changes)


def test_automata_are_cells_that_can_be_trained():
    grid = ToyPatchingGrid("cellular_automata", seeds=1, state_size=4, d_model=16, steps=2, every=1)
    (point,) = grid.points()
    assert TOY_PATCHING.run(point, "cpu")["jumps"] == []


# --- evidence ---------------------------------------------------------------------------------


def made_row(seed, patterns, reverse=0.9, n=2, task="linear_map"):
    """`n` jumps in which patterns carry a share and every other part all of it."""
    forward = [[patterns + 0.01 * (seed + i), *[1.0] * (len(PARTS) - 1)] for i in range(n)]
    return {
        "task": task, "seed": seed, "jumps": list(range(n)), "parts": list(PARTS),
        "forward": forward, "reverse": [[reverse + 0.01 * seed, *[1.0] * (len(PARTS) - 1)]] * n,
        "control": [None, *[[0.0] * len(PARTS)] * (n - 1)],
    }  # fmt: skip


def rows(patterns, reverse=0.9, n=2, runs=4):
    return pd.DataFrame([made_row(seed, patterns, reverse, n) for seed in range(runs)])


def test_a_share_is_a_mean_of_runs_over_their_jumps():
    found = share(rows(0.1), "linear_map", "forward", "patterns")
    means = [0.1 + 0.01 * seed + 0.005 for seed in range(4)]
    assert found.value == pytest.approx(sum(means) / 4)
    assert found.low < min(means) < max(means) < found.high
    assert share(rows(0.1), "linear_map", "control", "patterns").value == 0
    assert n_jumps(rows(0.1), "linear_map") == (8, 4)
    assert math.isnan(share(rows(0.1), "cellular_automata", "forward", "patterns").value)


@pytest.mark.parametrize(
    ("patterns", "reverse", "said"),
    [
        (0.1, 0.9, ["does not carry over", "are needed for most of it"]),
        (0.9, 0.9, ["A-5's result carries over"]),
        (0.48, 0.1, ["is not decided", "is kept without the new patterns"]),
        (0.1, 0.48, ["does not decide whether they are needed"]),
    ],
)
def test_the_sentence_follows_the_rows(patterns, reverse, said):
    sentence = toy_sentence(rows(patterns, reverse), "linear_map")
    for text in said:
        assert text in sentence
    assert "8 jumps of 4 runs" in sentence
    assert "nan" not in sentence


def test_a_control_that_no_checkpoint_allows_is_said():
    without = rows(0.1).assign(control=[[None, None]] * 4)
    assert "none, since no checkpoint lies so far before." in toy_sentence(without, "linear_map")
    assert "before the jump: 0.00 [0.00, 0.00]." in toy_sentence(rows(0.1), "linear_map")


def test_too_few_runs_test_nothing():
    for made in (rows(0.1, runs=2), rows(0.1, n=0), pd.DataFrame()):
        assert "not tested here" in toy_sentence(made, "linear_map")
    assert "not tested here" in toy_sentence(rows(0.1), "cellular_automata")


def test_the_tables_have_a_line_a_part():
    table = parts_table(rows(0.1), "linear_map")
    assert table["part moved"].tolist() == list(PARTS)
    assert table["post into pre"][0].startswith("0.12 [")
    parts, means, runs = share_groups(rows(0.1), "linear_map")["post into pre"]
    assert (len(parts), len(means), len(runs[0])) == (len(PARTS), len(PARTS), 4)
    assert parts_table(rows(0.1), "cellular_automata").empty
    assert set(OUTPUTS) < set(PARTS)


def test_the_recorded_points_keep_their_keys():
    """A changed key orphans every recorded point; see test_experiments."""
    assert TOY_PATCHING.points("cpu")[0].key == "1ea57c9d40114f0c"
