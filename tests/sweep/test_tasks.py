"""Tasks of a sweep: models in a list, keys of contents."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anisoscope
from anisoscope.measurement.request import Request
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.weight_files import weights_digest
from anisoscope.records import Record
from anisoscope.sweep import sweep
from anisoscope.sweep.engines import Outcome, Pull
from anisoscope.sweep.jobs import Answer, Job, Measure
from anisoscope.sweep.tasks import _names, content_key, models_of, settings_of
from tests.sweep_folders import STEPS, checkpoint_series, documents

SMALL: dict[str, Any] = {"tokens": 400, "window": 32, "metrics": ["mean_cosine"], "sites": ["resid"], "errors": False}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A series of four checkpoints, and a text."""
    place = tmp_path_factory.mktemp("sweep")
    return checkpoint_series(place / "train"), documents(place / "text.jsonl")


@pytest.fixture
def train(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the series that a test may spoil."""
    return Path(shutil.copytree(made[0], tmp_path / "train"))


@pytest.fixture
def text(made: tuple[Path, Path]) -> Path:
    return made[1]


def canned(job: Job) -> Answer:
    """An answer without a model: the numbers of a task are those of its key."""
    if not isinstance(job, Measure):
        return Answer([MetricResult(Record("resid.0", "cka", 1.0))])
    checkpoint = job.task.checkpoint
    value = int(job.task.key[:8], 16) / 2**32
    about = {"model": {"digest": weights_digest(Path(checkpoint.source)), "commit": None}}
    return Answer([MetricResult(Record("resid.0", "mean_cosine", value))], about=about, sketch=[float(checkpoint.step)])


def canned_engine(pull: Pull) -> Iterator[Outcome]:
    while (job := pull()) is not None:
        yield Outcome(job, canned(job))


def steps_of(path: Path) -> list[int]:
    return sorted({record.step for record in anisoscope.Run.open(path).records()})


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
