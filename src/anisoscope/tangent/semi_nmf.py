"""Semi-NMF: rows as non-negative mixtures of concepts, X ≈ Z D with Z ≥ 0 and D free.

Two blocks alternate, each solved exactly: every column of Z by non-negative least squares (HALS), all of D by least
squares. Steps are extrapolated, and undone if that does not help, so the objective ‖X − ZD‖² never rises. The rows are
first compressed to a subspace that holds nearly all of them (a QR of random projections, sharpened once); the last
solution for D uses the full rows.

With k concepts it reaches at least the error of an SVD of rank k − 1: shift the scores until they are positive, and let
the last concept absorb the shift. So span(D) can come close to that of the uncentred SVD. What differs are the concepts
themselves: parts that only add.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.arithmetic import full_precision, plain
from anisoscope.stats.kmeans import distant_starts, kmeans, nearest_centre

ROUNDS = 60
_SLOW = 1e-4  # stop when a round gains less than this share of the error
_STEP, _LONGER = 0.5, 1.05  # length of the extrapolation, and its growth per round
_WIDE = 3  # columns kept per concept when rows are compressed
_LLOYD = 4  # rounds of k-means for the first concepts
_SEEDS = 4096  # rows that are clustered
_OTHERS = 0.2  # first loading of a row on clusters other than its own
_WARM = 4  # sweeps that fit the loadings on known concepts


@dataclass(frozen=True)
class SemiNMF:
    """Loadings and concepts, the objective after each round, and the effective rank of the concepts."""

    loadings: Tensor  # (n, k) float32, ≥ 0
    concepts: Tensor  # (k, d) float32
    trace: tuple[float, ...]  # ‖X − ZD‖²/‖X‖² at the start and after every round; never rises
    effective_rank: float  # exp of the entropy of the used concepts' singular values

    @property
    def error(self) -> float:
        """‖X − ZD‖/‖X‖."""
        return self.trace[-1] ** 0.5


def factorise(
    x: Tensor, rank: int, *, rounds: int = ROUNDS, seed: int = 0, start: Tensor | None = None, compress: bool = True
) -> SemiNMF:
    """Factorise rows into loadings and concepts.

    Args:
        x: Rows (n, d).
        rank: The number of concepts.
        rounds: The most rounds.
        seed: The seed of the starting clusters.
        start: The concepts (rank, d) of an earlier step, as a warm start.
        compress: Whether to iterate on compressed rows.

    Raises:
        InputError: If there are more concepts than rows or dimensions, or if rows hold NaN or Inf.

    >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, -3.0]])
    >>> factorise(x, 2).error < 1e-3
    True
    """
    n, d = x.shape
    if not 0 < rank <= min(n, d):
        raise InputError(f"{rank} concepts of {n} rows in {d} dimensions: expected 1 to {min(n, d)} concepts.")
    with full_precision(x.device):
        rows = plain(x).float()
        size = _square(rows)
        if not size < torch.inf:
            raise InputError("Some rows hold NaN or Inf. Semi-NMF needs finite rows: drop them first.")
        draw = torch.Generator().manual_seed(seed)
        subspace = _range(rows, rank, draw) if compress and _WIDE * rank < d else None
        y = rows if subspace is None else rows @ subspace  # (n, m)
        if start is None:
            loadings = _clustered(y, rank, draw)
        else:
            known = plain(start).float().to(rows)
            loadings = _loaded(y, known if subspace is None else known @ subspace)
        loadings, concepts, trace = _alternate(y, loadings, rounds, size)
        if subspace is not None:
            concepts, last = _solve(loadings, rows.double(), size, size)
            trace.append(min(last, trace[-1]))  # D is freer on the full rows: higher by rounding alone
    return SemiNMF(loadings, concepts, tuple(trace), _effective_rank(loadings, concepts))


def loadings_on(x: Tensor, concepts: Tensor) -> Tensor:
    """The loadings (n, k) of rows on known concepts (k, d)."""
    with full_precision(x.device):
        return _loaded(plain(x).float(), plain(concepts).float().to(x.device))


def _range(x: Tensor, rank: int, draw: torch.Generator) -> Tensor:
    """Orthonormal columns (d, m) that hold nearly all of the rows: randomised range finder with one sharpening."""
    m = min(x.shape[1], _WIDE * rank + 8)
    q = torch.linalg.qr(x.T @ (x @ torch.randn(x.shape[1], m, generator=draw).to(x)))[0]  # (d, m)
    return torch.linalg.qr(x.T @ (x @ q))[0]


def _clustered(y: Tensor, rank: int, draw: torch.Generator) -> Tensor:
    """First loadings (n, rank): a row's cluster, and a little of every other one so that all can grow."""
    some = y[torch.randperm(len(y), generator=draw)[:_SEEDS].to(y.device)]
    centres = kmeans(some, distant_starts(some, rank, 0, draw), _LLOYD)[1]
    return torch.nn.functional.one_hot(nearest_centre(y, centres), rank).to(y.dtype) + _OTHERS


