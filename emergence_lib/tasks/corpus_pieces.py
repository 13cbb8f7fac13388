"""Held-out text of one domain of PocketPile, for models of any tokenizer.

    code    │ … return self._value · except KeyError: …      pieces of documents that the pocket
    prose   │ … the statement is executed if the …           suite is never trained on, as text

A model of the Hub cuts the same text into tokens of its own. For it "held out" says nothing: the
standard library is public, and may be in the Pile.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import require_int
from emergence_lib.tasks.corpus import corpus, pocket_tokenizer
from emergence_lib.tasks.corpus_sources import DOMAINS

PIECE = 192
"""Tokens of the suite in a piece; every third of a piece another one may begin."""


def held_out_pieces(domain: str, generator: torch.Generator) -> tuple[str, ...]:
    """All pieces of a domain in random order: some 440 of prose, 500 of stories, 900 of code.

    A piece lies in one document and begins at least 64 tokens (of the suite's) behind another.

    Raises:
        ParameterError: no such domain.
    """
    if domain not in DOMAINS:
        raise ParameterError("domain", domain, f"one of {', '.join(DOMAINS)}")
    pile = corpus()
    low, high = pile.span("held out")
    start = torch.arange(low, high - PIECE, PIECE // 3)
    document = pile.labels["document"]
    whole = document[start] == document[start + PIECE - 1]
    start = start[whole & (pile.labels["domain"][start] == DOMAINS.index(domain))]
    start = start[torch.randperm(len(start), generator=generator)]
    ids = pile.tokens[start[:, None] + torch.arange(PIECE)].tolist()
    return tuple(pocket_tokenizer().decode_batch(ids, skip_special_tokens=False))


def domain_windows(
    tokenizer: Tokenizer, domain: str, n: int, length: int, generator: torch.Generator
) -> Int[Tensor, "n length"]:
    """The first `length` tokens of `n` different pieces, cut by the given tokenizer.

    Raises:
        ParameterError: no such domain, or fewer than `n` pieces of so many tokens.
    """
    require_int("n", n, 1)
    require_int("length", length, 1)
    pieces = list(held_out_pieces(domain, generator))
    encoded = tokenizer.encode_batch(pieces, add_special_tokens=False)
    windows = [e.ids[:length] for e in encoded if len(e.ids) >= length]
    if len(windows) < n:
        allowed = f"at most {len(windows)}, the pieces of {domain} with {length} tokens"
        raise ParameterError("n", n, allowed)
    return torch.tensor(windows[:n])
