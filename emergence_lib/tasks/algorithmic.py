"""Eight algorithmic tasks in three levels each, over one set of tokens.

    COPY 1   copy 3 7 = 3 7                 the digits again
    REV 1    rev 3 7 = 7 3                  in reverse order
    CMP 2    cmp 1 2 | 0 9 = 1              1 where the first number is the larger one, else 0
    PAR 1    par 1 0 1 1 0 0 1 = 0          parity of the bits
    ADD 1    add 7 | 5 = 1 2                the sum, with leading zeros
    MOD 2    mod 0 9 | 1 2 | 1 7 = 0 4      (a + b) mod p; p is the same throughout a level
    SORT 1   sort 5 2 9 = 2 5 9             the digits in ascending order
    MUL 1    mul 7 | 8 = 5 6                the product, with leading zeros

Only the tokens after "=" count in the loss, and a sequence is right only when all of them are
(exact match). Under teacher forcing that is the same as the exact match of greedy decoding: up to
its first wrong token both see the same sequence.

Source: paper B (arXiv 2602.15997; fact sheet B1) names the eight tasks and that each has three
levels. Formats, levels, tokens and that digits are written most significant first are our choices:
sequences of at most 14 tokens, so that a model of 404,992 parameters trains in minutes on one core.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from math import factorial
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.tasks.base import Batch, Task, register, require_int

LEVELS = (1, 2, 3)
N_DIGITS = 10
ALGORITHMS = ("copy", "rev", "cmp", "par", "add", "mod", "sort", "mul")
"""The eight tasks in the paper's order; token ``10 + i`` opens a sequence of task i."""

SEPARATOR = N_DIGITS + len(ALGORITHMS)
EQUALS = SEPARATOR + 1
PAD = SEPARATOR + 2
VOCAB_SIZE = SEPARATOR + 3
"""Ten digits, eight task tokens, "|", "=" and padding after the answer."""


