"""The commands `tangent` and `curvature`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import anisoscope
from anisoscope.cli import app
from anisoscope.errors import InputError
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


def test_curvature_prints_the_study() -> None:
    line = ["curvature", "--seeds", "4", "--tokens", "400"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    assert "same n_eff" in done.stdout
    done = CliRunner().invoke(app, [*line, "--json"])
    assert {r["metric"] for r in json.loads(done.stdout)} >= {"curvature_snr", "curvature_slope"}
