"""The test: a frame fitted on activations against gradients of other tokens, as records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from anisoscope.errors import unknown
from anisoscope.records import Record
from anisoscope.tangent.anisotropy import isoscore_star, removal_controls, removal_gains, split
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.coordinates import coordinates
from anisoscope.tangent.covariance import matched_covariance, next_band, transfer_slope, variance_matched
from anisoscope.tangent.energy import Energies, chance, jackknife_error, shares
from anisoscope.tangent.frame import Frame
from anisoscope.tangent.gradient_facts import HIDDEN, Level, Null
from anisoscope.tangent.gradients import ROWS, Gradients
from anisoscope.tangent.multiple import benjamini_hochberg
from anisoscope.tangent.null_levels import normal_control, orientation
from anisoscope.tangent.patches import local_test
from anisoscope.tangent.proxies import leading
from anisoscope.tangent.weight_gradients import error_shuffle

ENERGY_NULLS: tuple[Null[Any, list[Level]], ...] = (
    orientation,
    normal_control,
    coordinates,
    variance_matched,
    matched_covariance,
)
OTHER_NULLS: tuple[Null[Any, Any], ...] = (transfer_slope, local_test, error_shuffle, next_band)
NULLS: dict[str, Null[Any, Any]] = {null.name: null for null in (*ENERGY_NULLS, *OTHER_NULLS)}
_CURVE = 24  # points of the transfer curve that are recorded
_PLAIN, _UNIT = 0, 1


class Sums(Protocol):
    """What a test needs of gradients: `Gradients` and `WeightGradients` have it."""

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
class Subject:
    """One kind of gradient at one site, the frame it is tested against, and what its records say of it.

    `errors` are the inputs x and errors δ behind a weight's gradient; `relabelled` the gradients of shuffled labels;
    `names` labels the strata; `basis` is "refreshed" or "frozen".
    """

    site: str
    gradient: str
    frame: Frame
    sums: Sums
    unit: str = "documents"
    run: str = ""
    step: int = 0
    basis: str = "refreshed"
    errors: tuple[Tensor, Tensor] | None = None
    relabelled: Gradients | None = None
    names: Sequence[str] = ()
    seed: int = 0

    def record(self, metric: str, value: float | None, **more: Any) -> Record:
        variant = {"gradient": self.gradient, "basis": self.basis, **more.pop("variant", {})}
        error = more.get("error")
        return Record(
            self.site,
            metric,
            value,
            run=self.run,
            step=self.step,
            n=self.sums.n,
            variant=variant,
            error_kind=None if error is None else f"jackknife-{int((self.sums.count > 0).sum())}-{self.unit}",
            **more,
        )


def choose_nulls(names: str | Sequence[str]) -> list[str]:
    """The nulls of these names; "all" for every one."""
    known = [*NULLS, "other_layer", "step_0", "other_run", "shuffled_labels"]
    if names == "all":
        return known
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in known:
            raise unknown("null", name, known)
    return chosen


def tangent_records(subject: Subject, nulls: str | Sequence[str] = "all") -> list[Record]:
    """Everything the test says of one subject: energies, nulls, anisotropy, ceiling, slope, local test, strata."""
    chosen = set(choose_nulls(nulls))
    frame, sums = subject.frame, subject.sums
    energies = sums.energies(frame.bases)
    out = _energy_records(subject, energies)
    out += _level_records(subject, energies, chosen)
    out += _reference_records(subject, energies, chosen)
    out += _anisotropy_records(subject)
    out += _ceiling_records(subject)
    if "transfer_slope" in chosen and subject.gradient in transfer_slope.gradients:
        out += _slope_records(subject)
    if isinstance(sums, Gradients) and subject.gradient == HIDDEN:
        out += _local_records(subject, sums) if "local_test" in chosen else []
        out += _stratum_records(subject, sums)
        out += _relabelled_records(subject, energies) if "shuffled_labels" in chosen else []
    return out


def with_q(records: Iterable[Record]) -> list[Record]:
    """The records, and beside every `gradient_p` a `gradient_q`: Benjamini–Hochberg over sites, steps, ranks, proxies.

    Each null is a family of its own, and so are plain and unit rows: they ask different questions.
    """
    every = list(records)
    families: dict[tuple[Any, ...], list[Record]] = {}
    for record in every:
        if record.metric == "gradient_p" and record.value is not None:
            variant = record.variant
            asked = (variant["gradient"], variant["null"], variant.get("rows"), variant["basis"])
            families.setdefault(asked, []).append(record)
    for family in families.values():
        q = benjamini_hochberg([record.value or 0.0 for record in family])
        every += [replace(r, metric="gradient_q", value=value) for r, value in zip(family, q, strict=True)]
    return every


# --- energies and nulls -------------------------------------------------------------------------------------------


def _variant(basis: Basis, **more: Any) -> dict[str, Any]:
    return {"proxy": basis.proxy, **more}


def _few(basis: Basis) -> str | None:
    return None if basis.effective == basis.rank else f"only {basis.effective} directions of {basis.rank}"


def _energy_records(subject: Subject, energies: Energies) -> list[Record]:
    out = []
    for i, basis in enumerate(subject.frame.bases):
        level = chance(basis)
        for kind, rows in enumerate(ROWS):
            value, error = float(energies.value[kind, i]), energies.error(kind, i)
            about: dict[str, Any] = {"index": basis.rank, "variant": _variant(basis, rows=rows), "note": _few(basis)}
            out.append(subject.record("gradient_energy", value, error=error, null=level, **about))
            scaled = None if error is None else error / level
            out.append(subject.record("gradient_enrichment", value / level, error=scaled, null=1.0, **about))
    return out


def _level_records(subject: Subject, energies: Energies, chosen: set[str]) -> list[Record]:
    """One record a null: the energy beside the level it expects; a p-value where it decides or was published."""
    out = []
    bases = subject.frame.bases
    for kind, rows in enumerate(ROWS):
        found = {
            null.name: null(subject.sums.pooled[kind], bases, subject.frame, subject.seed)
            for null in ENERGY_NULLS
            if null.name in chosen and subject.gradient in null.gradients and (rows == "plain" or null.decides)
        }
        if rows == "plain" and subject.errors is not None and "error_shuffle" in chosen:
            found["error_shuffle"] = error_shuffle(*subject.errors, bases, seed=subject.seed)
        for name, levels in found.items():
            for i, (basis, level) in enumerate(zip(bases, levels, strict=True)):
                out += _one_level(
                    subject, name, basis, level, rows, float(energies.value[kind, i]), energies.error(kind, i)
                )
    return out


def _one_level(
    subject: Subject, name: str, basis: Basis, level: Level, rows: str, energy: float, error: float | None
) -> list[Record]:
    about: dict[str, Any] = {"index": basis.rank, "variant": _variant(basis, rows=rows, null=name)}
    if level.level is None:
        return [subject.record("gradient_excess", None, note=level.note, **about)]
    excess = subject.record("gradient_excess", energy - level.level, error=error, null=0.0, note=level.note, **about)
    out = [subject.record("gradient_energy", energy, error=error, null=level.level, note=level.note, **about), excess]
    if level.p is not None:
        out.append(subject.record("gradient_p", level.p, note=level.note, **about))
    if name == "normal_control" and level.level > 0:
        ratio, note = energy / level.level, f"E = {energy:.4g}: the ratio is a transform of it"
        scaled = None if error is None else error / (level.level * (1 - energy))
        about["variant"] = _variant(basis, rows=rows)
        out.append(subject.record("tangent_normal_ratio", ratio, error=scaled, null=1.0, note=note, **about))
    return out


def _references(subject: Subject, chosen: set[str]) -> list[tuple[str, int, Basis]]:
    """Bases that are compared with and never decide: their name, which basis of the frame they stand beside."""
    frame = subject.frame
    banded = "next_band" in chosen and subject.gradient in next_band.gradients
    out = []
    for i, basis in enumerate(frame.bases):
        band = next_band(frame, basis) if banded else None
        if band is not None:
            out.append(("next_band", i, band))
        for name, others in frame.others.items():
            out += [(name, i, other) for other in others if (other.proxy, other.rank) == (basis.proxy, basis.rank)]
    return out


def _reference_records(subject: Subject, energies: Energies, chosen: set[str]) -> list[Record]:
    """The energy less that of a reference, with a paired error and no p-value."""
    references = _references(subject, chosen)
    if not references:
        return []
    theirs = subject.sums.energies([basis for _, _, basis in references])
    return [
        _difference(subject, name, subject.frame.bases[i], energies, i, theirs, place)
        for place, (name, i, _) in enumerate(references)
    ]


def _difference(subject: Subject, name: str, basis: Basis, mine: Energies, i: int, theirs: Energies, j: int) -> Record:
    """One energy less another of the same blocks: the blocks' replicates are paired."""
    value = float(mine.value[_PLAIN, i] - theirs.value[_PLAIN, j])
    error = jackknife_error(value, mine.without[_PLAIN, :, i] - theirs.without[_PLAIN, :, j], mine.sizes)
    variant = _variant(basis, rows="plain", null=name)
    return subject.record("gradient_excess", value, error=error, null=0.0, index=basis.rank, variant=variant)


