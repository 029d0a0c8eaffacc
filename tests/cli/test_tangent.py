"""The commands `tangent` and `curvature`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import anisoscope
from anisoscope.cli import app
from anisoscope.errors import InputError, StoreError
from tests.model_folders import WORDS, byte_pairs, gpt2_config


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    folder = tmp_path_factory.mktemp("decoder")
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(gpt2_config()).save_pretrained(folder)
    byte_pairs().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    words = WORDS.split()
    draw = np.random.default_rng(0)
    path.write_text(" ".join(draw.choice(words, 1500)))
    return path


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "100"})


def test_tangent_prints_energies_nulls_and_verdicts(decoder: Path, corpus: Path, tmp_path: Path) -> None:
    size = ["--rank", "4", "--tokens", "512", "--window", "32"]
    done = command("tangent", decoder, "--text", corpus, *size, "--concepts", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    for word in ("resid.1", "semi_nmf", "weight_in", "embedding", "ceiling", "p/q", "concepts at resid.0", "Haar"):
        assert word in done.stdout
    run = anisoscope.Run.open(tmp_path / "run")
    assert run.info["tangent"]["nulls"][0] == "orientation"
    concepts = run.info["concepts"]["resid.0 semi_nmf 4"]
    assert len(concepts) == 4
    assert all(concept["tokens"] and len(concept["contexts"]) == 3 for concept in concepts)


def test_the_verdict_comes_first_and_every_table_fits_80_columns(decoder: Path, corpus: Path) -> None:
    size = ["--rank", "4", "--tokens", "512", "--window", "32"]
    line = ["tangent", decoder, "--text", corpus, *size]
    done = CliRunner().invoke(app, [str(each) for each in line], env={"COLUMNS": "80"})
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    titles = [
        next(i for i, line in enumerate(lines) if word in line) for word in ("verdicts", "gradient energy", "p/q")
    ]
    assert titles == sorted(titles)
    for word in ("semi_nmf", "weight_out", "embedding"):  # once per table at least: no name is broken in two
        assert sum(line.strip().startswith(word) or f" {word} " in line for line in lines) >= 3
    assert "weak effect: follows the" in done.stdout


def test_tangent_prints_json_and_plain_errors(decoder: Path, corpus: Path, tmp_path: Path) -> None:
    few = [
        "--rank",
        "2",
        "--tokens",
        "128",
        "--window",
        "32",
        "--batch",
        "2",
        "--proxies",
        "pca",
        "--gradients",
        "hidden",
    ]
    done = command("tangent", decoder, "--text", corpus, *few, "--step-0", decoder, "--json")
    records = json.loads(done.stdout)
    assert {r["metric"] for r in records} >= {"gradient_energy", "gradient_p", "gradient_q", "local_excess"}
    assert "step_0" in {r["variant"].get("null") for r in records}
    (tmp_path / "counts.json").write_text("[1, 2]")
    done = command("tangent", decoder, "--text", corpus, *few, "--counts", tmp_path / "counts.json")
    assert isinstance(done.exception, InputError)
    assert "not a table of counts" in str(done.exception)


SMALL = [
    "--rank",
    "2",
    "--tokens",
    "128",
    "--window",
    "32",
    "--proxies",
    "pca",
    "--gradients",
    "hidden",
    "--nulls",
    "orientation",
]


def test_the_same_command_returns_the_finished_test(
    decoder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: list[str | Path] = ["tangent", decoder, "--text", corpus, *SMALL, "--out", tmp_path / "run"]
    first = command(*line)
    assert first.exit_code == 0, first.output
    with monkeypatch.context() as patch:
        patch.setattr("anisoscope.tangent.tangent_test._tested", None)  # nothing is computed again
        assert command(*line).stdout == first.stdout
    again = command(*line, "--overwrite")
    assert again.exit_code == 0, again.output
    assert again.stdout == first.stdout


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--seed", "1"], r"seed \(0 before, 1 now\)"),
        (["--tokens", "96"], r"tokens \(128 before, 96 now\)"),
        (["--gradients", "embedding"], r"gradients \(hidden before, embedding now\)"),
        (["--balance", "9"], r"balance \(None before, 9 now\)"),
    ],
)
def test_another_request_is_refused_before_the_model_is_opened(
    change: list[str], named: str, decoder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: list[str | Path] = ["tangent", decoder, "--text", corpus, *SMALL, "--out", tmp_path / "run"]
    settings = tmp_path / "run" / "run.json"
    assert command(*line).exit_code == 0
    before = settings.read_bytes()
    monkeypatch.setattr("anisoscope.tangent.tangent_test.open_model", None)
    refused = command(*line, *change)
    assert isinstance(refused.exception, StoreError)
    assert re.search(named, str(refused.exception))
    assert settings.read_bytes() == before


def test_an_interrupted_test_is_computed_again(
    decoder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: list[str | Path] = ["tangent", decoder, "--text", corpus, *SMALL, "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr("anisoscope.tangent.tangent_test._tested", _interrupted)
        assert isinstance(command(*line).exception, RuntimeError)
    assert not anisoscope.Run.open(tmp_path / "run").info["complete"]
    assert command(*line).exit_code == 0
    assert anisoscope.Run.open(tmp_path / "run").info["complete"]


def _interrupted(*_: object) -> None:
    raise RuntimeError("interrupted")


def test_a_request_that_cannot_be_met_leaves_no_run(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    done = command("tangent", decoder, "--text", tmp_path / "short.txt", *SMALL, "--out", tmp_path / "run")
    assert isinstance(done.exception, InputError)
    assert not (tmp_path / "run").exists()


def test_few_tokens_are_read_in_smaller_batches(decoder: Path, corpus: Path) -> None:
    few = ["--tokens", "64", "--window", "32", "--batch", "8"]
    done = command("tangent", decoder, "--text", corpus, *SMALL, *few)
    assert done.exit_code == 0, done.output


def test_too_few_tokens_are_refused_before_the_model_is_opened(corpus: Path) -> None:
    refused = command("tangent", "no-such-model", "--text", corpus, "--tokens", "100")
    assert isinstance(refused.exception, InputError)
    assert "100 tokens to fit on fill no window of 512" in str(refused.exception)


def test_curvature_prints_the_study() -> None:
    line = ["curvature", "--seeds", "4", "--tokens", "400"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    assert "same n_eff" in done.stdout
    done = CliRunner().invoke(app, [*line, "--json"])
    assert {r["metric"] for r in json.loads(done.stdout)} >= {"curvature_snr", "curvature_slope"}
