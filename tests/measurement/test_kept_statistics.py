"""A run keeps the statistics that fit; a metric of what it keeps has the same value, and any other says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anisoscope
from anisoscope.errors import MetricError
from anisoscope.measurement.kept_statistics import KEPT, small_statistics
from anisoscope.stats.cloud import Cloud, to_arrays
from anisoscope.stats.collect import cloud_of
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.scratch import bytes_of

NAMES = ["Moments", "Directions", "Norms", "Sample"]


def size(stats: dict[str, Any]) -> int:
    return bytes_of(to_arrays(stats).values())


def test_everything_is_kept_if_it_fits() -> None:
    cloud = cloud_of(torch.randn(400, 8, generator=torch.Generator().manual_seed(0)), NAMES)
    assert small_statistics(cloud, size(cloud.stats)) is cloud.stats


def test_what_is_kept_of_a_large_cloud_has_the_same_values() -> None:
    cloud = cloud_of(torch.randn(400, 64, generator=torch.Generator().manual_seed(0)), NAMES)
    limit = size({"Directions": cloud.get(Directions), "Moments": cloud.get(Moments)})
    kept = small_statistics(cloud, limit)
    assert set(kept) == {"Directions", "Moments"}
    whole, again = cloud.get(Directions), Cloud(kept).get(Directions)
    assert again.n == whole.n == 400, "rows of largest norm belong to the sum"
    assert torch.equal(again.unit, whole.unit)
    assert torch.equal(Cloud(kept).get(Moments).scatter, cloud.get(Moments).scatter)
    assert small_statistics(cloud, 0) == {}


def test_a_run_keeps_what_fits_and_says_how_to_get_more(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: dict[str, Any] = {"text": text, "tokens": 256, "window": 32, "metrics": ["mean_cosine"], "errors": False}
    anisoscope.measure(folder, **request, out=tmp_path / "fits")
    assert anisoscope.recompute(tmp_path / "fits", ["isoscore"])
    monkeypatch.setattr("anisoscope.measurement.measure_model.KEPT", 16_000)
    anisoscope.measure(folder, **request, out=tmp_path / "small")
    files = list((tmp_path / "small" / "stats").rglob("*.safetensors"))
    assert files
    assert sum(file.stat().st_size for file in files) < 16_000 + 4096 * len(files)  # with the headers of the files
    before = {r.site: r.value for r in anisoscope.Run.open(tmp_path / "small").records() if r.tokens == "all"}
    again = anisoscope.recompute(tmp_path / "small", ["mean_cosine"])
    for record in again:
        if record.tokens == "all":
            assert record.value == pytest.approx(before[record.site], rel=1e-12)
    with pytest.raises(MetricError, match=r"keeps no Moments at embed. Measure again with --keep-statistics"):
        anisoscope.recompute(tmp_path / "small", ["isoscore"])
    anisoscope.measure(folder, **request, keep_statistics=True, out=tmp_path / "all")
    assert anisoscope.recompute(tmp_path / "all", ["isoscore"])
    assert KEPT < 20 << 20
