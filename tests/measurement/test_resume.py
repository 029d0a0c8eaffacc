"""An interrupted pass is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import anisoscope
from anisoscope.data.batches import model_batches
from anisoscope.errors import StoreError
from anisoscope.report.tables import table_of
from anisoscope.store.run import Run, record_key
from anisoscope.studies.lab.losses import read_losses
from tests.killed_work import WORKS, lab, make_material
from tests.kills import Kill, Operation, Work, run, spread

Values = dict[tuple[Any, ...], float]

FEW, MANY = 4, 25  # kills of each task: always, and in the slow test, which makes a hundred


def values(run: anisoscope.Run, **wanted: Any) -> Values:
    found: Values = {}
    for r in run.records():
        if r.value is not None and all(getattr(r, name) == value for name, value in wanted.items()):
            found[r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())] = r.value
    return found


class Stop(Exception):
    """A process that ends in mid-pass, where nothing can be cleaned up."""


def _stopping(real: Any, after: int, with_what: BaseException) -> Any:
    def batches(*given: Any, **options: Any) -> Iterator[Any]:
        for number, batch in enumerate(real(*given, **options)):
            if number == after:
                raise with_what
            yield batch

    return batches


@pytest.mark.parametrize("sites", [["resid"], ["resid", "pattern"]])
@pytest.mark.parametrize("how", [Stop(), KeyboardInterrupt()])
def test_an_interrupted_pass_resumes_to_the_same_numbers(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sites: list[str], how: BaseException
) -> None:
    names = ["mean_cosine", "spectral_anisotropy", "two_nn", *(["attention_entropy"] if "pattern" in sites else [])]
    request: dict[str, Any] = {"text": text, "tokens": 600, "window": 32, "batch": 2, "metrics": names, "sites": sites}
    request["batch_tokens"] = 128
    whole = anisoscope.measure(folder, **request, out=tmp_path / "whole")
    monkeypatch.setattr("anisoscope.measurement.resume.SAVED_EVERY", -1.0)  # keep after every batch
    monkeypatch.setattr("anisoscope.measurement.resume._PRICE", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr("anisoscope.measurement.model_data.model_batches", _stopping(model_batches, 4, how))
        if isinstance(how, Stop):
            with pytest.raises(Stop):
                anisoscope.measure(folder, **request, out=tmp_path / "stopped")
        else:
            half = anisoscope.measure(folder, **request, out=tmp_path / "stopped")
            assert half.info["interrupted"]
            assert values(half)  # what was seen is measured
    resumed = anisoscope.measure(folder, **request, out=tmp_path / "stopped")
    assert values(resumed) == values(whole)
    assert len(list(resumed.records())) == len(list(whole.records()))
    assert not list((tmp_path / "stopped").glob("partial*"))


def test_a_complete_run_is_returned_and_another_request_is_refused(folder: Path, text: Path, tmp_path: Path) -> None:
    request: dict[str, Any] = {"text": text, "tokens": 128, "window": 32, "metrics": ["mean_cosine"]}
    first = anisoscope.measure(folder, **request, out=tmp_path / "run")
    again = anisoscope.measure(folder, **request, out=tmp_path / "run")
    assert values(again) == values(first)
    with pytest.raises(StoreError, match="different: seed"):
        anisoscope.measure(folder, **request, seed=1, out=tmp_path / "run")


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
