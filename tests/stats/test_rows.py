"""Rows of every size: their statistics do not depend on what float32 can square."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anisoscope
from anisoscope.errors import InputError
from anisoscope.metrics import catalogue
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.rows import Rows, bare_rows, join_rows

SCALES = (1e-44, 1e-40, 1e-30, 1e-20, 1e20, 1e30, 1e36)
EXACT = 1e-9  # both sides multiply in float64 at scales that differ by a power of two


def cloud(d: int, n: int = 320) -> Tensor:
    """Rows with a mean, unequal axes and one long row, all multiples of 1/8: tiny ones lose nothing but small ends."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.linspace(2, 0.2, d) + 0.5
    x[3] *= 20
    return (8 * x).round() / 8


def scaled(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Rows in float32 at a power of two near the scale, and the same numbers in float64 at scale 1."""
    power = 2.0 ** round(math.log2(scale))
    small = (x * power).float()
    return small, small.double() / power


def values(rows: Any, names: list[str] | None) -> dict[tuple[Any, ...], float | None]:
    run = anisoscope.measure_rows(rows, metrics=names, errors=False)
    return {(r.metric, r.index, *sorted(r.variant.items())): r.value for r in run.records()}


def scale_free() -> list[str]:
    """Metrics of plain rows that do not change with their scale, the slow ones left out."""
    metrics = catalogue().values()
    return [m.name for m in metrics if "scale" in m.keeps and not m.requires and not m.slow]


@pytest.mark.parametrize("scale", SCALES)
def test_tiny_and_huge_rows_give_the_numbers_of_ordinary_ones(scale: float) -> None:
    rows, ordinary = scaled(cloud(260), scale)
    names = scale_free()
    expected, found = values(ordinary, names), values(rows, names)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=EXACT, abs=EXACT), key


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("d", [20, 300])
def test_tiny_and_huge_rows_agree_with_numpy(scale: float, d: int) -> None:
    rows, ordinary = scaled(cloud(d), scale)
    x = ordinary.numpy()
    share = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    share /= share.sum()
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = (np.square(unit.sum(0)).sum() - len(x)) / (len(x) * (len(x) - 1))
    found = values(rows, ["spectral_anisotropy", "effective_rank", "mean_cosine"])
    assert found["spectral_anisotropy", None] == pytest.approx(share[0], rel=1e-6)
    rank = math.exp(-(share * np.log(share)).sum())
    assert found["effective_rank", None, ("of", "eigenvalues")] == pytest.approx(rank, rel=1e-6)
    assert found["mean_cosine", None] == pytest.approx(cosine, rel=1e-6)


def test_batches_of_very_different_scales_add_up() -> None:
    x = cloud(300).float()
    parts = [bare_rows(x[:100] * 2.0**-130), bare_rows(x[100:200], first=100), bare_rows(x[200:] * 2.0**80, first=200)]
    joined = join_rows(parts)
    for kind in (Moments, Directions):
        whole: Any = kind.of(joined)
        added: Any = kind.of(parts[0]) + kind.of(parts[1]) + kind.of(parts[2])
        for name, value in vars(whole).items():
            if isinstance(value, Tensor):
                assert torch.allclose(getattr(added, name), value, rtol=1e-6), name


def test_a_geometry_of_tiny_rows_equals_measuring_them_at_once() -> None:
    rows, _ = scaled(cloud(300), 1e-40)
    geometry = anisoscope.Geometry(metrics=["spectral_anisotropy", "mean_cosine"])
    for part in rows.split(70):
        geometry.update(part)
    found = {r.metric: r.value for r in geometry.compute()}
    assert found == {key[0]: value for key, value in values(rows, list(found)).items()}


@pytest.mark.parametrize("scale", [1e-40, 1e30])
def test_a_remedy_of_tiny_and_huge_rows_is_that_of_ordinary_ones(scale: float) -> None:
    rows, ordinary = scaled(cloud(260), scale)
    found = anisoscope.fit_remedy(rows, centre=True, whiten=True).apply(rows)
    expected = anisoscope.fit_remedy(ordinary, centre=True, whiten=True).apply(ordinary)
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5)  # the result is rounded to float32


def test_ordinary_rows_and_rows_of_zeros_stay_in_float32() -> None:
    x = cloud(300).float()
    x[5] = 0.0
    rows = bare_rows(x)
    assert rows.plain.data_ptr() == x.data_ptr()
    assert torch.equal(rows.norm, torch.linalg.vector_norm(x, dim=1))
    assert rows.inverse_norm[5] == 0


def test_one_tiny_row_takes_its_batch_to_float64_and_has_a_direction() -> None:
    x = cloud(300).float()
    x[5] *= 1e-30
    rows = bare_rows(x)
    assert rows.plain.dtype == torch.float64
    assert int(Directions.of(rows).zero) == 0
    others = rows.take(torch.arange(10, 20))  # ordinary again, with lengths that were computed in float64
    assert others.plain.dtype == others.inverse_norm.dtype == torch.float32


def test_rows_below_float64_are_refused() -> None:
    with pytest.raises(InputError, match="powers of them vanish"):
        _ = Rows(cloud(4) * 1e-80, bare_rows(cloud(4)).tokens).plain
