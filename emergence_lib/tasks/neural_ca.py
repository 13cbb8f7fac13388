"""Neural cellular automata: grids that a small random network rewrites, one sequence a network.

    grid_size 4, patch 2        a patch in reading order is one token: 1 0 / 0 2 ─► 1002

    grid 0   1 0 0 3            grid 1   1 1 0 3
             0 2 2 2   ─ rule ─►         0 2 2 0
             3 3 0 0                     3 1 0 0
             1 0 0 2                     1 0 0 2

    tokens   <  1002  322  3310    2  >  <  1102  320  3110    2  >  …      10,000 is <, 10,001 >
    counted  ·     ·    ·     ·    ·  ·  +     +    +     +    +  +         what the rule decides

    rule     3×3 convolution of the one-hot grid (4 channels) → 1×1 (16) → relu → 1×1 (colours)
             → the colour of the largest output; the grid wraps in both directions

Many random networks soon freeze or repeat a few grids; kept are those whose grids gzip cannot make
much shorter. A source for pre-pre-training: the rule has to be found in the context.

Source: Lee et al. 2026 (arXiv 2603.10055): grid, colours, network, patches, delimiters, 10 grids
left out at the start, the loss from the second grid on and the filter at 0.5 of 4-byte tokens. They
draw the next colour at a temperature of 1e-4; taking the largest output is the limit of that and
our choice, so that the next grid can be checked. Normal weights with variance 1 / fan-in, no
biases, and the order of a patch's digits are our choices.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.tasks.base import Batch, Task, register, require_int

CHANNELS = 4
HIDDEN = 16
JUDGED_GRIDS = 10
MAX_PATCHES = 100_000
MAX_ROUNDS = 50


@register("neural_ca")
@dataclass(frozen=True)
class NeuralCA(Task):
    """Grids of neural cellular automata, cut into patches; counted from the second grid on.

    Batches have the label ``rule``, float64 ``[batch, weight]``: each sequence's network, for
    `step`. Logits over 10,002 tokens take 40 MB a sequence of 988 tokens: keep batches small, the
    one for evaluation too, or take fewer colours and grids. gzip's ratios may differ by a few bytes
    between builds of zlib, and a rule at the very border of the filter then with them.

    Args:
        grid_size: rows and columns; a multiple of `patch`.
        colours: values of a cell.
        patch: rows and columns of a patch.
        n_grids: grids in a sequence; 26 are the most that fit Lee et al.'s 1,024 tokens.
        n_rules: networks in the pool, drawn once from `rule_seed`; None draws one a sequence.
        burn_in: steps from the random grid before the first grid of a sequence.
        min_ratio, max_ratio: a network is kept if its own 10 grids, as 4-byte tokens, have a gzip
            size of at least, and less than, these shares of their size. Fewer colours mean lower
            shares (the median network has 0.48 at 10 colours, 0.33 at 6, 0.17 at 4).
        rule_seed: seeds the pool; without one (``n_rules=None``) it has no effect.

    Raises:
        ParameterError: a value of the wrong type or out of range, or more than 100,000 patches.
    """

    grid_size: int = 12
    colours: int = 10
    patch: int = 2
    n_grids: int = 26
    n_rules: int | None = None
    burn_in: int = 10
    min_ratio: float = 0.5
    max_ratio: float = 1.0
    rule_seed: int = 0

    def __post_init__(self) -> None:
        lows = {"grid_size": 2, "colours": 2, "patch": 1, "n_grids": 2, "burn_in": 0}
        for name, low in (lows | {"rule_seed": 0}).items():
            require_int(name, getattr(self, name), low)
        if self.n_rules is not None:
            require_int("n_rules", self.n_rules, 1)
        if self.grid_size % self.patch:
            raise ParameterError("patch", self.patch, f"a divisor of grid_size={self.grid_size}")
        if self.colours ** (self.patch**2) > MAX_PATCHES:
            raise ParameterError(
                "colours",
                self.colours,
                f"at most {int(MAX_PATCHES ** (1 / self.patch**2) + 1e-9)} with patch={self.patch}",
                f"There are colours ** (patch ** 2) patches, {MAX_PATCHES:,} at most.",
            )
        for name in ("min_ratio", "max_ratio"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ParameterError(name, value, "a number ≥ 0")
        if self.min_ratio >= self.max_ratio:
            raise ParameterError("min_ratio", self.min_ratio, f"below max_ratio={self.max_ratio}")

    @property
    def vocab_size(self) -> int:
        """All patches and the two delimiters, which are the last two tokens."""
        return self.colours ** (self.patch**2) + 2

    @property
    def patches(self) -> int:
        """Patches in a grid."""
        return (self.grid_size // self.patch) ** 2

    @property
    def seq_len(self) -> int:
        return self.n_grids * (self.patches + 2)

    @property
    def floor(self) -> float:
        """0: who knows the rule knows every counted token. Having to find the rule costs more."""
        return 0.0

    @cached_property
    def rules(self) -> Float[Tensor, "rule weight"] | None:
        """The pool, or None where each sequence has a network of its own.

        Raises:
            ParameterError: random networks do not pass the filter.
        """
        if self.n_rules is None:
            return None
        return self._kept_rules(self.n_rules, torch.Generator().manual_seed(self.rule_seed))

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Each sequence: a network, a random grid, `burn_in` steps unseen, then its grids.

        The random grid's cells are independent, with one random distribution over colours a
        sequence (softmax of standard normals).

        Raises:
            ParameterError: random networks do not pass the filter.
        """
        require_int("batch_size", batch_size, 1)
        if self.rules is None:
            rule = self._kept_rules(batch_size, generator)
        else:
            device = generator.device
            which = torch.randint(
                len(self.rules), (batch_size,), generator=generator, device=device
            )
            rule = self.rules.to(device)[which]
        tokens = self.encode(self._run(rule, self.n_grids, generator))
        counted = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
        counted[:, : self.patches + 1] = False  # the first grid
        return Batch(tokens, counted, {"rule": rule})

    def step(
        self, grid: Int[Tensor, "batch row column"], rule: Float[Tensor, "batch weight"]
    ) -> Int[Tensor, "batch row column"]:
        """The grid that follows under each sequence's own network.

        In float64, so that sums in another order do not make another colour the largest.
        """
        n, colours = self.grid_size, self.colours
        sizes = (9 * colours * CHANNELS, CHANNELS * HIDDEN, HIDDEN * colours)
        first, second, third = rule.double().split(sizes, dim=1)
        one_hot = F.one_hot(grid.flatten(1), colours).double()
        # What each cell sends to each of its 9 neighbours (itself in the middle), then collected.
        sent = one_hot @ first.view(-1, colours, 9 * CHANNELS)
        sent = sent.view(-1, n, n, 9, CHANNELS)
        received = [
            sent[:, :, :, 3 * row + column].roll((1 - row, 1 - column), (1, 2))
            for row in range(3)
            for column in range(3)
        ]
        hidden = (
            torch.stack(received).sum(0).flatten(1, 2) @ second.view(-1, CHANNELS, HIDDEN)
        ).relu()
        return (hidden @ third.view(-1, HIDDEN, colours)).argmax(-1).view_as(grid)

    def encode(self, grids: Int[Tensor, "batch grid row column"]) -> Int[Tensor, "batch pos"]:
        """Tokens of some grids, each between delimiters, patches in reading order."""
        across = self.grid_size // self.patch
        cells = grids.unflatten(3, (across, self.patch)).unflatten(2, (across, self.patch))
        cells = cells.transpose(3, 4).flatten(4).flatten(2, 3)  # [batch, grid, patch, cell]
        inner = (cells * self._digits(grids.device)).sum(-1)
        begin = torch.full_like(inner[..., :1], self.vocab_size - 2)
        return torch.cat([begin, inner, begin + 1], dim=-1).flatten(1)

    def decode(self, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch grid row column"]:
        """The grids of whole sequences, delimiters left out."""
        inner = tokens.view(len(tokens), -1, self.patches + 2)[..., 1:-1]
        cells = inner[..., None] // self._digits(tokens.device) % self.colours
        across, grid = self.grid_size // self.patch, (self.grid_size, self.grid_size)
        cells = cells.unflatten(3, (self.patch, self.patch)).unflatten(2, (across, across))
        return cells.transpose(3, 4).reshape(*cells.shape[:2], *grid)

    def attention_target(self) -> Bool[Tensor, "query key"]:
        """The query that predicts a patch needs it and its 8 neighbours in the grid before.

        Delimiters need none: their place tells them. What else is read to find the rule has no
        fixed place and is left out.
        """
        across, length = self.grid_size // self.patch, self.patches + 2
        near = torch.zeros(across, across, dtype=torch.bool)
        for away in (-1, 0, 1):
            near |= torch.eye(across, dtype=torch.bool).roll(away, 1)
        needs = torch.zeros(length, length, dtype=torch.bool)
        needs[1:-1, 1:-1] = torch.kron(near.int(), near.int()).bool()
        target = torch.zeros(self.seq_len, self.seq_len, dtype=torch.bool)
        for g in range(1, self.n_grids):
            here, before = g * length, (g - 1) * length
            target[here - 1 : here + length - 1, before : before + length] = needs
        return target[:-1, :-1]

    def accuracy(self, logits: Float[Tensor, "batch pos vocab"], batch: Batch) -> float:
        """Share of right patches from the second grid on, delimiters left out."""
        length = self.patches + 2
        right = logits[:, length - 1 :].argmax(-1) == batch.tokens[:, length:]
        return right.view(len(right), -1, length)[..., 1:-1].float().mean().item()

    def gzip_ratio(self, grids: Int[Tensor, "batch grid row column"]) -> Float[Tensor, " batch"]:
        """Size of the gzipped patches (little-endian int32, no delimiters) over their own size."""
        inner = self.encode(grids).view(len(grids), -1, self.patches + 2)[..., 1:-1]
        texts = [row.tobytes() for row in inner.cpu().numpy().astype("<i4")]
        return torch.tensor([len(gzip.compress(text, mtime=0)) / len(text) for text in texts])

    def _run(
        self, rule: Float[Tensor, "batch weight"], n_grids: int, generator: torch.Generator
    ) -> Int[Tensor, "batch grid row column"]:
        """Grids from a random one on, without the first `burn_in`."""
        shape = (len(rule), self.colours)
        weights = torch.randn(shape, generator=generator, device=rule.device).softmax(1)
        cells = torch.multinomial(weights, self.grid_size**2, replacement=True, generator=generator)
        grid = cells.view(-1, self.grid_size, self.grid_size)
        for _ in range(self.burn_in):
            grid = self.step(grid, rule)
        grids = [grid]
        for _ in range(n_grids - 1):
            grids.append(self.step(grids[-1], rule))
        return torch.stack(grids, dim=1)

    def _kept_rules(self, n: int, generator: torch.Generator) -> Float[Tensor, "rule weight"]:
        """The first `n` random networks whose own grids pass the filter."""
        fan_in = np.repeat(
            [9 * self.colours, CHANNELS, HIDDEN],
            [9 * self.colours * CHANNELS, CHANNELS * HIDDEN, HIDDEN * self.colours],
        )
        scale = torch.from_numpy(fan_in**-0.5).to(generator.device)
        kept: list[Tensor] = []
        for _ in range(MAX_ROUNDS):
            noise = torch.randn(
                max(n, 32),
                len(scale),
                generator=generator,
                device=generator.device,
                dtype=torch.float64,
            )
            rule = noise * scale
            ratio = self.gzip_ratio(self._run(rule, JUDGED_GRIDS, generator))
            passed = (ratio >= self.min_ratio) & (ratio < self.max_ratio)
            kept.append(rule[passed.to(rule.device)])
            if sum(map(len, kept)) >= n:
                return torch.cat(kept)[:n]
        raise ParameterError(
            "min_ratio, max_ratio",
            (self.min_ratio, self.max_ratio),
            "a range in which random networks fall",
            f"Of {MAX_ROUNDS * max(n, 32):,} only {sum(map(len, kept)):,} did; widen it.",
        )

    def _digits(self, device: torch.device) -> Int[Tensor, " cell"]:
        """What one step of each cell of a patch adds to its token."""
        return self.colours ** torch.arange(self.patch**2 - 1, -1, -1, device=device)
