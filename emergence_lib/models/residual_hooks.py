"""The residual stream of a causal language model of `transformers`, by this book's names.

    resid.0    what enters the first decoder layer
    resid.k    what leaves decoder layer k, counted from 1: Gemma Scope's "layer 15" is resid.16

With it `analysis.features` reads Gemma 2 as it reads our own models. Nothing is loaded here; the
caller brings the model.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch.nn as nn
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models.transformer import Edit, Recorder, Tap

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HookedCausalLM(nn.Module):
    """A language model that is called like a `Transformer`, with taps and edits of ``resid.k``.

    Args:
        hf_model: one whose decoder layers are a list called ``layers`` and hand on the residual
            stream: Gemma, Llama, GPT-NeoX and their like.

    Raises:
        ParameterError: no such list, or more than one.
    """

    def __init__(self, hf_model: PreTrainedModel) -> None:
        super().__init__()
        self.hf_model = hf_model
        lists = [
            module
            for name, module in hf_model.named_modules()
            if name.split(".")[-1] == "layers" and isinstance(module, nn.ModuleList)
        ]
        if len(lists) != 1:
            raise ParameterError(
                "hf_model",
                type(hf_model).__name__,
                f"a model with one list of decoder layers; this one has {len(lists)}",
            )
        (self.layers,) = lists

    def tap_names(self) -> tuple[str, ...]:
        """Every name that `tap` and `edit` accept for this model."""
        return tuple(f"resid.{k}" for k in range(len(self.layers) + 1))

    def forward(
        self, tokens: Int[Tensor, "batch pos"], *, tap: Tap | None = None, edit: Edit | None = None
    ) -> Float[Tensor, "batch pos vocab"]:
        """Logits for the next token at every position; `tap` and `edit` as in `Transformer`.

        Raises:
            UnknownNameError: a tap or edit this model does not have (the nearest is named).
            ParameterError: an edit that changes a shape.
        """
        for name in (*(tap or ()), *(edit or ())):
            if name not in self.tap_names():
                raise UnknownNameError("tap", name, self.tap_names())
        record = Recorder(tap, edit)

        def before_first(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (record("resid.0", args[0]), *args[1:])

        def after(name: str) -> Any:
            def hook(layer: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
                if isinstance(out, tuple):  # older layers hand on more than the residual stream
                    return (record(name, out[0]), *out[1:])
                return record(name, out)

            return hook

        with ExitStack() as hooks:
            if record.wants("resid.0"):
                handle = self.layers[0].register_forward_pre_hook(before_first)
                hooks.callback(handle.remove)
            for k, layer in enumerate(self.layers, start=1):
                if record.wants(f"resid.{k}"):
                    handle = layer.register_forward_hook(after(f"resid.{k}"))
                    hooks.callback(handle.remove)
            return self.hf_model(input_ids=tokens, use_cache=False).logits
