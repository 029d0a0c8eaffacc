"""`measure` from the command line, on vectors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from anisoscope.records import COLUMNS
from anisoscope.store.run import Run


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "v.npy"
    rows = np.random.default_rng(0).standard_normal((600, 16)) * np.linspace(2, 0.5, 16) + 0.3
    np.save(path, rows.astype(np.float32))
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anisoscope", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_measure_prints_headline_metrics_and_the_next_step(vectors: Path, tmp_path: Path) -> None:
    done = run("measure", vectors, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "One direction dominates?" in done.stdout
    assert "gride" not in done.stdout.split("Caveats")[0]
    assert "token" not in done.stdout.replace("tokens_to_halve", "")
    table = done.stdout[done.stdout.index("question") : done.stdout.index("metrics in all")]
    assert len(table.splitlines()) <= 20
    assert f"next: anisoscope report {tmp_path / 'run'}" in done.stderr


def test_measure_prints_every_metric_on_request(vectors: Path) -> None:
    done = run("measure", vectors, "--all")
    assert done.returncode == 0, done.stderr
    for name in ("mean_cosine", "isoscore", "effective_rank", "two_nn", "gride", "tyler_share"):
        assert name in done.stdout
    assert "600 rows × 16" in done.stdout


def test_json_is_a_list_of_records_and_nothing_else(vectors: Path) -> None:
    done = run("measure", vectors, "--json", "--metrics", "isoscore,two_nn")
    records = json.loads(done.stdout)
    assert [r["metric"] for r in records] == ["isoscore", "two_nn"]
    assert all(tuple(r) == COLUMNS for r in records)
    assert records[0]["error_kind"] == "jackknife-16-rows"
    assert 0 < records[0]["value"] < records[0]["null"] <= 1


def test_a_run_is_written_recomputed_and_exported(vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("measure", vectors, "-m", "mean_cosine", "--out", out, "--keep-blocks").returncode == 0
    again = run("measure", vectors, "-m", "mean_cosine", "--out", out)
    assert again.returncode == 0  # the same request: what is complete is printed
    other = run("measure", vectors, "-m", "isoscore", "--out", out)
    assert other.returncode == 1
    assert "metrics (mean_cosine before, isoscore now)" in " ".join(other.stderr.split())
    done = run("recompute", out, "--metrics", "rankme", "--json")
    (record,) = json.loads(done.stdout)
    direct = json.loads(run("measure", vectors, "-m", "rankme", "--json").stdout)[0]
    assert record["value"] == pytest.approx(direct["value"], rel=1e-9)
    assert record["error"] == pytest.approx(direct["error"], rel=1e-6)
    assert [r.metric for r in Run.open(out).records()] == ["mean_cosine", "rankme"]
    assert run("export", out, "--to", tmp_path / "run.parquet").returncode == 0
    assert list(pd.read_parquet(tmp_path / "run.parquet")["metric"]) == ["mean_cosine", "rankme"]


def test_recompute_refuses_a_metric_whose_statistic_was_not_kept(vectors: Path, tmp_path: Path) -> None:
    run("measure", vectors, "-m", "mean_cosine", "--out", tmp_path / "run")
    done = run("recompute", tmp_path / "run", "--metrics", "two_nn")
    assert done.returncode == 1
    assert "two_nn: The run keeps no Sample" in done.stderr.replace("\n", " ")


def test_a_file_of_several_tensors_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": np.ones((9, 3), np.float32), "b": np.eye(5, dtype=np.float32)}, path)
    done = run("measure", path)
    assert done.returncode == 1
    assert "--tensor" in done.stderr
    assert run("measure", path, "--tensor", "b", "-m", "mean_cosine").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["measure", "nowhere.npy"], "nowhere.npy"),
        (["metrics", "isoscor"], "Did you mean 'isoscore"),
        (["export", "nowhere", "--to", "x.parquet"], "nowhere"),
        (["recompute", "nowhere", "--metrics", "rankme"], "nowhere"),
        (["transform", "v.npy", "--out", "x.npy"], "nothing to do"),
    ],
)
def test_errors_end_with_one_line_and_exit_code_1(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert words in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_help_of_every_command_has_an_example() -> None:
    for command in ("measure", "look", "metrics", "transform", "recompute", "export", "demo"):
        done = run(command, "--help")
        assert done.returncode == 0
        assert "xample" in done.stdout, command


def test_vectors_with_nan_are_refused_with_the_reason(tmp_path: Path) -> None:
    np.save(tmp_path / "bad.npy", np.array([[1.0, np.nan], [0.0, 1.0], [2.0, 2.0]]))
    done = run("measure", tmp_path / "bad.npy", "-m", "isoscore")
    assert done.returncode == 1
    assert "NaN or Inf" in done.stderr
