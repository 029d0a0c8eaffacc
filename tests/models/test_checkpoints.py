"""Checkpoints are listed in order of their steps; incomplete ones are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from anisoscope.errors import InputError
from anisoscope.models.checkpoints import Checkpoint, checkpoints, step_of
from anisoscope.models.open import open_model
from tests import model_folders as made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints at steps 0, 50, 100 and 1000, all of the same weights."""
    first = made.gpt2(tmp_path / "run" / "checkpoint-0")
    for step in (1000, 50, 100):
        shutil.copytree(first, tmp_path / "run" / f"checkpoint-{step}")
    (tmp_path / "run" / "logs").mkdir()
    return tmp_path / "run"


def steps(found: list[Checkpoint]) -> list[tuple[int, str]]:
    return [(checkpoint.step, checkpoint.label) for checkpoint in found]


def test_the_folders_of_a_run_are_sorted_by_step(run: Path) -> None:
    found = checkpoints(run)
    assert steps(found) == [(s, f"checkpoint-{s}") for s in (0, 50, 100, 1000)]
    assert all(checkpoint.problem is None and checkpoint.revision is None for checkpoint in found)
    assert open_model(found[1].source).info["architecture"] == "GPT2Model"


def test_patterns_select_folders(run: Path) -> None:
    assert [c.step for c in checkpoints(run, "checkpoint-1*")] == [100, 1000]
    assert [c.step for c in checkpoints(run, ["checkpoint-1000", "checkpoint-50"])] == [50, 1000]
    with pytest.raises(InputError, match=r"no checkpoints that match step\*\. It holds checkpoint-0,"):
        checkpoints(run, "step*")


def test_files_of_tensors_next_to_a_config_are_checkpoints(run: Path) -> None:
    folder = run / "checkpoint-0"
    for step in (10, 9):
        shutil.copy(folder / "model.safetensors", folder / f"step_{step:04}.safetensors")
    found = checkpoints(folder)
    assert steps(found) == [(9, "step_0009"), (10, "step_0010")]
    assert open_model(found[0].source).info["random_weights"] == []


def test_incomplete_checkpoints_are_named_not_dropped(run: Path) -> None:
    (run / "checkpoint-0" / "model.safetensors").unlink()
    whole = (run / "checkpoint-50" / "model.safetensors").read_bytes()
    (run / "checkpoint-50" / "model.safetensors").write_bytes(whole[:-1])
    shard = "model-00001-of-00002.safetensors"
    shutil.move(run / "checkpoint-100" / "model.safetensors", run / "checkpoint-100" / shard)
    index = {"weight_map": {"a": shard, "b": "model-00002-of-00002.safetensors"}}
    (run / "checkpoint-100" / "model.safetensors.index.json").write_text(json.dumps(index))
    (run / "checkpoint-1000" / "config.json").unlink()
    problems = {c.step: c.problem or "" for c in checkpoints(run)}
    assert "has no model.safetensors" in problems[0]
    assert "is incomplete" in problems[50]
    assert "names model-00002-of-00002.safetensors, which does not exist" in problems[100]
    assert "no config.json" in problems[1000]
    (run / "checkpoint-100" / "model.safetensors.index.json").write_text("{")
    assert "cannot be read" in (checkpoints(run, "checkpoint-100")[0].problem or "")


def test_one_model_is_one_checkpoint(run: Path) -> None:
    assert steps(checkpoints(run / "checkpoint-50")) == [(0, "checkpoint-50")]
    assert checkpoints("org/model") == [Checkpoint("org/model", None, 0, "org/model")]


def test_a_list_file_names_sources_and_revisions(run: Path) -> None:
    listed = run.parent / "list.txt"
    listed.write_text("# a run\nrun/checkpoint-50\norg/model step1000  # from the hub\n\nrun/checkpoint-0\n")
    assert [(c.step, c.source, c.revision) for c in checkpoints(listed)] == [
        (0, str(run / "checkpoint-0"), None),
        (50, str(run / "checkpoint-50"), None),
        (1000, "org/model", "step1000"),
    ]
    listed.write_text("org/model main\nrun/checkpoint-50\n")
    assert steps(checkpoints(listed)) == [(0, "main"), (1, "checkpoint-50")]  # a name without number: their order


def test_a_wrong_line_of_a_list_file_is_named(run: Path) -> None:
    listed = run.parent / "list.txt"
    listed.write_text("run/checkpoint-0\n./run/checkpiont-50\n")
    with pytest.raises(InputError, match=r"(?i)line 2: no model at .*did you mean .*checkpoint-50"):
        checkpoints(listed)
    listed.write_text("one two three\n")
    with pytest.raises(InputError, match=r"line 1 is .*Write a source and optionally a revision"):
        checkpoints(listed)
    listed.write_text("# nothing\n")
    with pytest.raises(InputError, match="lists no checkpoints"):
        checkpoints(listed)


class Refs:
    """A hub that knows the branches and tags of one repository."""

    def model_info(self, name: str, timeout: float) -> None:
        assert timeout <= 10

    def list_repo_refs(self, name: str) -> Any:
        branches = [SimpleNamespace(name=f"step{step}") for step in (1000, 512, 2000, 0)]
        return SimpleNamespace(branches=[SimpleNamespace(name="main"), *branches], tags=[SimpleNamespace(name="v1")])


def test_patterns_are_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", Refs)
    found = checkpoints("org/model", "step*")
    assert [(c.step, c.revision, c.source) for c in found] == [
        (step, f"step{step}", "org/model") for step in (0, 512, 1000, 2000)
    ]
    assert [c.step for c in checkpoints("org/model", "step1*,step0,step1000")] == [0, 1000]
    with pytest.raises(InputError, match=r"No revision of org/model named 'stpe\*'\. Did you mean"):
        checkpoints("org/model", "stpe*")


def test_names_without_wildcards_need_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", None)
    assert steps(checkpoints("org/model", "step2000, step1000")) == [(1000, "step1000"), (2000, "step2000")]


def test_without_network_patterns_are_looked_up_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="offline mode is on"):
        checkpoints("org/model", "step*")
    refs = tmp_path / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    for name in ("main", "step8", "step16"):
        (refs / name).write_text("c" * 40)
    assert [c.step for c in checkpoints("org/model", "step*")] == [8, 16]


def test_missing_sources_suggest_similar_paths(run: Path) -> None:
    with pytest.raises(InputError, match=r"(?i)did you mean .*/run"):
        checkpoints(run.parent / "rnu")
    with pytest.raises(InputError, match="holds no checkpoints such as"):
        checkpoints(run / "logs")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step_00100", 100),
        ("stage1-step1000-tokens5B", 1000),
        ("epoch2", 2),
        ("main", None),
        ("global_step64", 64),
    ],
)
def test_the_step_is_the_number_in_the_name(name: str, step: int | None) -> None:
    assert step_of(name) == step
