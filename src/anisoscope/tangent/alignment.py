"""Records of how much of the gradients lies inside a basis.

The only maker of `gradient_energy`, `gradient_enrichment`, `gradient_excess`, `gradient_p` and `tangent_normal_ratio`,
for the tracker as well as for the tangent test. `make` is called with a metric, a value and the other columns.
"""

from __future__ import annotations

from collections.abc import Callable

from anisoscope.records import Record
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.energy import chance
from anisoscope.tangent.null import NullLevel

MakeRecord = Callable[..., Record]


def energy_records(make: MakeRecord, basis: Basis, energy: float, error: float | None = None) -> list[Record]:
    """The energy E next to r/d, and the enrichment E/(r/d)."""
    level = chance(basis)
    few = None if basis.effective == basis.rank else f"only {basis.effective} directions of {basis.rank}"
    return [
        make("gradient_energy", energy, error=error, null=level, note=few),
        make("gradient_enrichment", energy / level, error=_scaled(error, level), null=1.0, note=few),
    ]


def excess_records(make: MakeRecord, energy: float, level: NullLevel, error: float | None = None) -> list[Record]:
    """The energy less the level of a null, and its p-value if it has one."""
    if level.level is None:
        return [make("gradient_excess", None, note=level.note)]
    out = [make("gradient_excess", energy - level.level, error=error, null=0.0, note=level.note)]
    return out if level.p is None else [*out, make("gradient_p", level.p, note=level.note)]


def drawn_ratio(make: MakeRecord, energy: float, normal: float, error: float | None = None) -> list[Record]:
    """E/E_N with E_N the mean energy of the 20 subspaces that `normal_control` draws."""
    if not normal > 0:
        return []
    note = f"E = {energy:.4g}: the ratio is a transform of it"
    scaled = _scaled(error, normal * (1 - energy))
    return [make("tangent_normal_ratio", energy / normal, error=scaled, null=1.0, note=note)]


def expected_ratio(make: MakeRecord, energy: float, basis: Basis) -> list[Record]:
    """E/E_N with E_N the expectation (1 − E)·r/(d − r) of those draws.

    The two ratios differ by the noise of the draws. The tangent test repeats the published control; a training step
    cannot afford draws.
    """
    if not energy < 1:
        return []
    share = chance(basis)
    return [make("tangent_normal_ratio", energy * (1 - share) / ((1 - energy) * share), null=1.0)]


def _scaled(error: float | None, by: float) -> float | None:
    return None if error is None else error / by
