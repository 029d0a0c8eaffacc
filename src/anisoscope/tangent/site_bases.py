"""The bases of one site: everything that is fitted on activations before any gradient is computed."""

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

_FEWEST = 2  # rows needed per direction of the largest basis


@dataclass(frozen=True)
class SiteBases:
    """Bases, principal axes and patches of one site, from the fit tokens alone.

    `others` holds bases fitted elsewhere (another layer, step 0, another run), by the name of the null they serve.
    """

    bases: tuple[Basis, ...]
    mean: Tensor  # (d,) float64
    axes: Tensor  # (d, d) float64, principal axes as columns, most variance first
    variance: Tensor  # (d,) float64, along each axis
    coordinates: Tensor  # (d,) float64, variance of each coordinate
    patches: Patches | None
    n: int
    longest: float = float("inf")  # rows with a larger norm are massive, in the fit and in the test
    others: Mapping[str, tuple[Basis, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        bases: Sequence[Basis],
        moments: Moments,
        axes: Tensor,
        variance: Tensor,
        *,
        patches: Patches | None = None,
        longest: float = float("inf"),
    ) -> SiteBases:
        """The bases of rows with these moments and principal axes."""
        coordinates = moments.scatter.diagonal().cpu() / max(1, moments.n - 1)
        return cls(tuple(bases), moments.mean.cpu(), axes, variance, coordinates, patches, moments.n, longest)

    @property
    def dim(self) -> int:
        return len(self.mean)

    @property
    def ranks(self) -> list[int]:
        return sorted({basis.rank for basis in self.bases})

    @property
    def by_rank(self) -> dict[tuple[str, int], Basis]:
        """The bases by proxy and rank, as a warm start for a later fit."""
        return {(basis.proxy, basis.rank): basis for basis in self.bases}


def fit_site_bases(
    x: Tensor,
    proxies: Sequence[str | Proxy] = ("pca",),
    ranks: Sequence[int] = (8, 32),
    *,
    clusters: int = CLUSTERS,
    seed: int = 0,
    start: SiteBases | None = None,
    longest: float = float("inf"),
) -> SiteBases:
    """Fit the bases of a site.

    Args:
        x: Rows (n, d).
        proxies: Names or functions of tangent proxies.
        ranks: The ranks to fit.
        clusters: The number of patches; 0 for none.
        seed: The seed of every draw.
        start: The bases of an earlier step, as a warm start.
        longest: The norm above which rows are massive; they are not in x.

    Raises:
        InputError: If a rank leaves no normal space, or if there are too few rows for it.
    """
    n, d = x.shape
    highest = max(ranks)
    if highest >= d:
        raise InputError(f"Rank {highest} in {d} dimensions leaves no normal space. Use ranks below {d}.")
    if n < _FEWEST * highest:
        raise InputError(
            f"{n} rows are too few to fit {highest} directions. Pass at least {_FEWEST * highest} fit tokens."
        )
    moments = Moments.of(bare_rows(x.detach()))
    variance, axes = axes_of(moments)
    warm = {} if start is None else start.by_rank
    bases = fit_bases(x, proxies, ranks, seed=seed, start=warm, moments=moments, axes=axes)
    patches = fit_patches(x, highest, clusters=clusters, seed=seed) if clusters > 1 else None
    return SiteBases.of(bases, moments, axes, variance, patches=patches, longest=longest)
