"""k-shuffle Dyck: brackets of k kinds, each kind balanced for itself, kinds free to cross.

    k = 2            0 is (   1 is [   2 is )   3 is ]

    text             (  [  (  )  )  ]       "(())" and "[]", shuffled into each other
    tokens           0  1  0  2  2  3       a closing bracket is its opening one + k
    open after it    (  ([ ([( ([ [  ·
    depth            1  2  3  2  1  0       all kinds together

What may be closed next is any kind with a bracket open, wherever it stands: the model has to look
back for the openings that have no partner yet. A source for pre-pre-training: train on it first,
then on language.

Source: Hu et al. 2025 (arXiv 2502.19249), k = 64, 2,048 tokens and an opening probability of about
a half; depth at most 8 as in the variants in use (0.51 and 8 are the defaults here). At depth 0 a
bracket must be opened, at the greatest depth one must be closed; the kind opened is uniform over
all k, the kind closed uniform over the kinds that are open; a sequence is cut at its length,
whether or not all is closed. The floor, the legality check and what accuracy means are ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import Batch, Task, register, require_int

Open = tuple[int, ...]
"""How many brackets are open of each kind that has any, in descending order: enough to know what
comes next up to the names of the kinds."""


@register("dyck")
@dataclass(frozen=True)
class Dyck(Task):
    """Prefixes of k-shuffle Dyck words of bounded depth; every prediction counts.

    Args:
        k: kinds of brackets; openings are tokens 0 … k-1, closings k … 2k-1.
        p_open: probability of an opening where both are possible, between 0 and 1.
        max_depth: most brackets open at once, at most 16 (the floor counts the ways to be there).
        seq_len: tokens of a sequence; a model needs one position less.

    Raises:
        ParameterError: a value of the wrong type or out of range.
    """

    k: int = 64
    p_open: float = 0.51
    max_depth: int = 8
    seq_len: int = 2048

    def __post_init__(self) -> None:
        require_int("k", self.k, 1)
        require_int("max_depth", self.max_depth, 1, 16)
        require_int("seq_len", self.seq_len, 2)
        if not isinstance(self.p_open, float) or not 0 < self.p_open < 1:
            raise ParameterError("p_open", self.p_open, "a number between 0 and 1, both excluded")

    @property
    def vocab_size(self) -> int:
        return 2 * self.k

    @cached_property
    def floor(self) -> float:
        """Exact mean entropy of the next token given all before it, over the counted predictions.

        Which kinds are open does not matter, only how many brackets of each: these multisets
        (67 at depth 8) are a Markov chain, whose distribution is followed from token to token.
        """
        states = self._states()
        index = {state: i for i, state in enumerate(states)}
        move = np.zeros((len(states), len(states)))
        for state in states:
            for reached, probability in self._moves(state):
                move[index[state], index[reached]] += probability
        entropy = np.array([self._entropy(state) for state in states])
        at = np.zeros(len(states))
        at[index[(1,)]] = 1  # after the first token, always an opening
        total = 0.0
        for _ in range(self.seq_len - 1):
            total += at @ entropy
            at = at @ move
        return total / (self.seq_len - 1)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Words begun at depth 0 and cut at `seq_len`. All predictions count.

        All random numbers are drawn at once; then numpy walks over positions, a batch at a time,
        on the CPU whatever the generator's device.
        """
        require_int("batch_size", batch_size, 1)
        shape, device = (self.seq_len, batch_size), generator.device
        coin, pick = torch.rand(2, *shape, generator=generator, device=device).cpu().numpy()
        kinds = torch.randint(self.k, shape, generator=generator, device=device).cpu().numpy()
        wants_open = coin < self.p_open
        row = np.arange(batch_size)
        depth, n_held = np.zeros((2, batch_size), dtype=np.int64)
        count = np.zeros((batch_size, self.k), dtype=np.int64)
        # The kinds open, in any order, in the first n_held places; the last place is spare.
        held = np.zeros((batch_size, self.max_depth + 1), dtype=np.int64)
        tokens = np.empty(shape, dtype=np.int64)
        for t in range(self.seq_len):
            opens = (wants_open[t] | (depth == 0)) & (depth < self.max_depth)
            place = np.where(opens, n_held, (pick[t] * n_held).astype(np.int64))
            kind = np.where(opens, kinds[t], held[row, place])
            tokens[t] = np.where(opens, kind, kind + self.k)
            step = np.where(opens, 1, -1)
            depth += step
            left = count[row, kind] + step
            count[row, kind] = left
            held[row, n_held] = kind  # counts only where the kind is new
            n_held += opens & (left == 1)
            gone = ~opens & (left == 0)
            n_held -= gone
            # The last kind takes the place of one that is closed for good.
            held[row, place] = np.where(gone, held[row, n_held], held[row, place])
        ids = torch.from_numpy(np.ascontiguousarray(tokens.T)).to(device)
        return Batch(ids, torch.ones_like(ids[:, 1:], dtype=torch.bool))

    def legal(self, tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
        """Whether the sequence up to and including each token can be continued to a word.

        That is: only brackets, none closed that is not open, never deeper than `max_depth`.
        """
        fine = (tokens >= 0) & (tokens < 2 * self.k)
        for _, balance in self._balances(tokens):
            fine &= balance >= 0
        depth = torch.where(tokens < self.k, 1, -1).cumsum(1)
        fine &= depth <= self.max_depth
        return fine.cumprod(1).bool()

    def attention_target(self) -> Bool[Tensor, "query key"] | None:
        return None

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Where a bracket is closed next: share in which the likeliest closing is a legal one.

        Which of the open kinds is closed is chance, and so is whether one is; that it must be an
        open kind is what there is to know. A guess is right with probability (kinds open) / k.
        NaN where a batch closes nothing.
        """
        chosen = logits[..., self.k : 2 * self.k].argmax(-1)
        is_open = torch.zeros_like(chosen, dtype=torch.bool)
        for kind, balance in self._balances(batch.tokens[:, :-1]):
            is_open |= (chosen == kind) & (balance > 0)
        return is_open[batch.tokens[:, 1:] >= self.k].float().mean().item()

    def _balances(
        self, tokens: Int[Tensor, "batch pos"]
    ) -> Iterator[tuple[int, Int[Tensor, "batch pos"]]]:
        """Each kind and how many of its brackets are open after each token."""
        for kind in range(self.k):
            change = (tokens == kind).int() - (tokens == kind + self.k).int()
            yield kind, change.cumsum(1)

    def _states(self) -> list[Open]:
        """All that can be open: partitions of 0 … max_depth into at most k parts."""
        found: list[Open] = [()]
        seen = set(found)
        for state in found:  # grows while it is walked
            for reached, _ in self._moves(state):
                if reached not in seen:
                    seen.add(reached)
                    found.append(reached)
        return found

    def _p_open(self, state: Open) -> float:
        depth = sum(state)
        return 1.0 if depth == 0 else 0.0 if depth == self.max_depth else self.p_open

    def _moves(self, state: Open) -> Iterator[tuple[Open, float]]:
        """What may be open after one more token, with probabilities."""
        p = self._p_open(state)
        groups = Counter(state)  # kinds with the same number open are alike
        for open_now, kinds in {**groups, 0: self.k - len(state)}.items():
            if p > 0 and kinds > 0:
                yield _with(state, open_now, open_now + 1), p * kinds / self.k
        for open_now, kinds in groups.items():
            if p < 1:
                yield _with(state, open_now, open_now - 1), (1 - p) * kinds / len(state)

    def _entropy(self, state: Open) -> float:
        """Entropy of the next token in nats: whether to open, and then which of the kinds."""
        p = self._p_open(state)
        return sum(
            -share * math.log(share / kinds)
            for share, kinds in ((p, self.k), (1 - p, len(state)))
            if share > 0
        )


def _with(state: Open, old: int, new: int) -> Open:
    """`state` with one entry changed; 0 stands for a kind with nothing open."""
    entries = list(state)
    if old:
        entries.remove(old)
    if new:
        entries.append(new)
    return tuple(sorted(entries, reverse=True))
