"""Where tasks run: this process, a pool, a Ray cluster; all give the same answers, also if workers die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import anisoscope
from anisoscope.errors import InputError
from anisoscope.sweep import engine, sweep
from anisoscope.sweep.engines import in_pool, on_ray
from tests.sweep_folders import STEPS, checkpoint_series, documents

SMALL: dict[str, Any] = {"tokens": 400, "window": 32, "metrics": ["mean_cosine", "two_nn"], "sites": ["resid"]}


Numbers = dict[tuple[Any, ...], float | None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Numbers]:
    """A series, a text, and the numbers of one process."""
    place = tmp_path_factory.mktemp("engines")
    folder, text = checkpoint_series(place / "train"), documents(place / "text.jsonl")
    sweep(folder, out=place / "run", text=text, **SMALL)
    return folder, text, numbers(place / "run")


def numbers(path: Path) -> Numbers:
    return {
        (r.step, r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())): r.value
        for r in anisoscope.Run.open(path).records()
    }


def assert_same(found: Numbers, wanted: Numbers) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == (None if value is None else pytest.approx(value, rel=1e-6)), key


class Killer:
    """Listens to a sweep, and kills processes of a kind once, when the first step has been measured."""

    def __init__(self, sign: str) -> None:
        self.sign = sign
        self.killed: list[int] = []
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        self.said.append(text)
        if "measured" in text and not self.killed:
            for process in psutil.process_iter(["cmdline", "ppid"]):
                if self.sign in " ".join(process.info["cmdline"] or []) and self._ours(process):
                    process.kill()
                    self.killed.append(process.pid)

    @staticmethod
    def _ours(process: psutil.Process) -> bool:
        return os.getpid() in [parent.pid for parent in process.parents()]


def test_a_pool_whose_workers_are_killed_loses_nothing(made: tuple[Path, Path, Numbers], tmp_path: Path) -> None:
    folder, text, alone = made
    killer = Killer("spawn_main")
    pool = partial(in_pool, workers=2)
    swept = sweep(folder, out=tmp_path / "run", text=text, engine=pool, on_status=killer, **SMALL)
    assert len(killer.killed) == 2
    assert any("worker process died" in line and "trying again" in line for line in killer.said)
    assert (swept.measured, swept.failed) == (4, {})
    assert_same(numbers(tmp_path / "run"), alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_ray_cluster_that_loses_a_worker_loses_nothing(made: tuple[Path, Path, Numbers], tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    folder, text, alone = made
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        killer = Killer("ray::work")
        swept = sweep(folder, out=tmp_path / "run", text=text, engine=partial(on_ray), on_status=killer, **SMALL)
        assert killer.killed
        assert any("Ray worker died" in line and "trying again" in line for line in killer.said)
        with pytest.raises(InputError, match="no machine of the Ray cluster has 1 CPU, 1 GPU per task"):
            sweep(folder, out=tmp_path / "gpu", text=text, engine=partial(on_ray, gpus=1), **SMALL)
    finally:
        ray.shutdown()
    assert (swept.measured, swept.failed) == (4, {})
    assert_same(numbers(tmp_path / "run"), alone)


@pytest.mark.slow
def test_a_driver_that_is_killed_loses_only_what_was_in_flight(
    made: tuple[Path, Path, Numbers], tmp_path: Path
) -> None:
    folder, text, alone = made
    out = tmp_path / "run"
    options = ["--text", str(text), "--tokens", "400", "--window", "32", "--sites", "resid", "--out", str(out)]
    options += ["--metrics", "mean_cosine,two_nn", "--engine", "pool", "--workers", "2"]
    command = [sys.executable, "-m", "anisoscope", "sweep", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and _measured(out) == 0:
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = _measured(out)
    assert 0 < before < len(STEPS)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive  # workers end with their driver
    subprocess.run(command, check=True, capture_output=True)
    steps = [line for line in (out / "tasks.jsonl").read_text().splitlines() if '"digest"' in line]
    assert len(steps) == len(STEPS)
    assert_same(numbers(out), alone)


def _measured(out: Path) -> int:
    ledger = out / "tasks.jsonl"
    return ledger.read_text().count('"digest"') if ledger.is_file() else 0


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="no engine is called 'rey'; choose process, pool or ray"):
        engine("rey")
