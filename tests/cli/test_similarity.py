"""`similarity` from the command line: its table, its notes and its messages."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

import anisoscope
from anisoscope.cli import app
from anisoscope.cli.similarity import similarity as similarity_command
from anisoscope.measurement import compare_models
from anisoscope.records import Record
from anisoscope.report.similarity_summary import best_partners, similarity_table
from tests import model_folders
from tests.sweep_folders import documents


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare_models, "DRAWS", 19)
    model_folders.gpt2(tmp_path / "a")
    torch.manual_seed(1)
    encoder = model_folders.hf.BertModel(model_folders.bert_config())
    model_folders.save(tmp_path / "b", encoder, model_folders.word_pieces())
    documents(tmp_path / "text.jsonl")
    return tmp_path


def run(*words: str, columns: int = 80) -> Result:
    return CliRunner().invoke(app, ["similarity", *words], env={"COLUMNS": str(columns)})


def test_the_table_shows_the_best_partner_of_every_layer(folder: Path) -> None:
    done = run("a", "b", "--text", "text.jsonl", "--out", "runs/x")
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    lines = [line.split() for line in done.output.splitlines()]
    names = [line[0] for line in lines if line and line[0] in ("embed", "resid.0", "resid.1", "final")]
    assert names == ["embed", "resid.0", "resid.1", "final"]
    flat = " ".join(done.output.split())
    assert "60 rows from 60 documents: each the mean of its tokens." in flat
    assert "documents were cut, at the same character for both models." in flat
    again = run("a", "b", "--text", "text.jsonl", "--out", "runs/x")
    assert again.stdout == done.stdout
    shown = CliRunner().invoke(app, ["show", "runs/x"], env={"COLUMNS": "80"})
    assert shown.stdout == done.stdout


def test_the_command_has_the_options_and_defaults_of_the_function() -> None:
    function = inspect.signature(anisoscope.similarity).parameters
    command = inspect.signature(similarity_command).parameters
    hidden = {"command", "progress", "on_stage", "tokenizer_b"}  # a tokenizer is an object
    assert set(command) - {"as_json"} == set(function) - hidden
    for name in ("rows", "limit", "sinks", "revision_b", "window", "batch", "seed"):
        assert command[name].default == function[name].default, name


def test_json_is_the_records_and_nothing_else(folder: Path) -> None:
    done = run("a", "a", "--text", "text.jsonl", "--rows", "last", "--json")
    records = [Record.from_json(row) for row in json.loads(done.stdout)]
    assert {r.metric for r in records} == {"layer_cka", "layer_overlap", "layer_imbalance", "similarity_p"}
    assert [(r.site, r.variant["other"]) for r in best_partners(records)] == [
        (site, site) for site in ("embed", "resid.0", "resid.1", "final")
    ]


def info(**facts: Any) -> dict[str, Any]:
    numbers = {"documents": 9, "compared": 9, "permuted rows": 9, "neighbours": 10, "permutations": 199}
    names = {"model": {"source": "x"}, "other_model": {"source": "[y]"}, "unit": "windows"}
    return {**names, "similarity": {"rows": "words", **numbers, **facts}}


def printed(records: list[Record], info: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(similarity_table(records, info))
    return captured.get().splitlines()


def test_many_layers_fit_on_a_screen() -> None:
    sites = ["embed", *(f"resid.{i}" for i in range(96)), "final"]
    records = [
        Record(site, "layer_cka", 0.123, error=0.4567, null=0.0, variant={"other": f"resid.{i}"})
        for i, site in enumerate(sites)
    ]
    lines = printed(records, info(cut=3, **{"left out": 2}))
    assert len(lines) <= 35
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:1] == ["final"] for line in lines)
    flat = " ".join(" ".join(lines).split())
    assert "b: [y]" in flat
    assert "One layer of every 6 is shown" in flat
    assert "one per word, the token at its end" in flat
    assert "3 passages were cut" in flat
    assert "2 rows were left out" in flat


def test_a_layer_without_a_value_is_explained() -> None:
    reason = "embed of model a: the rows do not vary"
    flat = " ".join(
        " ".join(printed([Record("embed", "layer_cka", None, variant={"other": "x"}, note=reason)], info())).split()
    )
    assert f"No value: {reason}." in flat


def test_mistakes_end_with_one_line(folder: Path) -> None:
    for words, message in (
        (("a", "b"), "compared on a text"),
        (("a", "b", "--text", "text.jsonl", "--rows", "tokens"), "No kind of rows named 'tokens'"),
    ):
        done = run(*words)
        assert done.exit_code == 1
        assert message in str(done.exception)
