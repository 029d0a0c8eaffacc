"""The same tokens seen twice: rows and heads of now beside those of a reference, for metrics of what has moved."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.arith import double
from anisoscope.stats.blocks import Cloud
from anisoscope.stats.heads import HeadSums
from anisoscope.stats.sample import Sample


@dataclass(frozen=True)
class Paired:
    """Sampled rows of now and of the reference: row i of both is the same token."""

    now: Tensor  # (n, d) float64
    then: Tensor  # (n, e) float64; e is d unless the reference is another layer or model

    @classmethod
    def derive(cls, cloud: Cloud) -> Paired:
        now, then = cloud.get(Sample), _reference(cloud).get(Sample)
        both = torch.isin(now.table[:, 0], then.table[:, 0])  # samples are sorted by key: what is left lies in order
        again = torch.isin(then.table[:, 0], now.table[:, 0])
        # the reference stays where the past is kept; only what is compared moves to the rows of now
        return cls(double(now.x[both.to(now.x.device)]), double(then.x[again.to(then.x.device)].to(now.x.device)))


@dataclass(frozen=True)
class PairedHeads:
    """Queries and keys per head, of now and of the reference."""

    now: HeadSums
    then: HeadSums

    @classmethod
    def derive(cls, cloud: Cloud) -> PairedHeads:
        return cls(cloud.get(HeadSums), _reference(cloud).get(HeadSums))


def beside(cloud: Cloud, reference: Cloud) -> Cloud:
    """The cloud with another one of the same tokens beside it; nothing that was derived from an older pair stays."""
    return Cloud(cloud.stats, cloud.blocks, reference=reference)


def _reference(cloud: Cloud) -> Cloud:
    if cloud.reference is None:
        raise InputError("this cloud has no reference to compare with; put one there with beside(cloud, reference)")
    return cloud.reference