def _relabelled_records(subject: Subject, energies: Energies) -> list[Record]:
    """The energy less that of gradients whose labels were shuffled, paired by block."""
    if subject.relabelled is None:
        return []
    shuffled = subject.relabelled.energies(subject.frame.bases)
    return [
        _difference(subject, "shuffled_labels", basis, energies, i, shuffled, i)
        for i, basis in enumerate(subject.frame.bases)
    ]


def _ceiling_records(subject: Subject) -> list[Record]:
    """The energy in the gradients' own leading directions, fitted on half of the blocks and tested on the other."""
    if not isinstance(subject.sums, Gradients):
        return []
    seconds = subject.sums.second[_PLAIN]
    used = (subject.sums.count > 0).nonzero()[:, 0]
    if len(used) < 2:
        return []
    halves = [seconds[used[start::2]].sum(0) for start in (0, 1)]
    highest = max(subject.frame.ranks)
    axes = [leading(half.float().matmul, len(half), highest, seed=subject.seed) for half in halves]
    out = []
    for rank in subject.frame.ranks:
        inside = [float(((q := axes[1 - k][:, :rank]) * (halves[k] @ q)).sum()) for k in (0, 1)]
        value = sum(inside) / sum(float(half.diagonal().sum()) for half in halves)
        out.append(subject.record("gradient_ceiling", value, index=rank, null=rank / subject.frame.dim))
    return out


