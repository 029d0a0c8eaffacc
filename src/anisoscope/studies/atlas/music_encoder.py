"""The encoder of midisimx as a plain torch module: norms before attention and MLP, positions as rotations."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MusicLayer(nn.Module):
    """Attention and an MLP four times as wide; half of each head turns with the position of its token."""

    def __init__(self, width: int, heads: int, head: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.query, self.key, self.value = (nn.Linear(width, heads * head, bias=False) for _ in range(3))
        self.out = nn.Linear(heads * head, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, angles: Tensor, seen: Tensor | None) -> Tensor:
        """Return the next hidden states, (b, t, width).

        Args:
            x: (b, t, width).
            angles: (t, head / 4), by which pairs of numbers turn.
            seen: (b, 1, 1, t), False for padding.
        """
        normed = self.norm1(x)
        parts = (each(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key))
        query, key = (turned(part, angles) for part in parts)  # (b, heads, t, head)
        value = self.value(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class MusicEncoder(nn.Module):
    """midisimx: words of a score in, logits of masked words out."""

    def __init__(self, *, vocabulary: int, width: int, layers: int, heads: int, head: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(MusicLayer(width, heads, head) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("speeds", 10_000.0 ** -(torch.arange(0, head // 2, 2) / (head // 2)), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits of words, (b, t, vocabulary)."""
        speeds: Tensor = self.get_buffer("speeds")
        angles = torch.arange(input_ids.shape[1], device=speeds.device)[:, None] * speeds  # (t, head / 4)
        seen = None if attention_mask is None else attention_mask[:, None, None].bool()
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x, angles, seen)
        return self.head(self.norm(x))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Return vectors whose first numbers are turned in pairs by their angles.

    >>> turned(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([torch.pi / 2])).round().tolist()
    [-0.0, 1.0, 5.0]
    """
    size = 2 * angles.shape[-1]
    first, second = x[..., :size].unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((pairs.flatten(-2), x[..., size:]), -1)
