"""Every metric of a cloud of thousands of rows, in plain numpy float64: whole matrices and no shortcut of the package.

Sums over pairs are sums over pairs, spectra are singular values of the centred rows, neighbours come of all distances.
A number is named as the package names it, by metric and by (index, *variant). Where the rows themselves leave the
answer open (two rows equally far, two norms equal) there is no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tests.oracles import drift

Array = np.ndarray[Any, Any]
Key = tuple[Any, ...]
Numbers = dict[Key, float]
ALONE: Key = (None,)
LISTED = 36  # neighbours the package looks for
TIE = 1e-6  # norms that differ by less than this share of themselves are one to float32


@dataclass(frozen=True)
class Given:
    """Rows (n, d) in float64, each with its document, place in it, token and block."""

    x: Array
    document: Array
    position: Array
    token: Array
    block: Array

    @cached_property
    def centred(self) -> Array:
        return self.x - self.x.mean(0)

    @cached_property
    def unit(self) -> Array:
        return unit(self.x)

    @cached_property
    def cosine(self) -> float:
        return pairs_cosine(self.unit)

    @cached_property
    def triangle(self) -> Array:
        """R of the centred rows' QR: the same singular values and axes."""
        return np.asarray(np.linalg.qr(self.centred, mode="r"))

    @cached_property
    def triangle_uncentred(self) -> Array:
        return np.asarray(np.linalg.qr(self.x, mode="r"))

    @cached_property
    def axes(self) -> Array:
        """Principal axes as rows, the strongest first."""
        return np.linalg.svd(self.triangle)[2]

    @cached_property
    def singular(self) -> Array:
        return np.linalg.svd(self.triangle, compute_uv=False)

    @cached_property
    def singular_uncentred(self) -> Array:
        return np.linalg.svd(self.triangle_uncentred, compute_uv=False)

    @cached_property
    def order(self) -> Array:
        """Rows by their key, as a sample holds them."""
        return np.argsort(keys(self.document, self.position), kind="stable")

    @cached_property
    def distinct(self) -> Array:
        """The first of each set of equal rows, in the order of the sample."""
        _, first = np.unique(self.x[self.order] + 0.0, axis=0, return_index=True)
        return self.order[np.sort(first)]

    @cached_property
    def copies(self) -> Array:
        """How often each distinct row occurs."""
        _, where, count = np.unique(self.x + 0.0, axis=0, return_inverse=True, return_counts=True)
        return count[where.reshape(-1)][self.distinct]

    @cached_property
    def near(self) -> tuple[Array, Array]:
        return nearest(self.x[self.distinct], min(LISTED, len(self.distinct) - 1))


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def keys(document: Array, position: Array) -> Array:
    """The 63-bit key of each token for seed 0: two rounds of the splitmix64 finaliser."""
    with np.errstate(over="ignore"):
        return _mix(_mix(document.astype(np.uint64)) + position.astype(np.uint64)) & np.uint64(2**63 - 1)


