"""One transformer block as it is before training, fed with tokens that share a bias: what it makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anisoscope.stats.head_scores import Attention, Heads
from anisoscope.studies.claims.states import mean_cosine
from anisoscope.studies.lab.transformer import Config, TransformerBlock, initialise

BIASES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # norms N of the bias, in norms of a token
_TYPES = 4096  # rows of an embedding table
_STD, _WIDTH = 0.02, 768  # of BERT's first weights, and the width that they are meant for


@dataclass(frozen=True)
class Setting:
    """What the sources leave open: where the norm stands, and whether inputs are normalised, as after BERT's table."""

    norm_at: str = "post"
    normalised: bool = True

    def __str__(self) -> str:
        return f"{self.norm_at}-norm, {'normalised' if self.normalised else 'raw'} inputs"


PUBLISHED = Setting()
SETTINGS = tuple(Setting(norm_at, normalised) for norm_at in ("post", "pre") for normalised in (True, False))


@dataclass(frozen=True)
class Passed:
    """What went in and what came out at one bias."""

    cosine_in: float
    cosine_out: float
    norm_in: float
    norm_out: float
    entropy: float  # of attention, divided by that of even attention
    logit_std: float
    largest: float  # attention weight, mean over rows


def passed(
    shape: tuple[int, int, int], bias: float, setting: Setting, seed: int, table: Tensor | None = None
) -> Passed:
    """A batch of tokens with a common bias through an untrained block of BERT's initialisation.

    `shape` is (width, sequences, length); `table` another embedding table to draw the tokens from, (types, width).
    """
    x = _tokens(shape, bias, setting, seed, table)  # (sequences, length, width)
    block = _block(x.shape[-1], x.shape[1], setting, seed)
    with torch.no_grad():
        y = block(x, None, None)
        pattern = _pattern(block, x, setting)
    rows = float(pattern.rows.sum())
    return Passed(
        cosine_in=mean_cosine(x.flatten(0, 1)),
        cosine_out=mean_cosine(y.flatten(0, 1)),
        norm_in=float(x.mean((0, 1)).norm()),
        norm_out=float(y.mean((0, 1)).norm()),
        entropy=float(pattern.entropy.sum()) / rows,
        logit_std=float(pattern.logit_std.sum() / pattern.spread_rows.sum()),
        largest=float(pattern.largest.sum() / pattern.spread_rows.sum()),
    )


def _tokens(shape: tuple[int, int, int], bias: float, setting: Setting, seed: int, table: Tensor | None) -> Tensor:
    width, sequences, length = shape
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(_TYPES, width, generator=draw) * _STD * _gain(width) if table is None else table.float()
    x = rows[torch.randint(len(rows), (sequences, length), generator=draw)]  # (sequences, length, width)
    if setting.normalised:
        x = nn.functional.layer_norm(x, x.shape[-1:])
    direction = nn.functional.normalize(torch.randn(x.shape[-1], generator=draw), dim=0)
    return x + bias * x.norm(dim=-1).mean() * direction


def _gain(width: int) -> float:
    """What weights of another width are multiplied by, so that a matrix stretches a vector as BERT's does."""
    return math.sqrt(_WIDTH / width)


def _block(width: int, length: int, setting: Setting, seed: int) -> TransformerBlock:
    """A bidirectional block with heads of 64, or as few as fit."""
    heads = max(1, width // 64)
    config = Config(
        context=length,
        width=width,
        heads=heads if width % heads == 0 else 1,
        causal=False,
        objective="masked",
        positions="none",
        norm_at=setting.norm_at,
        init="bert",
        init_scale=_gain(width),
    )
    block = TransformerBlock(config).eval()
    initialise(block, config, seed)
    return block


def _pattern(block: TransformerBlock, x: Tensor, setting: Setting) -> Attention:
    """The attention that the block's first half pays."""
    attn, norm = block.attn, block.norm_attn
    assert attn is not None
    assert norm is not None
    seen = norm(x) if setting.norm_at == "pre" else x
    b, t, _ = seen.shape
    q, k = (f(seen).view(b, t, attn.num_heads, attn.head_dim).transpose(1, 2) for f in (attn.q_proj, attn.k_proj))
    return Attention.of(Heads(q, k, 1 / math.sqrt(attn.head_dim)), torch.ones(b, t, dtype=torch.bool))
