"""The frame of a site: all that is fitted on activations before any gradient is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.patches import CLUSTERS, Patches, fit_patches
from anisoscope.tangent.proxies import Proxy, axes_of, fit_bases

_FEWEST = 2  # rows per dimension of the largest basis that a fit needs


@dataclass(frozen=True)
class Frame:
    """Bases, principal axes and patches of one site, from the fit tokens alone.

    `others` are bases fitted elsewhere (another layer, step 0, another run), by what they are called.
    """

    bases: tuple[Basis, ...]
    mean: Tensor  # (d,) float64
    axes: Tensor  # (d, d) float64, principal axes as columns, most variance first
    variance: Tensor  # (d,) float64, along each axis
    coordinates: Tensor  # (d,) float64, variance of each coordinate
    patches: Patches | None
    n: int
    longest: float = float("inf")  # rows longer than this were no part of the fit, nor are they of a test
    others: Mapping[str, tuple[Basis, ...]] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        return len(self.mean)

    @property
    def ranks(self) -> list[int]:
        return sorted({basis.rank for basis in self.bases})


def fit_frame(
    x: Tensor,
    proxies: Sequence[str | Proxy] = ("pca",),
    ranks: Sequence[int] = (8, 32),
    *,
    clusters: int = CLUSTERS,
    seed: int = 0,
    start: Frame | None = None,
    longest: float = float("inf"),
) -> Frame:
    """The frame of rows (n, d) of at most this length; `start` is the frame of an earlier step, to warm up from."""
    n, d = x.shape
    highest = max(ranks)
    if highest >= d:
        raise InputError(f"rank {highest} in {d} dimensions leaves no normal space; give ranks below {d}")
    if n < _FEWEST * highest:
        raise InputError(f"{n} rows cannot show {highest} directions; give at least {_FEWEST * highest} fit tokens")
    moments = Moments.of(bare_rows(x.detach()))
    variance, axes = axes_of(moments)
    warm = {(basis.proxy, basis.rank): basis for basis in start.bases} if start is not None else {}
    return Frame(
        bases=tuple(fit_bases(x, proxies, ranks, seed=seed, start=warm, moments=moments, axes=axes)),
        mean=moments.mean.cpu(),
        axes=axes,
        variance=variance,
        coordinates=moments.scatter.diagonal().cpu() / max(1, n - 1),
        patches=fit_patches(x, highest, clusters=clusters, seed=seed) if clusters > 1 else None,
        n=n,
        longest=longest,
    )
