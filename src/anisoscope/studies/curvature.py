"""A simulation of how much of a cloud's curvature a frequency-biased sample shows.

A token of type k is at x = T u + ½ N·II(u, u) + σε with u = t_k z: tangent parts are of first order in the local radius
t, normal parts of second order. Types are drawn with p_k ∝ k^−s; t_k = (k/K)^γ pins frequent types to the centre.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anisoscope.records import Record
from anisoscope.stats.inference import jackknife


@dataclass(frozen=True)
class Surface:
    """One setting of the simulation."""

    tokens: int = 4000
    types: int = 100  # K
    tangent: int = 3  # m
    normal: int = 5  # curved normal directions
    dim: int = 24
    noise: float = 0.02  # σ
    curvature: float = 0.1  # κ: spread of the entries of II
    zipf: float = 1.0  # s
    pinning: float = 0.0  # γ
    radius: float = 1.0


@dataclass(frozen=True)
class CurvedSample:
    """A sample of the surface, with the true axes and local radii."""

    x: Tensor  # (n, dim) float64
    axes: Tensor  # (dim, dim) orthonormal columns: tangent ones first
    radius: Tensor  # (n,)


@dataclass(frozen=True)
class VisibleCurvature:
    """How much of a cloud's curvature a sample shows."""

    visibility: float  # tr Σ_N / tr Σ in the true axes
    residual: float  # share of variance outside the leading m axes, for which the true axes need not be known
    snr: float  # variance of the normal part that a quadratic of the tangent part explains, over the rest
    effective: float  # effective number of tokens for the curvature: (Σt⁴)²/Σt⁸


def sample_surface(surface: Surface, seed: int) -> CurvedSample:
    """Draw a cloud.

    One seed gives the same z, ε and II in every setting, so that settings can be compared in pairs.
    """
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    axes = torch.linalg.qr(normal(surface.dim, surface.dim))[0]
    form = normal(surface.normal, surface.tangent, surface.tangent)
    form = surface.curvature * (form + form.mT) / math.sqrt(2)  # (normal, m, m) symmetric
    z, noise = normal(surface.tokens, surface.tangent), normal(surface.tokens, surface.dim)
    uniform = torch.rand(surface.tokens, generator=draw, dtype=torch.float64)
    rank = torch.arange(1, surface.types + 1, dtype=torch.float64)
    share = rank**-surface.zipf
    kind = torch.searchsorted(share.cumsum(0) / share.sum(), uniform).clamp(max=surface.types - 1)  # (n,)
    radius = surface.radius * (rank / surface.types) ** surface.pinning  # (types,)
    u = radius[kind][:, None] * z  # (n, m)
    bent = torch.einsum("ni,aij,nj->na", u, form, u) / 2  # (n, normal)
    flat = torch.zeros(surface.tokens, surface.dim - surface.tangent - surface.normal, dtype=torch.float64)
    x = torch.cat((u, bent, flat), 1) @ axes.T + surface.noise * noise
    return CurvedSample(x, axes, radius[kind])


def visible(cloud: CurvedSample, tangent: int) -> VisibleCurvature:
    """Estimate how much curvature a cloud with `tangent` tangent dimensions shows."""
    y = (cloud.x - cloud.x.mean(0)) @ cloud.axes  # (n, dim) in the true axes
    variance = y.var(0)
    spectrum = torch.linalg.eigvalsh(torch.cov(cloud.x.T)).flip(0)
    fourth = cloud.radius**4
    return VisibleCurvature(
        visibility=float(variance[tangent:].sum() / variance.sum()),
        residual=float(spectrum[tangent:].sum() / spectrum.sum()),
        snr=curvature_snr(y[:, :tangent], y[:, tangent:]),
        effective=float(fourth.sum() ** 2 / fourth.square().sum()),
    )


def curvature_snr(u: Tensor, normal: Tensor) -> float:
    """Variance of the normal part that a quadratic of the tangent part explains, over the remaining variance.

    Each half of the tokens is predicted by a fit on the other half, so that no curvature gives zero.

    Args:
        u: Tangent parts (n, m).
        normal: Normal parts (n, normal).
    """
    m = u.shape[1]
    pairs = [u[:, i] * u[:, j] for i in range(m) for j in range(i, m)]
    design = torch.cat((torch.ones(len(u), 1, dtype=u.dtype), u, torch.stack(pairs, 1)), 1)  # (n, 1 + m + m(m+1)/2)
    left = total = 0.0
    for half in (0, 1):
        fit = torch.arange(len(u)) % 2 == half
        weights = torch.linalg.lstsq(design[fit], normal[fit]).solution
        left += float((normal[~fit] - design[~fit] @ weights).square().sum())
        total += float((normal[~fit] - normal[fit].mean(0)).square().sum())
    return max(0.0, total - left) / max(left, 1e-300)


def radius_slope(surface: Surface, radii: Sequence[float], seed: int) -> float:
    """The slope of log(tr Σ_N / tr Σ_T) on log t with the noise subtracted: 2, as normal parts are of second order."""
    ratios = []
    for radius in radii:
        cloud = sample_surface(replace(surface, radius=radius), seed)
        variance = ((cloud.x - cloud.x.mean(0)) @ cloud.axes).var(0) - surface.noise**2
        ratios.append(float(variance[surface.tangent :].sum() / variance[: surface.tangent].sum()))
    if min(ratios) <= 0:
        return math.nan
    x = torch.tensor(radii, dtype=torch.float64).log()
    y = torch.tensor(ratios, dtype=torch.float64).log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


