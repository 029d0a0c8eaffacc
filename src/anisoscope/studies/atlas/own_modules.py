"""Small plain torch modules for models whose own code needs packages that no longer install."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.studies.atlas.music_encoder import MusicEncoder


class WordEncoder(nn.Module):
    """A torch TransformerEncoder over words with fixed or learned vectors; SCEPTR is one.

    Args of the constructor: `vocabulary` words with vectors of `features` numbers, projected to `width` if the two
    differ, then `layers` layers with `heads` heads, and a linear `head` for masked residues.
    """

    def __init__(self, *, vocabulary: int, features: int, width: int, layers: int, heads: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, features).requires_grad_(False)
        self.projection = nn.Linear(features, width, bias=False) if features != width else nn.Identity()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits of residues, (b, t, classes)."""
        padding = None if attention_mask is None else attention_mask == 0
        return self.head(self.encoder(self.projection(self.words(input_ids)), src_key_padding_mask=padding))


class TableEncoder(nn.Module):
    """TabPFN: rows of a table are tokens; labelled rows see each other, the others see only labelled rows."""

    def __init__(self, *, features: int, width: int, layers: int, heads: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.rows = nn.Linear(features, width)
        self.labels = nn.Linear(1, width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, classes))

    def forward(self, table: Tensor, labels: Tensor) -> Tensor:
        """Return logits of all rows, (b, n, classes).

        Args:
            table: (b, n, features).
            labels: (b, n), -1 where a label is hidden.
        """
        known = labels >= 0  # (b, n); the same rows in every table of a batch
        x = self.rows(table) + self.labels(labels.unsqueeze(-1).float()) * known.unsqueeze(-1)
        n = x.shape[1]
        hidden = ~known[0].expand(n, n) & ~torch.eye(n, dtype=torch.bool, device=x.device)  # (n, n): who is not seen
        return self.head(self.encoder(x, mask=hidden))


class ConvolutionBlock(nn.Module):
    """An inverted bottleneck of EfficientNet-lite: widen, convolve each channel, narrow."""

    def __init__(self, inputs: int, outputs: int, *, widen: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * widen
        self.expand = nn.Sequential(nn.Conv2d(inputs, inner, 1, bias=False), _norm(inner)) if widen > 1 else None
        self.depth = nn.Sequential(_same(inner, inner, kernel, stride, groups=inner), _norm(inner))
        self.project = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), _norm(outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the next feature map, (b, outputs, h, w)."""
        y = x if self.expand is None else nn.functional.relu6(self.expand(x))
        y = self.project(nn.functional.relu6(self.depth(y)))
        return x + y if self.residual else y


class LiteConvNet(nn.Module):
    """EfficientNet-lite0 for images of 224 × 224."""

    # widen, outputs, blocks, stride, kernel
    STAGES = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(image_size=224, num_channels=3)
        self.stem = nn.Sequential(_same(3, 32, 3, 2), _norm(32))
        blocks: list[nn.Module] = []
        width = 32
        for widen, outputs, count, stride, kernel in self.STAGES:
            for number in range(count):
                step = stride if number == 0 else 1
                blocks.append(ConvolutionBlock(width, outputs, widen=widen, kernel=kernel, stride=step))
                width = outputs
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Sequential(nn.Conv2d(width, 1280, 1, bias=False), _norm(1280))
        self.head = nn.Linear(1280, classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return logits, (b, classes)."""
        x = nn.functional.relu6(self.stem(pixel_values))
        for block in self.blocks:
            x = block(x)
        return self.head(nn.functional.relu6(self.last(x)).mean((2, 3)))


class FormulaReader(nn.Module):
    """A vision transformer on patches of a grey image, and a decoder that writes the formula in it letter by letter.

    Norms come before attention and MLP, which is four times as wide as the stream.
    """

    def __init__(
        self,
        *,
        height: int,
        breadth: int,
        patch: int,
        width: int,
        layers: int,
        heads: int,
        vocabulary: int,
        positions: int,
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(image_size=(height, breadth), num_channels=1)
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, height * breadth // patch**2, width) * 0.05)
        self.first_norm = nn.LayerNorm(width, eps=1e-6)
        shape: dict[str, Any] = {"layer_norm_eps": 1e-6, "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", **shape)
        norm = nn.LayerNorm(width, eps=1e-6)
        self.encoder = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
        self.letters = nn.Embedding(vocabulary, width)
        self.letter_positions = nn.Embedding(positions, width)
        self.letter_norm = nn.LayerNorm(width, eps=1e-6)
        writer = nn.TransformerDecoderLayer(width, heads, 4 * width, activation="gelu", **shape)
        self.decoder = nn.TransformerDecoder(writer, layers, nn.LayerNorm(width, eps=1e-6))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, pixel_values: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """Return the vectors of patches, (b, n, width), or logits of the next letters, (b, t, vocabulary).

        Args:
            pixel_values: (b, 1, height, breadth) in [-1, 1], as images are read; the model was trained on [0, 1].
            input_ids: The letters so far, (b, t).
        """
        seen = self.read(pixel_values)
        return seen if input_ids is None else self.write(input_ids, seen)

    def read(self, pixel_values: Tensor) -> Tensor:
        """Return the vectors of patches, (b, n, width)."""
        x = self.patches((pixel_values + 1) / 2).flatten(2).transpose(1, 2) + self.positions
        return self.encoder(self.first_norm(x))

    def write(self, input_ids: Tensor, seen: Tensor) -> Tensor:
        """Return logits of the letters that follow, (b, t, vocabulary), given the vectors of patches."""
        t = input_ids.shape[1]
        written = self.letter_norm(self.letters(input_ids) + self.letter_positions.weight[:t])
        later = torch.ones(t, t, dtype=torch.bool, device=written.device).triu(1)
        return self.head(self.decoder(written, seen, tgt_mask=later))


MODULES: dict[str, type[nn.Module]] = {
    "words": WordEncoder,
    "tables": TableEncoder,
    "lite-convolutions": LiteConvNet,
    "formulas": FormulaReader,
    "music": MusicEncoder,
}
MODALITIES = {
    "words": "text",
    "tables": "other",
    "lite-convolutions": "image",
    "formulas": "image",
    "music": "text",
}


def make_module(architecture: str, sizes: dict[str, Any]) -> nn.Module:
    """Return a module with random weights.

    >>> sizes = {"vocabulary": 5, "features": 4, "width": 8, "layers": 1, "heads": 2, "classes": 3}
    >>> make_module("words", sizes)(torch.tensor([[0, 1]])).shape
    torch.Size([1, 2, 3])
    """
    return MODULES[architecture](**sizes)


class _SamePadding(nn.Conv2d):
    """A convolution padded as TensorFlow does: an odd pixel goes to the right and to the bottom."""

    def forward(self, input: Tensor) -> Tensor:
        pads = []
        for size, kernel, stride in zip(input.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(nn.functional.pad(input, pads))


def _same(inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> nn.Conv2d:
    return _SamePadding(inputs, outputs, kernel, stride, groups=groups, bias=False)


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3)
