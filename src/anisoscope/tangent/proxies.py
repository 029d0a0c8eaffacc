"""Proxies of the tangent space: functions from rows to a basis. Yours comes in by the same door as ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anisoscope.errors import InputError, unknown
from anisoscope.stats.arithmetic import double
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows
from anisoscope.tangent.basis import Basis, orthonormal
from anisoscope.tangent.semi_nmf import factorise

Proxy = Callable[..., Basis]
_TINY = 1e-10  # eigenvalues below this share of the largest are rounding
_SPARE = 12  # directions beside those wanted
_ROUNDS, _ROWS = 12, 4096  # of a semi-NMF that only its span is wanted of
_WIDE = 4  # columns per concept that rows are compressed to before several semi-NMFs


def pca(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """The directions along which rows vary most about their mean."""
    return top_axes(_moments(x).scatter, rank, "pca")


def svd(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """The directions of most squared length, the mean not taken out."""
    return top_axes(_moments(x).second, rank, "svd")


def mean(x: Tensor, rank: int = 1, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """The direction of the mean row: a basis of one, whatever the rank asked for."""
    return orthonormal(_moments(x).mean[:, None], "mean", rank)


def semi_nmf(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """The span of `rank` concepts whose non-negative mixtures make up the rows; `start` warms it up."""
    warm = None if start is None or start.directions is None else start.directions.T
    concepts = factorise(x, rank, seed=seed, start=warm).concepts
    return replace(orthonormal(concepts.T, "semi_nmf", rank), directions=concepts.T)


PROXIES: Mapping[str, Proxy] = {"pca": pca, "svd": svd, "mean": mean, "semi_nmf": semi_nmf}


def fit_bases(
    x: Tensor,
    proxies: Sequence[str | Proxy],
    ranks: Sequence[int],
    *,
    seed: int = 0,
    start: Mapping[tuple[str, int], Basis] | None = None,
    moments: Moments | None = None,
    axes: Tensor | None = None,
) -> list[Basis]:
    """One basis for each proxy and rank, fitted on rows (n, d); a proxy is a name or a function rows, rank -> Basis.

    `moments` and principal `axes` (d, d) are those of the same rows, where they are known already.
    """
    moments = _moments(x) if moments is None else moments
    axes = axes_of(moments)[1] if axes is None else axes
    warm = start or {}
    out: list[Basis] = []
    for proxy in proxies:
        name, function = named(proxy)
        if function is pca:
            there = int((moments.scatter.diagonal() > 0).sum())  # constant coordinates give no direction
            keep = min(max(ranks), len(x) - 1, there)
            out += [Basis(axes[:, :keep], name, keep, keep).first(rank) for rank in ranks]
        elif function is svd:
            widest = top_axes(moments.second, max(ranks), name)
            out += [widest.first(rank) for rank in ranks]
        elif function is mean:
            out.append(function(x, 1))
        elif function is semi_nmf:
            out += _semi_nmfs(x, ranks, seed, warm, moments.mean, axes)
        else:
            out += [function(x, rank, seed=seed, start=warm.get((name, rank))) for rank in ranks]
    return [_checked(basis, x.shape[1]) for basis in out]


def _semi_nmfs(
    x: Tensor,
    ranks: Sequence[int],
    seed: int,
    warm: Mapping[tuple[str, int], Basis],
    centre: Tensor,
    axes: Tensor,
) -> list[Basis]:
    """Semi-NMF at every rank on rows compressed once to the mean and the leading axes, which hold nearly all."""
    keep = min(x.shape[1], _WIDE * max(ranks))
    frame = torch.linalg.qr(torch.cat((centre[:, None], axes[:, : keep - 1]), 1).to(x.device, torch.float32))[0]
    few = max(_ROWS, 32 * max(ranks))
    small = x.detach()[:: max(1, len(x) // few)].float() @ frame  # (rows, keep)
    out = []
    for rank in ranks:
        before = warm.get(("semi_nmf", rank))
        known = None if before is None or before.directions is None else before.directions.to(frame).T @ frame
        concepts = factorise(small, rank, rounds=_ROUNDS, seed=seed, start=known).concepts @ frame.T  # (rank, d)
        out.append(replace(orthonormal(concepts.T, "semi_nmf", rank), directions=concepts.T))
    return out


def axes_of(moments: Moments) -> tuple[Tensor, Tensor]:
    """Variances, descending (d,), and principal axes as columns (d, d), on the CPU in float64."""
    values, axes = torch.linalg.eigh(moments.scatter.cpu())
    return values.flip(0).clamp(min=0) / max(1, moments.n - 1), axes.flip(1).contiguous()


def named(proxy: str | Proxy) -> tuple[str, Proxy]:
    """A proxy's name and its function."""
    if callable(proxy):
        return getattr(proxy, "__name__", "mine"), proxy
    if proxy not in PROXIES:
        raise unknown("proxy", proxy, PROXIES)
    return proxy, PROXIES[proxy]


def leading(product: Callable[[Tensor], Tensor], dim: int, rank: int, *, rounds: int = 4, seed: int = 0) -> Tensor:
    """About the `rank` leading eigenvectors of a symmetric matrix that is known by its products, (dim, rank).

    Subspace iteration with a few spare directions: for bases whose exactness decides nothing (patches, the ceiling).
    """
    draw = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(dim, min(dim, rank + _SPARE), generator=draw))[0]
    for _ in range(rounds):
        q = torch.linalg.qr(product(q))[0]  # (dim, rank + spare)
    vectors = torch.linalg.eigh(q.T @ product(q))[1].flip(1)[:, :rank]
    return q @ vectors


def top_axes(second: Tensor, rank: int, proxy: str) -> Basis:
    """The eigenvectors of a symmetric matrix with the largest eigenvalues, as many of `rank` as are not zero."""
    if rank < 1:
        raise InputError(f"rank {rank}: a basis needs at least one direction")
    values, axes = torch.linalg.eigh(double(second).cpu())
    keep = min(rank, int((values > _TINY * values[-1].clamp(min=1e-300)).sum()))
    return Basis(axes.flip(1)[:, :keep].contiguous(), proxy, rank, keep)


def _moments(x: Tensor) -> Moments:
    return Moments.of(bare_rows(x.detach()))


def _checked(basis: Basis, dim: int) -> Basis:
    """A user's function may return anything: columns must be orthonormal and as long as a row."""
    q = basis.q
    if q.ndim != 2 or len(q) != dim or q.shape[1] != basis.effective or not basis.effective:
        raise InputError(
            f"the proxy {basis.proxy} gave a basis of shape {tuple(q.shape)}; expected ({dim}, effective) with at "
            "least one column: build it with orthonormal(directions, name)"
        )
    off = (q.T @ q - torch.eye(basis.effective, dtype=q.dtype)).abs().max()
    if float(off) > 1e-6:
        raise InputError(
            f"the columns of the proxy {basis.proxy} are not orthonormal (off by {float(off):.1e}); "
            "build the basis with orthonormal(directions, name)"
        )
    return basis
