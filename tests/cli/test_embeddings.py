"""The command `embeddings`: what it prints, its JSON, its folder and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.errors import InputError
from anisoscope.store.run import Run
from tests.embedding_quality.test_check import planted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows, queries, pairs = planted()
    np.save("emb.npy", rows)
    np.save("q.npy", queries)
    Path("pairs.csv").write_text("query,row\n" + "\n".join(f"{q},{r}" for q, r in pairs))
    return tmp_path


def test_the_command_prints_the_advice_and_writes_a_run(folder: Path) -> None:
    words = [
        "embeddings",
        "emb.npy",
        "--queries",
        "q.npy",
        "--relevant",
        "pairs.csv",
        "--out",
        "run",
        "--figure",
        "c.svg",
    ]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    run = Run.open("run")
    assert run.info["complete"]
    assert "Use 'centre, whiten'" in done.output
    assert "cosine of a pair" in Path("c.svg").read_text()
    shown = CliRunner().invoke(app, ["show", "run"], env={"COLUMNS": "100"})
    assert "Use 'centre, whiten'" in shown.output
    again = CliRunner().invoke(app, [*words, "--json"])
    records = json.loads(again.stdout)
    assert len(records) == len(list(run.records()))


def test_queries_without_answers_are_refused(folder: Path) -> None:
    done = CliRunner().invoke(app, ["embeddings", "emb.npy", "--queries", "q.npy"])
    assert isinstance(done.exception, InputError)
    assert "--relevant" in str(done.exception)