def _loaded(y: Tensor, concepts: Tensor) -> Tensor:
    """Loadings (n, k) of rows on known concepts."""
    loadings = (y @ concepts.T / concepts.square().sum(1).clamp(min=1e-30)).clamp(min=0) / len(concepts)
    for _ in range(_WARM):
        loadings = _hals(y, concepts, loadings)
    return loadings


def _alternate(y: Tensor, loadings: Tensor, rounds: int, size: float) -> tuple[Tensor, Tensor, list[float]]:
    """Rounds of (Z with D fixed, D with Z fixed) until a round gains next to nothing.

    Each round starts a little further along the previous step. If that raises the objective, it is undone, and the
    next round starts at the best one with a smaller step.
    """
    inside = _square(y)
    exact = y.double()
    outside = max(0.0, size - inside) / size  # what compression leaves out is part of the objective
    concepts, error = _solve(loadings, exact, inside, size)
    trace, ahead, step = [error + outside], concepts, _STEP
    start = loadings
    for _ in range(rounds):
        tried = _hals(y, ahead, start)
        solved, error = _solve(tried, exact, inside, size)
        if error + outside > trace[-1]:
            start, ahead, step = loadings, concepts, step / 2
            trace.append(trace[-1])
            continue
        start = (tried + step * (tried - loadings)).clamp_(min=0)
        loadings, concepts, step = tried, solved, min(1.0, _LONGER * step)
        ahead = _solve(start, exact, inside, size)[0]
        trace.append(error + outside)
        if trace[-2] - trace[-1] < _SLOW * trace[-1]:
            break
    return loadings, concepts, trace


def _hals(y: Tensor, concepts: Tensor, loadings: Tensor) -> Tensor:
    """Set each column of Z in turn to its best non-negative value with all others fixed."""
    target = (concepts @ y.T).contiguous()  # (k, n)
    overlap = concepts @ concepts.T  # (k, k)
    z = loadings.T.contiguous()  # (k, n): a column of Z is contiguous
    for j in range(len(z)):
        square = overlap[j, j]
        rest = target[j] - overlap[j] @ z + square * z[j]  # (n,)
        z[j] = (rest / square.clamp(min=1e-30)).clamp_(min=0)
    return z.T


def _solve(loadings: Tensor, y: Tensor, inside: float, size: float) -> tuple[Tensor, float]:
    """The best D for these loadings, and ‖Y − ZD‖² (‖Y‖² is `inside`) as a share of `size`.

    Products are in float64. Loadings can be close to dependent, and float32 products then report an objective that is
    lower than that of the factors, so that later, better rounds look like rises and are undone.
    """
    z = loadings.double()  # (n, k)
    gram = z.T @ z  # (k, k)
    cross = z.T @ y  # (k, m)
    ridge = 1e-10 * gram.diagonal().mean().clamp(min=1e-300)  # keeps concepts that no row uses finite
    ridged = gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    concepts = torch.linalg.solve(ridged, cross)
    explained = 2 * (concepts * cross).sum() - (concepts * (gram @ concepts)).sum()
    return concepts.to(loadings.dtype), max(0.0, inside - float(explained)) / max(size, 1e-300)


def _effective_rank(loadings: Tensor, concepts: Tensor) -> float:
    """exp of the entropy of the singular values of the concepts, each as long as it is used."""
    used = concepts.double() * loadings.norm(dim=0)[:, None].double()  # (k, d)
    s = torch.linalg.svdvals(used)
    p = s / s.sum().clamp(min=1e-300)
    return float(torch.exp(-(p * p.clamp(min=1e-300).log()).sum()))


def _square(x: Tensor) -> float:
    """‖X‖²: rows in float32, their sum in float64."""
    return float(torch.linalg.vector_norm(x, dim=1).double().square().sum())
