"""kill -9 at any moment of measure, track, sweep and lab training: the run can be read and resumes to the same end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from anisoscope.report.tables import table_of
from anisoscope.store.run import Run, record_key
from anisoscope.studies.lab.losses import read_losses
from tests.killed_work import WORKS, lab, make_material
from tests.kills import Kill, Operation, Work, run, spread

FEW, MANY = 4, 25  # kills of each task: always, and in the slow test, which makes a hundred


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module", params=WORKS, ids=lambda work: work.__name__)
def whole(
    request: pytest.FixtureRequest, material: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Work, Path, list[Operation]]:
    """A task without interruption, its folder, and its operations on files."""
    folder = tmp_path_factory.mktemp("whole")
    operations = run(request.param, material, folder)
    assert operations
    return request.param, folder, operations


def facts(folder: Path) -> dict[str, Any]:
    """Everything that must be equal in two runs: records in order, replicates, statistics, losses, weights."""
    opened = Run.open(folder / "run")
    checkpoints = sorted((folder / "run" / "checkpoints").glob("step-*"))
    return {
        "records": list(opened.records()),
        "replicates": opened.replicates(),
        "statistics": opened.statistics(),
        "losses": read_losses(folder / "run"),
        "complete": opened.info.get("complete"),
        "integrity": opened.info.get("integrity"),
        "weights": {path.name: load_file(path / "model.safetensors") for path in checkpoints},
    }


def require_readable(folder: Path) -> None:
    """Check that a killed run can be read, each record once; a folder without run.json is not a run yet."""
    if not (folder / "run" / "run.json").exists():
        return
    opened = Run.open(folder / "run")
    keys = [record_key(record) for record in opened.records()]
    assert len(keys) == len(set(keys)) == len(table_of([opened]))
    assert set(opened.replicates()) <= set(keys)
    for step, site, tokens, block in opened.statistics():
        opened.load_statistics(step, site, tokens, block)


def require_same(folder: Path, whole: Path) -> None:
    found, wanted = facts(folder), facts(whole)
    weights, others = found.pop("weights"), wanted.pop("weights")
    for name, value in wanted.items():
        assert found[name] == value, name
    assert weights.keys() == others.keys()
    for name, tensors in others.items():
        assert all(torch.equal(weights[name][key], tensor) for key, tensor in tensors.items())
    left = [path.name for path in (folder / "run").rglob("*") if path.name.endswith((".tmp", ".new", ".writing"))]
    assert not left
    assert not list((folder / "run").glob("partial*"))


def kill_and_resume(work: Work, material: Path, whole: Path, folder: Path, kills: list[Kill]) -> None:
    """Kill the task once per kill, then let it finish."""
    for kill in kills:
        run(work, material, folder, kill)
        require_readable(folder)
    run(work, material, folder)
    require_same(folder, whole)


@pytest.mark.parametrize("turn", range(FEW))
def test_a_killed_run_can_be_read_and_resumes_to_the_same_end(
    whole: tuple[Work, Path, list[Operation]], turn: int, material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    kill_and_resume(work, material, folder, tmp_path, [spread(operations, FEW, seed=1)[turn]])


@pytest.mark.slow
def test_a_hundred_kills_lose_and_repeat_nothing(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    for number, kill in enumerate(spread(operations, MANY, seed=2)):
        kill_and_resume(work, material, folder, tmp_path / str(number), [kill])


@pytest.mark.slow
def test_repeated_kills_before_the_first_result(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    kill_and_resume(work, material, folder, tmp_path, spread(operations, 6, seed=3))


def test_the_harness_kills_at_the_chosen_operation(material: Path, tmp_path: Path) -> None:
    """Otherwise a task that ends before its kill would look like a kill without harm."""
    operations = run(lab, material, tmp_path / "whole")
    assert operations
    position = next(i for i, each in enumerate(operations) if (each.kind, each.name) == ("write", "records.jsonl"))
    assert run(lab, material, tmp_path / "killed", Kill(position)) is None
    torn = (tmp_path / "killed" / "run" / "records.jsonl").read_bytes()
    assert torn
    assert not torn.endswith(b"\n")
    assert len({(each.kind, each.name) for each in operations}) > 10
