"""Attention patching: which heads carry what a model learned between two checkpoints.

*pre* is the last checkpoint that fails a prompt, *post* the first that solves it (paper A, Pythia
section). One head's attention map is taken from post and put into pre on the same prompt; Δp is the
change of the target's probability. Heads are ranked by Δp and the top K put in together:

    post   When Mary and John … gave a drink to ─► pattern of head (4, 7) ──┐
                                                                            ▼
    pre    When Mary and John … gave a drink to ─► layers 0–3 ─► layer 4 with it ─► … ─► p(Mary)

Three parts of a head can be moved, at all positions:

    pattern   where it looks: attention after the softmax. The values stay pre's. (The paper's.)
    v         what is there to be read: values, read with pre's pattern
    z         both at once: the head's output before the output projection

Moving one head costs a forward pass, so a loop over heads costs layers × heads of them. Here the
residual streams of all patched heads go up together as one batch that gains a layer's heads at each
layer. What lies below a patch is computed once, a head's own layer only as far as it changes (its
output is added linearly; with a parallel residual the MLP never sees it), and the last layer's MLP
and the unembedding only at the last position.

Reverse control: exchange `pre` and `post`. Random control: `random_order` in place of `rank_heads`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import cast

import torch
import torch.nn as nn
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models.transformer import Block, Recorder, Tap, Transformer
from emergence_lib.tasks.base import require_int

Head = tuple[int, int]
"""Layer and head, both from 0."""

COMPONENTS = ("pattern", "v", "z")

MIN_GAP = 1e-3
"""Smallest mean difference of p(target) between pre and post of which a fraction means anything."""

CHUNK = 2**22
"""Numbers in the largest activation computed at once: stays in a CPU's cache, fills its units."""

STORED = 2**26
"""Numbers in all residual streams kept at once: 256 MiB in float32."""


@torch.no_grad()
def patch_heads(
    pre: Transformer,
    post: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    target: Int[Tensor, " prompt"],
    component: str = "pattern",
) -> Float[Tensor, "prompt n_layers n_heads"]:
    """Δp of the target when one head's `component` moves from `post` into `pre`, for every head.

    Args:
        pre, post: two checkpoints of one shape; heads are matched by (layer, head).
        tokens: int64 prompts of one length.
        target: int64, the token whose probability after the last position counts.
        component: "pattern", "v" or "z".

    Returns:
        p(target) with the patch minus p(target) of `pre`, in the models' dtype. Exactly 0 for a
        head whose output is the same with the patch, so everywhere if `post` equals `pre`.

    Raises:
        ParameterError: the models differ in shape or have other mixers than attention; tokens or
            targets outside the vocabulary, too many positions, not one target a prompt.
        UnknownNameError: an unknown component (the nearest is named).

    Source: paper A, Pythia section; post-softmax and at all positions is our reading.
    """
    _require_patchable(pre, post, tokens, target, component)
    config = pre.config
    streams = config.n_layers * config.n_heads * tokens.shape[1] * config.d_model
    chunks = _pairs(tokens, target, STORED, streams)
    return torch.cat([_patch_heads(pre, post, *chunk, component) for chunk in chunks])


@torch.no_grad()
def patch_top_k(
    pre: Transformer,
    post: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    target: Int[Tensor, " prompt"],
    order: Sequence[Head],
    ks: Sequence[int],
    component: str = "pattern",
) -> Float[Tensor, "k prompt"]:
    """p(target) of `pre` with the first K heads of `order` taken from `post`, for every K in `ks`.

    All layers are computed with the patches below them in place: what moves is what `post` has in
    its own run, what does not is computed anew.

    Args:
        order: (layer, head) pairs without repeats, as `rank_heads` or `random_order` give them.
        ks: numbers of heads from 0 (`pre` itself) to ``len(order)``, in any order.
        pre, post, tokens, target, component: as for `patch_heads`.

    Raises:
        ParameterError: as `patch_heads`; a head that the models lack or that comes twice; a K out
            of range.
        UnknownNameError: an unknown component (the nearest is named).

    Source: paper A, Pythia section: K = 16 recovers most of the gap.
    """
    _require_patchable(pre, post, tokens, target, component)
    _require_order(pre, order, ks)
    config, n_pos = pre.config, tokens.shape[1]
    recorded = config.n_layers * n_pos * (config.n_heads * n_pos + config.d_model)
    chunks = _pairs(tokens, target, STORED, recorded)
    found = [_patch_top_k(pre, post, *chunk, order, ks, component) for chunk in chunks]
    return torch.cat(found, dim=1)


