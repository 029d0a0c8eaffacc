"""Rows from arrays, files and batches: what `measure_rows` returns, and what it refuses."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

import anisoscope
from anisoscope.errors import InputError, MetricError

NAMES = ["isoscore", "mean_cosine_centred"]


def rows(n: int = 300) -> torch.Tensor:
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(0))


def test_a_run_is_returned_and_lives_as_long_as_it_is_used(tmp_path: Path) -> None:
    def use(run: anisoscope.Run) -> Path:
        """A frame of its own: assertions may keep what they compared until their frame ends."""
        assert [record.metric for record in run] == NAMES
        assert run.info["complete"]
        assert run.info["data"] == {"rows": 300}
        assert not run.statistics()  # a temporary run keeps no statistics
        assert [record.run for record in run.save(tmp_path / "kept")] == ["kept", "kept"]
        assert run.path.exists()
        return run.path

    folder = use(anisoscope.measure_rows(rows(), NAMES))
    gc.collect()
    assert not folder.exists()
    assert (tmp_path / "kept").exists()


def test_a_file_is_measured_once_and_its_run_is_returned_again(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows().numpy())
    first = anisoscope.measure_rows(tmp_path / "x.npy", NAMES, out=tmp_path / "run")
    seen: list[int] = []
    again = anisoscope.measure_rows(tmp_path / "x.npy", NAMES, out=tmp_path / "run", progress=seen.append)
    assert again.records() == first.records()
    assert not seen
    assert [r.value for r in first] == [r.value for r in anisoscope.measure_rows(rows(), NAMES)]


def test_metrics_that_need_rows_twice_read_arrays_twice_and_batches_once() -> None:
    seen: list[int] = []
    anisoscope.measure_rows(rows(), NAMES, progress=seen.append)
    assert sum(seen) == 600
    seen.clear()
    anisoscope.measure_rows(iter(rows().split(100)), NAMES, progress=seen.append)
    assert seen == [100, 100, 100]


def test_batches_may_be_of_any_length_and_empty() -> None:
    parts = [rows()[:1], rows()[1:1], rows()[1:250], rows()[250:]]
    expected = [r.value for r in anisoscope.measure_rows(rows(), ["isoscore"])]
    for batches in (parts, iter(parts), (part.numpy() for part in parts)):
        assert [r.value for r in anisoscope.measure_rows(batches, ["isoscore"])] == expected


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="The batches hold no rows"):
        anisoscope.measure_rows(iter([]), NAMES)
    with pytest.raises(InputError, match=r"Use Geometry: update\(rows, documents"):
        anisoscope.measure_rows(iter([rows()]), NAMES, documents=torch.arange(300))
    with pytest.raises(InputError, match="Rows of 4 numbers follow rows of 6"):
        anisoscope.measure_rows([rows(), rows()[:, :4]], NAMES)
    for batches in (rows(), iter([rows()])):
        with pytest.raises(MetricError, match="without documents"):
            anisoscope.measure_rows(batches, ["mean_cosine_across_documents"], out=tmp_path / "run")
