"""Head scores of circuits set by hand, whose attention is known at every position."""

import math

import pandas as pd
import pytest
import torch

from emergence_lib.analysis.attention import unpack
from emergence_lib.analysis.heads import (
    HeadObserver,
    chance_score,
    head_scores,
    in_context_learning_score,
)
from emergence_lib.errors import ParameterError
from emergence_lib.models import ModelConfig, Transformer

torch.set_num_threads(1)

VOCAB, LENGTH = 9, 7
N_POS = 2 * LENGTH
SHARP = 60.0  # attention logit of the place a head looks at; elsewhere 0 or less

# The residual stream holds three one-hot vectors: position, token, and the previous token's copy.
POS, TOKEN, COPY = (slice(0, N_POS), slice(N_POS, N_POS + VOCAB), slice(N_POS + VOCAB, None))
WIDTH = N_POS + 2 * VOCAB
CONFIG = ModelConfig(2, WIDTH, 2, VOCAB, N_POS, d_head=WIDTH, d_mlp=1, activation="relu")


def generator(seed=5):
    return torch.Generator().manual_seed(seed)


def identity(norm, ones):
    """Make a layer norm pass on a vector of `ones` ones and zeros unchanged."""
    mean = ones / WIDTH
    norm.weight.fill_(math.sqrt(mean * (1 - mean) + 1e-5))
    norm.bias.fill_(mean)


def set_head(model, layer, head, query, key, value=None, out=None):
    """Scores ``SHARP · query(x_t) · key(x_j)``; each argument a matrix that acts on the stream."""
    mixer = model.blocks[layer].mixer
    for part, matrix in enumerate((query * SHARP * math.sqrt(WIDTH), key, value)):
        if matrix is not None:
            start = (part * CONFIG.n_heads + head) * WIDTH
            mixer.qkv.weight[start : start + WIDTH] = matrix
    if out is not None:
        mixer.out.weight[:, head * WIDTH : (head + 1) * WIDTH] = out


def place(rows, columns, block=None):
    """A matrix that is 0 but for `block` (identity if None)."""
    matrix = torch.zeros(WIDTH, WIDTH)
    target = matrix[rows, columns]
    target.copy_(torch.eye(*target.shape) if block is None else block)
    return matrix


@pytest.fixture(scope="module")
def circuit():
    """Layer 0: a previous-token head that copies its token up, and a duplicate-token head.
    Layer 1: an induction head that finds the current token among the copies, and an idle head."""
    model = Transformer(CONFIG)
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.zero_()
        model.pos_embed.weight.copy_(torch.eye(N_POS, WIDTH))
        model.embed.weight.copy_(torch.eye(WIDTH)[TOKEN])
        identity(model.blocks[0].norm1, ones=2)
        identity(model.blocks[1].norm1, ones=3)
        one_back = torch.eye(N_POS).roll(-1, 0).triu(1)  # position t ↦ t - 1
        set_head(
            model,
            *(0, 0),
            query=place(POS, POS, one_back),
            key=place(POS, POS),
            value=place(TOKEN, TOKEN),
            out=place(COPY, TOKEN),
        )
        same = place(TOKEN, TOKEN)
        set_head(model, *(0, 1), query=same + place(POS, POS), key=same - place(POS, POS))
        # Position 0 can only copy itself: a token that equals its own copy is no previous token.
        set_head(model, *(1, 0), query=same, key=place(TOKEN, COPY) - same)
    return model


def test_scores_of_a_circuit_set_by_hand(circuit):
    found = head_scores(circuit, generator(), n_sequences=3, length=LENGTH)
    idle = chance_score(LENGTH)
    expected = {
        "previous_token": [[1, 0], [0, idle]],
        "induction": [[0, 0], [1, idle]],
        "duplicate_token": [[0, 1], [0, idle]],
    }
    assert set(found) == set(expected)
    for kind, scores in expected.items():
        torch.testing.assert_close(found[kind], torch.tensor(scores), rtol=0, atol=1e-5, msg=kind)


def test_the_induction_head_needs_the_head_below_it(circuit):
    found = head_scores(circuit, generator(), n_sequences=3, length=LENGTH)
    broken = Transformer(CONFIG)
    broken.load_state_dict(circuit.state_dict())
    with torch.no_grad():
        broken.blocks[0].mixer.out.weight.zero_()
    assert head_scores(broken, generator(), 3, LENGTH)["induction"][1, 0] < 0.5
    assert found["induction"][1, 0] > 0.99