@torch.no_grad()
def target_probability(
    model: Transformer, tokens: Int[Tensor, "prompt pos"], target: Int[Tensor, " prompt"]
) -> Float[Tensor, " prompt"]:
    """Probability that `model` gives to the target as the token after the last position.

    Raises:
        ParameterError: tokens or targets outside the vocabulary, too many positions, not one target
            a prompt.
    """
    _require_prompts(model, tokens, target)
    chunks = _split(tokens, CHUNK, _widest(model, tokens))
    streams = [_run(model, chunk, Recorder(None, None)) for chunk in chunks]
    return _read_out(model, torch.cat(streams), target)


def rank_heads(delta: Float[Tensor, "*prompt n_layers n_heads"]) -> list[Head]:
    """Heads from the largest mean Δp over prompts to the smallest; ties in order of layer and head.

    Ranked by signed Δp: a head that lowers p(target) comes last, however much it lowers it.
    """
    mean = delta.flatten(0, -3).mean(0) if delta.ndim > 2 else delta
    by_size = mean.flatten().argsort(descending=True, stable=True).tolist()
    return [divmod(index, mean.shape[1]) for index in by_size]


def random_order(n_layers: int, n_heads: int, generator: torch.Generator) -> list[Head]:
    """All heads in random order: the control for a ranking."""
    shuffled = torch.randperm(n_layers * n_heads, generator=generator).tolist()
    return [divmod(index, n_heads) for index in shuffled]


def recovered_fraction(
    p_patched: Float[Tensor, "*k prompt"],
    p_pre: Float[Tensor, "*k prompt"],
    p_post: Float[Tensor, "*k prompt"],
) -> Float[Tensor, "*k"]:
    """Share of the way from pre to post that a patch goes: 0 is pre, 1 is post, beyond is possible.

        mean over prompts of (p_patched - p_pre)  /  mean over prompts of (p_post - p_pre)

    A ratio of means, so that a prompt on which pre and post agree weighs nothing in it instead of
    dividing by zero. NaN where the mean gap is below `MIN_GAP` in size. With pre and post exchanged
    (reverse control) it is the share of the way down.

    Args:
        p_patched, p_pre, p_post: probabilities from 0 to 1, prompts last; leading dimensions
            broadcast, so bootstrap samples of prompts can be stacked in front.

    Raises:
        ParameterError: different numbers of prompts.

    Source: our choice; the paper shows recovered probabilities without a formula.
    """
    for name, p in (("p_pre", p_pre), ("p_post", p_post)):
        if p.shape[-1:] != p_patched.shape[-1:]:
            raise ParameterError(
                f"{name}.shape", tuple(p.shape), f"[…, prompt={p_patched.shape[-1]}] as p_patched"
            )
    gap = (p_post - p_pre).mean(-1)
    return ((p_patched - p_pre).mean(-1) / gap).masked_fill(gap.abs() < MIN_GAP, torch.nan)


