"""Windows of stories against the corpus they are cut from."""

from __future__ import annotations

import pytest
import torch

from emergence_lib.errors import ParameterError
from emergence_lib.tasks import make_task
from emergence_lib.tasks.corpus import END_OF_TEXT, corpus, pocket_tokenizer
from emergence_lib.tasks.corpus_sources import DOMAINS
from emergence_lib.tasks.stories import PARTS_OF_SPEECH
from emergence_lib.tasks.story_windows import StoryWindows

END = pocket_tokenizer().token_to_id(END_OF_TEXT)


@pytest.fixture(scope="module")
def batch():
    return StoryWindows(split="held out").sample(256, torch.Generator().manual_seed(0))


def test_every_window_is_in_the_stories_of_its_split(batch):
    pile = corpus()
    low, high = pile.span("held out")
    stories = pile.tokens[low:high][pile.labels["domain"][low:high] == DOMAINS.index("story")]
    text = " ".join(map(str, stories.tolist()))
    for window in batch.tokens[:20]:
        assert " ".join(map(str, window.tolist())) in text
    assert batch.loss_mask.all()
    assert batch.loss_mask.shape == (256, 64)


def test_the_index_counts_from_the_beginning_of_a_story(batch):
    index, ended = batch.labels["token_index"], batch.tokens[:, :-1] == END
    assert 0.1 < ended.any(1).double().mean() < 0.4
    assert (index[:, 1:][ended] == 0).all()
    assert (index[:, 1:][~ended] == index[:, :-1][~ended] + 1).all()
    # Within a story the share of characters never falls.
    position = batch.labels["story_position"]
    assert (position[:, 1:][~ended] >= position[:, :-1][~ended]).all()
    assert (position[index == 0] == 0).all()


def test_labels_follow_the_tokens(batch):
    tokenizer = pocket_tokenizer()
    speech = batch.labels["part_of_speech"]
    said = batch.tokens[speech == PARTS_OF_SPEECH.index("determiner")]
    assert {tokenizer.decode([i]).strip().lower() for i in said.tolist()} >= {"the", "a"}
    assert (speech[batch.tokens == END] == -1).all()
    assert (batch.labels["role"][batch.tokens != END] >= -1).all()


def test_the_same_generator_gives_the_same_windows(batch):
    again = StoryWindows(split="held out").sample(256, torch.Generator().manual_seed(0))
    assert torch.equal(again.tokens, batch.tokens)
    trained = StoryWindows().sample(256, torch.Generator().manual_seed(0))
    assert not torch.equal(trained.tokens, batch.tokens)


@pytest.mark.parametrize(("name", "value"), [("seq_len", 1), ("split", "test")])
def test_impossible_parameters_are_named(name, value):
    with pytest.raises(ParameterError, match=name):
        make_task("story_windows", **{name: value})
