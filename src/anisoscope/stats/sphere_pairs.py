"""How near pairs of directions are: sums of a Gaussian kernel over pairs of unit rows, by blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.sample import Sample

SHARPNESS = 2.0  # t of the kernel exp(−t‖u − v‖²), as published
_ROWS = 2048  # of the sample: their two million pairs leave an error far below that of the rows themselves
_STRIP = 512


@dataclass(frozen=True)
class SpherePairs:
    """Sums of exp(−2‖u − v‖²) over pairs of different rows u, v of length 1, by the blocks of both rows.

    Rows of length zero have no direction and are left out.
    """

    sources: ClassVar = (Sample,)
    number: Tensor  # (B,) block numbers
    kernel: Tensor  # (B, B) float64
    rows: Tensor  # (B,) float64

    @classmethod
    def derive(cls, cloud: Cloud) -> SpherePairs:
        sample = cloud.get(Sample)
        x = double(sample.x[:_ROWS])
        length = torch.linalg.vector_norm(x, dim=1)
        keep = (length > 0).nonzero()[:, 0]
        unit = x[keep] / length[keep, None]  # (n, d)
        number, which = sample.rows.tokens.block[:_ROWS][keep.cpu()].unique(return_inverse=True)
        member = torch.zeros(len(unit), len(number), dtype=torch.float64, device=unit.device)
        member[torch.arange(len(unit)), which] = 1.0  # (n, B)
        kernel = member.new_zeros(len(number), len(number))
        for start in range(0, len(unit), _STRIP):
            rows = slice(start, start + _STRIP)
            near = torch.exp(2 * SHARPNESS * (unit[rows] @ unit.T - 1).clamp(max=0.0))  # ‖u − v‖² = 2 − 2u·v
            near[torch.arange(len(near)), start + torch.arange(len(near))] = 0.0
            kernel += member[rows].T @ near @ member
        return cls(number, kernel.cpu(), member.sum(0).cpu())

    def without_block(self, blocks: Tensor) -> SpherePairs:
        keep = ~torch.isin(self.number, blocks)
        return SpherePairs(self.number[keep], self.kernel[keep][:, keep], self.rows[keep])