# --- anisotropy ---------------------------------------------------------------------------------------------------


def _anisotropy_records(subject: Subject) -> list[Record]:
    """ΔIsoScore* of taking each basis out, beside a normal control and one of equal energy; the split of tr Σ²."""
    out = []
    bases = subject.frame.bases
    covariance = subject.sums.covariance[_PLAIN]
    gains = removal_gains(covariance, bases)  # (bases, 2)
    errors = _gain_errors(subject, gains)
    note = f"IsoScore* {isoscore_star(covariance):.4g} before"
    for i, (basis, controls) in enumerate(
        zip(bases, removal_controls(covariance, bases, seed=subject.seed), strict=True)
    ):
        for at, dimension in enumerate(("ambient", "reduced")):
            out += [
                subject.record(
                    "anisotropy_share",
                    float(gains[i, at]),
                    error=errors[i][at],
                    null=level.ambient if dimension == "ambient" else level.reduced,
                    index=basis.rank,
                    variant=_variant(basis, dimension=dimension, null=name),
                    note=note,
                )
                for name, level in controls.items()
            ]
        out += [
            subject.record("anisotropy_split", value, index=basis.rank, variant=_variant(basis, part=part))
            for part, value in vars(split(covariance, basis)).items()
        ]
    return out


def _gain_errors(subject: Subject, gains: Tensor) -> list[list[float | None]]:
    """Jackknife over blocks of each gain, from second moments: the mean gradient is a small part of them."""
    sums = subject.sums
    if not isinstance(sums, Gradients):
        return [[None, None] for _ in gains]
    used = (sums.count > 0).nonzero()[:, 0]
    sizes = tuple(sums.count[used].tolist())
    without = torch.stack(
        [
            removal_gains(sums.pooled[_PLAIN] - sums.second[_PLAIN, b].double(), subject.frame.bases)
            for b in used.tolist()
        ]
    )  # (B, bases, 2)
    whole = without.mean(0)
    return [
        [jackknife_error(float(whole[i, at]), without[:, i, at], sizes) for at in (0, 1)] for i in range(len(gains))
    ]


