"""`Moments`: count, mean and scatter of rows, from which all spectral metrics follow, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import CHUNK, double, full_precision, gram, narrow
from anisoscope.stats.rows import Rows
from anisoscope.stats.tridiagonal import Tridiagonal, is_usable

_FAR = 100.0  # beyond this ratio of mean to spread, float32 products lose digits that float64 products keep


@dataclass(frozen=True)
class Moments:
    """n, the mean, the scatter Σ yyᵀ and two higher sums of the deviations y = x − mean, all float64.

    `third` = Σ ‖y‖² y and `fourth` = Σ ‖y‖⁴ cost little compared with the scatter and give the exact effective number
    of rows of a cloud whose norms differ (see `metrics.nulls`). Adding shifts both sides to the common mean.
    """

    n: int
    mean: Tensor  # (d,)
    scatter: Tensor  # (d, d)
    third: Tensor  # (d,)
    fourth: Tensor  # ()

    @classmethod
    def of(cls, rows: Rows, *, precise: bool = False) -> Moments:
        """Compute the moments of rows: products in float32 about a local centre, sums in float64.

        A float32 product changes an eigenvalue by less than 2e-8 of the largest one, with any kernel. So singular
        values down to 1e-3 of the largest are within 1 %. `precise=True` extends this to 1e-6.

        Float64 rows, narrow rows and (on the CPU) rows whose mean exceeds 100 spreads are multiplied in float64 too.
        The rows of largest norm always are, so that one massive row does not cost the others their precision and can
        be subtracted again exactly.

        Args:
            rows: The rows.
            precise: Multiply in float64.
        """
        x = rows.plain  # (n, d)
        wide = precise or x.dtype == torch.float64 or narrow(x)
        if not len(x):
            return _empty(x)
        with full_precision(x.device):
            return reduce(add, (_in_float64(chunk) if wide else _in_float32(chunk) for chunk in x.split(CHUNK)))

    @property
    def dim(self) -> int:
        return len(self.mean)

    def __add__(self, other: Moments) -> Moments:
        n = self.n + other.n
        if not self.n or not other.n:
            return self if self.n else other
        mean = self.mean + (other.mean - self.mean) * (other.n / n)
        return self._joined(other, n, mean, 1)

    def without(self, part: Moments) -> Moments:
        """Return the moments without the rows of `part`: the inverse of adding."""
        n = self.n - part.n
        if n <= 0 or not part.n:
            return self if not part.n else _empty(self.mean[None])
        mean = self.mean + (self.mean - part.mean) * (part.n / n)
        return self._joined(part, n, mean, -1)

    def with_rows(self, x: Tensor) -> Moments:
        """Return the moments with a few more rows (k, d), multiplied in float64."""
        k, n = len(x), self.n + len(x)
        if not k or not self.n:
            return _in_float64(x) if k else self
        y = double(x)
        centre_of_rows = y.mean(0)
        y = y - centre_of_rows
        square = y.square().sum(1)  # (k,)
        mean = self.mean + (centre_of_rows - self.mean) * (k / n)
        off = centre_of_rows - self.mean
        stacked = torch.cat((y, off[None] * math.sqrt(self.n * k / n)))  # (k + 1, d): the means' distance last
        scatter = torch.addmm(self.scatter, stacked.T, stacked)
        third, fourth = self._higher_about(mean)
        delta = mean - centre_of_rows
        more, most = _higher(k, square @ y, square.square().sum(), y.T @ (y @ delta), square.sum(), delta)
        return Moments(n, mean, scatter, third + more, fourth + most)

    def _joined(self, other: Moments, n: int, mean: Tensor, sign: int) -> Moments:
        """Add (or subtract) the sums of both sides after shifting them to the common mean."""
        off = other.mean - self.mean
        scatter = torch.add(self.scatter, other.scatter, alpha=sign)
        scatter.addr_(off, off, alpha=sign * self.n * other.n / n)
        (third, fourth), (more, most) = self._higher_about(mean), other._higher_about(mean)
        return Moments(n, mean, scatter, third + sign * more, fourth + sign * most)

    def _higher_about(self, centre: Tensor) -> tuple[Tensor, Tensor]:
        """`third` and `fourth` of deviations from another centre."""
        delta = centre - self.mean
        return _higher(self.n, self.third, self.fourth, self.scatter @ delta, self.trace, delta)

    def about(self, centre: Tensor) -> Tensor:
        """Return scatter, third and fourth sums of the deviations from another centre, as one vector: these add."""
        delta = self.mean - centre
        scatter = torch.addr(self.scatter, delta, delta, alpha=self.n)
        third, fourth = self._higher_about(centre)
        return torch.cat((scatter.flatten(), third, fourth[None]))

    @property
    def trace(self) -> Tensor:
        return self.scatter.diagonal().sum()

    @property
    def second(self) -> Tensor:
        """Σ xxᵀ, uncentred."""
        return torch.addr(self.scatter, self.mean, self.mean, alpha=self.n)

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Eigenvalues of the scatter, descending; negative rounding errors become 0."""
        return self._spectrum(centred=True)

    @cached_property
    def eigenvalues_uncentred(self) -> Tensor:
        """Eigenvalues of Σ xxᵀ, descending: the squared singular values of the uncentred rows."""
        return self._spectrum(centred=False)

    def _spectrum(self, *, centred: bool) -> Tensor:
        if self._tridiagonal is not None:
            return self._tridiagonal.eigenvalues(centred=centred)
        return torch.linalg.eigvalsh(self.scatter if centred else self.second).flip(0).clamp(min=0)

    @cached_property
    def _tridiagonal(self) -> Tridiagonal | None:
        """The reduced scatter, on the CPU; None if spectra and axes must be computed one by one."""
        if self.scatter.device.type != "cpu" or not is_usable():
            return None
        return Tridiagonal.of(self.scatter, self.mean, self.n)

    @cached_property
    def top_axis(self) -> Tensor:
        """Unit vector along which the rows vary most, (d,)."""
        if self._tridiagonal is not None:
            return self._tridiagonal.top_axis()
        return torch.linalg.eigh(self.scatter).eigenvectors[:, -1]

    @cached_property
    def axes_uncentred(self) -> Tensor:
        """Eigenvectors of Σ xxᵀ as columns, (d, d), with signs so that none points away from the mean."""
        tridiagonal = self._tridiagonal
        axes = torch.linalg.eigh(self.second).eigenvectors if tridiagonal is None else tridiagonal.axes_uncentred()
        return axes * torch.where(self.mean @ axes < 0, -1.0, 1.0)


