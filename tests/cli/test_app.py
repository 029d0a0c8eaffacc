"""Wrong commands end with one line that helps; control characters do not reach the terminal."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from anisoscope.cli import main
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
    (["report", "run", "--out", "nowhere/x.html"], "there is no folder"),
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
    (["lab", "train", "--resume", "--out", "run"], "not a training of the lab"),
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
