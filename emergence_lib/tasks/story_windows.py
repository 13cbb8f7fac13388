"""Windows of generated stories: PocketPile without its code and prose.

    … blue lamp . ⏎ One day Mary went to the mill , and John …      ⏎ = end of text
    token_index   70 71 72 73  0  1   2    3   4  5   6   7  8   9

Stories of one split follow each other as in `corpus`, about 290 tokens each, so about one window
of 64 in five has the end of a story in it. Each token carries its grammar and its place in the
story. Paper C trains on windows of 64 tokens of TinyStories (Eldan and Li 2023, arXiv 2305.07759)
with tags of spaCy (fact sheet C5); ours are generated and know their grammar.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import Batch, Task, register, require_int
from emergence_lib.tasks.corpus import SPLITS, VOCAB_SIZE, corpus
from emergence_lib.tasks.corpus_sources import DOMAINS

_LABELS = ("part_of_speech", "role", "entity", "story_position")


@cache
def _stories(split: str) -> tuple[Int[Tensor, " token"], dict[str, Tensor]]:
    """Tokens of the stories of a split in order, and their labels."""
    pile = corpus()
    low, high = pile.span(split)
    chosen = pile.labels["domain"][low:high] == DOMAINS.index("story")
    labels = {name: pile.labels[name][low:high][chosen] for name in _LABELS}
    document = pile.labels["document"][low:high][chosen]
    _, lengths = document.unique_consecutive(return_counts=True)
    begins = lengths.cumsum(0) - lengths
    labels["token_index"] = torch.arange(len(document)) - begins.repeat_interleave(lengths)
    return pile.tokens[low:high][chosen], labels


@register("story_windows")
@dataclass(frozen=True)
class StoryWindows(Task):
    """Random windows of stories; every prediction counts. Nothing is built before `sample`.

    Labels of a batch, all ``[batch, pos]``: part_of_speech, role, entity and story_position as in
    `PocketPile`, and token_index, the tokens of the story before this one (int64).

    Args:
        seq_len: tokens of a window; a model needs one position less.
        split: "train" or "held out".

    Raises:
        ParameterError: `seq_len` is no integer from 2 to 4096, or there is no such split.
    """

    seq_len: int = 65
    split: str = "train"

    def __post_init__(self) -> None:
        require_int("seq_len", self.seq_len, 2, 4096)
        if self.split not in SPLITS:
            raise ParameterError("split", self.split, " or ".join(map(repr, SPLITS)))

    def stories(self) -> tuple[Int[Tensor, " token"], dict[str, Tensor]]:
        """Tokens of the split's stories in order, and their labels."""
        return _stories(self.split)

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def floor(self) -> None:
        """Not worked out: the grammar's entropy given a window that begins anywhere."""
        return None

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Windows that begin at uniformly drawn tokens of the split's stories."""
        require_int("batch_size", batch_size, 1)
        tokens, labels = self.stories()
        start = torch.randint(
            len(tokens) - self.seq_len + 1,
            (batch_size, 1),
            generator=generator,
            device=generator.device,
        )
        window: Int[Tensor, "batch pos"] = start.cpu() + torch.arange(self.seq_len)
        sampled = {
            name: values[window] if name == "story_position" else values[window].long()
            for name, values in labels.items()
        }
        ids = tokens[window].long()
        mask = torch.ones_like(ids[:, 1:], dtype=torch.bool)
        return Batch(ids, mask, sampled).to(generator.device)

    def attention_target(self) -> Bool[Tensor, "query key"] | None:
        return None

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Share of next tokens that the arg-max gets right."""
        return (logits.argmax(-1) == batch.tokens[:, 1:]).float().mean().item()
