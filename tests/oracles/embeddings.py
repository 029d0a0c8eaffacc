"""Plain numpy for everything that a check of embeddings computes: all distances at once, one row after another."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def unit(x: Any) -> Array:
    x = np.asarray(x, dtype=float)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    rows: Array = x / np.where(length > 0, length, 1.0)
    return rows


def uniformity(x: Any) -> float:
    """ln of the mean of exp(−2‖u − v‖²) over pairs of different rows."""
    u = unit(x)
    terms = [math.exp(-2 * float(np.sum((u[i] - u[j]) ** 2))) for i in range(len(u)) for j in range(len(u)) if i != j]
    return math.log(float(np.mean(terms)))


def neighbours(x: Any, k: int) -> NDArray[np.int64]:
    """The k nearest other rows by Euclidean distance."""
    x = np.asarray(x, dtype=float)
    distance = np.linalg.norm(x[:, None] - x[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k]


def hubness(x: Any, k: int = 10) -> dict[str, float]:
    """Skewness, Robin Hood index and share of anti-hubs of the k-occurrence."""
    count = np.zeros(len(x))
    for row in neighbours(x, k):
        for other in row:
            count[other] += 1
    mean = count.mean()
    moment = ((count - mean) ** 3).mean() / ((count - mean) ** 2).mean() ** 1.5
    return {
        "skewness": float(moment),
        "robin hood": float(np.abs(count - mean).sum() / (2 * count.sum())),
        "anti-hubs": float((count == 0).mean()),
    }


def ranked(queries: Any, rows: Any) -> NDArray[np.int64]:
    """All rows, ordered by cosine with each query."""
    return np.argsort(-(unit(queries) @ unit(rows).T), axis=1, kind="stable")


def recall(order: Any, relevant: dict[int, dict[int, float]], k: int) -> list[float]:
    return [len(set(order[i, :k]) & set(answers)) / len(answers) for i, answers in enumerate(relevant.values())]


def mrr(order: Any, relevant: dict[int, dict[int, float]], k: int = 10) -> list[float]:
    out = []
    for i, answers in enumerate(relevant.values()):
        ranks = [rank for rank, row in enumerate(order[i, :k], start=1) if row in answers]
        out.append(1 / ranks[0] if ranks else 0.0)
    return out


def ndcg(order: Any, relevant: dict[int, dict[int, float]], k: int = 10) -> list[float]:
    out = []
    for i, answers in enumerate(relevant.values()):
        gain = sum(answers.get(int(row), 0.0) / math.log2(1 + rank) for rank, row in enumerate(order[i, :k], start=1))
        best = sorted(answers.values(), reverse=True)[:k]
        out.append(gain / sum(grade / math.log2(1 + rank) for rank, grade in enumerate(best, start=1)))
    return out
