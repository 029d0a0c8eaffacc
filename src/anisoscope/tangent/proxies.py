"""Proxies of the tangent space: functions from rows to a basis. Yours comes in by the same door as ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anisoscope.errors import InputError, unknown
from anisoscope.stats.arith import double
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import bare_rows
from anisoscope.tangent.basis import Basis, orthonormal
from anisoscope.tangent.semi_nmf import factorise

Proxy = Callable[..., Basis]
_TINY = 1e-10  # eigenvalues below this share of the largest are rounding


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
_NESTED = ("pca", "svd")  # a smaller rank is the beginning of a larger one


def fit_bases(
    x: Tensor,
    proxies: Sequence[str | Proxy],
    ranks: Sequence[int],
    *,
    seed: int = 0,
    start: Mapping[tuple[str, int], Basis] | None = None,
) -> list[Basis]:
    """One basis for each proxy and rank, fitted on rows (n, d); a proxy is a name or a function rows, rank -> Basis."""
    out: list[Basis] = []
    for proxy in proxies:
        name, function = named(proxy)
        if name in _NESTED:
            widest = function(x, max(ranks))
            out += [widest.first(rank) for rank in ranks]
        elif name == "mean":
            out.append(function(x, 1))
        else:
            warm = start or {}
            out += [function(x, rank, seed=seed, start=warm.get((name, rank))) for rank in ranks]
    return [_checked(basis, x.shape[1]) for basis in out]


def named(proxy: str | Proxy) -> tuple[str, Proxy]:
    """A proxy's name and its function."""
    if callable(proxy):
        return getattr(proxy, "__name__", "mine"), proxy
    if proxy not in PROXIES:
        raise unknown("proxy", proxy, PROXIES)
    return proxy, PROXIES[proxy]


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
