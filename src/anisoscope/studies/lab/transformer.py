"""A small transformer with a switch for everything that the papers hold responsible. It imports only torch.

From top to bottom: configuration, attention, layer, model, initial weights.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CHOICES = {
    "objective": ("next", "masked"),
    "attention": ("softmax", "off-by-one", "sigmoid", "cosine", "uniform", "none"),
    "mean_free": ("none", "queries", "keys"),
    "positions": ("learned", "rotary", "none"),
    "norm": ("layer", "rms"),
    "norm_at": ("pre", "post"),
    "init": ("gpt2", "bert"),
}
MODEL_TYPE = "anisoscope-lab"  # in config.json of a checkpoint
_IGNORED = -100  # label without a loss, as in torch
_STD = 0.02  # of initial weights, in GPT-2 and in BERT
_MEMORY = 10  # batches in a running mean: few, because the mean moves fast early in training


# Far beyond any small transformer: a mistyped number must not take all memory.
_MOST = {
    "vocabulary": 1 << 20,
    "context": 1 << 20,
    "layers": 1024,
    "width": 1 << 14,
    "heads": 1 << 10,
    "mlp_width": 1 << 16,
}


@dataclass(frozen=True)
class Config:
    """All switches of the model; two models that differ in one field are twins.

    >>> Config(attention="sigmoid").mlp_width
    512
    """

    vocabulary: int | None = None  # rows of the embedding; None in an experiment: the number of tokens
    context: int = 128  # tokens per window, at most
    layers: int = 4
    width: int = 128
    heads: int = 4
    mlp: int | None = None  # hidden width of the feed-forward layer; None: four times the width
    causal: bool = True  # a token sees only earlier tokens; False: the whole window
    objective: str = "next"  # `labels` are the window itself, shifted inside, or (masked) the masked tokens
    attention: str = "softmax"
    mean_free: str = "none"  # queries or keys without their running mean, so that they cannot drift
    temperature: float = 1.0  # divides the logits: sharper below 1
    positions: str = "rotary"
    norm: str = "layer"
    norm_at: str = "pre"  # before each sublayer, as in GPT-2, or after each residual sum, as in BERT
    tied: bool = True  # the output matrix equals the embedding
    dropout: float = 0.0
    init: str = "gpt2"  # gpt2: matrices that write into the stream are smaller by sqrt(2 · layers); bert: all equal
    init_scale: float = 1.0  # factor of the standard deviation 0.02
    centring: float = 0.0  # share of a running mean that is subtracted after every layer

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        """Read config.json of a checkpoint; other keys are ignored."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})

    @property
    def mlp_width(self) -> int:
        """The hidden width of the feed-forward layer."""
        return 4 * self.width if self.mlp is None else self.mlp

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} is {value:,}; it must be from 1 to {most:,}")
        if self.width % self.heads or (self.positions == "rotary" and self.width // self.heads % 2):
            even = " of even width" if self.positions == "rotary" else ""
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads{even}; change one of them")
        if self.temperature <= 0 or self.init_scale < 0 or not 0 <= self.dropout < 1:
            raise ValueError("temperature must be positive, init_scale not negative, dropout in [0, 1)")
        if self.objective == "next" and not self.causal:
            raise ValueError("a bidirectional model sees its next token; use objective 'masked', or causal attention")


@dataclass(frozen=True)
class Output:
    """What a forward gives: logits (b, T, vocabulary) and, with labels, the mean loss in nats per token."""

    logits: Tensor
    loss: Tensor | None = None


# --- attention ----------------------------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Self-attention of one kind; x (b, T, width) -> (b, T, width).

    Weights of query i on its visible keys j, x_ij = q_i·k_j / (√d · temperature):
    softmax e^x_ij / Σ e^x_ij · off-by-one e^x_ij / (1 + Σ e^x_ij) · sigmoid σ(x_ij − ln T) ·
    cosine softmax of g · cos(q_i, k_j) / temperature with a learned g per head · uniform 1 / (number of keys seen).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.kind, self.causal, self.dropout = config.attention, config.causal, config.dropout
        self.num_heads, self.head_dim = config.heads, config.width // config.heads
        self.scale = 1 / config.temperature / (1.0 if self.kind == "cosine" else math.sqrt(self.head_dim))
        if self.kind != "uniform":
            self.q_proj = nn.Linear(config.width, config.width)
            self.k_proj = nn.Linear(config.width, config.width)
        self.v_proj = nn.Linear(config.width, config.width)
        self.o_proj = nn.Linear(config.width, config.width)
        if self.kind == "cosine":
            self.q_norm = UnitLength(config.heads, math.sqrt(self.head_dim))
            self.k_norm = UnitLength()
        self.q_centring = Centring(config.width, 1.0) if config.mean_free == "queries" else nn.Identity()
        self.k_centring = Centring(config.width, 1.0) if config.mean_free == "keys" else nn.Identity()
        if self.kind in ("off-by-one", "sigmoid"):
            # No fused kernel has these kinds; capture sees what passes through these identities.
            self.queries, self.keys, self.pattern = nn.Identity(), nn.Identity(), nn.Identity()

    def forward(self, x: Tensor, rotation: Tensor | None, mask: Tensor | None) -> Tensor:
        b, T, width = x.shape
        q, k = self._queries_and_keys(x, rotation)  # (b, heads, T, head_dim) each
        v = self._split(self.v_proj(x)).transpose(1, 2)  # (b, heads, T, head_dim)
        dropout = self.dropout if self.training else 0.0
        if self.kind in ("off-by-one", "sigmoid"):
            weights = self.pattern(self._weights(self.queries(q), self.keys(k), mask))  # (b, heads, T, T)
            y = functional.dropout(weights, dropout) @ v
        else:
            causal = self.causal and mask is None
            y = functional.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=self.scale)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(b, T, width))
        return out

    def _queries_and_keys(self, x: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.kind == "uniform":  # zero queries give all keys the same weight
            zeros = x.new_zeros(x.shape[0], self.num_heads, x.shape[1], self.head_dim)
            return zeros, zeros
        q, k = self.q_centring(self.q_proj(x)), self.k_centring(self.k_proj(x))  # (b, T, width)
        q, k = self._split(q), self._split(k)  # (b, T, heads, head_dim)
        if self.kind == "cosine":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return (q, k) if rotation is None else (rotate(q, rotation), rotate(k, rotation))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, self.head_dim)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        logits = q @ k.mT * self.scale  # (b, heads, T, T)
        if mask is not None:
            logits = logits.masked_fill(~mask, -math.inf)
        elif self.causal:
            logits = logits.masked_fill(~_causal(q.shape[2], q.device), -math.inf)
        if self.kind == "sigmoid":
            return torch.sigmoid(logits - math.log(q.shape[2]))
        return (logits - functional.softplus(logits.logsumexp(-1, keepdim=True))).exp()


