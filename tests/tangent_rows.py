"""Rows, spectra and fitted bases for tests of the tangent package."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.tangent.site_bases import SiteBases, fit_site_bases


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cloud(seed: int, n: int = 400, d: int = 20, power: float = 0.8) -> Tensor:
    """Rows with a falling spectrum, a random orientation and a mean."""
    scale = torch.arange(1, d + 1, dtype=torch.float64) ** -power
    axes = torch.linalg.qr(normal(seed + 1000, d, d))[0]
    return (normal(seed, n, d) * scale) @ axes.T + 0.3 * axes[:, 0]


def overlap(a: Tensor, b: Any) -> float:
    """tr P_A P_B / r: 1 for the same subspace."""
    return float((a.T @ torch.as_tensor(np.asarray(b))).square().sum() / a.shape[1])


def falling(d: int, power: float = 1.0) -> Tensor:
    axes = torch.linalg.qr(normal(40, d, d))[0]
    return (axes * torch.arange(1, d + 1, dtype=torch.float64) ** -power) @ axes.T


def made(seed: int = 20, n: int = 240, d: int = 16, **options: Any) -> tuple[SiteBases, Tensor, Tensor, Tensor]:
    """A fitted, gradients, activations and blocks."""
    x, g = cloud(seed, 2 * n, d), cloud(seed + 50, n, d, power=0.4)
    fitted = fit_site_bases(x[:n], **{"proxies": ["pca", "semi_nmf"], "ranks": [2, 4], "clusters": 3, **options})
    return fitted, g, x[n:], torch.arange(n) * 8 // n


def keys(seed: int, n: int) -> Tensor:
    return torch.randint(1 << 62, (n,), generator=torch.Generator().manual_seed(seed))


def batches(seed: int, number: int = 3, size: int = 6, length: int = 16) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 99, (size, length), generator=draw)} for _ in range(number)]
