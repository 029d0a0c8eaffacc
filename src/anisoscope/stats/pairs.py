"""The same tokens seen twice: rows and heads of now beside those of a reference, for metrics of what has moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import plain
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.head_sums import HeadSums
from anisoscope.stats.moments import Moments
from anisoscope.stats.sample import Sample

_ROUNDING = 1e-12  # share of the largest eigenvalue below which a direction is rounding


@dataclass(frozen=True)
class Paired:
    """Sampled rows of now and of the reference: row i of both is the same token."""

    sources: ClassVar = (Sample,)
    compares: ClassVar = True
    now: Tensor  # (n, d) float32 or float64
    then: Tensor  # (n, e) likewise; e is d unless the reference is another layer or model

    @classmethod
    def derive(cls, cloud: Cloud) -> Paired:
        now, then = cloud.get(Sample), cloud.require_reference().get(Sample)
        both = torch.isin(now.table[:, 0], then.table[:, 0])  # samples are sorted by key: what is left lies in order
        again = torch.isin(then.table[:, 0], now.table[:, 0])
        # the reference stays where the past is kept; only what is compared moves to the rows of now
        return cls(plain(now.x[both.to(now.x.device)]), plain(then.x[again.to(then.x.device)].to(now.x.device)))


@dataclass(frozen=True)
class Axes:
    """Moments of a cloud's sampled rows, and their principal axes as columns, the strongest first."""

    sources: ClassVar = (Sample,)
    moments: Moments
    values: Tensor  # (d,) float64, eigenvalues of the scatter, descending
    vectors: Tensor  # (d, d) float64
    rank: int  # how many of them are more than rounding

    @classmethod
    def derive(cls, cloud: Cloud) -> Axes:
        moments = Moments.of(cloud.get(Sample).rows)
        values, vectors = torch.linalg.eigh(moments.scatter)
        rank = int((values > _ROUNDING * values[-1].clamp(min=1e-300)).sum())
        return cls(moments, values.flip(0).clamp(min=0), vectors.flip(1).contiguous(), rank)


@dataclass(frozen=True)
class PairedAxes:
    """Axes of now and of the reference. They need no pairing of rows, so those of a reference are found only once."""

    sources: ClassVar = (Sample,)
    compares: ClassVar = True
    now: Axes
    then: Axes

    @classmethod
    def derive(cls, cloud: Cloud) -> PairedAxes:
        return cls(cloud.get(Axes), cloud.require_reference().get(Axes))


@dataclass(frozen=True)
class PairedHeads:
    """Queries and keys per head, of now and of the reference."""

    sources: ClassVar = (HeadSums,)
    compares: ClassVar = True
    now: HeadSums
    then: HeadSums

    @classmethod
    def derive(cls, cloud: Cloud) -> PairedHeads:
        return cls(cloud.get(HeadSums), cloud.require_reference().get(HeadSums))
