"""Curvature and entropy of sequences against plain numpy, and their nulls against simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from anisoscope import metrics
from anisoscope.errors import MetricError
from anisoscope.stats.collect import collect
from anisoscope.stats.rows import Rows, token_table

LENGTHS = (7, 1, 12, 3, 2)


def sequences(x: torch.Tensor, lengths: tuple[int, ...] = LENGTHS, offset: torch.Tensor | None = None) -> Rows:
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.cat([torch.arange(n) for n in lengths])
    return Rows(x, token_table(document, position, offset=offset))


def number(name: str, rows: Rows, cuts: tuple[int, ...] = ()) -> metrics.Value:
    (each,) = metrics.find([name])
    edges = [0, *cuts, len(rows.tokens)]
    parts = [rows.take(slice(a, b)) for a, b in itertools.pairwise(edges)]
    (value,) = each.values(collect(lambda: parts, each.sources | {"Moments"}))
    return value


def numpy_angles(x: np.ndarray, lengths: tuple[int, ...]) -> list[float]:
    out, first = [], 0
    for n in lengths:
        steps = np.diff(x[first : first + n], axis=0)
        out += [
            float(np.degrees(np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b))))
            for a, b in itertools.pairwise(steps)
        ]
        first += n
    return out


@pytest.mark.parametrize("cuts", [(), (1,), (3, 4, 5), (8, 9), tuple(range(1, 25))])
def test_curvature_equals_numpy_however_the_rows_are_cut(cuts: tuple[int, ...]) -> None:
    x = torch.randn(25, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    angles = numpy_angles(x.numpy(), LENGTHS)
    got = number("trajectory_curvature", sequences(x), cuts)
    assert got.n == len(angles) == 16
    assert got.value == pytest.approx(np.mean(angles))


def test_straight_lines_walks_and_independent_rows_have_their_known_curvature() -> None:
    g = torch.Generator().manual_seed(0)
    line = torch.arange(50.0)[:, None] * torch.ones(1, 64)
    noise = torch.randn(4000, 64, generator=g)
    assert number("trajectory_curvature", sequences(line, (50,))).value == pytest.approx(0, abs=0.1)
    # the angle of two random directions in 64 dimensions has a deviation of 7 degrees, over 4,000 rows 0.2
    assert number("trajectory_curvature", sequences(noise.cumsum(0), (4000,))).value == pytest.approx(90, abs=1)
    independent = number("trajectory_curvature", sequences(noise, (4000,)))
    assert independent.value == pytest.approx(120, abs=1)
    assert independent.null == 120


def test_windows_of_a_document_are_separate_sequences() -> None:
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    offset = torch.arange(12) % 6
    got = number("trajectory_curvature", sequences(x, (12,), offset))
    assert got.n == 8
    assert got.value == pytest.approx(np.mean(numpy_angles(x.numpy(), (6, 6))))
    assert number("matrix_entropy", sequences(x, (12,), offset)).n == 2


@pytest.mark.parametrize("cuts", [(), (1,), (3, 4, 5), (8, 9), tuple(range(1, 25))])
def test_matrix_entropy_equals_numpy_however_the_rows_are_cut(cuts: tuple[int, ...]) -> None:
    x = torch.randn(25, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    expected, first = [], 0
    for n in LENGTHS:
        part = x[first : first + n].numpy()
        first += n
        if n > 1:
            p = np.linalg.svd(part, compute_uv=False) ** 2
            p = p[p > 0] / p.sum()
            expected.append(-(p * np.log(p)).sum() / np.log(min(n, 5)))
    got = number("matrix_entropy", sequences(x), cuts)
    assert got.n == len(expected) == 4
    assert got.value == pytest.approx(np.mean(expected))


def test_the_null_of_matrix_entropy_is_that_of_independent_rows_of_the_same_lengths() -> None:
    """The Marchenko–Pastur law has an error of order 1/T; 1 % is far below the 20 % that a common mean changes."""
    g, lengths = torch.Generator().manual_seed(0), (24, 96, 24)
    x = torch.randn(sum(lengths), 48, generator=g, dtype=torch.float64)
    got = number("matrix_entropy", sequences(x, lengths))
    assert got.value == pytest.approx(got.null, rel=0.01)
    shifted = number("matrix_entropy", sequences(x + 1, lengths))
    assert shifted.value is not None
    assert shifted.null is not None
    assert shifted.value < 0.8 * shifted.null


def test_rows_that_do_not_follow_each_other_give_a_reason() -> None:
    x = torch.randn(6, 4)
    for name in ("trajectory_curvature", "matrix_entropy"):
        with pytest.raises(MetricError, match="documents in their order"):
            number(name, sequences(x, (1,) * 6))
