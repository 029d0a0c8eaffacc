"""Do directions fitted on activations carry the true gradient? Proxies, nulls and the tangent test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.errors import InputError
from anisoscope.tangent.basis import Basis, orthonormal
from anisoscope.tangent.energy import chance, energy
from anisoscope.tangent.proxies import PROXIES, Proxy, fit_bases, named
from anisoscope.tangent.random_subspaces import Haar, haar
from anisoscope.tangent.semi_nmf import SemiNMF, factorise


@dataclass(frozen=True)
class Tangent:
    """What to fit on activations and how to test it against gradients.

    The tracker refits the bases at every probe ("refreshed"). With `total_steps` it also keeps the bases of one early
    step ("frozen").

    Attributes:
        proxies: Names of proxies ("pca", "semi_nmf", "svd", "mean"), or functions from rows and a rank to a `Basis`.
        ranks: The ranks to fit.
        nulls: "all" or names of nulls.
        frozen_after: The share of `total_steps` after which bases are frozen.
        total_steps: The length of the training; None for no frozen bases.

    Raises:
        InputError: If a proxy is unknown, a rank is not positive, or `frozen_after` is not between 0 and 1.

    Example: `tangent_test(model, fit, test, tangent=Tangent(proxies=("pca",), ranks=(8, 32)))`.
    """

    proxies: Sequence[str | Proxy] = ("pca",)
    ranks: Sequence[int] = (8, 32)
    nulls: str | Sequence[str] = "all"
    frozen_after: float = 0.3
    total_steps: int | None = None

    def __post_init__(self) -> None:
        for proxy in self.proxies:
            named(proxy)
        if not self.ranks or min(self.ranks) < 1:
            raise InputError(f"Ranks {tuple(self.ranks)} are not all positive. Use whole numbers such as (8, 32).")
        if not 0 < self.frozen_after < 1:
            raise InputError(f"frozen_after={self.frozen_after} is not a share of the run. Use 0 < frozen_after < 1.")

    @property
    def frozen_from(self) -> int | None:
        """The step at which the frozen bases are fitted; None without `total_steps`."""
        return None if self.total_steps is None else round(self.frozen_after * self.total_steps)


__all__ = [
    "PROXIES",
    "Basis",
    "Haar",
    "Proxy",
    "SemiNMF",
    "Tangent",
    "chance",
    "energy",
    "factorise",
    "fit_bases",
    "haar",
    "orthonormal",
]
