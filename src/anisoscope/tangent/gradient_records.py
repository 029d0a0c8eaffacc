"""The tangent test of one case, as records: energies, nulls and references, with p- and q-values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from anisoscope.errors import unknown
from anisoscope.records import Record
from anisoscope.stats.inference import false_discovery
from anisoscope.tangent.alignment import drawn_ratio, energy_records, excess_records
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.coordinates import coordinates
from anisoscope.tangent.covariance import matched_covariance, next_band, transfer_slope, variance_matched
from anisoscope.tangent.energy import Energies, jackknife_error
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradients import PLAIN, ROWS, Gradients
from anisoscope.tangent.null import HIDDEN, Null, NullLevel
from anisoscope.tangent.patches import local_test
from anisoscope.tangent.random_subspaces import normal_control, orientation
from anisoscope.tangent.structure_records import (
    anisotropy_records,
    ceiling_records,
    local_records,
    slope_records,
    stratum_records,
)
from anisoscope.tangent.weight_gradients import error_shuffle

ENERGY_NULLS: tuple[Null[Any, list[NullLevel]], ...] = (
    orientation,
    normal_control,
    coordinates,
    variance_matched,
    matched_covariance,
)
OTHER_NULLS: tuple[Null[Any, Any], ...] = (transfer_slope, local_test, error_shuffle, next_band)
NULLS: dict[str, Null[Any, Any]] = {null.name: null for null in (*ENERGY_NULLS, *OTHER_NULLS)}
REFERENCES = ("other_layer", "step_0", "other_run", "shuffled_labels")  # they need bases or gradients from elsewhere


def choose_nulls(names: str | Sequence[str]) -> list[str]:
    """The names of the nulls and references to compute.

    Args:
        names: One name, several names, or "all".

    Raises:
        InputError: If a name is unknown.
    """
    known = [*NULLS, *REFERENCES]
    if names == "all":
        return known
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in known:
            raise unknown("null", name, known)
    return chosen


def tangent_records(case: GradientCase, nulls: str | Sequence[str] = "all") -> list[Record]:
    """All records of one case: energies, nulls, references, anisotropy, ceiling, slope, local test and strata."""
    chosen = set(choose_nulls(nulls))
    energies = case.sums.energies(case.fitted.bases)
    out = _energies_of_bases(case, energies)
    out += _levels_of_nulls(case, energies, chosen)
    out += _reference_records(case, energies, chosen)
    out += anisotropy_records(case)
    out += ceiling_records(case)
    if "transfer_slope" in chosen and case.gradient in transfer_slope.gradients:
        out += slope_records(case)
    if isinstance(case.sums, Gradients) and case.gradient == HIDDEN:
        out += local_records(case, case.sums) if "local_test" in chosen else []
        out += stratum_records(case, case.sums)
        out += _relabelled_records(case, energies) if "shuffled_labels" in chosen else []
    return out


def with_q(records: Iterable[Record]) -> list[Record]:
    """The records, followed by a `gradient_q` for every `gradient_p`.

    Benjamini–Hochberg over sites, steps, ranks and proxies. Each null is a separate family, and so are plain and unit
    rows: they answer different questions.
    """
    every = list(records)
    families: dict[tuple[Any, ...], list[Record]] = {}
    for record in every:
        if record.metric == "gradient_p" and record.value is not None:
            variant = record.variant
            family = (variant["gradient"], variant["null"], variant.get("rows"), variant["basis"])
            families.setdefault(family, []).append(record)
    for members in families.values():
        q = false_discovery([record.value or 0.0 for record in members])
        every += [replace(r, metric="gradient_q", value=value) for r, value in zip(members, q, strict=True)]
    return every


def _energies_of_bases(case: GradientCase, energies: Energies) -> list[Record]:
    out = []
    for i, basis in enumerate(case.fitted.bases):
        for kind, rows in enumerate(ROWS):
            make = partial(case.record, index=basis.rank, variant={"proxy": basis.proxy, "rows": rows})
            out += energy_records(make, basis, float(energies.value[kind, i]), energies.error(kind, i))
    return out


def _levels_of_nulls(case: GradientCase, energies: Energies, chosen: set[str]) -> list[Record]:
    """The energy next to the level of each null, its excess, and a p-value if the null has one."""
    out = []
    bases, pooled = case.fitted.bases, case.sums.pooled
    for kind, rows in enumerate(ROWS):
        by_null = {
            null.name: null(pooled[kind], bases, case.fitted, case.seed)
            for null in ENERGY_NULLS
            if null.name in chosen and case.gradient in null.gradients and (rows == "plain" or null.decides)
        }
        if rows == "plain" and case.errors is not None and "error_shuffle" in chosen:
            by_null["error_shuffle"] = error_shuffle(*case.errors, bases, seed=case.seed)
        for name, levels in by_null.items():
            for i, (basis, level) in enumerate(zip(bases, levels, strict=True)):
                value, error = float(energies.value[kind, i]), energies.error(kind, i)
                variant = {"proxy": basis.proxy, "rows": rows}
                make = partial(case.record, index=basis.rank, variant={**variant, "null": name})
                if level.level is not None:
                    out.append(make("gradient_energy", value, error=error, null=level.level, note=level.note))
                out += excess_records(make, value, level, error)
                if name == "normal_control" and level.level is not None:
                    make = partial(case.record, index=basis.rank, variant=variant)
                    out += drawn_ratio(make, value, level.level, error)
    return out


def _references(case: GradientCase, chosen: set[str]) -> list[tuple[str, int, Basis]]:
    """Bases to compare with, without a test: the name, the index of the fitted basis, the other basis."""
    with_band = "next_band" in chosen and case.gradient in next_band.gradients
    out = []
    for i, basis in enumerate(case.fitted.bases):
        band = next_band(case.fitted, basis) if with_band else None
        if band is not None:
            out.append(("next_band", i, band))
        for name, others in case.fitted.others.items():
            out += [(name, i, other) for other in others if (other.proxy, other.rank) == (basis.proxy, basis.rank)]
    return out


def _reference_records(case: GradientCase, energies: Energies, chosen: set[str]) -> list[Record]:
    """The energy less that in a reference basis, with a paired error and no p-value."""
    references = _references(case, chosen)
    if not references:
        return []
    compared = case.sums.energies([basis for _, _, basis in references])
    return [_difference(case, name, (energies, i), (compared, j)) for j, (name, i, _) in enumerate(references)]


def _relabelled_records(case: GradientCase, energies: Energies) -> list[Record]:
    """The energy less that of gradients whose labels were shuffled, paired by block."""
    if case.relabelled is None:
        return []
    shuffled = case.relabelled.energies(case.fitted.bases)
    return [_difference(case, "shuffled_labels", (energies, i), (shuffled, i)) for i in range(len(case.fitted.bases))]


def _difference(case: GradientCase, name: str, fitted: tuple[Energies, int], other: tuple[Energies, int]) -> Record:
    """One energy less another over the same blocks; the replicates are paired."""
    (mine, i), (theirs, j) = fitted, other
    basis = case.fitted.bases[i]
    value = float(mine.value[PLAIN, i] - theirs.value[PLAIN, j])
    error = jackknife_error(value, mine.without[PLAIN, :, i] - theirs.without[PLAIN, :, j], mine.sizes)
    variant = {"proxy": basis.proxy, "rows": "plain", "null": name}
    return case.record("gradient_excess", value, error=error, null=0.0, index=basis.rank, variant=variant)
