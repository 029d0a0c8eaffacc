"""Proxies of the tangent space: functions from rows to a basis. User functions work like the built-in ones."""

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
_SPARE = 12  # extra directions of a subspace iteration
_ROUNDS, _ROWS = 12, 4096  # of a semi-NMF if only its span matters
_WIDE = 4  # columns per concept that rows are compressed to before several semi-NMFs


def pca(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """The directions along which rows vary most about their mean."""
    return top_axes(_moments(x).scatter, rank, "pca")


def svd(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """The directions of most squared length, without subtracting the mean."""
    return top_axes(_moments(x).second, rank, "svd")


def mean(x: Tensor, rank: int = 1, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """The direction of the mean row: a basis of one direction, whatever the rank."""
    return orthonormal(_moments(x).mean[:, None], "mean", rank)


def semi_nmf(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
    """The span of `rank` concepts whose non-negative mixtures make up the rows; `start` is a warm start."""
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
    """Fit one basis for each proxy and rank.

    Args:
        x: Rows (n, d).
        proxies: Names, or functions called as proxy(x, rank, seed=, start=) that return a `Basis`.
        ranks: The ranks to fit.
        seed: The seed of every draw.
        start: Earlier bases by proxy and rank, as a warm start.
        moments: The moments of x, if they are known.
        axes: The principal axes (d, d) of x, if they are known.

    Raises:
        InputError: If a proxy is unknown or returns an invalid basis.
    """
    moments = _moments(x) if moments is None else moments
    axes = axes_of(moments)[1] if axes is None else axes
    warm = start or {}
    out: list[Basis] = []
    for proxy in proxies:
        name, function = named(proxy)
        if function is pca:
            varying = int((moments.scatter.diagonal() > 0).sum())  # constant coordinates give no direction
            keep = min(max(ranks), len(x) - 1, varying)
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
    """Semi-NMF at every rank, on rows compressed once to the mean and the leading axes, which hold nearly all."""
    keep = min(x.shape[1], _WIDE * max(ranks))
    subspace = torch.linalg.qr(torch.cat((centre[:, None], axes[:, : keep - 1]), 1).to(x.device, torch.float32))[0]
    few = max(_ROWS, 32 * max(ranks))
    small = x.detach()[:: max(1, len(x) // few)].float() @ subspace  # (rows, keep)
    out = []
    for rank in ranks:
        before = warm.get(("semi_nmf", rank))
        known = None if before is None or before.directions is None else before.directions.to(subspace).T @ subspace
        concepts = factorise(small, rank, rounds=_ROUNDS, seed=seed, start=known).concepts @ subspace.T  # (rank, d)
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
    """Approximate leading eigenvectors of a symmetric matrix, from its products with columns, (dim, rank).

    Subspace iteration with a few extra directions, for bases that need not be exact (patches, the ceiling).
    """
    draw = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(dim, min(dim, rank + _SPARE), generator=draw))[0]
    for _ in range(rounds):
        q = torch.linalg.qr(product(q))[0]  # (dim, rank + spare)
    vectors = torch.linalg.eigh(q.T @ product(q))[1].flip(1)[:, :rank]
    return q @ vectors


def top_axes(second: Tensor, rank: int, proxy: str) -> Basis:
    """The eigenvectors of a symmetric matrix with the `rank` largest eigenvalues that are not zero."""
    if rank < 1:
        raise InputError(f"Rank {rank} is too small. A basis needs at least one direction.")
    values, axes = torch.linalg.eigh(double(second).cpu())
    keep = min(rank, int((values > _TINY * values[-1].clamp(min=1e-300)).sum()))
    return Basis(axes.flip(1)[:, :keep].contiguous(), proxy, rank, keep)


def _moments(x: Tensor) -> Moments:
    return Moments.of(bare_rows(x.detach()))


def _checked(basis: Basis, dim: int) -> Basis:
    """Check the basis of a user's function: columns must be orthonormal and as long as a row."""
    q = basis.q
    if q.ndim != 2 or len(q) != dim or q.shape[1] != basis.effective or not basis.effective:
        raise InputError(
            f"The proxy {basis.proxy} returned a basis of shape {tuple(q.shape)} instead of ({dim}, effective) with at "
            "least one column. Build it with orthonormal(directions, name)."
        )
    off = (q.T @ q - torch.eye(basis.effective, dtype=q.dtype)).abs().max()
    if float(off) > 1e-6:
        raise InputError(
            f"The columns of the proxy {basis.proxy} are not orthonormal (off by {float(off):.1e}). "
            "Build the basis with orthonormal(directions, name)."
        )
    return basis
