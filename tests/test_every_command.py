"""Every command once, from start to end, on a tiny model: what `make test-fast` runs of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from anisoscope.cli import app
from tests import model_folders
from tests.sweep_folders import checkpoint_series, documents

LITTLE = ["--tokens", "300", "--window", "32", "--metrics", "mean_cosine,isoscore"]
NESTED = [
    "--tokens",
    "300,600",
    "--batch-tokens",
    "200",
    "--window",
    "32",
    "--metrics",
    "mean_cosine",
    "--shuffles",
    "2",
]
TRAINED = ["--layers", "2", "--width", "16", "--heads", "2", "--context", "32", "--batch", "4", "--steps", "4"]
# Command, what it must print, and the file or folder it must write. `serve` does not end: tests/report/test_live.py.
CASES: dict[str, tuple[list[str], str, str | None]] = {
    "demo": (["--clouds"], "isoscore", None),
    "doctor": ([], "Everything needed works", None),
    "look": (["model", "--tokens", "300", "--out", "looked"], "error bars", "looked/report.html"),
    "measure": (["model", "--text", "text.jsonl", "--out", "new", *LITTLE], "mean_cosine", "new/records.jsonl"),
    "report": (["run", "--out", "report.html"], "report.html", "report.html"),
    "show": (["run"], "mean_cosine", None),
    "figure": (["run", "--metric", "isoscore", "--save", "figure.svg"], "figure.svg", "figure.svg"),
    "compare": (["run", "other"], "isoscore", None),
    "recompute": (["run", "--metrics", "participation_ratio"], "participation_ratio", None),
    "export": (["run", "--to", "run.parquet"], "run.parquet", "run.parquet"),
    "sweep": (["series", "--text", "text.jsonl", "--out", "swept", *LITTLE], "2 steps measured", "swept/records.jsonl"),
    "tangent": (["model", "--text", "text.jsonl", "--tokens", "600", "--window", "16", "--rank", "4"], "energy", None),
    "curvature": (["--seeds", "4"], "Curvature", None),
    "similarity": (["model", "model", "--text", "text.jsonl", "--out", "alike"], "CKA", "alike/records.jsonl"),
    "sensitivity": (["model", "--text", "text.jsonl", *NESTED, "--out", "samples"], "n = 600", "samples/records.jsonl"),
    "sinks": (["model", "--text", "text.jsonl", "--tokens", "300", "--out", "sinks.json"], "massive", "sinks.json"),
    "metrics": ([], "isoscore", None),
    "words": ([], "token policy", None),
    "embeddings": (["vectors.npy", "--out", "checked"], "hubs", "checked/records.jsonl"),
    "transform": (["vectors.npy", "--centre", "--out", "better.npy"], "isoscore", "better.npy"),
    "claims run": (["N4", "--size", "tiny", "--out", "claims"], "N4", "claims/records.jsonl"),
    "claims report": (["--out", "claims"], "claims.html", "claims/claims.html"),
    "claims power": (["--out", "nowhere"], "power", None),
    "atlas list": ([], "stories15M", None),
    "atlas show": (["--metric", "spectral_anisotropy"], "stories15M", None),
    "atlas page": (["--html", "atlas.html"], "atlas.html", "atlas.html"),
    "lab train": ([*TRAINED, "--out", "trained"], "Loss", "trained/checkpoints"),
    "lab twins": ([*TRAINED, "--seeds", "1", "--out", "twins"], "mean_cosine", "twins/effects.json"),
}
# They download, or need what a download gave: tests/studies/atlas.
ELSEWHERE = {"atlas run", "atlas add", "atlas report"}


def leaves(command: Any, name: str = "") -> list[str]:
    """All commands that do something, with the names of their groups before them."""
    if not hasattr(command, "commands"):
        return [name.strip()]
    return [leaf for word, sub in command.commands.items() for leaf in leaves(sub, f"{name} {word}")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, checkpoints, a text, vectors and two runs."""
    monkeypatch.chdir(tmp_path)
    model_folders.gpt2(tmp_path / "model")
    documents(tmp_path / "text.jsonl")
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).standard_normal((200, 8)))
    return tmp_path


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})
    assert done.exit_code == 0, f"anisoscope {' '.join(words)}\n{done.output}\n{done.exception!r}"
    return done.output


NEEDS = {
    "run": ["measure", "model", "--text", "text.jsonl", "--out", "run", *LITTLE],
    "other": ["measure", "model", "--text", "text.jsonl", "--out", "other", "--seed", "1", *LITTLE],
    "claims": ["claims", "run", "N4", "--size", "tiny", "--out", "claims"],
}


@pytest.mark.parametrize("command", CASES)
def test_a_command_does_its_job(command: str, folder: Path) -> None:
    words, printed, written = CASES[command]
    for name in NEEDS.keys() & set(words) if command != "claims run" else ():
        run(*NEEDS[name])
    if "series" in words:
        checkpoint_series(folder / "series", (0, 100))
    assert printed in run(*command.split(), *words)
    assert written is None or (folder / written).exists()


def test_no_command_is_left_out() -> None:
    assert set(leaves(typer.main.get_command(app))) == {*CASES, "serve", *ELSEWHERE}


def test_every_command_that_prints_results_prints_json() -> None:
    def options(command: Any) -> set[str]:
        return {option for parameter in command.params for option in parameter.opts}

    def found(command: Any, name: str = "") -> dict[str, bool]:
        if not hasattr(command, "commands"):
            return {name.strip(): "--json" in options(command)}
        return {
            leaf: has for word, sub in command.commands.items() for leaf, has in found(sub, f"{name} {word}").items()
        }

    assert [name for name, has in found(typer.main.get_command(app)).items() if not has] == ["serve"]


@pytest.mark.parametrize(
    "command", ["demo", "look", "report", "show", "figure", "compare", "export", "sinks", "metrics"]
)
def test_json_is_the_only_thing_on_stdout(command: str, folder: Path) -> None:
    words, _, written = CASES[command]
    for name in NEEDS.keys() & set(words):
        run(*NEEDS[name])
    done = CliRunner().invoke(app, [*command.split(), *words, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)
    assert written is None or (folder / written).exists()
