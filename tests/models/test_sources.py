"""Models are found on the hub, in the cache and in folders; what is missing is named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from anisoscope.errors import InputError
from anisoscope.measurement.finished_run import file_stamps
from anisoscope.models.open import open_model
from tests import model_folders as made


def test_a_missing_folder_suggests_similar_names(gpt2: Path) -> None:
    with pytest.raises(InputError, match=r"No model at .*gtp2 \((?i:did) you mean .*/gpt2\?\)"):
        open_model(gpt2.parent / "gtp2")
    with pytest.raises(InputError, match=r"has no revision 'step1'"):
        open_model(gpt2, revision="step1")


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(InputError, match="neither a regular file nor a folder"):
        open_model(tmp_path / "model.gguf")
    assert file_stamps(tmp_path / "model.gguf") is None


def test_a_folder_that_is_not_a_model_names_what_is_missing(gpt2: Path) -> None:
    with pytest.raises(InputError, match=r"Models are in its folders gpt2: use one"):
        open_model(gpt2.parent)
    (gpt2 / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"gpt2 has no model\.safetensors"):
        open_model(gpt2)
    (gpt2 / "config.json").unlink()
    with pytest.raises(InputError, match=r"not a model: it has no config\.json"):
        open_model(gpt2)


class Hub:
    """A hub with one repository, or one that cannot be reached."""

    def __init__(self, files: Path | None, error: Exception | None = None) -> None:
        self.files, self.error, self.asked = files, error, []

    asked: list[Any]

    def model_info(self, name: str, revision: str | None = None, timeout: float | None = None) -> Any:
        assert timeout is not None
        assert timeout <= 10
        if self.error is not None:
            raise self.error
        assert self.files is not None
        siblings = [SimpleNamespace(rfilename=path.name) for path in self.files.iterdir()]
        return SimpleNamespace(sha="a" * 40, siblings=siblings)

    def snapshot_download(self, name: str, revision: str, allow_patterns: list[str]) -> str:
        self.asked += allow_patterns
        assert revision == "a" * 40
        return str(self.files)


def reach(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Hub:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_a_hub_model_is_downloaded_once_without_its_duplicates(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("pytorch_model.bin", "tf_model.h5", "own.py", "flax_model.msgpack"):
        (gpt2 / extra).write_bytes(b"duplicate")
    hub = reach(monkeypatch, Hub(gpt2))
    info = open_model("org/model", revision="step1").info
    assert (info["source"], info["revision"], info["commit"]) == ("org/model", "step1", "a" * 40)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(hub.asked)
    assert not {"pytorch_model.bin", "tf_model.h5", "own.py", "flax_model.msgpack"} & set(hub.asked)


def test_a_pickle_on_the_hub_is_refused_before_it_is_downloaded(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.as_pickle(gpt2)
    hub = reach(monkeypatch, Hub(gpt2))
    with pytest.raises(InputError, match=r"org/model .* are a pickle"):
        open_model("org/model")
    assert hub.asked == []


def test_an_unreachable_hub_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    reach(monkeypatch, Hub(None, OSError("Name or service not known\nand more")))
    with pytest.raises(
        InputError, match=r"org/model at step1 is neither .* \(Name or service not known\)\. Check"
    ) as caught:
        open_model("org/model", revision="step1")
    assert "\n" not in str(caught.value)


def test_offline_mode_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"offline mode is on \(HF_HUB_OFFLINE\)"):
        open_model("org/model")


def test_a_model_downloaded_before_opens_without_the_hub(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "models--org--model"
    commit = "b" * 40
    shutil.copytree(gpt2, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "step1").write_text(commit)
    reach(monkeypatch, Hub(None, OSError("no network")))
    assert open_model("org/model", revision="step1").info["commit"] == commit
    with pytest.raises(InputError, match="org/model at step2 is neither"):
        open_model("org/model", revision="step2")


def test_errors_of_the_hub_are_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import errors

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    response: Any = SimpleNamespace(headers={}, request=None, status_code=404)
    for kind, line in {
        errors.RepositoryNotFoundError: "No model 'org/model' on the hub",
        errors.RevisionNotFoundError: "has no revision 'step9'",
        errors.GatedRepoError: r"is gated\. Request access",
    }.items():
        reach(monkeypatch, Hub(None, kind("404 Client Error", response=response)))
        with pytest.raises(InputError, match=line):
            open_model("org/model", revision="step9")
