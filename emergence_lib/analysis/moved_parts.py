"""Parts of one checkpoint put into another: which of them carry what was learned in between.

A *receiver* runs on some sequences and is given a part of a *donor* of the same shape, in every
layer and at every position:

    donor      tokens ─► … pattern, v ─► mixer_out ─► mlp_out ─► …
                             │               what the donor computed on the same sequences
                             ▼               is put in place of the receiver's own
    receiver   tokens ─► … pattern, v ─► mixer_out ─► mlp_out ─► … ─► logits

Or the weights move: the receiver computes the part from its own stream with the donor's parameters.
Outputs say what a part contributed; weights, whether it works on a stream that is not its own.

`analysis.patching` moves single heads and asks for the token after a prompt; here whole parts move
and every position's prediction counts, as in the toy tasks. Which parts to move is our choice
(fact sheet A, "related results": independent replications move values and MLP too).
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models.transformer import Tap, Transformer

OUTPUTS = {
    "patterns": ("pattern",),
    "values": ("v",),
    "patterns and values": ("pattern", "v"),
    "attention block": ("mixer_out",),
    "MLP": ("mlp_out",),
    "attention block and MLP": ("mixer_out", "mlp_out"),
}
"""Part → the taps of a layer whose values move; the attention block is its output, so with the
output projection."""

WEIGHTS = {
    "weights of attention": ("norm1.", "mixer."),
    "weights of MLP": ("norm2.", "mlp."),
    "weights of attention and MLP": ("norm1.", "mixer.", "norm2.", "mlp."),
}
"""Part → beginnings of the names of a block's parameters that move, each part with its norm."""

PARTS = (*OUTPUTS, *WEIGHTS)


@torch.no_grad()
def logits_with(
    receiver: Transformer, donor: Transformer, tokens: Int[Tensor, "batch pos"], part: str
) -> Float[Tensor, "batch pos vocab"]:
    """Logits of `receiver` with `part` taken from `donor`.

    Args:
        receiver, donor: two checkpoints of one shape, with attention in every layer.
        tokens: int64 inputs.
        part: one of `PARTS`.

    Raises:
        UnknownNameError: an unknown part (the nearest is named).
        ParameterError: the models differ in shape.
    """
    if part not in PARTS:
        raise UnknownNameError("part", part, PARTS)
    shapes = [[p.shape for p in model.parameters()] for model in (receiver, donor)]
    if shapes[0] != shapes[1] or receiver.config.mixers != donor.config.mixers:
        raise ParameterError("donor.config", donor.config, "of the receiver's shape and mixers")
    if part in WEIGHTS:
        return _with_weights(receiver, donor, tokens, WEIGHTS[part])
    layers = range(receiver.config.n_layers)
    tap: Tap = {f"{name}.{layer}": None for name in OUTPUTS[part] for layer in layers}
    donor(tokens, tap=tap)
    edit = {name: partial(_instead, value) for name, value in tap.items() if value is not None}
    return receiver(tokens, edit=edit)


def _instead(theirs: Tensor, _own: Tensor) -> Tensor:
    return theirs


def _with_weights(
    receiver: Transformer,
    donor: Transformer,
    tokens: Int[Tensor, "batch pos"],
    beginnings: tuple[str, ...],
) -> Float[Tensor, "batch pos vocab"]:
    """Logits of the receiver with those parameters of its blocks that begin so, the donor's."""
    theirs = dict(donor.named_parameters())
    moved: dict[str, Tensor] = {}
    for name, own in receiver.named_parameters():
        in_block = name.split(".", 2)[2] if name.startswith("blocks.") else ""
        moved[name] = theirs[name] if in_block.startswith(beginnings) else own
    logits: Tensor = torch.func.functional_call(receiver, moved, (tokens,))
    return logits


def target_probability(
    logits: Float[Tensor, "batch pos vocab"], tokens: Int[Tensor, "batch pos_and_one"]
) -> Float[Tensor, "batch pos"]:
    """Probability given to each next token.

    Args:
        logits: of all tokens but the last.
        tokens: whole sequences.
    """
    return logits.softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
