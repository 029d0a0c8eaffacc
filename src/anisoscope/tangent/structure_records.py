"""Records of how gradients are arranged: anisotropy, ceiling, transfer slope, local test, frequency strata."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anisoscope.records import Record
from anisoscope.tangent.anisotropy import isoscore_star, removal_controls, removal_gains, split
from anisoscope.tangent.covariance import transfer_slope
from anisoscope.tangent.energy import chance, jackknife_error, shares
from anisoscope.tangent.gradient_case import GradientCase
from anisoscope.tangent.gradients import PLAIN, ROWS, Gradients
from anisoscope.tangent.metric_cards import VERSIONS
from anisoscope.tangent.patches import local_test
from anisoscope.tangent.proxies import leading

_CURVE = 24  # recorded points of the transfer curve


def ceiling_records(case: GradientCase) -> list[Record]:
    """The energy in the gradients' own leading directions, fitted on half of the blocks and tested on the others."""
    if not isinstance(case.sums, Gradients):
        return []
    seconds = case.sums.second[PLAIN]
    used = case.used_blocks
    if len(used) < 2:
        return []
    halves = [seconds[used[start::2]].sum(0) for start in (0, 1)]
    highest = max(case.fitted.ranks)
    axes = [leading(half.float().matmul, len(half), highest, seed=case.seed) for half in halves]
    total = sum(float(half.diagonal().sum()) for half in halves)
    out = []
    for rank in case.fitted.ranks:
        captured = 0.0
        for half, other_axes in zip(halves, reversed(axes), strict=True):
            q = other_axes[:, :rank]
            captured += float((q * (half @ q)).sum())
        out.append(case.record("gradient_ceiling", captured / total, index=rank, null=rank / case.fitted.dim))
    return out


def anisotropy_records(case: GradientCase) -> list[Record]:
    """ΔIsoScore* of removing each basis next to two controls, and the split of tr Σ²."""
    bases = case.fitted.bases
    covariance = case.sums.covariance[PLAIN]
    gains = removal_gains(covariance, bases)  # (bases, 2)
    errors = _gain_errors(case, len(bases))
    all_controls = removal_controls(covariance, bases, seed=case.seed)
    note = f"IsoScore* {isoscore_star(covariance):.4g} before"
    out = []
    for i, (basis, controls) in enumerate(zip(bases, all_controls, strict=True)):
        for column, dimension in enumerate(("ambient", "reduced")):
            out += [
                case.record(
                    "anisotropy_share",
                    float(gains[i, column]),
                    error=errors[i][column],
                    null=control.ambient if dimension == "ambient" else control.reduced,
                    index=basis.rank,
                    variant={"proxy": basis.proxy, "dimension": dimension, "null": name},
                    note=note,
                    version=VERSIONS["anisotropy_share"],
                )
                for name, control in controls.items()
            ]
        out += [
            case.record("anisotropy_split", value, index=basis.rank, variant={"proxy": basis.proxy, "part": part})
            for part, value in vars(split(covariance, basis)).items()
        ]
    return out


def _gain_errors(case: GradientCase, bases: int) -> list[list[float | None]]:
    """Jackknife errors of the gains, from second moments: the mean gradient is a small part of them."""
    sums = case.sums
    if not isinstance(sums, Gradients):
        return [[None, None] for _ in range(bases)]
    pooled, second = sums.pooled[PLAIN], sums.second[PLAIN]
    replicates = [removal_gains(pooled - second[b].double(), case.fitted.bases) for b in case.used_blocks]
    without = torch.stack(replicates)  # (B, bases, 2)
    whole = without.mean(0)
    return [
        [jackknife_error(float(whole[i, column]), without[:, i, column], case.block_sizes) for column in (0, 1)]
        for i in range(bases)
    ]


def slope_records(case: GradientCase) -> list[Record]:
    """β with its permutation p-value, its jackknife error for plain rows, and the curve it is the slope of."""
    fitted, sums = case.fitted, case.sums
    variance = sums.variance if isinstance(sums, Gradients) else fitted.variance
    note = None if isinstance(sums, Gradients) else "variance from the fit tokens"
    along, by_block = sums.along(fitted.axes)  # (2, d), (B, d)
    out = []
    for kind, rows in enumerate(ROWS):
        slope = transfer_slope(along[kind], variance, seed=case.seed)
        error = None
        if rows == "plain" and len(by_block):
            betas = [transfer_slope(along[kind] - by_block[b], variance, draws=0).beta for b in case.used_blocks]
            error = jackknife_error(slope.beta, torch.tensor(betas), case.block_sizes)
        out.append(case.record("transfer_slope", slope.beta, error=error, null=0.0, variant={"rows": rows}, note=note))
        variant = {"rows": rows, "null": transfer_slope.name}
        out.append(case.record("gradient_p", slope.p, variant=variant, note=note))
    return out + _curve_records(case, along[PLAIN], variance)


def _curve_records(case: GradientCase, energies: Tensor, variance: Tensor) -> list[Record]:
    """The shares of gradient energy and of activation variance along single principal axes, log-spaced."""
    d = len(variance)
    axes = torch.logspace(0, torch.log10(torch.tensor(float(d))), _CURVE).round().long().unique().clamp(max=d) - 1
    by_metric = {"gradient_along_axis": energies / energies.sum(), "variance_along_axis": variance / variance.sum()}
    return [
        case.record(metric, float(share[axis]), index=axis + 1, null=1 / d)
        for metric, share in by_metric.items()
        for axis in axes.tolist()
    ]


def local_records(case: GradientCase, sums: Gradients) -> list[Record]:
    """The local test at each rank: the excess of the gradients' own patch, and its p-value."""
    if not sums.local_size.numel() or len(sums.local_size[0, 0]) < 2:
        return [case.record("local_excess", None, note="too few fit tokens for two patches")]
    out = []
    for column, rank in enumerate(case.fitted.ranks):
        for kind, rows in enumerate(ROWS):
            captured, size = sums.local[kind, ..., column], sums.local_size[kind]  # (B, K, K), (B, K)
            test = local_test(captured.sum(0), size.sum(0), seed=case.seed)
            without = [
                local_test(captured.sum(0) - captured[b], size.sum(0) - size[b], draws=0).excess
                for b in case.used_blocks
            ]
            error = jackknife_error(test.excess, torch.tensor(without), case.block_sizes)
            columns: dict[str, Any] = {
                "index": rank,
                "note": f"own patch {test.own_patch:.4g}, permuted {test.level:.4g}",
            }
            variant = {"rows": rows}
            out.append(case.record("local_excess", test.excess, error=error, null=0.0, variant=variant, **columns))
            variant = {"rows": rows, "null": local_test.name}
            out.append(case.record("gradient_p", test.p, variant=variant, **columns))
    return out


def stratum_records(case: GradientCase, sums: Gradients) -> list[Record]:
    """The energy over the tokens of each frequency stratum."""
    out = []
    for s, name in enumerate(case.strata):
        energies = shares(sums.strata[:, :, s], sums.strata_size[:, :, s, None], sums.count)
        for i, basis in enumerate(case.fitted.bases):
            for kind, rows in enumerate(ROWS):
                out.append(
                    case.record(
                        "gradient_energy",
                        float(energies.value[kind, i]),
                        error=energies.error(kind, i),
                        null=chance(basis),
                        index=basis.rank,
                        variant={"proxy": basis.proxy, "rows": rows, "stratum": name},
                    )
                )
    return out