@dataclass(frozen=True)
class GradientBound:
    """Normal over tangent parts of the gradient of a linear read-out, of its mean and of its second moment."""

    mean: float  # ‖E g_N‖² / ‖E g_T‖²
    second: float  # E‖g_N‖² / E‖g_T‖²


def gradient_bound(tangent: Tensor, normal: Tensor, target: Tensor, weights: Tensor | None = None) -> GradientBound:
    """The two ratios for squared loss ½(w·x − y)², whose gradient in w is (w·x − y)·x.

    The published bound (the ratio falls as t²) follows for second moments. For the mean it does not: with x = (u, u²),
    u symmetric, w = 0 and y = −1 the mean gradient is (E u, E u²) = (0, E u²), all of it normal, at every radius.

    Args:
        tangent: Tangent parts of x, (n, m).
        normal: Normal parts of x, (n, normal).
        target: Targets y, (n,).
        weights: The read-out w; zero by default.
    """
    x = torch.cat((tangent, normal), 1)
    error = (x @ weights if weights is not None else torch.zeros(len(x), dtype=x.dtype)) - target
    g = error[:, None] * x  # (n, m + normal)
    m = tangent.shape[1]
    mean = g.mean(0).square()
    second = g.square().mean(0)
    return GradientBound(
        mean=float(mean[m:].sum() / mean[:m].sum().clamp(min=1e-300)),
        second=float(second[m:].sum() / second[:m].sum().clamp(min=1e-300)),
    )


def counterexample(radius: float, points: int = 4001) -> GradientBound:
    """x = (u, u²), u uniform over ±t, w = 0, y = −1: the ratio of means exceeds any bound, the other is 0.6·t²."""
    u = torch.linspace(-radius, radius, points, dtype=torch.float64)[:, None]
    return gradient_bound(u, u.square(), -torch.ones(points, dtype=torch.float64))


SETTINGS = ((0.0, 0.0), (0.0, 0.5), (1.0, 0.0), (1.0, 0.25), (1.0, 0.5))  # s, γ
RADII = (0.25, 0.35, 0.5, 0.7, 1.0)
_FEWEST_SEEDS = 4  # for a standard error


def curvature_records(surface: Surface | None = None, *, seeds: int = 12) -> list[Record]:
    """The records of the whole study: visibility and SNR by (s, γ), a flat cloud, the slope and both bounds.

    The null of the SNR is an unpinned cloud with the effective number of tokens of the pinned one, from the same seed.
    A drop against it is attenuation, and not only fewer effective tokens.

    Args:
        surface: The setting; s and γ are varied.
        seeds: The number of paired seeds.
    """
    surface = surface or Surface()
    out: list[Record] = []
    for s, gamma in SETTINGS:
        setting = replace(surface, zipf=s, pinning=gamma)
        out += _setting_records(setting, {"s": s, "gamma": gamma}, seeds)
    flat = replace(surface, curvature=0.0)
    out += _setting_records(flat, {"s": flat.zipf, "gamma": 0.0, "kappa": 0}, seeds)
    slopes = [radius_slope(replace(surface, pinning=0.0), RADII, seed) for seed in range(seeds)]
    out.append(_over_seeds("curvature_slope", slopes, {}, null=2.0))
    for radius in RADII:
        bound = counterexample(radius)
        variant = {"t": radius, "example": "x = (u, u²), w = 0, y = −1"}
        out.append(Record("vectors", "gradient_bound", bound.second, variant={"moment": "second", **variant}))
        unbounded = bound.mean > 1e12
        note = "the mean gradient is all normal: no bound holds" if unbounded else None
        value = None if unbounded else bound.mean
        out.append(Record("vectors", "gradient_bound", value, variant={"moment": "mean", **variant}, note=note))
    return out


def _setting_records(surface: Surface, variant: dict[str, object], seeds: int) -> list[Record]:
    pinned, same_size = [], []
    for seed in range(seeds):
        pinned.append(visible(sample_surface(surface, seed), surface.tangent))
        fewer = replace(surface, pinning=0.0, tokens=max(64, round(pinned[-1].effective)))
        same_size.append(visible(sample_surface(fewer, seed), surface.tangent))
    null = sum(v.snr for v in same_size) / seeds
    drop = [1 - a.snr / b.snr if b.snr > 0 else 0.0 for a, b in zip(pinned, same_size, strict=True)]
    out = [
        _over_seeds("curvature_visibility", [v.visibility for v in pinned], variant),
        _over_seeds("pca_residual", [v.residual for v in pinned], variant),
        _over_seeds("curvature_snr", [v.snr for v in pinned], variant, null=null),
        _over_seeds("effective_tokens", [v.effective for v in pinned], variant),
    ]
    if surface.curvature > 0 and surface.pinning > 0:
        out.append(_over_seeds("curvature_drop", drop, variant, null=0.0))
    return out


def _over_seeds(metric: str, values: Sequence[float], variant: dict[str, object], null: float | None = None) -> Record:
    """The mean over seeds with its standard error."""
    mean = sum(values) / len(values)
    error = kind = None
    if len(values) >= _FEWEST_SEEDS:
        without = torch.tensor([(sum(values) - v) / (len(values) - 1) for v in values])
        error = jackknife(mean, without.tolist(), [1] * len(values))
        kind = f"jackknife-{len(values)}-seeds"
    return Record("vectors", metric, mean, variant=variant, error=error, error_kind=kind, null=null, n=len(values))
