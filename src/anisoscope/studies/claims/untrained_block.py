"""One untrained transformer layer whose input tokens share a bias: cosine, norm and attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anisoscope.stats.head_scores import Attention, Heads
from anisoscope.studies.claims.hidden_states import mean_cosine
from anisoscope.studies.lab.transformer import Config, TransformerBlock, initialise

BIASES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # norms N of the bias, in norms of a token
_TYPES = 4096  # rows of the random embeddings
_STD, _WIDTH = 0.02, 768  # of BERT's first weights, and the width that they are meant for


@dataclass(frozen=True)
class BlockSetting:
    """What the paper leaves open: where the norm is, and whether inputs are normalised as after BERT's embeddings."""

    norm_at: str = "post"
    normalised: bool = True

    def __str__(self) -> str:
        return f"{self.norm_at}-norm, {'normalised' if self.normalised else 'raw'} inputs"


PUBLISHED = BlockSetting()
SETTINGS = tuple(BlockSetting(norm_at, normalised) for norm_at in ("post", "pre") for normalised in (True, False))


@dataclass(frozen=True)
class BlockPass:
    """What enters and leaves the block at one bias."""

    cosine_in: float
    cosine_out: float
    norm_in: float
    norm_out: float
    entropy: float  # of attention, divided by that of even attention
    logit_std: float
    largest: float  # attention weight, mean over rows


def pass_through_block(
    shape: tuple[int, int, int], bias: float, setting: BlockSetting, seed: int, table: Tensor | None = None
) -> BlockPass:
    """Pass a batch of tokens with a common bias through an untrained block with BERT's initialisation.

    Args:
        shape: (width, sequences, length).
        bias: Norm of the bias in units of a token's norm.
        setting: Position of the norm, and whether inputs are normalised.
        seed: Seed of tokens, bias and weights.
        table: Embeddings (types, width) to draw the tokens from; None for random ones.
    """
    x = _tokens(shape, bias, setting, seed, table)  # (sequences, length, width)
    block = _block(x.shape[-1], x.shape[1], setting, seed)
    with torch.no_grad():
        y = block(x, None, None)
        pattern = _pattern(block, x, setting)
    rows = float(pattern.rows.sum())
    return BlockPass(
        cosine_in=mean_cosine(x.flatten(0, 1)),
        cosine_out=mean_cosine(y.flatten(0, 1)),
        norm_in=float(x.mean((0, 1)).norm()),
        norm_out=float(y.mean((0, 1)).norm()),
        entropy=float(pattern.entropy.sum()) / rows,
        logit_std=float(pattern.logit_std.sum() / pattern.spread_rows.sum()),
        largest=float(pattern.largest.sum() / pattern.spread_rows.sum()),
    )


def _tokens(shape: tuple[int, int, int], bias: float, setting: BlockSetting, seed: int, table: Tensor | None) -> Tensor:
    width, sequences, length = shape
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(_TYPES, width, generator=draw) * _STD * _gain(width) if table is None else table.float()
    x = rows[torch.randint(len(rows), (sequences, length), generator=draw)]  # (sequences, length, width)
    if setting.normalised:
        x = nn.functional.layer_norm(x, x.shape[-1:])
    direction = nn.functional.normalize(torch.randn(x.shape[-1], generator=draw), dim=0)
    return x + bias * x.norm(dim=-1).mean() * direction


def _gain(width: int) -> float:
    """Factor for weights of another width, so that a matrix stretches a vector as in BERT."""
    return math.sqrt(_WIDTH / width)


def _block(width: int, length: int, setting: BlockSetting, seed: int) -> TransformerBlock:
    """A bidirectional block with heads of width 64, or as few heads as fit."""
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


def _pattern(block: TransformerBlock, x: Tensor, setting: BlockSetting) -> Attention:
    """The attention statistics of the block."""
    attn, norm = block.attn, block.norm_attn
    assert attn is not None
    assert norm is not None
    inputs = norm(x) if setting.norm_at == "pre" else x
    b, t, _ = inputs.shape
    q, k = (f(inputs).view(b, t, attn.num_heads, attn.head_dim).transpose(1, 2) for f in (attn.q_proj, attn.k_proj))
    return Attention.of(Heads(q, k, 1 / math.sqrt(attn.head_dim)), torch.ones(b, t, dtype=torch.bool))
