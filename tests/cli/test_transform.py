"""`transform` and `metrics` from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "v.npy"
    rows = np.random.default_rng(0).standard_normal((600, 16)) * np.linspace(2, 0.5, 16) + 0.3
    np.save(path, rows.astype(np.float32))
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anisoscope", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_transform_removes_what_its_options_name(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "better.npy"
    done = run("transform", vectors, "--centre", "--remove-top", "3", "--out", out, "--json", "-m", "isoscore")
    assert done.returncode == 0, done.stderr
    before, after = np.load(vectors).astype(float), np.load(out).astype(float)
    assert np.abs(after.mean(0)).max() < 1e-5
    values = np.linalg.svd(after, compute_uv=False)
    expected = np.linalg.svd(before - before.mean(0), compute_uv=False)
    assert values[:13] == pytest.approx(expected[3:], rel=1e-4)
    assert values[13:].max() < 1e-3
    white = tmp_path / "white.npy"
    assert run("transform", vectors, "--centre", "--whiten", "--shrinkage", "0", "--out", white).returncode == 0
    assert np.cov(np.load(white).T, bias=True) == pytest.approx(np.eye(16), abs=1e-4)


def test_ledoit_wolf_is_the_default_shrinkage() -> None:
    from sklearn.covariance import ledoit_wolf

    from anisoscope.remedies import optimal_shrinkage
    from anisoscope.stats.collect import cloud_of
    from anisoscope.stats.moments import Moments

    x = np.random.default_rng(3).standard_normal((120, 30)) * np.linspace(3, 0.2, 30)
    assert optimal_shrinkage(cloud_of(x, {"Moments"}).get(Moments)) == pytest.approx(ledoit_wolf(x)[1])


def test_the_catalogue_and_a_card(vectors: Path) -> None:
    done = run("metrics")
    assert "participation_ratio" in done.stdout
    card = run("metrics", "isoscore")
    assert "(PR − 1)/(d − 1)" in card.stdout
    assert json.loads(run("metrics", "isoscore", "--json").stdout)["paper"] == "rudman2022"
