"""Derived statistics of two clouds of the same tokens: now, and a reference."""

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
    """Sampled rows of both clouds: row i is the same token in both."""

    sources: ClassVar = (Sample,)
    compares: ClassVar = True
    now: Tensor  # (n, d) float32 or float64
    then: Tensor  # (n, e) likewise; e is d unless the reference is another layer or model

    @classmethod
    def derive(cls, cloud: Cloud) -> Paired:
        now, then = cloud.get(Sample), cloud.require_reference().get(Sample)
        both = torch.isin(now.table[:, 0], then.table[:, 0])  # sorted by key: the order is the same
        again = torch.isin(then.table[:, 0], now.table[:, 0])
        # the reference may be on another device: only the compared rows are moved
        return cls(plain(now.x[both.to(now.x.device)]), plain(then.x[again.to(then.x.device)].to(now.x.device)))


@dataclass(frozen=True)
class Axes:
    """Moments of the sampled rows of a cloud, and their principal axes as columns, the strongest first."""

    sources: ClassVar = (Sample,)
    moments: Moments
    values: Tensor  # (d,) float64, eigenvalues of the scatter, descending
    vectors: Tensor  # (d, d) float64
    rank: int  # number of eigenvalues above rounding

    @classmethod
    def derive(cls, cloud: Cloud) -> Axes:
        moments = Moments.of(cloud.get(Sample).rows)
        values, vectors = torch.linalg.eigh(moments.scatter)
        rank = int((values > _ROUNDING * values[-1].clamp(min=1e-300)).sum())
        return cls(moments, values.flip(0).clamp(min=0), vectors.flip(1).contiguous(), rank)


@dataclass(frozen=True)
class PairedAxes:
    """Axes of both clouds. They do not depend on the pairing, so those of the reference are computed only once."""

    sources: ClassVar = (Sample,)
    compares: ClassVar = True
    now: Axes
    then: Axes

    @classmethod
    def derive(cls, cloud: Cloud) -> PairedAxes:
        return cls(cloud.get(Axes), cloud.require_reference().get(Axes))


@dataclass(frozen=True)
class PairedHeads:
    """Sums of queries and keys per head of both clouds."""

    sources: ClassVar = (HeadSums,)
    compares: ClassVar = True
    now: HeadSums
    then: HeadSums

    @classmethod
    def derive(cls, cloud: Cloud) -> PairedHeads:
        return cls(cloud.get(HeadSums), cloud.require_reference().get(HeadSums))