def _mix(z: Array) -> Array:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def nearest(x: Array, k: int) -> tuple[Array, Array]:
    """Distances and indices of the k nearest rows, by differences of the best of all pairs."""
    y = x - np.median(x, axis=0)
    square = (y * y).sum(1)
    n, wide = len(x), min(k + 8, len(x) - 1)
    distance, index = np.full((n, k), np.inf), np.zeros((n, k), int)
    for start in range(0, n, 512):
        rows = np.arange(start, min(start + 512, n))
        about = square[rows, None] + square[None] - 2 * y[rows] @ y.T
        about[np.arange(len(rows)), rows] = np.inf
        chosen = np.argpartition(about, wide - 1, axis=1)[:, :wide]
        for part in np.array_split(np.arange(len(rows)), max(1, len(rows) // 32)):
            away = np.sqrt(((x[chosen[part]] - x[rows[part], None]) ** 2).sum(2))
            best = np.argsort(away, axis=1, kind="stable")[:, :k]
            distance[rows[part]] = np.take_along_axis(away, best, 1)
            index[rows[part]] = np.take_along_axis(chosen[part], best, 1)
    return distance, index


# --- isotropy ---------------------------------------------------------------------------------------------------


def pairs_cosine(u: Array) -> float:
    """Mean of u·v over pairs of different rows: every product is made and added."""
    total = sum(float((u[start : start + 512] @ u.T).sum()) for start in range(0, len(u), 512))
    n = len(u)
    return (total - float((u * u).sum())) / (n * (n - 1))


def across_documents(u: Array, document: Array, cosine: float) -> float:
    """The mean over pairs of different documents, given that over all pairs."""
    n = len(u)
    parts = [u[document == b] for b in np.unique(document)]
    inside = sum(float((part @ part.T).sum() - (part * part).sum()) for part in parts)
    pairs = sum(len(part) * (len(part) - 1) for part in parts)
    return (cosine * n * (n - 1) - inside) / (n * (n - 1) - pairs)


def isotropy(g: Given) -> Iterator[tuple[str, Key, float]]:
    x, d = g.x, g.x.shape[1]
    yield "mean_cosine", ALONE, g.cosine
    yield "mean_cosine_across_documents", ALONE, across_documents(g.unit, g.document, g.cosine)
    yield "drift_norm", ALONE, float(np.linalg.norm(x.mean(0)))
    yield "relative_drift", ALONE, float(np.linalg.norm(x.mean(0)) / np.sqrt((x * x).sum(1).mean()))
    s = g.singular_uncentred
    yield "spectral_anisotropy_uncentred", ALONE, float(s[0] ** 2 / (s * s).sum())
    yield "singular_anisotropy", ALONE, float(s[0] / s.sum())
    n = len(x)
    each = (g.unit.sum(0) ** 2 - (g.unit**2).sum(0)) / (n * (n - 1))
    for place in range(d):
        yield "cosine_contribution", (place,), float(each[place])
    yield from _partition(g)
    if not g.centred.any():
        return
    yield "mean_cosine_centred", ALONE, pairs_cosine(unit(g.centred[np.linalg.norm(g.centred, axis=1) > 0]))
    values = g.singular**2
    ratio = values.sum() ** 2 / (values**2).sum()
    yield "spectral_anisotropy", ALONE, float(values[0] / values.sum())
    yield "participation_ratio", ALONE, float(ratio)
    yield "isoscore", ALONE, float((ratio - 1) / (d - 1))
    shrunk = 0.8 * np.pad(values, (0, max(0, d - len(values)))) + 0.2 * values.sum() / d
    yield "isoscore_star", (None, ("zeta", 0.2)), float((shrunk.sum() ** 2 / (shrunk**2).sum() - 1) / (d - 1))
    yield "participation_ratio_unbiased", ALONE, _unbiased(g.centred, g.block)


def _partition(g: Given) -> Iterator[tuple[str, Key, float]]:
    x, d = g.x, g.x.shape[1]
    axes = np.linalg.svd(g.triangle_uncentred)[2].T
    axes = axes * np.where(x.mean(0) @ axes < 0, -1.0, 1.0)
    for rows, scale in (("raw", 1.0), ("unit-rms", np.sqrt(d / (x * x).sum(1).mean()))):
        along = scale * x @ axes
        plus, minus = (np.logaddexp.reduce(sign * along, axis=0) for sign in (1, -1))
        both = np.concatenate((plus, minus))
        for signs, z in (("both", both), ("mean", plus)):
            yield "partition_isotropy", (None, ("rows", rows), ("signs", signs)), float(np.exp(z.min() - z.max()))


def _unbiased(y: Array, block: Array) -> float:
    scatters = np.stack([(y[block == b].T @ y[block == b]).ravel() for b in np.unique(block)])
    trace = np.array([float((y[block == b] ** 2).sum()) for b in np.unique(block)])
    overlap = scatters @ scatters.T
    np.fill_diagonal(overlap, 0.0)
    return float((np.outer(trace, trace).sum() - (trace**2).sum()) / overlap.sum())


# --- spectrum ---------------------------------------------------------------------------------------------------


def spectra(g: Given) -> Iterator[tuple[str, Key, float]]:
    n, d = g.x.shape
    yield "rankme", ALONE, entropy_rank(g.singular_uncentred)
    yield "stable_rank", ALONE, float((g.singular_uncentred**2).sum() / g.singular_uncentred[0] ** 2)
    if not g.centred.any():
        return
    yield "effective_rank", (None, ("of", "singular values")), entropy_rank(g.singular)
    yield "effective_rank", (None, ("of", "eigenvalues")), entropy_rank(g.singular**2)
    values = np.pad(g.singular**2, (0, max(0, d - len(g.singular))))
    values = np.where(values > 1e-28 * values[0], values, 0.0)
    share = values / values.sum()
    for k in (2**j for j in range(d.bit_length()) if 2**j <= d):
        yield "top_share", (k,), float(share[:k].sum())
    for rank in sorted({round(d ** (j / 23)) for j in range(24)}):
        yield "spectrum", (rank,), float(share[rank - 1])
    last = min(n - 1, d) // 2
    if (values[:last] > 0).all() and last >= 4:
        j = np.arange(1, last + 1)
        slope = np.polyfit(np.log(j), np.log(values[:last]), 1, w=np.sqrt(1 / j))[0]
        yield "power_law_alpha", (None, ("ranks", f"1-{last}")), float(-slope)
    if n > d and values[-1] > 0:
        yield "tail_condition", ALONE, float(values[(d - 1) // 2] / values[-1])


def entropy_rank(s: Array) -> float:
    p = s[s > 1e-14 * s[0]]
    p = p / p.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


# --- outliers ---------------------------------------------------------------------------------------------------


def outliers(g: Given) -> Iterator[tuple[str, Key, float]]:
    x = g.x
    rms = np.sqrt((x * x).mean(0))
    yield "outlier_dimensions", ALONE, float((rms > 5 * np.sort(rms)[(len(rms) - 1) // 2]).sum())
    norm = np.linalg.norm(x, axis=1)
    edge = 5 * float(np.median(norm))
    if not (np.abs(norm / edge - 1) < 0.02).any():  # the package's median is good to 1 %
        yield "massive_tokens", (None, ("rule", "norm")), float((norm > edge).sum())
    edge = max(100.0, 1000 * float(np.median(np.abs(x))))
    largest = np.abs(x).max(1)
    if not (np.abs(largest / edge - 1) < 0.05).any() and (largest > edge).sum() < 256:
        yield "massive_tokens", (None, ("rule", "entry")), float((largest > edge).sum())
    order = np.argsort(-norm, kind="stable")
    size = norm[order]
    most = min(128, len(x) // 2)
    if not g.centred.any():
        return
    for k in (0, *(2**j for j in range(8) if 2**j <= most)):
        if k == 0 or size[k - 1] > size[k] * (1 + TIE):
            yield "removal_curve", (k,), _top_share(x[order[k:]])
    halved = _to_halve(x, order, most)
    if halved is not None:
        yield "tokens_to_halve", ALONE, halved / len(x)
    if g.singular[1] ** 2 < (1 - 1e-3) * g.singular[0] ** 2:  # else which axis is the first is open
        yield "top_coordinate", ALONE, float((g.axes[0] ** 2).max())


def _top_share(x: Array) -> float:
    y = x - x.mean(0)
    values = np.linalg.eigvalsh(y.T @ y)
    return float(values[-1] / values.sum())


def _to_halve(x: Array, order: Array, most: int) -> int | None:
    """How many of the largest rows must go until the excess over the null is half; None where it never is."""
    d = x.shape[1]

    def share_and_null(k: int) -> tuple[float, float, float]:
        y = x[order[k:]] - x[order[k:]].mean(0)
        square = (y * y).sum(1)
        trace, fourth = square.sum(), (square**2).sum()
        rows = 1 / max((fourth + (trace**2 - fourth) / d) / trace**2 - 1 / d, 1e-12)
        held = square[: max(0, 256 - k)].max(initial=0.0) / trace
        edge = (1 + np.sqrt(d / rows)) ** 2 / d
        return _top_share(x[order[k:]]), float(min(1.0, max(edge, held + (1 - held) / d))), float(rows)

    start, null, rows = share_and_null(0)
    if rows < 4 and len(x) > 257:
        rest = x[order[256:]] - x[order[256:]].mean(0)
        square = (rest**2).sum(1)
        trace, fourth = square.sum(), (square**2).sum()
        rows = 1 / max((fourth + (trace**2 - fourth) / d) / trace**2 - 1 / d, 1e-12)
        null = min(1.0, (1 + np.sqrt(d / rows)) ** 2 / d)
        fixed: float | None = null
    else:
        fixed = None

    def excess(k: int) -> float:
        share, own, _ = share_and_null(k)
        return share - (own if fixed is None else fixed)

    if start - null <= 0.25 * null or excess(most) > (start - null) / 2:
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) > (start - null) / 2 else (low, middle)
    return high


def tyler_share(x: Array) -> float:
    """Top share of Tyler's shape matrix about the geometric median, iterated until nothing moves."""
    centre = x.mean(0)
    for _ in range(50):
        weight = 1 / np.maximum(np.linalg.norm(x - centre, axis=1), 1e-12)
        centre = weight @ x / weight.sum()
    y = x - centre
    y = y / np.linalg.norm(y, axis=1, keepdims=True)
    shape = np.eye(y.shape[1]) / y.shape[1]
    for _ in range(1000):
        weight = (y * np.linalg.solve(shape, y.T).T).sum(1)
        new = (y / weight[:, None]).T @ y
        new /= np.trace(new)
        done = np.linalg.norm(new - shape) < 1e-13
        shape = new
        if done:
            break
    return float(np.linalg.eigvalsh(shape)[-1])


# --- dimension --------------------------------------------------------------------------------------------------


def dimensions(g: Given) -> Iterator[tuple[str, Key, float]]:
    if len(g.distinct) < 20:
        return
    distance, index = g.near
    n = len(distance)
    log_mu = np.log(distance[:, 1] / distance[:, 0])
    if not log_mu.any():
        return
    yield "two_nn", (None, ("neighbours", "all")), _slope(log_mu)
    yield "two_nn_ml", (None, ("neighbours", "all")), float((n - 1) / log_mu.sum())
    document = g.document[g.distinct]
    same = document[index] == document[:, None]
    if same.any() and (index.shape[1] - same.sum(1) >= 2).all():  # the list reaches beyond every document
        other = np.sort(np.where(same, np.inf, distance), axis=1)[:, :2]
        log_other = np.log(other[:, 1] / other[:, 0])
        yield "two_nn", (None, ("neighbours", "other documents")), _slope(log_other)
        yield "two_nn_ml", (None, ("neighbours", "other documents")), float((len(other) - 1) / log_other.sum())
    if (np.diff(distance[:, :2]) > 0).all():
        yield "two_nn_paper", ALONE, _paper(g, distance, index)
    k = 1
    while 2 * k <= distance.shape[1]:
        yield "gride", (k,), gride(np.log(distance[:, 2 * k - 1] / distance[:, k - 1]), k)
        k *= 2
    k = min(20, distance.shape[1])
    inverse = np.log(distance[:, k - 1 : k] / distance[:, : k - 1]).sum(1) / (k - 1)
    yield "mle_dimension", (None, ("k", k)), float(1 / inverse.mean())
    k = min(32, distance.shape[1])
    if (np.diff(distance[:, k - 1 : k + 1]) > 1e-12 * distance[:, k - 1 : k]).all():
        asked = np.unique(np.linspace(0, n - 1, min(256, n)).astype(np.float32).astype(int))
        counts = [_local(g.x[g.distinct][index[i, :k]]) for i in asked]
        yield "local_pca_dimension", (None, ("k", k), ("share", 0.95)), float(np.mean(counts))


def _slope(log_mu: Array, share: float = 0.9) -> float:
    n = len(log_mu)
    keep = max(2, int(share * n))
    a = np.sort(log_mu)[:keep]
    b = -np.log(1 - np.arange(1, keep + 1) / n)
    return float((a * b).sum() / (a * a).sum())


def _paper(g: Given, distance: Array, index: Array) -> float:
    second = np.where(g.copies[index[:, 0]] > 1, distance[:, 0], distance[:, 1])
    log_mu = np.sort(np.log(second / distance[:, 0])[g.copies == 1])
    share = np.arange(1, len(log_mu) + 1) / g.copies.sum()
    keep = share <= 0.2
    return float((log_mu[keep] * -np.log(1 - share[keep])).sum() / (log_mu[keep] ** 2).sum())


def gride(log_mu: Array, k: int) -> float:
    """The root of the likelihood's derivative in d, by Brent's method."""
    from scipy.optimize import brentq

    if k == 1:
        return float((len(log_mu) - 1) / log_mu.sum())

    def score(d: float) -> float:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            grown = np.where(log_mu > 0, log_mu * np.exp(d * log_mu) / np.expm1(d * log_mu), 1 / d)
            grown = np.where(d * log_mu > 600, log_mu, grown)
        return float(len(log_mu) / d + (k - 1) * grown.sum() - (2 * k - 1) * log_mu.sum())

    return float(brentq(score, 1e-6, 1e6, xtol=1e-14, rtol=1e-14))


def _local(x: Array) -> int:
    variance = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    return int((np.cumsum(variance) / variance.sum() < 0.95).sum()) + 1


# --- context ----------------------------------------------------------------------------------------------------


def context(g: Given) -> Iterator[tuple[str, Key, float]]:
    u, token, document = g.unit[g.order], g.token[g.order], g.document[g.order]
    base = g.cosine
    words, count = np.unique(token, return_counts=True)
    words = words[count >= 5]
    own = [pairs_cosine(u[token == w]) for w in words]
    yield "self_similarity", ALONE, float(np.mean(own)) - base
    sentence = []
    for b in np.unique(document):
        rows = u[document == b]
        for i in range(len(rows)):
            others = np.delete(rows, i, 0).sum(0)
            sentence.append(float(rows[i] @ others / np.linalg.norm(others)))
    yield "intra_sentence_similarity", ALONE, float(np.mean(sentence)) - base
    x = g.x[g.order]
    groups = sorted((np.flatnonzero(token == w) for w in words), key=len, reverse=True)
    start, shares = 0, []
    for group in groups:
        group = group[:32]
        random = np.arange(start, start + len(group)) % len(x)
        start += len(group)
        s, r = (np.linalg.svd(x[rows], compute_uv=False) ** 2 for rows in (group, random))
        shares.append(s[0] / s.sum() - r[0] / r.sum())
    yield "max_explainable_variance", ALONE, float(np.mean(shares))


def moved(g: Given, then: Given) -> Iterator[tuple[str, Key, float]]:
    a, b = g.x.mean(0), then.x.mean(0)
    yield "mean_direction_drift", ALONE, float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    yield "trajectory", (None, ("axis", 1), ("of", "mean")), float(drift.trajectory(g.x, then.x)[0])
    for k in (1, 8, 32):
        if k > min(g.x.shape[1] // 2, len(g.x) - 1) or _weak(g, k) or _weak(then, k):
            continue
        angle = _angles(g.axes[:k], then.axes[:k])
        yield "subspace_angle", (k, ("angle", "largest")), float(angle[-1])
        average = float(np.arccos(min(1.0, np.sqrt((np.cos(angle) ** 2).mean()))))
        yield "subspace_angle", (k, ("angle", "average")), average
    if len(g.x) <= 1024:  # n × n kernels
        yield "cka", ALONE, drift.cka(g.centred, then.centred)
        overlap = _overlap(g.x, then.x)
        if overlap is not None:
            yield "neighbour_overlap", (10,), overlap


def _angles(a: Array, b: Array) -> Array:
    """Principal angles between the spans of orthonormal rows, ascending: by sines where they are small."""
    cosine = np.clip(np.linalg.svd(a @ b.T, compute_uv=False), 0, 1)
    sine = np.clip(np.linalg.svd(b - (b @ a.T) @ a, compute_uv=False)[::-1][: len(cosine)], 0, 1)
    return np.where(cosine > 0.7, np.arcsin(sine), np.arccos(cosine))


def _overlap(x: Array, y: Array) -> float | None:
    (r, a), (s, b) = nearest(x, 11), nearest(y, 11)
    if any((np.diff(away[:, 9:]) <= 1e-12 * away[:, 9:10]).any() for away in (r, s)):
        return None  # which row is the tenth is open
    return float(np.mean([len(set(i[:10]) & set(j[:10])) / 10 for i, j in zip(a.tolist(), b.tolist(), strict=True)]))


def _weak(g: Given, k: int) -> bool:
    """Whether the k-th and the next axis are too close to tell apart."""
    s = g.singular
    return len(s) <= k or s[k - 1] < 1e-5 * s[0] or s[k - 1] ** 2 - s[k] ** 2 < 1e-3 * s[k - 1] ** 2


def numbers(g: Given, then: Given, *, slow: bool) -> dict[str, Numbers]:
    """All numbers of all metrics of a cloud and of what has moved since another."""
    out: dict[str, Numbers] = {}
    for found in (isotropy(g), spectra(g), outliers(g), dimensions(g), context(g), moved(g, then)):
        for name, key, value in found:
            out.setdefault(name, {})[key] = value
    full = len(g.singular) == g.x.shape[1] and g.singular[-1] > 1e-6 * g.singular[0]
    if slow and len(g.distinct) == len(g.x) >= 4 * g.x.shape[1] and full:
        out["tyler_share"] = {ALONE: tyler_share(g.x)}
    return out
