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


def test_queries_are_transformed_with_the_saved_map(vectors: Path, tmp_path: Path) -> None:
    queries, out, save = tmp_path / "queries.npy", tmp_path / "out.npy", tmp_path / "map.safetensors"
    np.save(queries, np.load(vectors)[:40])
    fitted = run("transform", vectors, "--centre", "--whiten", "--save", save, "--out", out, "-m", "isoscore")
    assert fitted.returncode == 0, fitted.stderr
    assert f"anisoscope transform queries.npy --apply {save}" in fitted.stdout
    assert "fitted on these same rows" in fitted.stdout
    done = run("transform", queries, "--apply", save, "--out", tmp_path / "q.npy", "-m", "isoscore")
    assert done.returncode == 0, done.stderr
    assert (np.load(tmp_path / "q.npy") == np.load(out)[:40]).all()
    assert "fitted on these same rows" not in done.stdout


def test_the_table_has_errors_the_null_after_and_a_warning_in_80_columns(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    save = tmp_path / "map.safetensors"
    monkeypatch.chdir(tmp_path)
    done = run("transform", vectors, "--centre", "--save", save.name)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("*.npy"))
    assert save.exists()
    table = done.stdout.split("Map:")[0]
    assert max(map(len, table.splitlines())) <= 80
    for words in ("before", "after", "change", "null", "± 0.0", "is more isotropic", "Isotropy is not quality"):
        assert words in table, words
    rows = json.loads(run("transform", vectors, "--centre", "--save", save, "--overwrite", "--json").stdout)
    after = [row for row in rows if row["when"] == "after"]
    assert len(rows) == 2 * len(after)
    by_name = {row["metric"]: row for row in after}
    assert by_name["spectral_anisotropy"]["change"] == pytest.approx(0, abs=1e-6)  # centring leaves it unchanged,
    assert by_name["spectral_anisotropy"]["change_error"] < 1e-6 < by_name["spectral_anisotropy"]["error"]


def test_documents_of_the_file_are_left_out_together_on_both_sides(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((400, 8)).astype(np.float32) + 0.5
    np.savez(tmp_path / "v.npz", rows=rows, document=np.arange(400) // 20)
    done = run("transform", tmp_path / "v.npz", "--centre", "--out", tmp_path / "o.npy", "--json", "-m", "isoscore")
    assert done.returncode == 0, done.stderr
    kinds = {row["error_kind"] for row in json.loads(done.stdout)}
    assert len(kinds) == 1
    assert kinds.pop().endswith("-documents")


WRONG = [
    (["--apply", "map.safetensors", "--centre", "--out", "x.npy"], "Leave out --centre"),
    (["--apply", "map.safetensors", "--out", "x.npy"], "No such file: map.safetensors"),
    (["--centre"], "Nothing would be written"),
    (["--centre", "--out", "there.npy"], "there.npy exists already. Choose another --out, or replace it"),
    (["--centre", "--save", "map.bin"], "Use a name that ends in .safetensors"),
    (["--centre", "--shrinkage", "0.1", "--out", "x.npy"], "--shrinkage belongs to --whiten"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_wrong_options_are_refused_before_anything_is_written(
    words: list[str], message: str, vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("there.npy", np.zeros((1, 1)))
    done = run("transform", vectors, *words)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())
    assert np.load("there.npy").shape == (1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["there.npy"]


def test_the_catalogue_and_a_card(vectors: Path) -> None:
    done = run("metrics")
    assert "participation_ratio" in done.stdout
    card = run("metrics", "isoscore")
    assert "(PR − 1)/(d − 1)" in card.stdout
    assert json.loads(run("metrics", "isoscore", "--json").stdout)["paper"] == "rudman2022"
