"""What a run reports of its data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import anisoscope
from anisoscope.errors import InputError, StoreError
from anisoscope.measurement.run_output import choose_metrics, discard_run, open_run, require_usable
from anisoscope.models.open import open_model
from anisoscope.records import Record

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
