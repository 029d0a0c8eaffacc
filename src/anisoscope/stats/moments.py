"""Count, mean and scatter of rows: everything spectral, exactly, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anisoscope.stats.arith import CHUNK, double, full_precision, gram, narrow, plain
from anisoscope.stats.rows import Rows

_FAR = 100.0  # beyond this ratio of mean to spread float32 rows have lost digits that float64 products still hold


@dataclass(frozen=True)
class Moments:
    """n, the mean, the scatter Σ yyᵀ and two higher sums of the deviations y = x − mean, all float64.

    `third` = Σ ‖y‖² y and `fourth` = Σ ‖y‖⁴ cost nothing beside the scatter and give the exact effective number of
    rows of a cloud whose norms differ (see `metrics.nulls`). Adding shifts both sides to the common mean.
    """

    n: int
    mean: Tensor  # (d,)
    scatter: Tensor  # (d, d)
    third: Tensor  # (d,)
    fourth: Tensor  # ()

    @classmethod
    def of(cls, rows: Rows, *, precise: bool = False) -> Moments:
        """From rows: products in float32 about a local centre, sums in float64.

        Float64 rows, narrow rows, `precise=True`, and (on the CPU) rows whose mean exceeds 100 spreads are multiplied
        in float64. The rows of largest norm always are, so that one massive row cannot round away all the others and
        can be taken out again exactly.
        """
        x = plain(rows.x)  # (n, d)
        wide = precise or x.dtype == torch.float64 or narrow(x)
        total = _empty(x)
        with full_precision(x.device):
            for chunk in x.split(CHUNK) if len(x) else ():
                total = total + (_in_float64(chunk) if wide else _in_float32(chunk))
        return total

    @property
    def dim(self) -> int:
        return len(self.mean)

    def __add__(self, other: Moments) -> Moments:
        n = self.n + other.n
        if not self.n or not other.n:
            return self if self.n else other
        mean = self.mean + (other.mean - self.mean) * (other.n / n)
        a, b = self._about(mean), other._about(mean)
        return Moments(n, mean, a.scatter + b.scatter, a.third + b.third, a.fourth + b.fourth)

    def without(self, part: Moments) -> Moments:
        """The moments of the rows that are left when `part`'s rows are taken out: the inverse of adding."""
        n = self.n - part.n
        if n <= 0 or not part.n:
            return self if not part.n else _empty(self.mean[None])
        mean = self.mean + (self.mean - part.mean) * (part.n / n)
        a, b = self._about(mean), part._about(mean)
        return Moments(n, mean, a.scatter - b.scatter, a.third - b.third, a.fourth - b.fourth)

    def _about(self, centre: Tensor) -> Moments:
        """The same sums of deviations from another centre c: with δ = c − mean, y − δ replaces y (Σ y = 0)."""
        delta = centre - self.mean
        along = self.scatter @ delta
        square = delta @ delta
        trace = self.trace
        return Moments(
            self.n,
            centre,
            torch.addr(self.scatter, delta, delta, alpha=self.n),
            self.third - 2 * along - (trace + self.n * square) * delta,
            self.fourth + 4 * delta @ along + self.n * square**2 - 4 * self.third @ delta + 2 * square * trace,
        )

    @property
    def trace(self) -> Tensor:
        return self.scatter.diagonal().sum()

    @property
    def second(self) -> Tensor:
        """Σ xxᵀ, uncentred."""
        return torch.addr(self.scatter, self.mean, self.mean, alpha=self.n)

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the scatter, descending, rounding below zero cut off."""
        return torch.linalg.eigvalsh(self.scatter).flip(0).clamp(min=0)

    @cached_property
    def eigenvalues_uncentred(self) -> Tensor:
        """Eigenvalues of Σ xxᵀ, descending: the squared singular values of the rows as they are."""
        return torch.linalg.eigvalsh(self.second).flip(0).clamp(min=0)

    @cached_property
    def top_axis(self) -> Tensor:
        """The unit vector along which the rows vary most, (d,): inverse iteration from the known eigenvalue.

        A tenth of the price of all eigenvectors. The shift is off by more than rounding, so the system is regular.
        """
        top = float(self.eigenvalues[0])
        if top <= 0:
            return torch.nn.functional.one_hot(torch.tensor(0), self.dim).to(self.scatter)
        shift = top * (1 + 1e-9)
        near = self.scatter - shift * torch.eye(self.dim, dtype=self.scatter.dtype, device=self.scatter.device)
        factors, pivots = torch.linalg.lu_factor(near)
        start = torch.randn(self.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        axis = start.to(self.scatter)  # any vector that is not orthogonal to the axis
        for _ in range(3):
            axis = torch.linalg.lu_solve(factors, pivots, axis[:, None])[:, 0]
            axis = axis / axis.norm()
        return axis

    @cached_property
    def axes_uncentred(self) -> Tensor:
        """Eigenvectors of Σ xxᵀ as columns, each pointing to the side of the mean, (d, d)."""
        axes = torch.linalg.eigh(self.second).eigenvectors
        return axes * torch.where(self.mean @ axes < 0, -1.0, 1.0)


def _empty(x: Tensor) -> Moments:
    d = x.shape[1]
    zero = torch.zeros(d, dtype=torch.float64, device="cpu" if x.device.type == "mps" else x.device)
    return Moments(0, zero, zero.new_zeros(d, d), zero, zero.new_zeros(()))


def _in_float64(x: Tensor) -> Moments:
    y = double(x)  # (n, d)
    return _about_mean(len(y), y.mean(0), y - y.mean(0))


def _in_float32(x: Tensor) -> Moments:
    n = len(x)
    heavy = max(16, n // 32)  # a fixed number: choosing by value would wait for the device
    if n <= 2 * heavy:
        return _in_float64(x)
    light = x.new_ones(n).index_fill(0, x.norm(dim=1).topk(heavy).indices, 0.0)  # (n,)
    centre = (light / (n - heavy)) @ x  # (d,)
    y = x - centre  # (n, d), exact in float32 where the mean is large: both are close
    far = (y * y).sum(1)  # (n,)
    if x.device.type == "cpu" and centre.square().sum() > _FAR**2 * far.mean():
        return _in_float64(x)
    out = far.topk(heavy).indices
    rest = _in_float64(x[out])
    y[out] = 0.0
    return _about_mean(n - heavy, double(centre), y) + rest


def _about_mean(n: int, centre: Tensor, y: Tensor) -> Moments:
    """Moments of n rows from their deviations from a centre near the mean; zero rows of y beyond n count nothing."""
    square = (y * y).sum(1)  # (n,)
    total = double(y.new_ones(len(y)) @ y)  # (d,)
    about = Moments(
        n,
        centre,
        double(gram(y)),
        double(square @ y),
        double(square).square().sum(),
    )
    shift = total / n  # the mean of the deviations; the sums below are about the centre, not yet about the mean
    along = about.scatter @ shift
    length = shift @ shift
    return Moments(
        n,
        centre + shift,
        torch.addr(about.scatter, shift, shift, alpha=-n),
        about.third - 2 * along - about.trace * shift + 2 * n * length * shift,
        about.fourth + 4 * shift @ along - 3 * n * length**2 - 4 * about.third @ shift + 2 * length * about.trace,
    )