def _higher(
    n: int, third: Tensor, fourth: Tensor, along: Tensor, trace: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Σ ‖y‖²y and Σ ‖y‖⁴ after replacing y by y − δ (Σ y = 0); `along` = S δ."""
    square = delta @ delta
    return (
        third - 2 * along - (trace + n * square) * delta,
        fourth + 4 * delta @ along + n * square**2 - 4 * third @ delta + 2 * square * trace,
    )


def _empty(x: Tensor) -> Moments:
    d = x.shape[1]
    zero = torch.zeros(d, dtype=torch.float64, device="cpu" if x.device.type == "mps" else x.device)
    return Moments(0, zero, zero.new_zeros(d, d), zero, zero.new_zeros(()))


def _in_float64(x: Tensor) -> Moments:
    y = double(x)  # (n, d)
    centre = y.mean(0)
    y = y - centre
    square = y.square().sum(1)
    return _about_mean(len(y), centre, gram(y), y.sum(0), square @ y, square.square().sum())


def _in_float32(x: Tensor) -> Moments:
    """Multiply in float32 about the mean of most rows; the few farthest from it in float64."""
    n = len(x)
    heavy = max(16, n // 32)  # a fixed number: choosing by value would wait for the device
    if n <= 2 * heavy:
        return _in_float64(x)
    light = x.new_ones(n).index_fill(0, x.norm(dim=1).topk(heavy).indices, 0.0)  # (n,)
    centre = (light / (n - heavy)) @ x  # (d,)
    y = x - centre  # (n, d), exact in float32 where the mean is large: both are close
    square = torch.linalg.vector_norm(y, dim=1).square()  # (n,)
    if x.device.type == "cpu" and centre.square().sum() > _FAR**2 * square.mean():
        return _in_float64(x)
    out = square.topk(heavy).indices
    far = double(x[out]) - double(centre)  # (heavy, d)
    far_square = far.square().sum(1)
    y[out] = 0.0
    square[out] = 0.0
    return _about_mean(
        n,
        double(centre),
        double(gram(y)).addmm_(far.T, far),
        double(y.new_ones(n) @ y) + far.sum(0),
        double(square @ y) + far_square @ far,
        double(square).square().sum() + far_square.square().sum(),
    )


def _about_mean(n: int, centre: Tensor, scatter: Tensor, total: Tensor, third: Tensor, fourth: Tensor) -> Moments:
    """Return the moments of n rows from sums of deviations from a centre near the mean; `scatter` is overwritten."""
    shift = total / n  # the mean of the deviations
    along = scatter @ shift
    length = shift @ shift
    trace = scatter.diagonal().sum()
    return Moments(
        n,
        centre + shift,
        scatter.addr_(shift, shift, alpha=-n),
        third - 2 * along - trace * shift + 2 * n * length * shift,
        fourth + 4 * shift @ along - 3 * n * length**2 - 4 * third @ shift + 2 * length * trace,
    )
