"""Derived statistics of two clouds of the same tokens: now, and a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, plain
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
class OwnKernel:
    """HSIC of the sampled rows of a cloud with themselves; see `hsic`."""

    sources: ClassVar = (Sample,)
    value: float

    @classmethod
    def derive(cls, cloud: Cloud) -> OwnKernel:
        x = centred_rows(plain(cloud.get(Sample).x))
        return cls(hsic(x, x))


@dataclass(frozen=True)
class PairedKernels:
    """Centred rows of both clouds, and HSIC of the reference with itself, computed once if all its rows are paired."""

    sources: ClassVar = (Sample,)
    compares: ClassVar = True
    now: Tensor  # (n, d) float64
    then: Tensor  # (n, e) float64
    own: float

    @classmethod
    def derive(cls, cloud: Cloud) -> PairedKernels:
        pair, reference = cloud.get(Paired), cloud.require_reference()
        then = centred_rows(pair.then)
        whole = len(then) == len(reference.get(Sample).table)
        own = reference.get(OwnKernel).value if whole else hsic(then, then)
        return cls(centred_rows(pair.now), then, own)


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


def centred_rows(x: Tensor) -> Tensor:
    """Return rows minus their mean, in float64."""
    x = double(x)
    return x - x.mean(0)


def hsic(x: Tensor, y: Tensor) -> float:
    """Return n(n − 3) times the unbiased HSIC of linear kernels K, L of centred rows, from features, in float64.

    Since Σx = Σy = 0, the rows of K and L without their diagonals sum to minus the diagonals. A massive row contributes
    to tr KL almost only on the diagonal, which is subtracted; in float32 an error of 1e-2 would be left. Fewer than
    four rows, for which the unbiased HSIC is not defined, give 0.
    """
    n = len(x)
    if n < 4:
        return 0.0
    xx, yy = x.square().sum(1), y.square().sum(1)  # (n,) the diagonals
    product = (x.T @ y).square().sum() - xx @ yy  # tr KL
    return float(product + xx.sum() * yy.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * xx @ yy)
