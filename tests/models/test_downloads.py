"""Checkpoints from the hub: known by their commit, fetched ahead, and gone from the disk when they are measured."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.downloads import contents, fetch, forget, is_cached, is_remote
from anisoscope.sweep import sweep
from anisoscope.sweep.engines import Outcome, Pull, in_process
from anisoscope.sweep.jobs import Measure
from anisoscope.sweep.series import fetching
from tests.sweep_folders import checkpoint_series, documents

SMALL: dict[str, Any] = {"tokens": 200, "window": 32, "metrics": ["mean_cosine"], "sites": ["resid.0"], "errors": False}
COMMITS = {"step0": "a" * 40, "step100": "b" * 40}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local cache of org/model as the hub's client keeps it: two revisions that share all files but the weights."""
    train = checkpoint_series(tmp_path / "train", (0, 100))
    repository = tmp_path / "cache" / "models--org--model"
    for folder in ("blobs", "refs"):
        (repository / folder).mkdir(parents=True)
    for revision, commit in COMMITS.items():
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (repository / "refs" / revision).write_text(commit)
        for file in (train / f"checkpoint-{revision.removeprefix('step')}").iterdir():
            own = file.suffix == ".safetensors"
            blob = repository / "blobs" / (f"{commit[0]}-{file.name}" if own else file.name)
            shutil.copy(file, blob)
            (snapshot / file.name).symlink_to(blob)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return repository


def checkpoint(revision: str) -> Checkpoint:
    return Checkpoint("org/model", revision, int(revision.removeprefix("step")), revision)


def test_a_revision_is_known_by_its_commit_and_forgotten_without_what_others_share(cache: Path) -> None:
    assert is_remote("org/model")
    assert contents([checkpoint("step0"), checkpoint("step100"), checkpoint("step7")]) == [
        *COMMITS.values(),
        "revision step7",
    ]
    fetch("org/model", "step0")
    forget("org/model", "step0")
    assert not is_cached("org/model", "step0")
    assert is_cached("org/model", "step100")
    blobs = {blob.name for blob in (cache / "blobs").iterdir()}
    assert "b-model.safetensors" in blobs
    assert "config.json" in blobs
    assert "a-model.safetensors" not in blobs


def test_the_hub_is_asked_once_for_all_commits(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Hub:
        def model_info(self, name: str, timeout: float) -> None:
            asked.append(name)

        def list_repo_refs(self, name: str) -> Any:
            refs = [SimpleNamespace(name=f"step{step}", target_commit=f"commit {step}") for step in (0, 100)]
            return SimpleNamespace(branches=refs, tags=[])

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert contents([checkpoint("step0"), checkpoint("step100")]) == ["commit 0", "commit 100"]
    assert asked == ["org/model"]


def test_what_a_sweep_downloaded_goes_and_what_was_there_stays(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"step0"}  # the other revision counts as downloaded by the sweep
    monkeypatch.setattr("anisoscope.sweep.model_run.is_cached", lambda _, revision: revision in known)
    upcoming: list[str | None] = []

    def engine(pull: Pull) -> Iterator[Outcome]:
        for outcome in in_process(pull):
            if isinstance(outcome.job, Measure):
                upcoming.append(None if outcome.job.upcoming is None else outcome.job.upcoming.label)
            yield outcome

    text = documents(tmp_path / "text.jsonl")
    swept = sweep("org/model", revisions="step*", out=tmp_path / "run", text=text, engine=engine, **SMALL)
    assert (swept.measured, swept.failed) == (2, {})
    assert upcoming == ["step100", None]
    assert is_cached("org/model", "step0")
    assert not is_cached("org/model", "step100")
    again = sweep("org/model", revisions="step0", out=tmp_path / "run", text=text, **SMALL)
    assert (again.measured, again.skipped) == (0, 1)


def test_a_checkpoint_that_cannot_be_fetched_disturbs_nobody(cache: Path) -> None:
    with fetching(checkpoint("step7"), {}):
        pass
    with fetching(None, {}):
        pass
