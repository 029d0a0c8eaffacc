"""Mistakes of a first hour: each message says what is wrong and what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

import anisoscope
from anisoscope.cli import app
from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.store.files import near_paths

STEP = "runs/decoder/checkpoints/step-2"
MEASURE = [
    "measure",
    STEP,
    "--text",
    "corpus.jsonl",
    "--tokens",
    "256",
    "--metrics",
    "isoscore",
    "--out",
    "runs/measured",
]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as in the middle of the tour: a training, a text, vectors, two runs."""
    folder = tmp_path_factory.mktemp("tour")
    np.save(folder / "vectors.npy", np.random.default_rng(0).standard_normal((200, 8)) + 1)
    texts = ["Some words, and some more of them. " * 4] * 12
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (folder / "empty.txt").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        small = ["--layers", "2", "--width", "16", "--heads", "2", "--context", "16", "--batch", "2", "--steps", "2"]
        assert run(["lab", "train", *small, "--no-track", "--out", "runs/decoder"])[0] == 0
        assert run(["measure", "vectors.npy", "--metrics", "isoscore", "--out", "runs/v"])[0] == 0
        assert run(MEASURE)[0] == 0
    return folder


def run(words: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command, and its error message."""
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, AnisoscopeError):
        return 1, str(done.exception)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


MISTAKES = {
    "a typo in a metric": (["measure", "vectors.npy", "-m", "isoscor"], "Did you mean 'isoscore"),
    "a dash in a metric": (["metrics", "mean-cosine"], "Did you mean 'mean_cosine"),
    "a typo in a file": (["measure", "vector.npy"], "there is no file vector.npy (did you mean vectors.npy?)"),
    "a text in place of vectors": (["measure", "corpus.jsonl"], "anisoscope measure MODEL --text corpus.jsonl"),
    "vectors in place of a model": (["measure", "vectors.npy", "--text", "corpus.jsonl"], "leave out --text"),
    "no text": (["measure", STEP], "say what to measure it on: --text FILE"),
    "a hub id without text": (["measure", "org/model"], "a model (a folder or hub id) with --text FILE"),
    "a typo in the text": (["measure", STEP, "--text", "corpus.json"], "did you mean corpus.jsonl"),
    "an empty text": (["measure", STEP, "--text", "empty.txt"], "give a text with some words in it"),
    "the run in place of a checkpoint": (["measure", "runs/decoder", "--text", "corpus.jsonl"], f"such as {STEP}"),
    "a step that was not kept": (["measure", f"{STEP[:-1]}3", "--text", "corpus.jsonl"], f"did you mean {STEP} or"),
    "a folder before": (["measure", "runs/decodr/checkpoints/step-2", "--text", "corpus.jsonl"], "mean runs/decoder?"),
    "a typo in a site": (["measure", STEP, "--text", "corpus.jsonl", "--sites", "resdi"], "Did you mean 'resid"),
    "vectors twice": (
        ["measure", "vectors.npy", "-m", "isoscore", "--out", "runs/v"],
        "show it with `anisoscope show`",
    ),
    "another measurement in a run": ([*MEASURE, "--tokens", "128"], "different: tokens"),
    "training twice": (["lab", "train", "--out", "runs/decoder"], "go on with it (--resume)"),
    "a switch that is none": (["lab", "train", "--set", "atention=sigmoid"], "Did you mean 'attention"),
    "a text of the lab": (["lab", "train", "--text", "corpus.json", "--out", "runs/k"], "did you mean corpus.jsonl"),
    "all runs at once": (["report", "runs"], "contains runs. Choose one or more of them: decoder, measured, v"),
    "a typo in a run": (["show", "runs/decoderr"], "runs/decoder?)"),
    "a run that is not here": (["report", "elsewhere/exp1"], "there is no folder"),
    "a metric that was not measured": (["figure", "runs/v", "-m", "two_nn", "--save", "a.png"], "Known: isoscore"),
    "a picture of another kind": (["figure", "runs/v", "-m", "isoscore", "--save", "a.xls"], "must end in .png"),
    "runs that share nothing": (["compare", "runs/v", "runs/measured"], "share no number"),
    "a metric that needs more": (["recompute", "runs/v", "-m", "two_nn"], "measure again with this metric"),
    "nothing to serve": (["serve", "nowhere"], "choose the folder that contains your runs"),
    "a claim that is none": (["claims", "run", "S11"], "Did you mean 'S1'?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained_with_what_to_do(mistake: str, started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(started)
    words, expected = MISTAKES[mistake]
    code, message = run(words)
    assert code == 1
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["measur", "vectors.npy"], "Did you mean 'measure'?"),
        (["measure", "vectors.npy", "--metric", "isoscore"], "--metrics"),
        (["measure"], "Missing argument 'source'"),
        (["lab", "trian"], "'train'"),
        (["tangent", STEP], "Missing option '--text'"),
    ],
)
def test_an_unknown_command_or_option_is_refused_with_similar_ones(words: list[str], expected: str) -> None:
    code, message = run(words)
    assert code == 2
    assert expected in message


def test_measuring_twice_reads_the_stored_results(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(started)
    before = (started / "runs" / "measured" / "records.jsonl").read_bytes()
    assert run(MEASURE)[0] == 0
    assert (started / "runs" / "measured" / "records.jsonl").read_bytes() == before


def test_a_report_and_a_figure_need_no_browser(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(started)
    monkeypatch.setenv("PATH", "")
    assert run(["report", "runs/measured", "--out", "page.html"])[0] == 0
    assert run(["figure", "runs/measured", "-m", "isoscore", "--save", "figure.png"])[0] == 0
    assert (started / "page.html").stat().st_size > 10_000
    assert (started / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_in_another_folder_the_message_has_the_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, message = run(["show", "runs/decoder"])
    assert code == 1
    assert str(tmp_path.resolve() / "runs" / "decoder") in message
    assert f"there is no folder {tmp_path.resolve() / 'runs'}" in message


# --- in Python ----------------------------------------------------------------------------------------------------


def test_mistakes_in_python_are_explained(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(started)
    rows = np.eye(5)
    with pytest.raises(InputError, match=r"such as \['isoscore'\], not a text"):
        anisoscope.measure_rows(rows, "isoscore")
    with pytest.raises(InputError, match=r"\(n, d\)"):
        anisoscope.measure_rows([1.0, 2.0, 3.0], ["isoscore"])
    with pytest.raises(InputError, match=r"vector\.npy"):
        anisoscope.measure_rows("vector.npy", ["isoscore"])
    with pytest.raises(InputError, match="a list of texts"):
        anisoscope.measure(STEP, text="some words of mine")
    with pytest.raises(StoreError, match="does not exist"):
        anisoscope.Run.open("runs/none")
    with pytest.raises(InputError, match="Known: isoscore"):
        anisoscope.Run.open("runs/v").plot("two_nn")


def test_a_file_of_vectors_can_be_measured_by_its_path(started: Path) -> None:
    (from_path,) = anisoscope.measure_rows(started / "vectors.npy", ["isoscore"])
    (from_rows,) = anisoscope.measure_rows(np.load(started / "vectors.npy"), ["isoscore"])
    assert from_path.value == pytest.approx(from_rows.value)


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [(anisoscope, "mesure_rows", "measure_rows"), (anisoscope.metrics, "isoscor", "isoscore")],
)
def test_python_suggests_similar_names(module: ModuleType, name: str, meant: str) -> None:
    """An interpreter looks for near names among those of the error's object."""
    with pytest.raises(AttributeError, match=name) as caught:
        getattr(module, name)
    assert caught.value.name == name
    assert meant in dir(caught.value.obj)


def test_near_paths_finds_numbers_names_and_missing_folders(tmp_path: Path) -> None:
    for name in ("step-8", "step-64", "step-100", "data"):
        (tmp_path / name).mkdir()
    assert near_paths(tmp_path / "step-99") == f" (did you mean {tmp_path / 'step-100'} or {tmp_path / 'step-64'}?)"
    assert near_paths(tmp_path / "dat") == f" (did you mean {tmp_path / 'data'}?)"
    assert near_paths(tmp_path / "dta" / "a" / "b") == f" (did you mean {tmp_path / 'data'}?)"
    assert near_paths(tmp_path / "quite" / "other") == f" (there is no folder {tmp_path / 'quite'})"
    assert near_paths(tmp_path / "quite other") == ""
    assert near_paths(Path("/")) == ""
