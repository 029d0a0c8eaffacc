"""Ways to prepare embeddings for search: remedies, shorter rows, rows with fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.remedies import Remedy, fit_remedy
from anisoscope.report.embedding_advice import UNCHANGED
from anisoscope.stats.moments import Moments

AS_STORED, UNIT_LENGTH = "as stored", "unit length"
_SHORTEST, _MOST_LENGTHS = 16, 4
_LEVELS = 255  # of one byte
_SPREAD = 0.01  # relative spread of the lengths from which unit length makes a difference


@dataclass(frozen=True)
class RowMap:
    """A map from rows to the rows that are searched: by dot product after `plain`, by Euclidean distance after `apply`.

    All maps except "as stored" give `apply` unit length, so that its order is that of the cosine.
    """

    name: str
    kind: str  # "remedy" or "compression"
    plain: Callable[[Tensor], Tensor]  # (m, d) -> (m, e)
    remedy: Remedy | None = None

    def apply(self, x: Tensor) -> Tensor:
        """Return the mapped rows as they are compared by distance, (m, e) float32."""
        return self.plain(x).float() if self.name == AS_STORED else unit(self.plain(x))


@dataclass(frozen=True)
class Ranges:
    """The smallest and the largest entry of each column."""

    low: Tensor  # (d,)
    high: Tensor  # (d,)

    @classmethod
    def of(cls, x: Tensor) -> Ranges:
        return cls(x.amin(0), x.amax(0))

    def __add__(self, other: Ranges) -> Ranges:
        return Ranges(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))


def unit(x: Tensor) -> Tensor:
    """Return the rows at length 1, in float32; rows of length zero stay zero.

    >>> unit(torch.tensor([[3.0, 4.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    x = x.double()
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return (x / torch.where(length > 0, length, 1.0)).float()


def remedy_maps(moments: Moments, remove_top: int | None, norm_spread: float, *, dot: bool = False) -> list[RowMap]:
    """Fit the remedies on the moments of all rows: none, centre, all but the top, whiten.

    If lengths differ, there is one more: "as stored" (by distance), or "unit length" if rows are searched by dot
    product, which is the search by cosine.

    Args:
        moments: Moments of the rows.
        remove_top: Number of directions to remove. None: a hundredth of the width, at least one, as published.
        norm_spread: Standard deviation of the lengths of the rows divided by their mean.
        dot: Rows are searched by dot product.
    """
    top = max(1, moments.dim // 100) if remove_top is None else remove_top
    maps = [RowMap(UNCHANGED, "remedy", _same)]
    options: list[dict[str, object]] = [{"centre": True}]
    if 0 < top < moments.dim:
        options.append({"centre": True, "remove_top": top})
    options.append({"centre": True, "whiten": True})
    for each in options:
        remedy = fit_remedy(moments, **each)  # type: ignore[arg-type]
        maps.append(RowMap(remedy.name, "remedy", _after(remedy), remedy))
    if norm_spread > _SPREAD:
        maps.append(RowMap(UNIT_LENGTH, "remedy", unit) if dot else RowMap(AS_STORED, "remedy", _same))
    return maps


def _after(remedy: Remedy) -> Callable[[Tensor], Tensor]:
    return lambda x: remedy.apply(x.double())


def _same(x: Tensor) -> Tensor:
    return x


def compression_maps(moments: Moments, ranges: Ranges, *, dot: bool = False) -> list[RowMap]:
    """Return maps to fewer coordinates (the first ones, or principal axes) and to fewer bits (int8, binary).

    Args:
        moments: Moments of the rows.
        ranges: Ranges of the columns of the unit rows, or with `dot` of the rows as stored: int8 rounds these.
        dot: Rows are searched by dot product.
    """
    stored = _same if dot else unit
    maps = []
    axes = _principal_axes(moments)
    for length in lengths(moments.dim):
        maps.append(RowMap(f"first {length}", "compression", _first(length)))
        maps.append(RowMap(f"PCA {length}", "compression", _projected(axes[:, :length])))
    maps.append(RowMap("int8", "compression", lambda x: _int8(stored(x), ranges)))
    maps.append(RowMap("binary", "compression", lambda x: torch.where(x > 0, 1.0, -1.0)))
    return maps


def lengths(d: int) -> Sequence[int]:
    """Return the lengths to which rows are cut: powers of two below d, at most four, at least 16.

    >>> lengths(384), lengths(24)
    ([256, 128, 64, 32], [16])
    """
    powers = [1 << p for p in range(20, 3, -1)]
    return [p for p in powers if _SHORTEST <= p < d][:_MOST_LENGTHS]


def _first(length: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x[:, :length]


def _projected(axes: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x.double() @ axes


def _principal_axes(moments: Moments) -> Tensor:
    """Axes about the origin, the strongest first: they keep dot products best. (d, d) float64."""
    second = moments.scatter / moments.n + torch.outer(moments.mean, moments.mean)
    return torch.linalg.eigh(second).eigenvectors.flip(1)


def _int8(u: Tensor, ranges: Ranges) -> Tensor:
    """Round each column to 255 steps between its smallest and largest entry in the corpus."""
    step = ((ranges.high - ranges.low) / _LEVELS).clamp(min=1e-12)
    level = ((u - ranges.low) / step).round().clamp(0, _LEVELS)
    return level * step + ranges.low
