"""Arithmetic shared by the statistics: float rows in, float64 sums out, independent of the caller's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CHUNK = 4096  # rows per product: large enough for full GEMM speed, small enough for float32 sums to stay good
_PANEL = 256  # columns per panel of the upper triangle
_NARROW = 256  # up to this width float64 costs no more than reading the rows
GROUP = 64  # rows summed in float32 before float64 takes over: rounding grows with their number


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Turn off autograd, autocast and TF32: training settings must not affect the precision of measurements."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def plain(x: Tensor) -> Tensor:
    """Return detached rows in float32, or float64 if they are; half precision is widened exactly."""
    x = x.detach()
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def double(x: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the device has no float64 (MPS)."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def narrow(x: Tensor) -> bool:
    """Return whether rows are so short that float64 costs no more than reading them."""
    return x.shape[1] <= _NARROW


def gram(y: Tensor) -> Tensor:
    """Return yᵀy in the precision of y, (n, d) -> (d, d), from panels of the upper triangle: 0.6-0.7 of the time."""
    d = y.shape[1]
    if d < 2 * _PANEL:
        return y.T @ y
    out = y.new_empty(d, d)
    for i in range(0, d, _PANEL):
        j = min(i + _PANEL, d)
        out[i:j, i:] = y[:, i:j].T @ y[:, i:]  # (panel, d - i)
        out[j:, i:j] = out[i:j, j:].T
    return out


def weighted_sums(weight: Tensor, x: Tensor) -> Tensor:
    """Return weight @ x in float64, (w, n) × (n, d) -> (w, d), summing groups of rows in the precision of x.

    A float32 sum of a thousand nearly equal rows has a relative error of up to 3e-5, one of 64 rows up to 1e-6.
    """
    n, d = x.shape
    whole = n - n % GROUP
    groups = weight[:, :whole].reshape(len(weight), -1, GROUP).transpose(0, 1)  # (groups, w, GROUP)
    parts = torch.bmm(groups, x[:whole].reshape(-1, GROUP, d))  # (groups, w, d)
    return double(parts).sum(0) + double(weight[:, whole:] @ x[whole:])
