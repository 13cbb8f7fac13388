"""Scores of prompts against models whose next token is known."""

import math

import pytest
import torch

from emergence_lib.analysis.capability import (
    CapabilityObserver,
    DomainLossObserver,
    answer_attention,
    progress,
    score,
)
from emergence_lib.analysis.heads import head_scores
from emergence_lib.errors import ParameterError
from emergence_lib.models import ModelConfig, Transformer
from emergence_lib.tasks.base import Batch
from emergence_lib.tasks.corpus import pocket_tokenizer
from emergence_lib.tasks.prompts import CAPABILITIES

torch.set_num_threads(1)


class Says:
    """A "model" that gives the same logits after every prompt."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*tokens.shape, -1)


def test_probability_and_rank_by_hand():
    model = Says(torch.tensor([0.0, math.log(2), math.log(5), math.log(2)]))  # p = .1 .2 .5 .2
    found = score(model, torch.zeros(4, 3, dtype=torch.long), torch.tensor([0, 1, 2, 3]))
    assert found.p.tolist() == pytest.approx([0.1, 0.2, 0.5, 0.2])
    assert found.rank.tolist() == [3, 2, 0, 2]  # a tie counts against the target
    assert found.solved.tolist() == [False, False, True, False]


def test_equal_logits_solve_nothing():
    found = score(Says(torch.zeros(5)), torch.zeros(2, 3, dtype=torch.long), torch.tensor([0, 4]))
    assert not found.solved.any()
    assert found.rank.tolist() == [4, 4]


def test_only_the_last_position_counts():
    class LastIsOne:
        def __call__(self, tokens):
            logits = torch.zeros(*tokens.shape, 3)
            logits[:, :-1, 0] = 9
            logits[:, -1, 1] = 9
            return logits

    found = score(LastIsOne(), torch.zeros(1, 4, dtype=torch.long), torch.tensor([1]))
    assert found.solved.all()


@pytest.fixture(scope="module")
def observer():
    return CapabilityObserver(pocket_tokenizer(), 5, torch.Generator().manual_seed(0))


def test_capabilities_are_measured_on_the_prompts_of_their_kind(observer):
    """An oracle that answers exactly the "many" prompts right is told from one that cannot."""
    answers = {}
    for kinds in observer.prompts.values():
        for tokens, target in zip(kinds["many"].tokens, kinds["many"].target, strict=True):
            answers[tuple(tokens.tolist())] = int(target)

    class Oracle:
        def __call__(self, tokens):
            logits = torch.zeros(*tokens.shape, 2048)
            for i, prompt in enumerate(tokens.tolist()):
                logits[i, -1, answers.get(tuple(prompt), 0)] = 100
            return logits

    metrics = observer.measure(Oracle())
    for name in CAPABILITIES:
        assert metrics[f"solved.{name}"] == metrics[f"p.{name}"] == 1
        assert metrics[f"rank.{name}"] == 0
        assert metrics[f"control_solved.{name}"] == 0
        assert metrics[f"control_p.{name}"] < 1e-6
        assert metrics[f"single_rank.{name}"] == 2047  # no token beats token 0, all others tie
    assert len(metrics) == 7 * len(CAPABILITIES)


def test_the_same_generator_asks_the_same_prompts(observer):
    again = CapabilityObserver(pocket_tokenizer(), 5, torch.Generator().manual_seed(0))
    other = CapabilityObserver(pocket_tokenizer(), 5, torch.Generator().manual_seed(1))
    for name in CAPABILITIES:
        tokens = observer.prompts[name]["many"].tokens
        assert torch.equal(tokens, again.prompts[name]["many"].tokens)
        assert not torch.equal(tokens, other.prompts[name]["many"].tokens)


def test_no_prompts_are_refused():
    with pytest.raises(ParameterError, match="n_prompts=0 "):
        CapabilityObserver(pocket_tokenizer(), 0, torch.Generator())


def test_attention_on_the_answer_by_hand():
    config = ModelConfig(n_layers=2, d_model=16, n_heads=2, vocab_size=9, max_pos=8)
    model = Transformer(config)
    tokens = torch.tensor([[1, 2, 3, 1], [4, 5, 5, 6]])
    target = torch.tensor([1, 5])  # at positions 0 and 3; 1 and 2
    tap = {"pattern.0": None, "pattern.1": None}
    model(tokens, tap=tap)
    for layer in (0, 1):
        for head in (0, 1):
            first, second = tap[f"pattern.{layer}"][:, head, -1]
            expected = (first[0] + first[3] + second[1] + second[2]).item() / 2
            found = answer_attention(model, tokens, target)[layer, head].item()
            assert found == pytest.approx(expected)
    assert (answer_attention(model, tokens, torch.tensor([8, 8])) == 0).all()


def test_progress_is_a_line_a_checkpoint():
    config = ModelConfig(n_layers=1, d_model=16, n_heads=2, vocab_size=200, max_pos=128)
    models = {s: Transformer(config, torch.Generator().manual_seed(s)) for s in (0, 20)}
    tokens, target = torch.arange(12).view(3, 4), torch.tensor([1, 2, 3])
    table = progress(models, tokens, target, torch.Generator().manual_seed(4))
    assert table.step.tolist() == [0, 20]
    assert table.p[1] == pytest.approx(score(models[20], tokens, target).p.mean().item())
    by_hand = head_scores(models[20], torch.Generator().manual_seed(4))["induction"].max().item()
    assert table.induction[1] == by_hand


def test_losses_go_to_their_domains():
    tokens = torch.tensor([[0, 1, 1, 0]])
    domain = torch.tensor([[0, 0, 1, 1]])  # of the tokens; the first is never predicted
    batch = Batch(tokens, torch.ones(1, 3, dtype=torch.bool), {"domain": domain})
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.75, 0.25], [0.9, 0.1]]]))
    metrics = DomainLossObserver(("a", "b", "c"), early=0, late=2)(None, batch, logits, {})
    assert metrics["loss.a"] == pytest.approx(-math.log(0.5))
    assert metrics["loss.b"] == pytest.approx(-(math.log(0.25) + math.log(0.9)) / 2)
    assert math.isnan(metrics["loss.c"])
    assert metrics["icl"] == pytest.approx(-math.log(0.9) + math.log(0.5))
