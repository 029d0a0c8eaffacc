"""Wrong commands end with one line that helps; control characters do not reach the terminal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import anisoscope
from anisoscope.cli import app, main
from anisoscope.cli.app import progress_bar
from anisoscope.errors import AnisoscopeError, InputError, StoreError
from anisoscope.records import Record
from tests import model_folders as made
from tests import report_runs as runs

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


PAGE = "<!DOCTYPE html><html><body>404</body></html>" * 10


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lies about in a user's folder."""
    desk = tmp_path_factory.mktemp("desk with ünïcode")
    rows = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    np.save(desk / "v.npy", rows)
    np.save(desk / "vö 2.npy", rows)
    (desk / "text.txt").write_text(made.WORDS * 5)
    (desk / "empty.txt").write_text("")
    (desk / "empty.npy").write_bytes(b"")
    (desk / "noise.txt").write_bytes(bytes(range(128, 256)))
    (desk / "noise.jsonl").write_bytes(b'{"text": "a"}\n\xff\n')
    (desk / "counts.json").write_text("[1]")
    (desk / "empty").mkdir()
    (desk / "full").mkdir()
    (desk / "full" / "x").write_text("")
    model = made.gpt2(desk / "model")
    for name in ("page", "pointer", "untokenized", "vocabulary", "unconfigured"):
        shutil.copytree(model, desk / name)
    (desk / "page" / "model.safetensors").write_text(PAGE)
    (desk / "pointer" / "model.safetensors").write_text(POINTER)
    (desk / "page.safetensors").write_text(PAGE)
    (desk / "pointer.npy").write_text(POINTER)
    for file in (desk / "untokenized").glob("*token*"):
        file.unlink()
    made.byte_pairs(330).save_pretrained(desk / "vocabulary")
    (desk / "unconfigured" / "config.json").unlink()
    runs.make_run(desk / "run", runs.profiles())
    shutil.copytree(desk / "run", desk / "broken")
    (desk / "broken" / "records.jsonl").write_text("{}\n")
    return desk


