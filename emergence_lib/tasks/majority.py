"""Majority and Conditioned Majority: features that are useless for the next token until the end.

    Majority, 5 inputs and 3 outputs            Conditioned Majority
    tokens        ^  2 0 1 2 0 │ 0 0 0          ^  2 0 1 0 1 │ 1 1 1
    position      0  1 2 3 4 5 │ 6 7 8          0  1 2 3 4 5 │ 6 7 8
    counts 0 1 2     0 1 1 1 2   3 4 5          symbols after a 0:  1 1  →  1 is the majority
                     0 0 1 1 1   1 1 1
                     1 1 1 2 2   2 2 2          (^ is bos)
    majority      ·  2 · · 2 02│ 0 0 0          the first output is predicted at position 5

The inputs are uniform, so no feature of them helps to predict the next input: at positions below
`n_inputs` every feature is useless for the next token. From position `n_inputs` on, where outputs
are predicted, it is useful to know the majority.

Source: paper C (Rofin et al. 2026, arXiv 2603.14087), section on toy tasks; fact sheet C3, from
which are both generative definitions, the sizes, the features and that accuracy is read from the
first output alone. Our choices: an arg-max is right when it is *one of* the most frequent symbols,
whichever of them was drawn, and there is no padding token, since all sequences are equally long.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.tasks.base import Batch, Task, register, require_int

State = tuple[bool, tuple[int, ...]]
"""Whether the last symbol was a 0, and how often each symbol counted so far."""


@register("majority")
@dataclass(frozen=True)
class Majority(Task):
    """bos, uniform inputs, then outputs: each uniform among the most frequent symbols so far.

    Outputs count too, so the first output breaks a tie for good and all later ones repeat it.

    Labels of a batch, for each of the `seq_len` positions:

    - is_majority: Bool[batch, pos, symbol], whether a symbol is among the most frequent of the
      symbols up to and including the position (all of them at bos).
    - follows_zero: Bool[batch, pos], whether the token before is a 0.

    Args:
        n_symbols: symbols 0, 1, …; token `n_symbols` is bos.
        n_inputs, n_outputs: how many symbols of each kind a sequence has.

    Raises:
        ParameterError: a value is not an integer or too small.
    """

    conditioned: ClassVar[bool] = False

    n_symbols: int = 3
    n_inputs: int = 10
    n_outputs: int = 10

    def __post_init__(self) -> None:
        require_int("n_symbols", self.n_symbols, 2)
        require_int("n_inputs", self.n_inputs, 1)
        require_int("n_outputs", self.n_outputs, 1)

    @property
    def vocab_size(self) -> int:
        return self.n_symbols + 1

    @property
    def seq_len(self) -> int:
        return 1 + self.n_inputs + self.n_outputs

    @property
    def n_random_outputs(self) -> int:
        """Outputs that may be drawn from a tie: the first."""
        return 1

    @property
    def floor(self) -> float:
        """Coin tosses among all symbols at each input, among those tied at each random output."""
        ties = Counter[int]()
        for (_, counts), weight in self._states().items():
            ties[counts.count(max(counts))] += weight
        n_sequences = self.n_symbols**self.n_inputs
        tossed = sum(weight / n_sequences * math.log(tied) for tied, weight in ties.items())
        total = self.n_inputs * math.log(self.n_symbols) + self.n_random_outputs * tossed
        return total / (self.n_inputs + self.n_outputs)

    @property
    def guess_accuracy(self) -> float:
        """Accuracy of the best constant: how often that symbol is among the most frequent."""
        hits = [0] * self.n_symbols
        for (_, counts), weight in self._states().items():
            for symbol, n in enumerate(counts):
                hits[symbol] += weight * (n == max(counts))
        return max(hits) / self.n_symbols**self.n_inputs

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Draw sequences; all `n_inputs + n_outputs` predictions count."""
        require_int("batch_size", batch_size, 1)
        shape, device = (batch_size, self.n_inputs), generator.device
        inputs = torch.randint(self.n_symbols, shape, generator=generator, device=device)
        symbols = F.one_hot(inputs, self.n_symbols)
        if self.conditioned:
            symbols = symbols * F.pad(inputs[:, :-1] == 0, (1, 0))[..., None]
        counts = symbols.cumsum(1)
        bos = torch.full((batch_size, 1), self.n_symbols, device=device)
        tokens, is_majority = [bos, inputs], [torch.ones_like(counts[:, :1]) > 0, most(counts)]
        for _ in range(self.n_outputs):
            tied = is_majority[-1][:, -1]
            noise = torch.rand(tied.shape, generator=generator, device=device)
            drawn = noise.masked_fill(~tied, -1.0).argmax(-1, keepdim=True)
            tokens.append(drawn)
            counts = counts[:, -1:] + F.one_hot(drawn, self.n_symbols) * (not self.conditioned)
            is_majority.append(most(counts))
        ids = torch.cat(tokens, dim=1)
        follows_zero = F.pad(ids[:, :-1] == 0, (1, 0))
        labels = {"is_majority": torch.cat(is_majority, dim=1), "follows_zero": follows_zero}
        return Batch(ids, torch.ones_like(ids[:, 1:], dtype=torch.bool), labels)

    def attention_target(self) -> None:
        """None: which inputs a prediction needs depends on all of them."""
        return None

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Share of sequences whose first output is said to be one of the most frequent symbols.

        Later outputs can be copied from the first, so a mean over all of them would hide a model
        that never counts.
        """
        said = logits[:, self.n_inputs].argmax(-1)
        right = F.pad(batch.labels["is_majority"][:, self.n_inputs], (0, 1))  # bos never is
        return right.gather(1, said[:, None]).float().mean().item()

    def _states(self) -> dict[State, int]:
        """Every state after the inputs with the number of input sequences that lead to it."""
        states: dict[State, int] = {(False, (0,) * self.n_symbols): 1}
        for _ in range(self.n_inputs):
            after = Counter[State]()
            for (last_was_zero, counts), weight in states.items():
                step = int(last_was_zero or not self.conditioned)
                for symbol in range(self.n_symbols):
                    new = tuple(n + step * (s == symbol) for s, n in enumerate(counts))
                    after[symbol == 0, new] += weight
            states = dict(after)
        return states


@register("conditioned_majority")
@dataclass(frozen=True)
class ConditionedMajority(Majority):
    """Only input symbols right after a 0 count, and outputs do not: each is drawn anew from a tie.

    The label `is_majority` is about these counts (all symbols where none counted yet).
    """

    conditioned: ClassVar[bool] = True

    @property
    def n_random_outputs(self) -> int:
        """Outputs that may be drawn from a tie: all of them."""
        return self.n_outputs


def most(counts: Int[Tensor, "*batch symbol"]) -> Bool[Tensor, "*batch symbol"]:
    """Which symbols have the largest count."""
    return counts == counts.amax(-1, keepdim=True)
