"""Tasks of a sweep: models in a list, keys of contents."""

from __future__ import annotations

import shutil
from pathlib import Path

from anisoscope.measurement.request import Request
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.sweep import sweep
from anisoscope.sweep.tasks import _names, content_key, models_of, settings_of
from tests.canned_sweep import SMALL, canned_engine, steps_of
from tests.sweep_folders import STEPS


def series(*steps: int) -> list[Checkpoint]:
    return [Checkpoint(f"checkpoint-{step}", None, step, f"checkpoint-{step}") for step in steps]


def test_a_list_file_names_models_and_their_checkpoints(train: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(train / "checkpoint-0", tmp_path / "plain")
    listed = tmp_path / "models.txt"
    listed.write_text("train/checkpoint-100\ntrain/checkpoint-0\nplain\norg/model step1\norg/model step2\n")
    found = {model.name: [c.step for c in model.checkpoints] for model in models_of(listed)}
    assert found == {"train": [0, 100], "plain": [0], "model": [1, 2]}
    listed.write_text("train\nplain\n")
    swept = sweep(listed, out=tmp_path / "runs", text=text, engine=canned_engine, seeds=(0, 1), **SMALL)
    names = {path.name for path in swept.runs}
    assert names == {"train-seed0", "train-seed1", "plain-seed0", "plain-seed1"}
    assert steps_of(tmp_path / "runs" / "train-seed1") == list(STEPS)


def test_a_key_depends_on_everything_that_changes_the_numbers(text: Path) -> None:
    request = Request.of(text=text, **SMALL)
    [checkpoint] = series(100)
    key = content_key("weights", checkpoint, request, "data", 0)
    assert key == content_key("weights", checkpoint, request.having(batch=3), "data", 0)
    others = [
        content_key("other", checkpoint, request, "data", 0),
        content_key("weights", checkpoint, request, "more", 0),
        content_key("weights", checkpoint, request, "data", 1),
        content_key("weights", checkpoint, request.having(sites=["embed"]), "data", 0),
        content_key("weights", checkpoint, request.having(metrics=["isoscore"]), "data", 0),
    ]
    assert len({key, *others}) == 6
    assert settings_of(request)["metrics"] == {"mean_cosine": 1}


def test_names_of_a_list_do_not_lead_out_of_the_folder_of_runs() -> None:
    for names in (_names(["..", "a/.."]), _names(["/"]), _names(["../../x", "./x"])):
        assert not {"", ".", ".."} & {part for name in names for part in name.split("/")}