class UnitLength(nn.Module):
    """Rows of length 1, or of a learned length per head; x (b, T, heads, head_dim)."""

    def __init__(self, heads: int = 0, length: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((heads, 1), length)) if heads else None

    def forward(self, x: Tensor) -> Tensor:
        unit = functional.normalize(x, dim=-1)
        return unit if self.weight is None else unit * self.weight


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary positions: the pair (i, i + half) of each head turns by position · 10000^(−i/half).

    x (b, heads, T, head_dim), rotation (2, T, half): cosines and sines.
    """
    cos, sin = rotation[:, : x.shape[2]]  # (T, half) each
    a, b = x.chunk(2, dim=-1)  # (b, heads, T, half) each
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _rotation(context: int, head_dim: int) -> Tensor:
    half = head_dim // 2
    angle = torch.arange(context)[:, None] * 10_000.0 ** (-torch.arange(half) / half)  # (context, half)
    return torch.stack((angle.cos(), angle.sin()))


def _causal(length: int, device: torch.device) -> Tensor:
    """Which keys (columns) each query (row) sees."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


# --- layers -------------------------------------------------------------------------------------------------------


class MLP(nn.Module):
    """x (b, T, width) -> (b, T, width), token by token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.mlp_width)
        self.down = nn.Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out


class TransformerBlock(nn.Module):
    """Attention and feed-forward sublayer, each added to the stream; norms before each or after each sum."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.post = config.norm_at == "post"
        self.attn = None if config.attention == "none" else SelfAttention(config)
        self.norm_attn = None if config.attention == "none" else _norm(config)
        self.norm_mlp = _norm(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)
        self.centring = Centring(config.width, config.centring) if config.centring else nn.Identity()

    def forward(self, x: Tensor, rotation: Tensor | None, mask: Tensor | None) -> Tensor:
        if self.attn is not None and self.norm_attn is not None:
            x = self._add(x, self.norm_attn, partial(self.attn, rotation=rotation, mask=mask))
        x = self._add(x, self.norm_mlp, self.mlp)
        out: Tensor = self.centring(x)
        return out

    def _add(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        out: Tensor = norm(x + self.dropout(sublayer(x))) if self.post else x + self.dropout(sublayer(norm(x)))
        return out


class Centring(nn.Module):
    """x − strength · m, with m the running mean of earlier training batches.

    The current batch is not included: its mean would tell a token about later tokens.
    """

    mean: Tensor
    batches: Tensor

    def __init__(self, width: int, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out = x - self.strength * self.mean
        if self.training:
            self.batches += 1
            self.mean = self.mean.lerp(x.detach().mean((0, 1)), 1 / self.batches.clamp(max=_MEMORY))
        return out


def _norm(config: Config) -> nn.Module:
    return nn.LayerNorm(config.width) if config.norm == "layer" else nn.RMSNorm(config.width, eps=1e-5)


# --- the model ----------------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """Token ids (b, T) -> logits, and the loss if labels are given.

    Initial weights are a function of the configuration and the seed; a parameter that two configurations share has
    the same initial values in both.

    >>> model = Transformer(Config(vocabulary=10, width=16, layers=2))
    >>> model(torch.zeros(1, 5, dtype=torch.long)).logits.shape
    torch.Size([1, 5, 10])
    """

    main_input_name = "input_ids"
    rotation: Tensor

    def __init__(self, config: Config, seed: int = 0) -> None:
        super().__init__()
        if config.vocabulary is None:
            raise ValueError("the number of tokens is unknown: give Config a vocabulary")
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.context, config.width)
        if config.norm_at == "post":
            self.norm_embed = _norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.layers))
        if config.norm_at == "pre":
            self.final_norm = _norm(config)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight
        self.register_buffer("rotation", _rotation(config.context, config.width // config.heads), persistent=False)
        initialise(self, config, seed)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Output:
        """Return logits and loss.

        Args:
            input_ids: Token ids (b, T).
            attention_mask: (b, T), 0 at padding, which must be on the right.
            labels: (b, T), as `Config.objective` defines them.
        """
        config, T = self.config, input_ids.shape[1]
        if config.context < T:
            raise ValueError(f"a window of {T} tokens is longer than the model's context of {config.context}")
        x = self.tokens(input_ids)  # (b, T, width)
        if config.positions == "learned":
            x = x + self.positions.weight[:T]
        if config.norm_at == "post":
            x = self.norm_embed(x)
        x = self.dropout(x)
        rotation = self.rotation if config.positions == "rotary" else None
        mask = None if attention_mask is None else self._mask(attention_mask)
        for block in self.blocks:
            x = block(x, rotation, mask)
        if config.norm_at == "pre":
            x = self.final_norm(x)
        logits = self.head(x)  # (b, T, vocabulary)
        return Output(logits, None if labels is None else self._loss(logits, labels))

    def can_generate(self) -> bool:
        """Whether the model predicts the next token."""
        return self.config.causal and self.config.objective == "next"

    @torch.no_grad()
    def generate(self, input_ids: Tensor, max_new_tokens: int, temperature: float = 1.0, **_: object) -> Tensor:
        """Return token ids (b, T + max_new_tokens): the prompts (b, T), continued by samples from the model.

        The other arguments of `generate` in transformers are accepted and have no effect.
        """
        for _number in range(max_new_tokens):
            logits = self(input_ids).logits[:, -1] / temperature  # (b, vocabulary)
            drawn = torch.multinomial(logits.float().softmax(-1), 1)
            input_ids = torch.cat((input_ids, drawn), 1)
        return input_ids

    def _mask(self, attention_mask: Tensor) -> Tensor:
        """Which key each query sees, (b, 1, T or 1, T)."""
        real = attention_mask.bool()[:, None, None, :]
        return real & _causal(attention_mask.shape[1], real.device) if self.config.causal else real

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.config.objective == "next":
            logits, labels = logits[:, :-1], labels[:, 1:]
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=_IGNORED)


@torch.no_grad()
def initialise(model: nn.Module, config: Config, seed: int) -> None:
    """Set normal weights of standard deviation 0.02 · init_scale and zero biases; norms and gains keep their values.

    Each matrix has its own generator, seeded by its name, so that switching one part on or off changes no other.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 2 and "norm" not in name:
            into_stream = name.endswith(("o_proj.weight", "down.weight"))
            shrink = math.sqrt(2 * config.layers) if config.init == "gpt2" and into_stream else 1.0
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (_STD * config.init_scale / shrink))
