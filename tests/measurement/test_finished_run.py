"""A complete run is returned, and another request refused, before anything is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.errors import StoreError
from anisoscope.measurement.finished_run import file_stamps, finished_run
from anisoscope.measurement.request import Request


@pytest.fixture(scope="module")
def run(folder: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    anisoscope.measure(folder, **options(text), out=out)
    return out


def options(text: Path) -> dict[str, Any]:
    return {"text": text, "tokens": 128, "window": 32, "metrics": ["mean_cosine"]}


def test_a_complete_run_is_returned_without_opening_the_model(
    folder: Path, text: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr("anisoscope.measurement.model_data.open_model", refuse)
    again = anisoscope.measure(folder, **options(text), out=run)
    assert [record.metric for record in again.records()]
    with pytest.raises(StoreError, match="different: seed"):
        anisoscope.measure(folder, **options(text), seed=1, out=run)
    with pytest.raises(StoreError, match=r"different: metrics .*anisoscope recompute .*run --metrics NAME"):
        anisoscope.measure(folder, **{**options(text), "metrics": ["isoscore"]}, out=run)


def test_changed_model_files_are_opened_again(folder: Path, text: Path, run: Path) -> None:
    request = Request.of(**options(text), out=run)
    assert finished_run(folder, request) is not None
    weights = next(folder.glob("*.safetensors"))
    before = weights.stat()
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    try:
        assert finished_run(folder, request) is None
        same = anisoscope.measure(folder, **options(text), out=run)  # the digest tells that the weights are the same
        assert same.info["complete"]
    finally:
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_new_folder_or_a_hub_name_is_not_known_early(text: Path, run: Path, tmp_path: Path) -> None:
    assert finished_run("some/model", Request.of(**options(text), out=tmp_path / "new")) is None
    assert finished_run("some/model", Request.of(**options(text), out=run, overwrite=True)) is None
    assert file_stamps("some/model") is None
    with pytest.raises(StoreError, match="different: model"):
        finished_run("some/model", Request.of(**options(text), out=run))


def test_showing_a_complete_run_again_does_not_import_torch(folder: Path, text: Path, run: Path) -> None:
    words = ["measure", str(folder), "--text", str(text), "--tokens", "128", "--window", "32"]
    words += ["--metrics", "mean_cosine", "--out", str(run)]
    code = "import sys; from anisoscope.cli import app\ntry: app()\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mean_cosine" in done.stdout
