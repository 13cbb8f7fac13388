"""A model that starts with the blocks of another, trained one, and embeddings of its own.

    trained on the source task     embed ─► blocks ─► final norm ─► unembed
                                              │            │
                                              ▼            ▼
    starts on the next task        embed ─► blocks ─► final norm ─► unembed
                                    fresh                            fresh

Source: Lee et al. 2026 (arXiv 2603.10055) re-initialise the embeddings on transfer, since the two
tasks share no tokens. That the final norm moves with the blocks is our choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field

import torch
from torch import Tensor

from emergence_lib.errors import ParameterError
from emergence_lib.models.transformer import ModelConfig, Transformer

MOVED = ("blocks.", "final_norm.")
"""Beginnings of the names of the parameters that move."""


def moved_parameters(model: Transformer) -> dict[str, Tensor]:
    """Copies of the parameters that move to another task, by name."""
    return {
        name: value.detach().clone()
        for name, value in model.state_dict().items()
        if name.startswith(MOVED)
    }


@dataclass(frozen=True)
class TransferredConfig(ModelConfig):
    """A shape whose fresh models have the blocks of a trained model.

    Args:
        moved: what `moved_parameters` gives for that model. Required.
        start: set from `moved`: 16 hex digits of the hash of names and numbers, which tell runs
            with different starts apart.

    Raises (when built):
        ParameterError: `moved` is not the blocks and final norm of a model of this shape.
    """

    moved: InitVar[Mapping[str, Tensor] | None] = None
    start: str = field(init=False, default="")

    def __post_init__(self, moved: Mapping[str, Tensor] | None) -> None:
        super().__post_init__()
        parts = {} if moved is None else {name: t.detach().cpu() for name, t in moved.items()}
        digest = hashlib.sha256()
        for name in sorted(parts):
            digest.update(name.encode() + parts[name].contiguous().numpy().tobytes())
        object.__setattr__(self, "start", digest.hexdigest()[:16])
        object.__setattr__(self, "_moved", parts)

    def build(self, generator: torch.Generator | None = None) -> Transformer:
        """A fresh model, embeddings and unembedding drawn from `generator`, the rest as trained."""
        model = Transformer(self, generator)
        moved: dict[str, Tensor] = self._moved  # type: ignore[attr-defined]
        own = {n: p.shape for n, p in model.state_dict().items() if n.startswith(MOVED)}
        given = {name: value.shape for name, value in moved.items()}
        if given != own:
            raise ParameterError(
                "moved",
                f"{len(given)} parameters",
                f"the {len(own)} of blocks and final norm of a model of this shape",
            )
        model.load_state_dict(moved, strict=False)
        return model
