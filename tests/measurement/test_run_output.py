"""What a run reports of its data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import anisoscope
from anisoscope.errors import InputError, MetricError, StoreError
from anisoscope.measurement.run_output import (
    KEPT,
    choose_metrics,
    discard_run,
    open_run,
    require_usable,
    small_statistics,
)
from anisoscope.models.open import open_model
from anisoscope.records import Record
from anisoscope.stats.cloud import Cloud, to_arrays
from anisoscope.stats.collect import cloud_of
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.scratch import bytes_of

Values = dict[tuple[Any, ...], float]


def values(run: anisoscope.Run, **wanted: Any) -> Values:
    found: Values = {}
    for r in run.records():
        if r.value is not None and all(getattr(r, name) == value for name, value in wanted.items()):
            found[r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())] = r.value
    return found


def test_nan_is_reported_with_its_layer(folder: Path, text: Path) -> None:
    opened = open_model(folder)
    with torch.no_grad():
        opened.model.get_parameter("h.1.mlp.c_proj.bias")[0] = math.nan
    run = anisoscope.measure(opened, text=text, tokens=64, window=32, metrics=["mean_cosine"])
    assert run.info["not_finite"]["site"] == "resid.1"
    assert values(run, site="resid.0")
    assert not values(run, site="resid.1")


def test_data_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("not an image")
    with pytest.raises(InputError, match="takes text, got image"):
        anisoscope.measure(folder, images=tmp_path, metrics=["mean_cosine"])


def test_a_run_is_created_resumed_refused_or_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with open_run(out, {"settings": {"tokens": 10}}) as run:
        run.append([Record("resid.0", "isoscore", 0.5)])
    (out / "notes.txt").write_text("mine")
    with open_run(out, {"settings": {"tokens": 10}}) as run:
        assert not run.is_empty
    with pytest.raises(StoreError, match=r"tokens \(10 before, 20 now\).*--overwrite"):
        open_run(out, {"settings": {"tokens": 20}})
    with pytest.raises(StoreError, match="holds a run already"):
        open_run(out, {"settings": {"tokens": 10}}, resumable=False)
    with pytest.raises(StoreError, match=r"notes\.txt, which is not part of the run"):
        open_run(out, {"settings": {"tokens": 20}}, overwrite=True)
    (out / "notes.txt").unlink()
    with open_run(out, {"settings": {"tokens": 20}}, overwrite=True) as run:
        assert run.is_empty
        assert run.info["settings"] == {"tokens": 20}


def test_another_request_is_refused_before_all_settings_are_known(tmp_path: Path) -> None:
    out = tmp_path / "run"
    require_usable(out, {"tokens": 1})
    open_run(out, {"settings": {"tokens": 1, "weights": "a"}}).close()
    require_usable(out, {"tokens": 1}, later=["weights"])
    require_usable(out, {"tokens": 2}, overwrite=True)
    with pytest.raises(StoreError, match=r"different: tokens \(1 before, 2 now\)\)"):
        require_usable(out, {"tokens": 2}, later=["weights"])
    with pytest.raises(StoreError, match=r"weights \(a before, None now\)"):
        require_usable(out, {"tokens": 1})
    with pytest.raises(StoreError, match="holds a run already"):
        require_usable(out, {"tokens": 1, "weights": "a"}, resumable=False)


def test_overwriting_deletes_nothing_that_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds no run"):
        discard_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(StoreError):
        discard_run(tmp_path)
    assert (tmp_path / "precious.txt").exists()
    discard_run(tmp_path / "absent")


def test_a_run_without_a_folder_is_deleted_with_its_object() -> None:
    def temporary_folder() -> str:
        run = open_run(None, {})
        run.close()
        if not run.path.exists():  # no assert: pytest may hold on to what it compared
            raise AssertionError("the run has no folder")
        return str(run.path)

    assert not Path(temporary_folder()).exists()


def test_a_plain_function_is_no_metric() -> None:
    with pytest.raises(InputError, match=r"len is a function; make it a metric with @anisoscope.metric"):
        choose_metrics([len], set())  # type: ignore[list-item]


# --- which statistics a run keeps

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
