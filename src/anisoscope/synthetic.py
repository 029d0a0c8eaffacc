"""Synthetic clouds with known answers. Each metric declares its answers for them (`knows`)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from anisoscope.errors import unknown

ROWS = 4096
DIM = 16


def cloud(name: str, *, n: int = ROWS, d: int = DIM, seed: int = 0) -> Tensor:
    """Make the cloud of a name. Equal arguments give equal rows.

    Args:
        name: One of `CLOUDS`, such as "sphere", "line" or "power law".
        n: Number of rows.
        d: Number of dimensions.
        seed: Seed of the random numbers.

    Returns:
        Rows (n, d) in float64.

    Raises:
        InputError: The name is unknown.

    >>> cloud("line", n=3, d=2).shape
    torch.Size([3, 2])
    """
    if name not in CLOUDS:
        raise unknown("cloud", name, CLOUDS)
    return CLOUDS[name](n, d, torch.Generator().manual_seed(seed))


def sphere(n: int, d: int, g: torch.Generator) -> Tensor:
    """An isotropic Gaussian."""
    return torch.randn(n, d, generator=g, dtype=torch.float64)


def line(n: int, d: int, g: torch.Generator) -> Tensor:
    """Rows on a line that does not pass through the origin."""
    return 3.0 + sphere(n, 1, g) * _direction(d)


def one_direction(n: int, d: int, g: torch.Generator) -> Tensor:
    """Rows of length 1 and 3 in one direction: cosine 1, mean length 2."""
    length = 1.0 + 2.0 * (torch.arange(n) % 2).double()
    return length[:, None] * _direction(d)


def plane(n: int, d: int, g: torch.Generator) -> Tensor:
    """A flat 3-dimensional Gaussian in d dimensions."""
    return sphere(n, 3, g) @ _frame(3, d, g)


def shifted(n: int, d: int, g: torch.Generator) -> Tensor:
    """A sphere far from the origin: mean 10 in every coordinate."""
    return sphere(n, d, g) + 10.0


def cone(n: int, d: int, g: torch.Generator) -> Tensor:
    """Unit rows at one angle to an axis, cosine √0.8 with it: mean cosine 0.8, centred 0."""
    axis = _direction(d)
    around = sphere(n, d, g)
    around = around - (around @ axis)[:, None] * axis
    around = around / around.norm(dim=1, keepdim=True)
    return math.sqrt(0.8) * axis + math.sqrt(0.2) * around


def power_law(n: int, d: int, g: torch.Generator) -> Tensor:
    """A Gaussian with variances 1, 1/2, 1/3, … along random orthogonal axes."""
    scale = torch.arange(1, d + 1, dtype=torch.float64).rsqrt()
    return sphere(n, d, g) * scale @ _frame(d, d, g)


def swiss_roll(n: int, d: int, g: torch.Generator) -> Tensor:
    """A rolled-up sheet: 2 dimensions that fill 3."""
    angle = 1.5 * math.pi * (1 + 2 * torch.rand(n, generator=g, dtype=torch.float64))
    width = 21 * torch.rand(n, generator=g, dtype=torch.float64)
    return torch.stack((angle * angle.cos(), width, angle * angle.sin()), 1) @ _frame(3, d, g)


def curved(n: int, d: int, g: torch.Generator) -> Tensor:
    """A 4-dimensional patch bent by its own quadratic terms into d dimensions (up to 14 of them)."""
    flat = torch.rand(n, 4, generator=g, dtype=torch.float64) - 0.5
    bend = torch.stack([flat[:, i] * flat[:, j] for i in range(4) for j in range(i, 4)], 1)  # (n, 10)
    return torch.cat((flat, bend), 1) @ _frame(14, d, g)


def duplicates(n: int, d: int, g: torch.Generator) -> Tensor:
    """The plane, with every tenth row a copy of the row before it."""
    rows = plane(n, d, g)
    copies = torch.arange(9, n, 10)
    rows[copies] = rows[copies - 1]
    return rows


def massive_row(n: int, d: int, g: torch.Generator) -> Tensor:
    """A sphere in which one row has 1000 times the length of the others."""
    rows = sphere(n, d, g)
    rows[n // 2] *= 1000.0
    return rows


def outlier_dimension(n: int, d: int, g: torch.Generator) -> Tensor:
    """A sphere whose coordinate 3 has √(94) ≈ 9.7 times the spread: λ1 share 94/(94 + d − 1) = 0.862 at d = 16."""
    rows = sphere(n, d, g)
    rows[:, min(3, d - 1)] *= math.sqrt(94.0)
    return rows


def _direction(d: int) -> Tensor:
    return torch.full((d,), 1 / math.sqrt(d), dtype=torch.float64)


def _frame(k: int, d: int, g: torch.Generator) -> Tensor:
    """Return a (k, d) matrix with min(k, d) random orthonormal rows or columns."""
    q = torch.linalg.qr(torch.randn(max(k, d), max(k, d), generator=g, dtype=torch.float64)).Q
    return q[:k, :d]


CLOUDS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "sphere": sphere,
    "line": line,
    "one direction": one_direction,
    "plane": plane,
    "shifted": shifted,
    "cone": cone,
    "power law": power_law,
    "swiss roll": swiss_roll,
    "curved": curved,
    "duplicates": duplicates,
    "massive row": massive_row,
    "outlier dimension": outlier_dimension,
}
