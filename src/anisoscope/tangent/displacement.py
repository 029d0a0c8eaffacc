"""Does training move the cloud along the basis? The change of the same tokens' activations between two steps."""

from __future__ import annotations

from anisoscope.records import Record
from anisoscope.tangent.energy import chance
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradients import ROWS
from anisoscope.tangent.random_subspaces import orientation

DISPLACEMENT = "displacement"


def displacement_records(subject: GradientCase) -> list[Record]:
    """‖ΔH Q‖²/‖ΔH‖² of each basis, with the chance that a random subspace holds as much.

    The subject's sums are made of ΔH where those of a test are made of gradients; the bases come from other tokens.
    """
    bases = subject.fitted.bases
    energies = subject.sums.energies(bases)
    out = []
    for kind, rows in enumerate(ROWS):
        levels = orientation(subject.sums.pooled[kind], bases, subject.fitted, subject.seed)
        for i, (basis, level) in enumerate(zip(bases, levels, strict=True)):
            variant = {"proxy": basis.proxy, "rows": rows}
            value = float(energies.value[kind, i])
            error = energies.error(kind, i)
            out.append(
                subject.record(
                    "displacement_energy", value, error=error, null=chance(basis), index=basis.rank, variant=variant
                )
            )
            null = {**variant, "null": orientation.name}
            out.append(subject.record("gradient_p", level.p, index=basis.rank, variant=null))
    return out