# --- slope, local test, strata ------------------------------------------------------------------------------------


def _slope_records(subject: Subject) -> list[Record]:
    """β with its permutation p and, for plain rows, its jackknife error; and the curve it is the slope of."""
    frame, sums = subject.frame, subject.sums
    variance = sums.variance if isinstance(sums, Gradients) else frame.variance
    note = None if isinstance(sums, Gradients) else "variance from the fit tokens"
    along, by_block = sums.along(frame.axes)  # (2, d), (B, d)
    used = (sums.count > 0).nonzero()[:, 0]
    out = []
    for kind, rows in enumerate(ROWS):
        slope = transfer_slope(along[kind], variance, seed=subject.seed)
        error = None
        if rows == "plain" and len(by_block):
            betas = [transfer_slope(along[kind] - by_block[b], variance, draws=0).beta for b in used.tolist()]
            error = jackknife_error(slope.beta, torch.tensor(betas), tuple(sums.count[used].tolist()))
        variant = {"rows": rows}
        out.append(subject.record("transfer_slope", slope.beta, error=error, null=0.0, variant=variant, note=note))
        out.append(subject.record("gradient_p", slope.p, variant={"rows": rows, "null": "transfer_slope"}, note=note))
    return out + _curve_records(subject, along[_PLAIN], variance)


def _curve_records(subject: Subject, energies: Tensor, variance: Tensor) -> list[Record]:
    """The share of gradient energy and of activation variance along single principal axes, log-spaced."""
    d = len(variance)
    at = torch.logspace(0, torch.log10(torch.tensor(float(d))), _CURVE).round().long().unique().clamp(max=d) - 1
    shares_of = {"gradient_along_axis": energies / energies.sum(), "variance_along_axis": variance / variance.sum()}
    return [
        subject.record(metric, float(share[j]), index=j + 1, null=1 / d)
        for metric, share in shares_of.items()
        for j in at.tolist()
    ]


def _local_records(subject: Subject, sums: Gradients) -> list[Record]:
    """The local test at each rank: the excess of the own patch's basis, its level under permuted labels, p."""
    out = []
    used = (sums.count > 0).nonzero()[:, 0]
    if not sums.local_size.numel() or len(sums.local_size[0, 0]) < 2:
        return [subject.record("local_excess", None, note="too few fit tokens for two patches of the cloud")]
    for at, rank in enumerate(subject.frame.ranks):
        for kind, rows in enumerate(ROWS):
            captured, size = sums.local[kind, ..., at], sums.local_size[kind]  # (B, K, K), (B, K)
            test = local_test(captured.sum(0), size.sum(0), seed=subject.seed)
            without = [
                local_test(captured.sum(0) - captured[b], size.sum(0) - size[b], draws=0).excess for b in used.tolist()
            ]
            error = jackknife_error(test.excess, torch.tensor(without), tuple(sums.count[used].tolist()))
            note = f"own patch {test.own:.4g}, permuted {test.level:.4g}"
            about: dict[str, Any] = {"index": rank, "note": note}
            out.append(
                subject.record("local_excess", test.excess, error=error, null=0.0, variant={"rows": rows}, **about)
            )
            out.append(subject.record("gradient_p", test.p, variant={"rows": rows, "null": "local_test"}, **about))
    return out


def _stratum_records(subject: Subject, sums: Gradients) -> list[Record]:
    """The energy over the tokens of each frequency stratum."""
    out = []
    for s, name in enumerate(subject.names):
        found = shares(sums.strata[:, :, s], sums.strata_size[:, :, s, None], sums.count)
        for i, basis in enumerate(subject.frame.bases):
            for kind, rows in enumerate(ROWS):
                out.append(
                    subject.record(
                        "gradient_energy",
                        float(found.value[kind, i]),
                        error=found.error(kind, i),
                        null=chance(basis),
                        index=basis.rank,
                        variant=_variant(basis, rows=rows, stratum=name),
                    )
                )
    return out
