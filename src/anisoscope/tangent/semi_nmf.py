"""Semi-NMF: rows as non-negative mixtures of concepts, X ≈ Z D with Z ≥ 0 and D free.

Alternating blocks, each solved exactly: every column of Z by its non-negative least squares (HALS), all of D at once by
least squares. Steps are extrapolated, and taken back where that does not help, so the objective ‖X − ZD‖² never rises.
The rows are first compressed to a subspace that holds nearly all of them (a QR of random projections, sharpened once);
a last solution for D uses the full rows.

With one concept more it reaches at least what an SVD of rank k − 1 does (shift the scores until they are positive, and
give the shift to the last concept), so span(D) can come close to that of the uncentred SVD. What sets it apart are the
concepts themselves: parts that only add.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.arithmetic import full_precision, plain

ROUNDS = 60
_SLOW = 1e-4  # relative gain of a round below which more rounds are not worth their time
_STEP, _LONGER = 0.5, 1.05  # how far a round begins beyond the last one, and how that grows
_WIDE = 3  # columns kept per concept when rows are compressed
_LLOYD = 4  # rounds of clustering that the first concepts come from
_SEEDS = 4096  # rows that they are clustered on
_OTHERS = 0.2  # first loading of a row on clusters that are not its own
_WARM = 4  # sweeps that find the loadings on known concepts


@dataclass(frozen=True)
class SemiNMF:
    """Loadings and concepts, the objective after each round, and the effective rank of the concepts."""

    loadings: Tensor  # (n, k) float32, ≥ 0
    concepts: Tensor  # (k, d) float32
    trace: tuple[float, ...]  # ‖X − ZD‖²/‖X‖² after the start and after every round; never rises
    effective_rank: float  # exp of the entropy of the used concepts' singular values

    @property
    def error(self) -> float:
        """‖X − ZD‖/‖X‖."""
        return self.trace[-1] ** 0.5


def factorise(
    x: Tensor, rank: int, *, rounds: int = ROUNDS, seed: int = 0, start: Tensor | None = None, compress: bool = True
) -> SemiNMF:
    """Rows (n, d) as Z D with `rank` concepts; `start` warms up from the concepts (rank, d) of an earlier step.

    >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, -3.0]])
    >>> factorise(x, 2).error < 1e-3
    True
    """
    n, d = x.shape
    if not 0 < rank <= min(n, d):
        raise InputError(f"{rank} concepts of {n} rows in {d} dimensions; expected 1 to {min(n, d)}")
    with full_precision(x.device):
        rows = plain(x).float()
        size = _square(rows)
        if not size < torch.inf:
            raise InputError("some rows hold NaN or Inf; semi-NMF needs finite rows: drop them first")
        draw = torch.Generator().manual_seed(seed)
        frame = _frame(rows, rank, draw) if compress and _WIDE * rank < d else None
        y = rows if frame is None else rows @ frame  # (n, m)
        if start is None:
            loadings = _clustered(y, rank, draw)
        else:
            known = plain(start).float().to(rows)
            loadings = _loaded(y, known if frame is None else known @ frame)
        loadings, concepts, trace = _alternate(y, loadings, rounds, size)
        if frame is not None:
            concepts, last = _solve(loadings, rows, size, size)
            trace.append(min(last, trace[-1]))  # the full rows leave D freer: higher by rounding alone
    return SemiNMF(loadings, concepts, tuple(trace), _effective_rank(loadings, concepts))


def loadings_on(x: Tensor, concepts: Tensor) -> Tensor:
    """The loadings (n, k) of rows on concepts (k, d) that are known already."""
    with full_precision(x.device):
        return _loaded(plain(x).float(), plain(concepts).float().to(x.device))


def _frame(x: Tensor, rank: int, draw: torch.Generator) -> Tensor:
    """Orthonormal columns (d, m) that hold nearly all of the rows: randomised range finder with one sharpening."""
    m = min(x.shape[1], _WIDE * rank + 8)
    q = torch.linalg.qr(x.T @ (x @ _normal(x.shape[1], m, draw, x)))[0]  # (d, m)
    return torch.linalg.qr(x.T @ (x @ q))[0]


def _clustered(y: Tensor, rank: int, draw: torch.Generator) -> Tensor:
    """First loadings (n, rank): a row's cluster, and a little of every other one so that all can grow."""
    some = y[torch.randperm(len(y), generator=draw)[:_SEEDS].to(y.device)]
    centres = some[:1]
    nearest = (some - centres).square().sum(1)
    for _ in range(1, rank):  # started far apart: the chance to be picked is the squared distance
        weight = nearest.double().cpu()
        pick = torch.multinomial(weight / weight.sum(), 1, generator=draw) if bool(weight.sum() > 0) else 0
        centres = torch.cat((centres, some[pick].reshape(1, -1)))
        nearest = torch.minimum(nearest, (some - centres[-1]).square().sum(1))
    for _ in range(_LLOYD):
        member = _members(some, centres)  # (rows, rank)
        count = member.sum(0)[:, None]
        centres = torch.where(count > 0, member.T @ some / count.clamp(min=1), centres)
    return _members(y, centres) + _OTHERS


