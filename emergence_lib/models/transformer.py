"""The model: one decoder-only transformer that covers the toy models, GPT-2 style and GPT-NeoX.

    tokens ─► embeddings ─► resid.0
                 │
                 ├─ block 0:  x + mixer(norm₁ x), then x + mlp(norm₂ x)      ─► resid.1
                 │            (parallel_residual: x + mixer(norm₁ x) + mlp(norm₂ x))
                 ├─ …                                                        ─► resid.L
                 └─ final norm ─► unembedding ─► logits

Every intermediate value a paper looks at has a name. `tap` records values by name and `edit`
replaces them; with neither, attention runs fused and nothing is kept:

    resid.k      residual stream [batch, pos, d_model]: k = 0 embeddings, k after block k,
                 L before the final norm
    pattern.l    attention pattern after the softmax [batch, head, query, key], l from 0
    scores.l     attention logits before mask, bias and softmax, the same shape
    q.l k.l v.l  queries, keys and values [batch, head, pos, d_head], after rotary
    z.l          head outputs before the output projection [batch, pos, head, d_head]
    mixer_out.l  what the token mixer adds to the residual stream [batch, pos, d_model]
    mlp_out.l    what the MLP adds to the residual stream [batch, pos, d_model]

Block structure follows GPT-2 (Radford et al. 2019) and GPT-NeoX (Black et al. 2022,
arXiv 2204.06745); myopic attention follows Rofin et al. 2026 (arXiv 2603.14087, section on
ablations): keys and values of *other* positions are detached, so the forward pass is unchanged
and no gradient crosses positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn as nn
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from emergence_lib.errors import ParameterError, UnknownNameError
from emergence_lib.models.mixers import MIXERS

if TYPE_CHECKING:
    from transformers import GPTNeoXForCausalLM

Tap = MutableMapping[str, Tensor | None]
Edit = Mapping[str, Callable[[Tensor], Tensor]]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layernorm": lambda d: nn.LayerNorm(d, eps=1e-5),
    "rmsnorm": lambda d: nn.RMSNorm(d, eps=1e-5),
}
POSITIONAL = ("learned", "rotary", "none")


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a `Transformer`.

    Args:
        n_layers, d_model, n_heads, vocab_size, max_pos: as usual; `max_pos` bounds the input.
        d_head: dimension of a head; None means ``d_model / n_heads``.
        d_mlp: hidden units of an MLP; None means ``4 · d_model``.
        mixer: name of the token mixer, or one name a layer.
        positional: "learned" (added to the embeddings), "rotary" or "none".
        rotary_fraction: share of the head dimension that rotary turns, with base 10,000 (Pythia:
            0.25).
        parallel_residual: mixer and MLP read the same residual stream (GPT-NeoX).
        tied_embeddings: the unembedding is the transposed embedding. Then lower `embed_std`
            (GPT-2: 0.02), which at 1.0 makes the first logits as large as sqrt(d_model).
        norm, activation: "layernorm" | "rmsnorm"; "relu" | "gelu" | "gelu_tanh" | "silu".
        init_std: standard deviation of every weight matrix at initialisation.
        embed_std: of the token and position embeddings. At 1.0 a pre-norm block starts by seeing
            them undimmed, which decides how soon a plateau ends; the papers do not give it.

    Raises:
        ParameterError: a value out of range, an odd head split, or an odd rotary dimension.
        UnknownNameError: an unknown mixer, norm, activation or positional encoding.
    """

    n_layers: int
    d_model: int
    n_heads: int
    vocab_size: int
    max_pos: int
    d_head: int | None = None
    d_mlp: int | None = None
    mixer: str | tuple[str, ...] = "attention"
    positional: str = "learned"
    rotary_fraction: float = 1.0
    parallel_residual: bool = False
    tied_embeddings: bool = False
    norm: str = "layernorm"
    activation: str = "relu"
    init_std: float = 0.02
    embed_std: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.mixer, str):
            object.__setattr__(self, "mixer", tuple(self.mixer))
        for name in ("n_layers", "d_model", "n_heads", "vocab_size", "max_pos", "d_head", "d_mlp"):
            value = getattr(self, name)
            if value is None and name in ("d_head", "d_mlp"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ParameterError(name, value, "an integer ≥ 1")
        if self.d_head is None:
            if self.d_model % self.n_heads:
                divisors = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
                raise ParameterError(
                    "n_heads",
                    self.n_heads,
                    f"a divisor of d_model={self.d_model} ({', '.join(map(str, divisors))})",
                    "Or give d_head to set the head dimension yourself.",
                )
            object.__setattr__(self, "d_head", self.d_model // self.n_heads)
        if self.d_mlp is None:
            object.__setattr__(self, "d_mlp", 4 * self.d_model)
        if len(self.mixers) != self.n_layers:
            raise ParameterError(
                "mixer", self.mixer, f"one name, or one for each of the {self.n_layers} layers"
            )
        names: list[tuple[str, str, Iterable[str]]] = [
            *(("mixer", mixer, MIXERS) for mixer in self.mixers),
            ("norm", self.norm, NORMS),
            ("activation", self.activation, ACTIVATIONS),
            ("positional encoding", self.positional, POSITIONAL),
        ]
        for kind, name, known in names:
            if name not in known:
                raise UnknownNameError(kind, name, known)
        for name in ("init_std", "embed_std"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ParameterError(name, getattr(self, name), "a number ≥ 0")
        if self.positional == "rotary" and not (0 < self.rotary_fraction <= 1 and self.rotary_dim):
            raise ParameterError(
                "rotary_fraction",
                self.rotary_fraction,
                f"above 0, at most 1, and such that · d_head={self.d_head} is even",
            )

    @property
    def mixers(self) -> tuple[str, ...]:
        """One mixer name a layer."""
        return (self.mixer,) * self.n_layers if isinstance(self.mixer, str) else tuple(self.mixer)

    def build(self, generator: torch.Generator | None = None) -> Transformer:
        """A fresh model of this shape; see `Transformer` for `generator`."""
        return Transformer(self, generator)

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that rotary turns: an even number, 0 without rotary."""
        if self.positional != "rotary":
            return 0
        assert self.d_head is not None  # set in __post_init__
        turned = self.d_head * self.rotary_fraction
        return 2 * round(turned / 2) if math.isclose(turned, 2 * round(turned / 2)) else 0


class Recorder:
    """Passes a named value through the caller's edit and tap, in this order."""

    def __init__(self, tap: Tap | None, edit: Edit | None) -> None:
        self.tap: Tap = {} if tap is None else tap
        self.edit: Edit = {} if edit is None else edit

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if name in self.edit:
            edited = self.edit[name](value)
            if edited.shape != value.shape:
                raise ParameterError(
                    f"edit[{name!r}]",
                    tuple(edited.shape),
                    f"a function that keeps the shape {tuple(value.shape)}",
                )
            value = edited
        if name in self.tap:
            self.tap[name] = value
        return value

    def wants(self, *names: str) -> bool:
        """Whether any of these values is recorded or edited."""
        return any(name in self.tap or name in self.edit for name in names)


class MLP(nn.Module):
    """Two linear maps around a pointwise activation."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.d_mlp is not None
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.d_model, config.d_mlp)
        self.down = nn.Linear(config.d_mlp, config.d_model)

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """A token mixer and an MLP, each behind a norm, added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.parallel_residual = config.parallel_residual
        self.norm1 = NORMS[config.norm](config.d_model)
        self.mixer = MIXERS[config.mixers[layer]](config, layer)
        self.norm2 = NORMS[config.norm](config.d_model)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        attn_bias: Float[Tensor, "*batch_and_head query key"] | None,
        myopic: bool,
        record: Recorder,
        last_only: bool = False,
    ) -> Float[Tensor, "batch query d_model"]:
        mixed = self.mixer(
            self.norm1(x), attn_bias=attn_bias, myopic=myopic, record=record, last_only=last_only
        )
        x = x[:, -1:] if last_only else x
        mixed = record(f"mixer_out.{self.layer}", mixed)
        mlp_input = x if self.parallel_residual else x + mixed
        mlp_out = record(f"mlp_out.{self.layer}", self.mlp(self.norm2(mlp_input)))
        return x + mixed + mlp_out


class Transformer(nn.Module):
    """The model of the whole book; see the module's docstring for its taps.

    Args:
        config: the shape.
        generator: source of the initial weights (CPU); None means seed 0.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        if config.positional == "learned":
            self.pos_embed = nn.Embedding(config.max_pos, config.d_model)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.final_norm = NORMS[config.norm](config.d_model)
        self.unembed = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.unembed.weight = self.embed.weight
        self._init_weights(generator or torch.Generator().manual_seed(0))

    def _init_weights(self, generator: torch.Generator) -> None:
        """Normal weights, zero biases; embeddings have a scale of their own. Norms keep 1 and 0."""
        std = self.config.init_std
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.weight is not self.embed.weight:
                nn.init.normal_(module.weight, std=std, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.embed_std, generator=generator)

    def tap_names(self) -> tuple[str, ...]:
        """Every name that `tap` and `edit` accept for this model."""
        resid = (f"resid.{k}" for k in range(self.config.n_layers + 1))
        parts = (
            f"{name}.{layer}"
            for layer, mixer in enumerate(self.config.mixers)
            for name in (*MIXERS[mixer].taps, "mixer_out", "mlp_out")
        )
        return (*resid, *parts)

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        *,
        attn_bias: Float[Tensor, "*layer_batch_head query key"] | None = None,
        myopic: bool = False,
        tap: Tap | None = None,
        edit: Edit | None = None,
    ) -> Float[Tensor, "batch pos vocab"]:
        """Logits for the next token at every position.

        Args:
            tokens: int64 ids, at most `max_pos` positions.
            attn_bias: added to the attention logits of every head and layer (paper A, section on
                attention bias); broadcasts over batch and heads. With five dimensions the first is
                the layer.
            myopic: let no gradient cross positions; the logits are unchanged.
            tap: a dict whose keys name what to record; their values are set to the tensors, which
                stay in the graph. ``tap = dict.fromkeys(["resid.1", "pattern.0"])``.
            edit: maps a name to a function of the tensor, applied before it is used or recorded.

        Raises:
            ParameterError: more positions than `max_pos`, an `attn_bias` for another number of
                positions, or an edit that changes a shape.
            UnknownNameError: a tap or edit this model does not have (the nearest is named).
        """
        layers = self.config.n_layers
        x = self.residual(tokens, layers, attn_bias=attn_bias, myopic=myopic, tap=tap, edit=edit)
        return self.unembed(self.final_norm(x))

    def residual(
        self,
        tokens: Int[Tensor, "batch pos"],
        n_blocks: int,
        *,
        attn_bias: Float[Tensor, "*layer_batch_head query key"] | None = None,
        myopic: bool = False,
        tap: Tap | None = None,
        edit: Edit | None = None,
        last_only: bool = False,
    ) -> Float[Tensor, "batch query d_model"]:
        """The residual stream ``resid.n_blocks``: what `forward` computes up to there, no further.

        Args:
            n_blocks: from 0 to n_layers; the other arguments and all errors are those of `forward`.
            last_only: the last position alone, which spares the last block the others' MLP.
        """
        n_pos = tokens.shape[1]
        if n_pos > self.config.max_pos:
            raise ParameterError("tokens.shape[1]", n_pos, f"at most max_pos={self.config.max_pos}")
        if attn_bias is not None and attn_bias.shape[-2:] != (n_pos, n_pos):
            raise ParameterError(
                "attn_bias.shape", tuple(attn_bias.shape), f"[…, query={n_pos}, key={n_pos}]"
            )
        for name in (*(tap or ()), *(edit or ())):
            if name not in self.tap_names():
                raise UnknownNameError("tap", name, self.tap_names())
        record = Recorder(tap, edit)

        x = self.embed(tokens)
        if self.config.positional == "learned":
            x = x + self.pos_embed.weight[:n_pos]
        x = record("resid.0", x)
        for layer in range(n_blocks):
            bias = attn_bias[layer] if attn_bias is not None and attn_bias.ndim == 5 else attn_bias
            only = last_only and layer + 1 == n_blocks
            x = self.blocks[layer](x, bias, myopic, record, only)
            x = record(f"resid.{layer + 1}", x)
        return x[:, -1:] if last_only else x

    @classmethod
    def from_huggingface(cls, hf_model: GPTNeoXForCausalLM) -> Transformer:
        """The same function as a `transformers.GPTNeoXForCausalLM`, to 1e-4 in float32."""
        from emergence_lib.models.huggingface import from_gpt_neox

        return from_gpt_neox(hf_model)
