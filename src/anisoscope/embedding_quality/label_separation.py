"""How well embeddings separate groups with known labels."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.embedding_quality.retrieval import load_numbers
from anisoscope.errors import InputError
from anisoscope.store.files import require_regular

SILHOUETTE_ROWS = 2048


def read_labels(labels: Any, n: int) -> tuple[Tensor, list[str]]:
    """Read one label per row.

    Args:
        labels: A .csv, .tsv or .txt file with one label per line (a header is recognised by its extra line; of several
            columns the one named `label`, else the last, counts), a .npy file, or a sequence.
        n: Number of rows.

    Returns:
        The number of each row's label, (n,), and the labels.

    Raises:
        InputError: There is not one label per row, or all are equal.

    >>> read_labels(["b", "a", "b"], 3)
    (tensor([1, 0, 1]), ['a', 'b'])
    """
    where = "the labels"
    if isinstance(labels, str | Path):
        where, path = str(labels), Path(labels)
        labels = load_numbers(path) if path.suffix == ".npy" else _column(path, n)
    texts = [str(label) for label in np.asarray(labels).tolist()]
    if len(texts) != n:
        raise InputError(f"{where}: {len(texts):,} labels for {n:,} rows. Give one label per row.")
    names, number = np.unique(texts, return_inverse=True)
    if len(names) < 2:
        raise InputError(f"{where}: all labels are {texts[0]!r}. At least two groups are needed.")
    return torch.from_numpy(number.astype(np.int64)), [str(name) for name in names]


def _column(path: Path, n: int) -> list[str]:
    try:
        require_regular(path)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}. Give a text file with one label per line.") from error
    lines = [line for line in csv.reader(text.splitlines(), delimiter="\t" if "\t" in text else ",") if line]
    header = [name.strip().lower() for name in lines[0]] if lines else []
    column = header.index("label") if "label" in header else -1
    body = lines[1:] if len(lines) == n + 1 else lines
    return [line[column].strip() for line in body]


def right_votes(index: Tensor, label: Tensor) -> Tensor:
    """Return whether most of a row's ten nearest rows have its label; ties go to the nearest of the tied.

    Args:
        index: Neighbours of each row, nearest first, (n, k); −1 is no row.
        label: Label of each row, (n,).

    Returns:
        1 or 0 for each row, (n,); 0 for rows without neighbours.

    >>> right_votes(torch.tensor([[1, 2], [0, 2], [1, 0]]), torch.tensor([0, 0, 1])).tolist()
    [1.0, 1.0, 0.0]
    """
    near = label[index.clamp(min=0)]  # (n, k)
    votes = torch.zeros(len(near), int(label.max()) + 1, dtype=torch.float64)
    nearer = 1 + 0.5 ** torch.arange(2, near.shape[1] + 2, dtype=torch.float64)  # sums below 1: breaks ties only
    votes.scatter_add_(1, near, nearer.expand(near.shape).contiguous().masked_fill(index < 0, 0.0))
    return ((votes.argmax(1) == label) & (index[:, 0] >= 0)).double()


def silhouettes(x: Tensor, label: Tensor) -> Tensor:
    """Return (b − a)/max(a, b) of rows: a is the mean distance to the own group, b to the nearest other group.

    A row that is alone in its group gets 0. The cost grows with the square of the number of rows.
    """
    x = x.double()
    groups, own = label.unique(return_inverse=True)
    if len(groups) < 2:
        return torch.zeros(len(x), dtype=torch.float64)
    row = torch.arange(len(x))
    member = torch.zeros(len(x), len(groups), dtype=torch.float64)
    member[row, own] = 1.0
    size = member.sum(0)
    total = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") @ member  # (n, groups)
    inside = total[row, own] / (size[own] - 1).clamp(min=1)
    outside = (total / size).masked_fill(member.bool(), torch.inf).amin(1)
    value = (outside - inside) / torch.maximum(outside, inside).clamp(min=1e-300)
    return torch.where(size[own] < 2, 0.0, value)


def between_share(x: Tensor, label: Tensor) -> float:
    """Return the share of the variance that lies between the means of the groups (between/total)."""
    x = x.double() - x.double().mean(0)
    groups, own = label.unique(return_inverse=True)
    sums = torch.zeros(len(groups), x.shape[1], dtype=torch.float64).index_add_(0, own, x)
    size = torch.bincount(own).double()
    total = float(x.square().sum())
    return float((sums.square().sum(1) / size).sum()) / total if total > 0 else 0.0


def common_label(label: Tensor) -> float:
    """Return the share of the most frequent label: the accuracy of always answering it."""
    return float(torch.bincount(label).max()) / len(label)
