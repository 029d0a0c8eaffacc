"""Retrieval with known answers: recall, MRR and nDCG per query, and the paired change by a map."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.store.files import require_regular

DEPTH = 100  # results per query
RECALLS = (1, 10, 100)
RANKED = 10  # results that MRR and nDCG look at
_NAMES = ("query", "row", "grade")


@dataclass(frozen=True)
class Relevant:
    """Which rows answer which queries, with grades; queries without an answer are left out."""

    query: Tensor  # (p,) sorted
    row: Tensor  # (p,)
    grade: Tensor  # (p,) float64, positive

    @property
    def queries(self) -> Tensor:
        """The queries that have an answer, ascending."""
        return self.query.unique()


def read_relevant(pairs: Any, queries: int, rows: int) -> Relevant:
    """Read pairs (query, row[, grade]), counted from 0.

    Args:
        pairs: A .csv or .tsv file with or without a header, a .npy file, or an array (p, 2) or (p, 3).
        queries: Number of queries.
        rows: Number of rows.

    Raises:
        InputError: The pairs are not numbers of queries and rows.

    >>> read_relevant([[0, 5], [1, 2]], 2, 6).row.tolist()
    [5, 2]
    """
    where = "the relevant pairs"
    if isinstance(pairs, str | Path):
        where = str(pairs)
        pairs = load_numbers(pairs) if str(pairs).endswith(".npy") else _table(Path(pairs))
    try:
        table = np.asarray(pairs, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: pairs are numbers of queries and rows ({error}).") from None
    if table.ndim != 2 or table.shape[1] not in (2, 3) or not len(table):
        raise InputError(
            f"{where}: the shape is {table.shape}. Give one line per pair: query, row and, if known, grade."
        )
    query, row = table[:, 0], table[:, 1]
    for name, numbers, count in (("queries", query, queries), ("rows", row, rows)):
        if not np.all((numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < count)):
            raise InputError(f"{where}: {name} are numbered from 0 to {count - 1:,}, but some numbers are outside.")
    grade = table[:, 2] if table.shape[1] == 3 else np.ones(len(table))
    best: dict[tuple[int, int], float] = {}
    for q, r, g in zip(query.astype(int).tolist(), row.astype(int).tolist(), grade.tolist(), strict=True):
        if g > 0:
            best[q, r] = max(g, best.get((q, r), 0.0))
    if not best:
        raise InputError(f"{where}: no pair has a positive grade, so nothing is relevant.")
    keys = sorted(best)
    query_of, row_of = (torch.tensor(column) for column in zip(*keys, strict=True))
    return Relevant(query_of, row_of, torch.tensor([best[key] for key in keys], dtype=torch.float64))


def load_numbers(path: str | Path) -> Any:
    """Read a .npy file of numbers or texts; nothing is unpickled.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        require_regular(Path(path))
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {error}. Save it again with numpy.save.") from error


def _table(path: Path) -> list[list[str]]:
    try:
        require_regular(path)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}. Give a .csv file with one pair per line.") from error
    lines = [line for line in csv.reader(text.splitlines(), delimiter="\t" if "\t" in text else ",") if line]
    if lines and not _number(lines[0][0]):
        header = [name.strip().lower() for name in lines[0]]
        columns = [header.index(name) for name in _NAMES if name in header]
        if len(columns) < 2:
            columns = list(range(min(3, len(header))))
        lines = [[line[i] for i in columns] for line in lines[1:]]
    return lines


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def scores(index: Tensor, relevant: Relevant) -> dict[tuple[str, int], Tensor]:
    """Score ranked results.

    - recall at k: share of the relevant rows among the first k results;
    - MRR at 10: one over the rank of the first relevant row, 0 beyond rank 10;
    - nDCG at 10: Σ grade/log₂(1 + rank) over the first ten results, divided by its largest possible value.

    Args:
        index: Row numbers of the results of the queries in `relevant.queries`, best first, (q, depth).
        relevant: The relevant rows.

    Returns:
        One value per query, (q,), by name and depth.

    >>> results = scores(torch.tensor([[3, 5]]), read_relevant([[0, 5]], 1, 6))
    >>> float(results["recall", 1]), float(results["mrr", 10])
    (0.0, 0.5)
    """
    grades = graded(index, relevant)
    count = _per_query(torch.ones_like(relevant.grade), relevant)
    hits = (grades > 0).double()
    depth = index.shape[1]
    out = {("recall", k): hits[:, :k].sum(1) / count for k in RECALLS if k <= depth}
    rank = torch.arange(1, min(RANKED, depth) + 1, dtype=torch.float64)
    top = grades[:, : len(rank)]
    out["mrr", RANKED] = (hits[:, : len(rank)] / rank).amax(1)
    discount = 1 / torch.log2(1 + rank)
    out["ndcg", RANKED] = (top * discount).sum(1) / _ideal(relevant, discount)
    return out


def graded(index: Tensor, relevant: Relevant) -> Tensor:
    """Return the grade of each result, 0 if it is not relevant, (q, depth)."""
    base = int(max(int(relevant.row.max()), int(index.max()))) + 1
    queries = relevant.queries
    known = torch.searchsorted(queries, relevant.query) * base + relevant.row  # (p,) ascending
    wanted = torch.arange(len(queries))[:, None] * base + index.clamp(min=0)  # (q, depth)
    position = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    match = (known[position] == wanted) & (index >= 0)
    return torch.where(match, relevant.grade[position], 0.0)


def _per_query(values: Tensor, relevant: Relevant) -> Tensor:
    which = torch.searchsorted(relevant.queries, relevant.query)
    return torch.zeros(len(relevant.queries), dtype=torch.float64).index_add_(0, which, values)


def _ideal(relevant: Relevant, discount: Tensor) -> Tensor:
    """The largest possible sum of discounted grades of each query, (q,)."""
    groups: Sequence[Tensor] = torch.split(
        relevant.grade, torch.unique_consecutive(relevant.query, return_counts=True)[1].tolist()
    )
    best = [each.sort(descending=True).values[: len(discount)] for each in groups]
    return torch.stack([(each * discount[: len(each)]).sum() for each in best])
