"""Cellular automata of many rules: sparse attention with the rule to be found in the context.

    C = 3 colours, window 3, S = 4 cells, T = 3 states, boundary "wrap"

    rule        120→0  201→2  011→2  112→1  …       a colour for each of the C^3 neighbourhoods
    tokens      2  0  1  1 │ 0  2  2  1 │ …
    position    0  1  2  3 │ 4  5  6  7 │ …
    predicted by   ·  ·  · │ 3  4  5  6 │ 7 …       cell i of state t at position tS+i-1 …
    needs                  │301 012 123 230│ …      … from the window around i in state t-1

Each sequence follows one rule, drawn from a pool of `n_rules` or made up for it. Two predictors:

    knows the rule from the start    ln C for each cell of the first state, then nothing    `floor`
    must identify it (Bayes)         the same and, in all, what the states tell of the rule: at
                                     most ln n_rules nats                             `bayes_loss`

Source: paper A (arXiv 2606.25010), section on cellular automata: C = 4, window 3, 256 rules, 16
states, k = 1, S = 16 and more. That table entries are independent and uniform, that the boundary
wraps, that a seed fixes the pool and that all predictions count are our choices, and so are `k`
and rules made up for each sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import Batch, Task, register, require_int

BOUNDARIES = ("wrap", "zero")
MAX_ENTRIES = 65_536


@register("cellular_automata")
@dataclass(frozen=True)
class CellularAutomata(Task):
    """T states of a one-dimensional automaton, one after the other, under one of many rules.

    Batches have the label ``table``, int64 ``[batch, entry]``: the rule of each sequence. Small
    states come back to where they were (at S = 4 the 16th is an old one in 3 of 4 sequences, at
    S = 16 in 1 of 100), and from there copying predicts them without any rule.

    Args:
        state_size: S, cells in a state.
        colours: C, values of a cell.
        window: cells a new cell depends on: from ``i - (window-1)//2`` to ``i + window//2``.
        n_rules: rules in the pool, drawn once from `rule_seed`; None makes up a rule for every
            sequence.
        n_states: T, states in a sequence of T·S tokens.
        k: rule applications from one state to the next.
        boundary: "wrap" closes the row to a ring; "zero" puts colour 0 beyond its ends.
        rule_seed: seeds the pool; without one (``n_rules=None``) it has no effect.

    Raises:
        ParameterError: a value is no integer or out of range, a table would have more than
            65,536 entries, or there is no such boundary.
    """

    state_size: int = 16
    colours: int = 4
    window: int = 3
    n_rules: int | None = 256
    n_states: int = 16
    k: int = 1
    boundary: str = "wrap"
    rule_seed: int = 0

    def __post_init__(self) -> None:
        lows = {"state_size": 2, "colours": 2, "window": 1, "n_states": 2, "k": 1, "rule_seed": 0}
        for name, low in lows.items():
            require_int(name, getattr(self, name), low)
        if self.n_rules is not None:
            require_int("n_rules", self.n_rules, 1)
        if self.window * math.log(self.colours) > math.log(MAX_ENTRIES) + 1e-9:
            raise ParameterError(
                "window",
                self.window,
                f"at most {int(math.log(MAX_ENTRIES) / math.log(self.colours) + 1e-9)} "
                f"with colours={self.colours}",
                f"A rule has colours ** window entries, {MAX_ENTRIES:,} at most.",
            )
        if self.boundary not in BOUNDARIES:
            raise ParameterError("boundary", self.boundary, " or ".join(map(repr, BOUNDARIES)))

    @property
    def vocab_size(self) -> int:
        return self.colours

    @property
    def seq_len(self) -> int:
        return self.n_states * self.state_size

    @property
    def n_entries(self) -> int:
        """Entries of a rule: ``colours ** window``."""
        return self.colours**self.window

    @property
    def floor(self) -> float:
        """(S-1)/(TS-1) · ln C, exact: the loss of a predictor that knows the rule from the start.

        No predictor does better on average. A pool of one rule makes it attainable; with more
        rules the attainable loss is `bayes_floor`, so add the difference to a `stop_margin`.
        """
        return (self.state_size - 1) / (self.seq_len - 1) * math.log(self.colours)

    def bayes_loss(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Loss in nats of the Bayes predictor on each sequence of a batch, float64.

        It knows the pool (or that table entries are uniform) and identifies the rule as it reads.
        By the chain rule its losses on a sequence sum to -ln p(sequence), so no posterior is
        computed: with a pool, p = C^-S · (share of the rules that agree with all transitions);
        with rules made up, p = C^-S · C^-(distinct entries that were looked up).

        Raises:
            ParameterError: k > 1 without a pool, where -ln p has no such form.
        """
        states = batch.tokens.reshape(-1, self.n_states, self.state_size)
        first_state = (self.state_size - 1) * math.log(self.colours)
        rule = self._pool_surprise(states) if self.n_rules else self._fresh_surprise(states)
        return (first_state + rule) / (self.seq_len - 1)

    def bayes_floor(self, n_sequences: int, generator: torch.Generator) -> tuple[float, float]:
        """Expected loss of the Bayes predictor in nats, by Monte Carlo, and its standard error.

        For the excess of a model, `bayes_loss` on the model's own batch has no such error.

        Raises:
            ParameterError: fewer than 2 sequences, or k > 1 without a pool.
        """
        require_int("n_sequences", n_sequences, 2)
        loss = self.bayes_loss(self.sample(n_sequences, generator))
        return loss.mean().item(), loss.std().item() / math.sqrt(n_sequences)

    @cached_property
    def tables(self) -> Int[Tensor, "rule entry"] | None:
        """The pool, or None where rules are made up for each sequence.

        Entry ``Σ_o C^(window-1-o) · x_o`` is the colour that follows the neighbourhood
        x_0 … x_(window-1), read from left to right.
        """
        if self.n_rules is None:
            return None
        generator = torch.Generator().manual_seed(self.rule_seed)
        return torch.randint(self.colours, (self.n_rules, self.n_entries), generator=generator)

    def sequences_for(self, tokens: int) -> int:
        """The largest batch size within a budget of tokens, which paper A keeps as states grow.

        Raises:
            ParameterError: the budget does not hold one sequence.
        """
        require_int("tokens", tokens, self.seq_len)
        return tokens // self.seq_len

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """A uniform rule and first state for each sequence. All TS-1 predictions count."""
        require_int("batch_size", batch_size, 1)
        device = generator.device

        def uniform(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, generator=generator, device=device)

        if self.tables is None:
            table = uniform(self.colours, batch_size, self.n_entries)
        else:
            table = self.tables.to(device)[uniform(len(self.tables), batch_size)]
        states = [uniform(self.colours, batch_size, self.state_size)]
        for _ in range(self.n_states - 1):
            states.append(self.step(states[-1], table))
        tokens = torch.cat(states, dim=1)
        return Batch(tokens, torch.ones_like(tokens[:, 1:], dtype=torch.bool), {"table": table})

    def step(
        self, state: Int[Tensor, "batch cell"], table: Int[Tensor, "batch entry"]
    ) -> Int[Tensor, "batch cell"]:
        """The state that follows: k applications of each sequence's own rule."""
        for _ in range(self.k):
            state = table.gather(1, self._entries(state))
        return state

    def attention_target(self) -> Bool[Tensor, "query key"]:
        """The query that predicts cell i of state t needs its window in state t-1, for t ≥ 1.

        For k applications that is the light cone, k times as wide on either side; at a "zero"
        boundary it ends with the row. What else is read to identify the rule has no fixed place and
        is left out.
        """
        S, reach = self.state_size, self.k
        offsets = torch.arange(-reach * ((self.window - 1) // 2), reach * (self.window // 2) + 1)
        cell = torch.arange(S)[:, None]
        seen = cell + offsets
        inside = torch.ones_like(seen, dtype=torch.bool)
        if self.boundary == "zero":
            inside = (seen >= 0) & (seen < S)
        cell = cell.expand_as(seen)[inside]
        seen = seen[inside] % S
        target = torch.zeros(self.seq_len - 1, self.seq_len - 1, dtype=torch.bool)
        for t in range(1, self.n_states):
            target[t * S + cell - 1, (t - 1) * S + seen] = True
        return target

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Share of right cells in the states after the second, whose rule the context has shown.

        With two states only, in the second; `state_accuracy` has them one by one. The Bayes
        predictor has 0.99 among 256 rules at S = 4 and 1.00 at S = 16 (300 sequences).
        """
        by_state = self.state_accuracy(logits, batch)
        return by_state[min(1, len(by_state) - 1) :].mean().item()

    def state_accuracy(
        self, logits: Float[Tensor, "batch pos vocab"], batch: Batch
    ) -> Float[Tensor, " state"]:
        """Share of right cells in states 1 … T-1 (the first state, 0, cannot be predicted)."""
        predicted: Int[Tensor, "batch pos"] = logits[:, self.state_size - 1 :].argmax(-1)
        right = (predicted == batch.tokens[:, self.state_size :]).float().mean(0)
        return right.view(self.n_states - 1, self.state_size).mean(1)

    def _entries(self, state: Int[Tensor, "*batch cell"]) -> Int[Tensor, "*batch cell"]:
        """Which table entry each cell's neighbourhood is."""
        before, after = (self.window - 1) // 2, self.window // 2
        if self.boundary == "wrap":
            cells = torch.arange(-before, self.state_size + after, device=state.device)
            padded = state[..., cells % self.state_size]
        else:
            padded = torch.nn.functional.pad(state, (before, after))
        entry = padded[..., : self.state_size]
        for offset in range(1, self.window):
            entry = entry * self.colours + padded[..., offset : offset + self.state_size]
        return entry

    def _pool_surprise(self, states: Int[Tensor, "batch state cell"]) -> Float[Tensor, " batch"]:
        """-ln of the share of the pool's rules that agree with every transition."""
        assert self.tables is not None
        agree = torch.zeros(len(states), dtype=torch.float64, device=states.device)
        first = self._entries(states[:, :-1])  # the same for all rules, so looked up once
        for table in self.tables.to(states.device):
            reached = table[first]
            for _ in range(self.k - 1):
                reached = table[self._entries(reached)]
            agree += (reached == states[:, 1:]).flatten(1).all(1)
        return math.log(len(self.tables)) - agree.log()

    def _fresh_surprise(self, states: Int[Tensor, "batch state cell"]) -> Float[Tensor, " batch"]:
        """ln C for every table entry that the transitions look up, however often."""
        if self.k > 1:
            raise ParameterError(
                "k",
                self.k,
                "1 for the loss of the Bayes predictor where rules are made up",
                "Give n_rules for a pool.",
            )
        entries = self._entries(states[:, :-1]).flatten(1)
        used = torch.zeros(len(states), self.n_entries, dtype=torch.bool, device=states.device)
        used.scatter_(1, entries, True)
        return used.sum(1).double() * math.log(self.colours)