def _patch_heads(
    pre: Transformer,
    post: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    target: Int[Tensor, " prompt"],
    component: str,
) -> Float[Tensor, "prompt n_layers n_heads"]:
    """`patch_heads` on few enough prompts."""
    config = pre.config
    own, own_stream = _record(pre, tokens, ("resid", "pattern", "v", "z", "mixer_out"))
    other, _ = _record(post, tokens, ("pattern", component))  # explicit attention in both
    streams: Sequence[Tensor] = ()  # rows: the heads of all layers so far × prompts
    unchanged = []
    for layer, block in enumerate(_blocks(pre)):
        if component == "z":
            z = other[f"z.{layer}"]
        else:  # the product that gives z within the model, so that equal factors give equal bits
            source = {"pattern": own, "v": own, component: other}
            z = source["pattern"][f"pattern.{layer}"] @ source["v"][f"v.{layer}"]
            z = z.transpose(1, 2)
        change = (z - own[f"z.{layer}"]).permute(2, 0, 1, 3)  # [head, prompt, pos, d_head]
        unchanged.append((change == 0).flatten(2).all(-1))
        projection = block.mixer.out.weight.T.unflatten(0, (config.n_heads, 1, -1))
        mixed = own[f"mixer_out.{layer}"] + change @ projection
        used = _used_positions(pre, layer)
        patched = _after_mixer(block, own[f"resid.{layer}"][:, used], mixed[:, :, used])
        below = (_block(block, rows, Recorder(None, None), used) for rows in streams)
        streams = _split(torch.cat([*below, patched.flatten(0, 1)]), CHUNK, _widest(pre, tokens))
    no_effect = torch.cat(unchanged)  # [layer · head, prompt]
    p = _read_out(pre, torch.cat([*streams]).squeeze(1), target.repeat(len(no_effect)))
    delta = p.view(no_effect.shape) - _read_out(pre, own_stream, target)
    # A patch that changes nothing gives 0, not the rounding of another batch size.
    delta = delta.masked_fill(no_effect, 0)
    return delta.T.unflatten(1, (config.n_layers, config.n_heads))


def _patch_top_k(
    pre: Transformer,
    post: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    target: Int[Tensor, " prompt"],
    order: Sequence[Head],
    ks: Sequence[int],
    component: str,
) -> Float[Tensor, "k prompt"]:
    """`patch_top_k` on few enough prompts."""
    config = pre.config
    other, _ = _record(post, tokens, (component,))
    place = torch.full((config.n_layers, config.n_heads), len(order))
    for i, head in enumerate(order):
        place[head] = i
    rows = torch.cartesian_prod(torch.tensor(ks), torch.arange(len(tokens)))
    streams = []
    for some in _split(rows, CHUNK, _widest(pre, tokens)):
        k, prompt = some.T
        edit: dict[str, Callable[[Tensor], Tensor]] = {}
        for layer in range(config.n_layers):
            name = f"{component}.{layer}"
            moved = (place[layer] < k[:, None]).to(tokens.device)  # [row, head]
            moved = moved[:, None, :, None] if component == "z" else moved[:, :, None, None]
            edit[name] = partial(_exchange, moved, other[name][prompt])
        streams.append(_run(pre, tokens[prompt], Recorder(None, edit)))
    return _read_out(pre, torch.cat(streams), target.repeat(len(ks))).view(len(ks), -1)


def _exchange(moved: Bool[Tensor, "*shape"], theirs: Tensor, own: Tensor) -> Tensor:
    return torch.where(moved, theirs, own)


def _record(
    model: Transformer, tokens: Int[Tensor, "batch pos"], names: Iterable[str]
) -> tuple[dict[str, Tensor], Float[Tensor, "batch d_model"]]:
    """The named values of every layer, and the last position's residual stream after the last."""
    tap: Tap = {f"{name}.{layer}": None for layer in range(len(model.blocks)) for name in names}
    stream = _run(model, tokens, Recorder(tap, None))
    return {name: value for name, value in tap.items() if value is not None}, stream


def _run(
    model: Transformer, tokens: Int[Tensor, "batch pos"], record: Recorder
) -> Float[Tensor, "batch d_model"]:
    """`Transformer.forward` up to the final norm, at the last position only."""
    x = model.embed(tokens)
    if model.config.positional == "learned":
        x = x + model.pos_embed.weight[: tokens.shape[1]]
    for layer, block in enumerate(_blocks(model)):
        x = record(f"resid.{layer}", x)
        x = _block(block, x, record, _used_positions(model, layer))
    return x.squeeze(1)


def _block(
    block: Block, x: Float[Tensor, "batch pos d_model"], record: Recorder, used: slice
) -> Float[Tensor, "batch used d_model"]:
    """`Block.forward`, its MLP at the positions `used` only."""
    mixed = block.mixer(block.norm1(x), attn_bias=None, myopic=False, record=record)
    mixed = record(f"mixer_out.{block.layer}", mixed)
    return _after_mixer(block, x[:, used], mixed[:, used])


def _after_mixer(
    block: Block,
    x: Float[Tensor, "*batch pos d_model"],
    mixed: Float[Tensor, "*heads_and_batch pos d_model"],
) -> Float[Tensor, "*heads_and_batch pos d_model"]:
    """`Block.forward` once the mixer's output is known.

    With a parallel residual the MLP runs once for all heads, as `x` has no head dimension.
    """
    mlp_input = x if block.parallel_residual else x + mixed
    return x + mixed + block.mlp(block.norm2(mlp_input))