def test_scores_by_hand_on_a_random_model():
    model = Transformer(ModelConfig(2, 24, 3, 30, 20, init_std=0.3), generator(0))
    found = head_scores(model, generator(), n_sequences=4, length=8)
    tokens = []
    draws = generator()
    for _ in range(4):
        half = torch.randperm(30, generator=draws)[:8]
        tokens.append(torch.cat([half, half]))
    tap = dict.fromkeys(["pattern.0", "pattern.1"])
    model(torch.stack(tokens), tap=tap)
    for layer in range(2):
        for head in range(3):
            pattern = tap[f"pattern.{layer}"][:, head]
            for kind, distance in (("previous_token", 1), ("induction", 7), ("duplicate_token", 8)):
                by_hand = [pattern[s, t, t - distance] for s in range(4) for t in range(8, 16)]
                torch.testing.assert_close(found[kind][layer, head], torch.stack(by_hand).mean())


def test_scores_do_not_depend_on_the_chunks_and_are_a_function_of_the_generator(monkeypatch):
    model = Transformer(ModelConfig(1, 16, 2, 30, 20, init_std=0.3))
    whole = head_scores(model, generator(), 5, 6)
    again = head_scores(model, generator(), 5, 6)
    other = head_scores(model, generator(6), 5, 6)
    monkeypatch.setattr("emergence_lib.analysis.heads.LOGITS", 2 * 12 * 30)
    chunked = head_scores(model, generator(), 5, 6)
    for kind, scores in whole.items():
        assert torch.equal(scores, again[kind])
        assert not torch.equal(scores, other[kind])
        torch.testing.assert_close(scores, chunked[kind])


def test_the_observer_uses_the_same_sequences_every_time():
    model = Transformer(ModelConfig(2, 16, 2, 30, 20, init_std=0.3))
    source = generator()
    observer = HeadObserver(source, n_sequences=3, length=6)
    torch.rand(5, generator=source)
    first = observer(model, None, None, {})
    assert observer.measure(model) == first
    assert len(first) == 3 * 2 * 2
    scores = head_scores(model, generator(), n_sequences=3, length=6)
    for kind, table in scores.items():
        assert first[f"{kind}.1.0"] == table[1, 0].item()
    trajectory = pd.DataFrame([(0, name, value) for name, value in first.items()])
    trajectory.columns = ["step", "metric", "value"]
    induction = unpack(trajectory, "induction").loc[0].to_numpy()
    assert induction == pytest.approx(scores["induction"].flatten().numpy())


def test_chance_is_what_uniform_attention_scores():
    config = ModelConfig(2, 12, 3, 40, 30, positional="rotary")
    model = Transformer(config)
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.qkv.weight.zero_()
    for scores in head_scores(model, generator(), 2, 12).values():
        torch.testing.assert_close(scores, torch.full((2, 3), chance_score(12)))
    assert chance_score(3) == pytest.approx((1 / 4 + 1 / 5 + 1 / 6) / 3)
    assert chance_score(500) == pytest.approx(math.log(2) / 500, rel=2e-3)


def test_in_context_learning_score():
    loss = torch.tensor([[5.0, 4.0, 3.5, 3.0], [2.0, 2.0, 2.0, 2.5]])
    assert in_context_learning_score(loss, 1, 3).tolist() == [-1.0, 0.5]
    assert in_context_learning_score(loss[0], 0, 2).item() == -1.5


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: head_scores(m, generator(), 0), "n_sequences=0"),
        (lambda m: head_scores(m, generator(), 1, 2), "length=2 .* from 3 to 7"),
        (lambda m: head_scores(m, generator(), 1, 8), "length=8 .* from 3 to 7"),  # positions
        (
            lambda m: head_scores(Transformer(ModelConfig(1, 4, 1, 5, 40)), generator(), 1, 6),
            "length=6 .* from 3 to 5",  # vocabulary
        ),
        (lambda m: chance_score(2), "length=2"),
        (lambda m: in_context_learning_score(torch.zeros(4), 2, 4), "late=4 .* from 3 to 3"),
        (lambda m: in_context_learning_score(torch.zeros(4), 2, 2), "late=2"),
        (lambda m: in_context_learning_score(torch.zeros(4), -1, 2), "early=-1"),
        (lambda m: in_context_learning_score(torch.zeros(4, 1), 0, 1), r"\(4, 1\)"),
    ],
)
def test_impossible_values_are_refused(circuit, call, says):
    with pytest.raises(ParameterError, match=says):
        call(circuit)
