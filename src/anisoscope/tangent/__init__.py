"""Do directions fitted on activations carry the true gradient? Proxies, nulls and the test."""

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

    Bases are `refreshed` at every probe, and `frozen` once the first `frozen_after` of `total_steps` is over (only
    where `total_steps` is given). `nulls` is "all" or names of nulls.
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
            raise InputError(f"ranks {tuple(self.ranks)}: expected whole numbers above zero, such as (8, 32)")
        if not 0 < self.frozen_after < 1:
            raise InputError(f"frozen_after {self.frozen_after} is a share of the run; expected 0 < share < 1")

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
