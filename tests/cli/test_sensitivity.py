"""`sensitivity` from the command line: what it prints, stores and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from anisoscope.cli import app
from anisoscope.errors import AnisoscopeError
from tests import model_folders
from tests.sweep_folders import documents

SMALL = ["--tokens", "300,600", "--batch-tokens", "200", "--shuffles", "2", "--window", "32", "-m", "mean_cosine"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model_folders.gpt2(tmp_path / "model")
    documents(tmp_path / "text.jsonl")
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).standard_normal((400, 8)))
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})


def test_the_run_is_printed_again_and_opens_in_show_and_report(folder: Path) -> None:
    words = ["sensitivity", "model", "--text", "text.jsonl", *SMALL, "--out", "run"]
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert "mean_cosine at resid.0 (no-sink)" in done.stdout
    assert "n = 600" in done.stdout
    assert "batches of 200" in done.stdout
    assert run(*words).stdout == run("show", "run").stdout == done.stdout
    assert run("report", "run", "--out", "page.html").exit_code == 0
    rows = json.loads(run(*words, "--json").stdout)
    assert {(row["sample"], row["size"]) for row in rows} == {("n", 300), ("n", 600), ("batch", 200)}
    whole = next(row for row in rows if row["size"] == 600 and row["tokens"] == "all")
    measured = ["measure", "model", "--text", "text.jsonl", "--tokens", "600", "--window", "32", "--sites", "resid.0"]
    records = json.loads(run(*measured, "-m", "mean_cosine", "--json").stdout)
    (record,) = [each for each in records if each["tokens"] == "all"]
    assert whole["value"] == pytest.approx(record["value"], abs=1e-6)  # float32 products
    assert whole["shuffle_std"] < 1e-6


def test_vectors_are_sampled_too(folder: Path) -> None:
    done = run("sensitivity", "vectors.npy", "--tokens", "100,400", "--batch-tokens", "100", "-m", "isoscore")
    assert done.exit_code == 0, done.output
    assert "isoscore at vectors (all rows)" in done.stdout
    assert "4 batches of 100" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model"], "Give one: --text FILE"),
        (["model", "--text", "text.jsonl", "--tokens", "many"], "--tokens is 'many'. Give whole numbers"),
        (["model", "--text", "text.jsonl", "--tokens", "1"], "numbers from 2 on"),
        (["model", "--text", "text.jsonl", "--tokens", "300,999999"], "fewer than 999,999"),
        (["model", "--text", "text.jsonl", "--tokens", "600", "--batch-tokens", "400"], "no two batches of 400"),
        (["model", "--text", "text.jsonl", "--sites", "attn"], "cannot be recorded"),
        (["model", "--text", "text.jsonl", "-m", "isoscor"], "Did you mean 'isoscore'"),
        (["vectors.npy", "--tokens", "500"], "holds 400 rows, fewer than 500"),
    ],
)
def test_bad_input_is_refused_in_one_line(folder: Path, words: list[str], message: str) -> None:
    done = run("sensitivity", *words)
    assert isinstance(done.exception, AnisoscopeError)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
