"""Two complete models in one context: positions before a cut use the first, the rest the second.

    position      0   1   2 │ 3   4   5         cut = 3
    weights       first     │ second
    attends to    0 … 2     │ 0 … 2 of the first, 3 … of the second

No weight learned at positions before the cut is used after it, so a feature there cannot be the
by-product of a use elsewhere ("m-untied", m the cut). With ``TrainConfig(myopic=True)`` on top no
gradient reaches a position from later ones either. The four ablations of paper C:

                          plain weights            untied weights
    ordinary gradients    plain                    no sharing across the cut
    myopic gradients      no pre-caching           neither

Source: paper C (Rofin et al. 2026, arXiv 2603.14087), section on ablations; fact sheet C2. All
weights of a transformer act on each position by itself, and the attention core has none. So two
models in one context are one `Transformer` whose maps are split by position, and taps, edits,
myopic gradients and attention bias work as they do there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn as nn
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.models.transformer import ModelConfig, Transformer


@dataclass(frozen=True)
class UntiedConfig(ModelConfig):
    """Shape of an `Untied` model: a `ModelConfig` for each of the two, and where they meet.

    Args:
        cut: m, the first position of the second model; from 1 to ``max_pos - 1``.

    Raises:
        ParameterError: `cut` out of range, or a mixer other than attention, whose own weights act
            across positions.
    """

    cut: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.cut, bool) or not isinstance(self.cut, int):
            raise ParameterError("cut", self.cut, "an integer")
        if not 1 <= self.cut < self.max_pos:
            raise ParameterError("cut", self.cut, f"from 1 to max_pos - 1 = {self.max_pos - 1}")
        if set(self.mixers) != {"attention"}:
            raise ParameterError("mixer", self.mixer, "'attention' where weights are untied")

    def build(self, generator: torch.Generator | None = None) -> Transformer:
        return Untied(self, generator)


class ByPosition(nn.Module):
    """Two maps of single positions, one before the cut and one from it on."""

    def __init__(self, first: nn.Module, second: nn.Module, cut: int) -> None:
        super().__init__()
        self.first, self.second, self.cut = first, second, cut

    def forward(self, x: Shaped[Tensor, "batch pos *d"]) -> Shaped[Tensor, "batch pos *d_out"]:
        return torch.cat([self.first(x[:, : self.cut]), self.second(x[:, self.cut :])], dim=1)


class Untied(Transformer):
    """A `Transformer` whose every map is a `ByPosition`; used wherever a Transformer is.

    Position embeddings need no second table: a row belongs to one position already.

    Args:
        config: the shape and the cut.
        generator: source of both models' weights, which are independent; None means seed 0.
    """

    def __init__(self, config: UntiedConfig, generator: torch.Generator | None = None) -> None:
        generator = generator or torch.Generator().manual_seed(0)
        super().__init__(config, generator)
        second = Transformer(config, generator)
        for name in self._maps():
            pair = self.get_submodule(name), second.get_submodule(name)
            self.set_submodule(name, ByPosition(*pair, config.cut))

    def residual(
        self,
        tokens: Int[Tensor, "batch pos"],
        n_blocks: int,
        *,
        last_only: bool = False,
        **options: Any,
    ) -> Float[Tensor, "batch query d_model"]:
        # All positions are computed: a map tells them apart by their place in the whole.
        x = super().residual(tokens, n_blocks, **options)
        return x[:, -1:] if last_only else x

    def _maps(self) -> tuple[str, ...]:
        """Every module that acts on each position by itself."""
        parts = ("norm1", "mixer.qkv", "mixer.out", "norm2", "mlp")
        in_blocks = (f"blocks.{n}.{part}" for n in range(self.config.n_layers) for part in parts)
        return ("embed", *in_blocks, "final_norm", "unembed")
