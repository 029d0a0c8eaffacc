"""Arithmetic shared by the statistics: plain float rows in, float64 sums out, whatever surrounds the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CHUNK = 4096  # rows a product: large enough for full GEMM speed, small enough for float32 sums to stay good
_PANEL = 256  # columns a panel of the upper triangle
_NARROW = 256  # up to this width float64 costs no more than reading the rows
GROUP = 64  # rows summed in float32 before float64 takes over: rounding grows with their number


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autograd, no autocast, no TF32: a user's training settings must not round what is measured."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def plain(x: Tensor) -> Tensor:
    """Detached rows in float32, or float64 where they came so; half precision is widened (exactly)."""
    x = x.detach()
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def double(x: Tensor) -> Tensor:
    """Float64, on the CPU where the device has no float64 (MPS)."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def narrow(x: Tensor) -> bool:
    """Whether rows are so short that float64 costs no more than reading them."""
    return x.shape[1] <= _NARROW


def gram(y: Tensor) -> Tensor:
    """yᵀy in y's own precision, (n, d) -> (d, d), as panels of the upper triangle: 0.6-0.7 of the full product."""
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
    """weight @ x in float64, (w, n) × (n, d) -> (w, d): a few rows at a time in x's precision, then in float64.

    A float32 sum of a thousand nearly equal rows is off by up to 3e-5 of itself, of 64 rows by up to 1e-6.
    """
    n, d = x.shape
    whole = n - n % GROUP
    groups = weight[:, :whole].reshape(len(weight), -1, GROUP).transpose(0, 1)  # (groups, w, GROUP)
    parts = torch.bmm(groups, x[:whole].reshape(-1, GROUP, d))  # (groups, w, d)
    return double(parts).sum(0) + double(weight[:, whole:] @ x[whole:])