STEP = "runs/decoder/checkpoints/step-2"
MEASURE_CHECKPOINT = [
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
MEASURE = ["--text", "text.txt", "--tokens", "100", "-m", "mean_cosine"]


WRONG = [
    # measure
    (["measure", "nowhere.npy"], "no file nowhere.npy"),
    (["measure", "vv.npy"], "did you mean v.npy"),
    (["measure", "model"], "give it data: --text FILE"),
    (["measure", "text.txt", "--text", "model"], "text.txt is not a model"),
    (["measure", "v.npy", "--text", "text.txt"], "v.npy is not a model"),
    (["measure", "empty.npy"], "empty.npy is empty"),
    (["measure", "v.npy", "-m", "isoscor"], "Did you mean 'isoscore"),
    (["measure", "v.npy", "-m", ","], "no metric was requested"),
    (["measure", "v.npy", "--tensor", "a"], "Leave out --tensor"),
    (["measure", "v.npy", "--documents", "text.txt"], "Known: none"),
    (["measure", "pointer.npy"], "git lfs pull"),
    (["measure", "page.safetensors"], "web page"),
    (["measure", "model", *MEASURE, "--sites", "resd"], "Did you mean 'resid"),
    (["measure", "model", *MEASURE, "--sites", ""], "no site was requested"),
    (["measure", "model", *MEASURE, "--sites", "resid." + "9" * 5000], "resid.999"),
    (["measure", "model", *MEASURE, "--window", "4096"], "Use 64"),
    (["measure", "model", *MEASURE, "--dtype", "float99"], "No dtype named"),
    (["measure", "model", *MEASURE, "--device", "gpu"], "Use cpu"),
    (["measure", "model", *MEASURE, "--field", "body"], "plain text without fields"),
    (["measure", "model", *MEASURE, "--out", "full"], "not empty and not a run"),
    (["measure", "model", *MEASURE, "--out", "text.txt"], "cannot create"),
    (["measure", "model", "--text", "nowhere.txt"], "No text at nowhere.txt"),
    (["measure", "model", "--text", "empty"], "has no .txt"),
    (["measure", "model", "--text", "empty.txt"], "The text is empty"),
    (["measure", "model", "--text", "noise.txt"], "not UTF-8"),
    (["measure", "model", "--text", "noise.jsonl"], "noise.jsonl, line"),
    (["measure", "model", "--images", "empty"], "takes text"),
    (["measure", "page", *MEASURE], "web page"),
    (["measure", "pointer", *MEASURE], "git lfs pull"),
    (["measure", "untokenized", *MEASURE], "no tokenizer. Put its tokenizer.json"),
    (["measure", "vocabulary", *MEASURE], "Put the tokenizer that the model was trained with"),
    (["measure", "unconfigured", *MEASURE], "no config.json"),
    (["measure", "empty", *MEASURE], "no config.json"),
    (["measure", "x" * 300 + ".npy"], "is not a path"),
    (["measure", "~nobody-here/x", *MEASURE], "is not a path"),
    (["measure", "x\\[/foo].npy"], "no file x\\[/foo].npy"),
    (["measure", "x\x1b]0;taken\x07.npy"], "x\\x1b]0;taken"),
    (["measure", "two\nlines.npy"], "no file two lines.npy"),
    # the other commands
    (["transform", "v.npy", "--out", "x.npy"], "There is nothing to do"),
    (["transform", "v.npy", "--centre", "--out", "v.npy"], "would replace the source"),
    (["transform", "v.npy", "--remove-top", "99", "--out", "y.npy"], "choose 0 to 3"),
    (["metrics", "isoscor"], "Did you mean 'isoscore"),
    (["sweep", "empty", *MEASURE], "holds no checkpoints"),
    (["sweep", "v.npy", *MEASURE], "neither a list of checkpoints nor a model"),
    (["sweep", "noise.txt", *MEASURE], "neither a list of checkpoints nor a model"),
    (["sweep", "model", *MEASURE, "--seeds", "a"], "whole numbers"),
    (["sweep", "model", *MEASURE, "--engine", "spark"], "process, pool or ray"),
    (["report", "nowhere"], "is not a run"),
    (["report", "broken"], "records.jsonl, line 1"),
    (["report", "run", "--out", "x.pdf"], "must end in .html"),
    (["report", "run", "--out", "nowhere/x.html"], "the folder nowhere does not exist"),
    (["report", "run", "--out", "/proc/x.html"], "cannot write /proc/x.html"),
    (["show", "v.npy"], "is not a run"),
    (["figure", "run", "-m", "nope", "--save", "a.svg"], "no metric of this run"),
    (["figure", "run", "-m", "two_nn", "--save", "a.gif"], "must end in"),
    (["figure", "run", "-m", "two_nn", "--save", "/proc/a.svg"], "/proc/a.svg"),
    (["figure", "run", "-m", "two_nn", "--save", "a.svg", "--pick", "step=" + "[" * 9999], "no record has"),
    (["compare", "run", "nowhere"], "is not a run"),
    (["serve", "nowhere"], "not a folder"),
    (["recompute", "run", "-m", "isoscore"], "keeps no statistics"),
    (["export", "run", "--to", "x.xlsx"], "must end in"),
    (["tangent", "model", "--text", "text.txt", "--ranks", "a,b"], "whole numbers"),
    (["tangent", "model", "--text", "text.txt", "--proxies", "pcc"], "Did you mean 'pca"),
    (["lab", "train", "--device", "gpu", "--out", "new"], "No device 'gpu'"),
    (["lab", "train", "--kind", "decodr", "--out", "new"], "Did you mean 'decoder"),
    (["lab", "train", "--text", "nowhere.txt", "--out", "new"], "No text at nowhere.txt"),
    (["lab", "twins", "--switch", "attention=nope", "--out", "new"], "choose one of"),
    (["claims", "run", "Z99"], "No claim named"),
    (["claims", "report", "--out", "run"], "no evidence yet"),
    (["demo", "--clouds", "--out", "text.txt"], "text.txt"),
]


@pytest.mark.parametrize(
    ("arguments", "told"), WRONG, ids=lambda value: " ".join(value)[:60] if type(value) is list else ""
)
def test_a_wrong_command_ends_with_one_helpful_line(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "argv", ["anisoscope", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 1
    [line] = [line for line in said.err.splitlines() if line.startswith("anisoscope: ")]
    assert told.lower() in line.lower()
    assert "\x1b" not in line
    assert "Traceback" not in said.err
    assert not (desk / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["measure", "model", "--text", "text.txt", "--tokens", "0"],
        ["measure", "model", "--text", "text.txt", "--tokens", "-5"],
        ["measure", "model", "--text", "text.txt", "--batch", "many"],
        ["measure"],
        ["mesure", "v.npy"],
        ["serve", "run", "--port", "99999"],
        ["figure", "run"],
        ["lab", "nope"],
        ["--nope"],
    ],
)
def test_a_wrong_option_ends_with_the_usage_of_the_command(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setattr(sys, "argv", ["anisoscope", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "Usage:" in capsys.readouterr().err


def test_a_path_with_spaces_and_umlauts_is_measured(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setattr(sys, "argv", ["anisoscope", "measure", "vö 2.npy", "-m", "mean_cosine"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "mean_cosine" in capsys.readouterr().out


def test_control_characters_of_a_run_do_not_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = "a\x1b]0;taken\x07[/red]"
    records = [Record(f"resid.{i}", odd, 0.5 + i, tokens=odd, variant={odd: odd}, note=odd) for i in range(3)]
    runs.make_run(tmp_path / "r", records)
    monkeypatch.setattr(sys, "argv", ["anisoscope", "show", str(tmp_path / "r")])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert not ended.value.code
    assert "\x1b" not in said.out
    assert "\\x1b" in said.out


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
        assert run(MEASURE_CHECKPOINT)[0] == 0
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
    "a typo in a file": (["measure", "vector.npy"], "no file vector.npy (did you mean vectors.npy?)"),
    "a text in place of vectors": (["measure", "corpus.jsonl"], "anisoscope measure MODEL --text corpus.jsonl"),
    "vectors in place of a model": (["measure", "vectors.npy", "--text", "corpus.jsonl"], "leave out --text"),
    "no text": (["measure", STEP], "give it data: --text FILE"),
    "a hub id without text": (["measure", "org/model"], "a model (a folder or hub id) with --text FILE"),
    "a typo in the text": (["measure", STEP, "--text", "corpus.json"], "did you mean corpus.jsonl"),
    "an empty text": (["measure", STEP, "--text", "empty.txt"], "Use a longer text"),
    "the run in place of a checkpoint": (["measure", "runs/decoder", "--text", "corpus.jsonl"], f"such as {STEP}"),
    "a step that was not kept": (["measure", f"{STEP[:-1]}3", "--text", "corpus.jsonl"], f"did you mean {STEP} or"),
    "a folder before": (["measure", "runs/decodr/checkpoints/step-2", "--text", "corpus.jsonl"], "mean runs/decoder?"),
    "a typo in a site": (["measure", STEP, "--text", "corpus.jsonl", "--sites", "resdi"], "Did you mean 'resid"),
    "vectors twice": (
        ["measure", "vectors.npy", "-m", "rankme", "--out", "runs/v"],
        "different: metrics",
    ),
    "another measurement in a run": ([*MEASURE_CHECKPOINT, "--tokens", "128"], "different: tokens"),
    "training twice": (["lab", "train", "--out", "runs/decoder"], "different: context"),
    "a switch that is none": (["lab", "train", "--set", "atention=sigmoid"], "Did you mean 'attention"),
    "a text of the lab": (["lab", "train", "--text", "corpus.json", "--out", "runs/k"], "did you mean corpus.jsonl"),
    "a test without text": (["tangent", STEP], "no text to test on: give it as --text FILE"),
    "a typo in a run": (["show", "runs/decoderr"], "runs/decoder?)"),
    "a run that is not here": (["report", "elsewhere/exp1"], "there is no folder"),
    "a metric that was not measured": (["figure", "runs/v", "-m", "two_nn", "--save", "a.png"], "Known: isoscore"),
    "a picture of another kind": (["figure", "runs/v", "-m", "isoscore", "--save", "a.xls"], "must end in .png"),
    "runs that share nothing": (["compare", "runs/v", "runs/measured"], "share no number"),
    "a metric that needs more": (
        ["recompute", "runs/v", "-m", "two_nn"],
        "Measure again with --keep-statistics",
    ),
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
        (["transform", "vectors.npy", "--apply"], "Option '--apply' requires an argument"),
    ],
)
def test_an_unknown_command_or_option_is_refused_with_similar_ones(words: list[str], expected: str) -> None:
    code, message = run(words)
    assert code == 2
    assert expected in message


def test_measuring_twice_reads_the_stored_results(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(started)
    before = (started / "runs" / "measured" / "records.jsonl").read_bytes()
    assert run(MEASURE_CHECKPOINT)[0] == 0
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


def test_progress_off_a_terminal_is_one_line_at_a_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar("tokens", 100) as bar:
        bar(10)
    assert capsys.readouterr().err.strip() == "", "a line per minute, not per call"
    monkeypatch.setattr(sys.modules["anisoscope.cli.app"], "_LINE_EVERY", -1.0)  # the package has an `app` too
    with progress_bar("tokens", 100) as bar:
        bar(25)
        bar.say("evaluating")
        bar.at(0, 32)
        bar.at(8, 32)
    lines = capsys.readouterr().err.split("\n")[:3]
    assert [line.split(", ")[0] for line in lines] == [
        "tokens: 25 of 100",
        "evaluating: 0 of 32",
        "evaluating: 8 of 32",
    ]
    assert "less than 1 min left" in lines[0], "never `about 0 min`"
    assert "min left" in lines[2]
    with progress_bar("tokens", None, shown=False) as bar:
        bar(1)
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 80000000000 bytes."),
    ],
)
def test_missing_memory_is_reported_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys.modules["anisoscope.cli.app"], "app", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("anisoscope: not enough memory; reduce --batch")