def _blocks(model: Transformer) -> list[Block]:
    return cast("list[Block]", list(model.blocks))  # a ModuleList forgets what it holds


def _used_positions(model: Transformer, layer: int) -> slice:
    """Positions whose residual stream after `layer` bears on the prediction at the last one."""
    return slice(-1, None) if layer == len(model.blocks) - 1 else slice(None)


def _read_out(
    model: Transformer,
    stream: Float[Tensor, "batch d_model"],
    target: Int[Tensor, " batch"],
) -> Float[Tensor, " batch"]:
    """Probability of the target from the residual stream after the last layer."""
    p = []
    size = model.config.vocab_size
    for rows, wanted in _pairs(stream, target, CHUNK, size):
        log_p = model.unembed(model.final_norm(rows)).log_softmax(-1)
        p.append(log_p.gather(1, wanted[:, None]).squeeze(1).exp())
    return torch.cat(p)


def _widest(model: Transformer, tokens: Int[Tensor, "prompt pos"]) -> int:
    """Numbers a sequence has in a block's largest activation."""
    linears = (m for m in model.blocks.modules() if isinstance(m, nn.Linear))
    return tokens.shape[1] * max(m.out_features for m in linears)


def _split(x: Tensor, numbers: int, of_one: int) -> tuple[Tensor, ...]:
    """Chunks of rows such that, at `of_one` numbers a row, a chunk has at most `numbers`."""
    return x.split(max(1, numbers // of_one))


def _pairs(x: Tensor, y: Tensor, numbers: int, of_one: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of two tensors with the same rows, as `_split`."""
    return zip(_split(x, numbers, of_one), _split(y, numbers, of_one), strict=True)


def _require_prompts(
    model: Transformer, tokens: Int[Tensor, "prompt pos"], target: Int[Tensor, " prompt"]
) -> None:
    config = model.config
    if tokens.ndim != 2 or 0 in tokens.shape or tokens.shape[1] > config.max_pos:
        raise ParameterError(
            "tokens.shape",
            tuple(tokens.shape),
            f"[prompt, pos] with at least one prompt and 1 to max_pos={config.max_pos} positions",
        )
    if target.shape != tokens.shape[:1]:
        raise ParameterError(
            "target.shape", tuple(target.shape), f"({len(tokens)},): one target a prompt"
        )
    for name, ids in (("tokens", tokens), ("target", target)):
        if ids.dtype != torch.int64:
            raise ParameterError(f"{name}.dtype", ids.dtype, "torch.int64")
        for end in (ids.min().item(), ids.max().item()):
            if not 0 <= end < config.vocab_size:
                raise ParameterError(
                    name, end, f"ids from 0 to vocab_size - 1 = {config.vocab_size - 1}"
                )


def _require_patchable(
    pre: Transformer,
    post: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    target: Int[Tensor, " prompt"],
    component: str,
) -> None:
    if component not in COMPONENTS:
        raise UnknownNameError("component", component, COMPONENTS)
    theirs = asdict(post.config)
    for name, ours in asdict(pre.config).items():
        if name not in ("init_std", "embed_std") and theirs[name] != ours:
            raise ParameterError(
                f"post.config.{name}", theirs[name], f"{ours!r}, as in pre: one shape"
            )
    if set(pre.config.mixers) != {"attention"}:
        raise ParameterError("mixer", pre.config.mixer, "'attention': other mixers have no heads")
    _require_prompts(pre, tokens, target)


def _require_order(model: Transformer, order: Sequence[Head], ks: Sequence[int]) -> None:
    config = model.config
    heads = list(itertools.product(range(config.n_layers), range(config.n_heads)))
    for i, head in enumerate(order):
        if head not in heads or head in order[:i]:
            raise ParameterError(
                f"order[{i}]", head, f"(layer, head) from (0, 0) to {heads[-1]}, and each once"
            )
    if not len(ks):
        raise ParameterError("ks", ks, "at least one number of heads")
    for k in ks:
        require_int("ks", k, 0, len(order))
