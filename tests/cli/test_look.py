"""`look`: a model or vectors in one call."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.cli.look import _name
from anisoscope.report.questions import METRICS
from anisoscope.store.run import Run
from tests import model_folders


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def look(*words: str) -> Any:
    done = CliRunner().invoke(app, ["look", *words], env={"COLUMNS": "80"})
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done


def test_a_model_needs_no_text_and_gets_sentences_a_table_a_page_and_a_command(folder: Path) -> None:
    model_folders.gpt2(folder / "model")
    text = look("model", "--tokens", "512").stdout
    run = Run.open("runs/look-model")
    assert {record.metric for record in run.records()} == set(METRICS)
    assert all(record.error is None for record in run.records())
    assert {record.tokens for record in run.records()} == {"all", "no-sink"}
    assert "512 tokens of sample:topics" in text
    assert "The top direction has" in text
    table = text[text.index("question") : text.index("Values are")]
    assert len(table.strip().splitlines()) <= 12
    assert "runs/look-model/report.html" in text
    assert (folder / "runs/look-model/report.html").exists()
    assert "anisoscope measure model --text sample:topics --out runs/model" in text
    look("model", "--tokens", "256")  # the default folder is replaced
    assert Run.open("runs/look-model").info["data"]["tokens"] == 256


def test_the_printed_command_measures_with_error_bars(folder: Path) -> None:
    np.save("v.npy", np.random.default_rng(0).standard_normal((300, 8)))
    text = look("v.npy").stdout
    assert "v.npy: 300 rows" in text
    assert "token" not in text.replace("tokens_to_halve", "")
    assert "curve" not in text
    words = shlex.split(next(line for line in text.splitlines() if line.startswith("error bars")))[3:]
    done = CliRunner().invoke(app, [*words, "--metrics", "isoscore"])
    assert done.exit_code == 0, done.output
    assert [record.error is None for record in Run.open("runs/v").records()] == [False]


def test_a_link_to_a_folder_is_named_as_the_user_named_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "minilm").symlink_to(tmp_path / "model")
    assert _name(str(tmp_path / "minilm")) == "minilm"
