"""One case of the tangent test: gradients of one kind at one site, and the bases they are tested against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from anisoscope.records import Record
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.energy import Energies
from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.site_bases import SiteBases


class GradientSums(Protocol):
    """What a test needs of gradients; `Gradients` and `WeightGradients` provide it."""

    @property
    def count(self) -> Tensor: ...
    @property
    def n(self) -> int: ...
    @property
    def pooled(self) -> Tensor: ...
    @property
    def covariance(self) -> Tensor: ...
    def energies(self, bases: Sequence[Basis]) -> Energies: ...
    def along(self, axes: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class GradientCase:
    """Gradients of one kind at one site, and what to test them against.

    Attributes:
        site: The site of the records.
        gradient: The kind of gradient.
        fitted: The bases, from other tokens.
        sums: The gradients, as sums by block.
        unit: What the blocks consist of.
        basis: "refreshed" or "frozen".
        errors: The inputs x and errors δ behind the gradient of a weight.
        relabelled: The gradients of shuffled labels.
        strata: The names of the strata in `sums`.
        seed: The seed of every draw.
    """

    site: str
    gradient: str
    fitted: SiteBases
    sums: GradientSums
    unit: str = "documents"
    basis: str = "refreshed"
    errors: tuple[Tensor, Tensor] | None = None
    relabelled: Gradients | None = None
    strata: Sequence[str] = ()
    seed: int = 0

    @property
    def used_blocks(self) -> list[int]:
        """The blocks that hold any rows."""
        return [int(block) for block in (self.sums.count > 0).nonzero()[:, 0]]

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The number of rows in each used block."""
        return tuple(self.sums.count[self.used_blocks].tolist())

    def record(self, metric: str, value: float | None, **columns: Any) -> Record:
        """A record of this case."""
        variant = {"gradient": self.gradient, "basis": self.basis, **columns.pop("variant", {})}
        kind = None if columns.get("error") is None else f"jackknife-{len(self.used_blocks)}-{self.unit}"
        return Record(self.site, metric, value, n=self.sums.n, variant=variant, error_kind=kind, **columns)
