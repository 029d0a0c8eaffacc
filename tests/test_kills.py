"""kill -9 at any moment of measure, track, sweep and lab training: the run is readable, and goes on to the same end."""

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

FEW, MANY = 4, 25  # kills of each work: always, and in the slow form, where they are a hundred


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module", params=WORKS, ids=lambda work: work.__name__)
def whole(
    request: pytest.FixtureRequest, material: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Work, Path, list[Operation]]:
    """A work that nothing interrupts, its run, and what it did to files."""
    folder = tmp_path_factory.mktemp("whole")
    operations = run(request.param, material, folder)
    assert operations
    return request.param, folder, operations


def facts(folder: Path) -> dict[str, Any]:
    """All that two runs must have in common: records in their order, replicates, statistics, losses, weights."""
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
    """What a kill left opens and reads, each record once; a run without run.json has not begun."""
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


def break_and_go_on(work: Work, material: Path, whole: Path, folder: Path, kills: list[Kill]) -> None:
    """Killed once for each of the kills, then left alone."""
    for kill in kills:
        run(work, material, folder, kill)
        require_readable(folder)
    run(work, material, folder)
    require_same(folder, whole)


@pytest.mark.parametrize("turn", range(FEW))
def test_a_killed_run_is_readable_and_goes_on_to_the_same_end(
    whole: tuple[Work, Path, list[Operation]], turn: int, material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    break_and_go_on(work, material, folder, tmp_path, [spread(operations, FEW, seed=1)[turn]])


@pytest.mark.slow
def test_a_hundred_kills_lose_and_repeat_nothing(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    for number, kill in enumerate(spread(operations, MANY, seed=2)):
        break_and_go_on(work, material, folder, tmp_path / str(number), [kill])


@pytest.mark.slow
def test_kill_after_kill_before_anything_is_whole(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    break_and_go_on(work, material, folder, tmp_path, spread(operations, 6, seed=3))


def test_the_harness_kills_where_it_says(material: Path, tmp_path: Path) -> None:
    """Without this, works that end before their kill would pass for kills that do no harm."""
    operations = run(lab, material, tmp_path / "whole")
    assert operations
    place = next(i for i, each in enumerate(operations) if (each.kind, each.name) == ("write", "records.jsonl"))
    assert run(lab, material, tmp_path / "killed", Kill(place)) is None
    torn = (tmp_path / "killed" / "run" / "records.jsonl").read_bytes()
    assert torn
    assert not torn.endswith(b"\n")
    assert len({(each.kind, each.name) for each in operations}) > 10