@dataclass(frozen=True)
class Algorithm(Task):
    """One task-level: ``task token, operands, "=", answer``, all sequences of the same length.

    Args:
        level: 1, 2 or 3; longer or larger operands the higher it is.

    Raises:
        ParameterError: `level` is not 1, 2 or 3.
    """

    level: int = 1

    def __post_init__(self) -> None:
        require_int("level", self.level, LEVELS[0], LEVELS[-1])

    @property
    def label(self) -> str:
        """As papers write it: "MOD 2"."""
        return f"{self.name.upper()} {self.level}"

    @property
    @abstractmethod
    def operand_tokens(self) -> int:
        """Tokens between the task token and "="."""

    @property
    @abstractmethod
    def answer_tokens(self) -> int:
        """Tokens after "="."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Exact-match accuracy of the best answer that ignores the operands."""

    @abstractmethod
    def draw(
        self, n: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "sample operand"], Int[Tensor, "sample answer"]]:
        """Tokens of `n` operands and their answers, on the generator's device."""

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def prompt_end(self) -> int:
        """Position of "=", whose prediction is the first token of the answer."""
        return 1 + self.operand_tokens

    @property
    def seq_len(self) -> int:
        return self.prompt_end + 1 + self.answer_tokens

    @property
    def floor(self) -> float:
        """0: the answer follows from the prompt."""
        return 0.0

    def sequences(self, n: int, generator: torch.Generator) -> Int[Tensor, "sample pos"]:
        """`n` whole sequences."""
        operands, answer = self.draw(n, generator)
        head = operands.new_full((n, 1), N_DIGITS + ALGORITHMS.index(self.name))
        return torch.cat([head, operands, operands.new_full((n, 1), EQUALS), answer], dim=1)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Fresh sequences; only the predictions of the answer count."""
        require_int("batch_size", batch_size, 1)
        tokens = self.sequences(batch_size, generator)
        counted = torch.zeros_like(tokens[:, 1:], dtype=torch.bool)
        counted[:, self.prompt_end :] = True
        return Batch(tokens, counted)

    def attention_target(self) -> None:
        """None: what a position needs is the model's to choose (carries, counting, look-up)."""

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Exact match: share of sequences whose answer is right in every token."""
        return exact_match(logits, batch).float().mean().item()


def exact_match(logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> Bool[Tensor, " batch"]:
    """Whether every counted token of a sequence is the arg-max prediction."""
    right = logits.argmax(-1) == batch.tokens[:, 1:]
    return (right | ~batch.loss_mask).all(1)


def digits(numbers: Int[Tensor, " sample"], width: int) -> Int[Tensor, "sample width"]:
    """Decimal digits, most significant first, with leading zeros."""
    powers = torch.tensor([10**i for i in reversed(range(width))], device=numbers.device)
    return numbers[:, None] // powers % 10


def uniform(
    low: int, high: int, shape: tuple[int, ...], generator: torch.Generator
) -> Int[Tensor, ...]:
    """Integers from `low` to `high`, both included."""
    return torch.randint(low, high + 1, shape, generator=generator, device=generator.device)


def joined(
    parts: tuple[Int[Tensor, "sample _"], ...],
) -> Int[Tensor, "sample operand"]:
    """Operands with "|" between them."""
    bar = parts[0].new_full((len(parts[0]), 1), SEPARATOR)
    return torch.cat([piece for part in parts for piece in (bar, part)][1:], dim=1)


@dataclass(frozen=True)
class DigitList(Algorithm):
    """A list of uniform digits in, a list as long out."""

    lengths: ClassVar[tuple[int, int, int]] = (2, 4, 6)

    @property
    def operand_tokens(self) -> int:
        return self.lengths[self.level - 1]

    @property
    def answer_tokens(self) -> int:
        return self.operand_tokens

    @property
    def chance(self) -> float:
        return N_DIGITS**-self.operand_tokens

    @abstractmethod
    def answer(self, given: Int[Tensor, "sample operand"]) -> Int[Tensor, "sample answer"]:
        """The list that the answer is."""

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        given = uniform(0, N_DIGITS - 1, (n, self.operand_tokens), generator)
        return given, self.answer(given)


@register("copy")
@dataclass(frozen=True)
class Copy(DigitList):
    """2, 4 or 6 digits again."""

    def answer(self, given: Int[Tensor, "sample operand"]) -> Int[Tensor, "sample answer"]:
        return given


@register("rev")
@dataclass(frozen=True)
class Reverse(DigitList):
    """2, 4 or 6 digits in reverse order."""

    def answer(self, given: Int[Tensor, "sample operand"]) -> Int[Tensor, "sample answer"]:
        return given.flip(1)


@register("sort")
@dataclass(frozen=True)
class Sort(DigitList):
    """3, 4 or 6 digits in ascending order."""

    lengths = (3, 4, 6)

    @property
    def chance(self) -> float:
        """Of any answer with distinct digits, which are the most frequent ones."""
        return factorial(self.operand_tokens) / N_DIGITS**self.operand_tokens

    def answer(self, given: Int[Tensor, "sample operand"]) -> Int[Tensor, "sample answer"]:
        return given.sort(dim=1).values


@register("cmp")
@dataclass(frozen=True)
class Compare(Algorithm):
    """Which of two different numbers of 1, 2 or 4 digits is larger; both answers equally often."""

    @property
    def width(self) -> int:
        """Digits of each number."""
        return (1, 2, 4)[self.level - 1]

    @property
    def operand_tokens(self) -> int:
        return 2 * self.width + 1

    @property
    def answer_tokens(self) -> int:
        return 1

    @property
    def chance(self) -> float:
        return 0.5

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        size = 10**self.width
        a = uniform(0, size - 1, (n,), generator)
        b = (a + uniform(1, size - 1, (n,), generator)) % size  # any number but a
        return joined((digits(a, self.width), digits(b, self.width))), (a > b).long()[:, None]


@register("par")
@dataclass(frozen=True)
class Parity(Algorithm):
    """Parity of 7, 8 or 10 uniform bits."""

    @property
    def operand_tokens(self) -> int:
        return (7, 8, 10)[self.level - 1]

    @property
    def answer_tokens(self) -> int:
        return 1

    @property
    def chance(self) -> float:
        return 0.5

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        bits = uniform(0, 1, (n, self.operand_tokens), generator)
        return bits, bits.sum(1, keepdim=True) % 2


@register("add")
@dataclass(frozen=True)
class Add(Algorithm):
    """Sum of two numbers of 1, 2 or 3 digits, in one digit more."""

    @property
    def operand_tokens(self) -> int:
        return 2 * self.level + 1

    @property
    def answer_tokens(self) -> int:
        return self.level + 1

    @property
    def chance(self) -> float:
        """Of the sum 9, 99 or 999, which the most pairs have."""
        return 10**-self.level

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        a, b = uniform(0, 10**self.level - 1, (2, n), generator)
        operands = joined((digits(a, self.level), digits(b, self.level)))
        return operands, digits(a + b, self.level + 1)


@register("mod")
@dataclass(frozen=True)
class Modular(Algorithm):
    """(a + b) mod p for residues a and b, with p = 11, 17 or 31, all in two digits."""

    @property
    def modulus(self) -> int:
        """p, which the prompt states."""
        return (11, 17, 31)[self.level - 1]

    @property
    def operand_tokens(self) -> int:
        return 8

    @property
    def answer_tokens(self) -> int:
        return 2

    @property
    def chance(self) -> float:
        return 1 / self.modulus

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        a, b = uniform(0, self.modulus - 1, (2, n), generator)
        modulus = torch.full_like(a, self.modulus)
        operands = joined((digits(a, 2), digits(b, 2), digits(modulus, 2)))
        return operands, digits((a + b) % self.modulus, 2)


@register("mul")
@dataclass(frozen=True)
class Multiply(Algorithm):
    """Product of numbers from 1: 1 by 1, 2 by 1 or 2 by 2 digits."""

    @property
    def widths(self) -> tuple[int, int]:
        """Digits of the two factors."""
        return ((1, 1), (2, 1), (2, 2))[self.level - 1]

    @property
    def operand_tokens(self) -> int:
        return sum(self.widths) + 1

    @property
    def answer_tokens(self) -> int:
        return sum(self.widths)

    @property
    def chance(self) -> float:
        """Of the product that the most pairs of factors have."""
        first, second = (range(1, 10**width) for width in self.widths)
        products = Counter(a * b for a in first for b in second)
        return max(products.values()) / (len(first) * len(second))

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        a, b = (uniform(1, 10**width - 1, (n,), generator) for width in self.widths)
        operands = joined((digits(a, self.widths[0]), digits(b, self.widths[1])))
        return operands, digits(a * b, self.answer_tokens)