def _members(y: Tensor, centres: Tensor) -> Tensor:
    nearest = (centres.square().sum(1) - 2 * y @ centres.T).argmin(1)
    return torch.nn.functional.one_hot(nearest, len(centres)).to(y.dtype)


def _loaded(y: Tensor, concepts: Tensor) -> Tensor:
    """Loadings (n, k) of rows on concepts that are known already."""
    loadings = (y @ concepts.T / concepts.square().sum(1).clamp(min=1e-30)).clamp(min=0) / len(concepts)
    for _ in range(_WARM):
        loadings = _hals(y, concepts, loadings)
    return loadings


def _alternate(y: Tensor, loadings: Tensor, rounds: int, size: float) -> tuple[Tensor, Tensor, list[float]]:
    """Rounds of (Z given D, D given Z) until a round gains next to nothing.

    Each round begins a little further along the last one's step; where that raises the objective, it is taken back and
    the next begins where the best round ended, with a smaller step.
    """
    inside = _square(y)
    outside = max(0.0, size - inside) / size  # what compressing leaves out belongs to the objective
    concepts, error = _solve(loadings, y, inside, size)
    trace, ahead, step = [error + outside], concepts, _STEP
    start = loadings
    for _ in range(rounds):
        tried = _hals(y, ahead, start)
        solved, error = _solve(tried, y, inside, size)
        if error + outside > trace[-1]:
            start, ahead, step = loadings, concepts, step / 2
            trace.append(trace[-1])
            continue
        start = (tried + step * (tried - loadings)).clamp_(min=0)
        loadings, concepts, step = tried, solved, min(1.0, _LONGER * step)
        ahead = _solve(start, y, inside, size)[0]
        trace.append(error + outside)
        if trace[-2] - trace[-1] < _SLOW * trace[-1]:
            break
    return loadings, concepts, trace


def _hals(y: Tensor, concepts: Tensor, loadings: Tensor) -> Tensor:
    """Each column of Z in turn set to its best non-negative value given all others."""
    target = (concepts @ y.T).contiguous()  # (k, n)
    overlap = concepts @ concepts.T  # (k, k)
    z = loadings.T.contiguous()  # (k, n): a column of Z is contiguous
    for j in range(len(z)):
        own = overlap[j, j]
        rest = target[j] - overlap[j] @ z + own * z[j]  # (n,)
        z[j] = (rest / own.clamp(min=1e-30)).clamp_(min=0)
    return z.T


def _solve(loadings: Tensor, y: Tensor, inside: float, size: float) -> tuple[Tensor, float]:
    """The best D for these loadings, and ‖Y − ZD‖² (‖Y‖² is `inside`) as a share of the size of the whole."""
    z = loadings.T  # (k, n)
    gram = (z @ loadings).double()  # (k, k)
    cross = (z @ y).double()  # (k, m)
    ridge = 1e-10 * gram.diagonal().mean().clamp(min=1e-300)  # concepts that no row uses must not blow up
    ridged = gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    concepts = torch.linalg.solve(ridged, cross)
    fitted = 2 * (concepts * cross).sum() - (concepts * (gram @ concepts)).sum()
    return concepts.to(y.dtype), max(0.0, inside - float(fitted)) / max(size, 1e-300)


def _effective_rank(loadings: Tensor, concepts: Tensor) -> float:
    """exp of the entropy of the singular values of the concepts, each as long as it is used."""
    used = concepts.double() * loadings.norm(dim=0)[:, None].double()  # (k, d)
    s = torch.linalg.svdvals(used)
    p = s / s.sum().clamp(min=1e-300)
    return float(torch.exp(-(p * p.clamp(min=1e-300).log()).sum()))


def _square(x: Tensor) -> float:
    """‖X‖² with float64 totals: rows in float32, their sum in float64."""
    return float(torch.linalg.vector_norm(x, dim=1).double().square().sum())


def _normal(rows: int, columns: int, draw: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(rows, columns, generator=draw).to(like)
