"""An interrupted pass is resumed."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
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
from tests.killed_work import LONG_WORKS, WORKS, lab, make_material
from tests.kills import Kill, Operation, Work, draw, run, spread, strike

Values = dict[tuple[Any, ...], float]

FEW = 4  # kills of each task in `make test`
ATTEMPTS = 4  # faults in a row before a task may finish
TASKS = [*WORKS, *(pytest.param(work, marks=pytest.mark.slow) for work in LONG_WORKS)]


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


def test_a_complete_run_removes_what_a_kill_left_of_the_unfinished_pass(
    folder: Path, text: Path, tmp_path: Path
) -> None:
    request: dict[str, Any] = {"text": text, "tokens": 128, "window": 32, "metrics": ["mean_cosine"]}
    first = anisoscope.measure(folder, **request, out=tmp_path / "run")
    (tmp_path / "run" / "partial-9").mkdir()  # the pointer to it is deleted first
    again = anisoscope.measure(folder, **request, out=tmp_path / "run")
    assert values(again) == values(first)
    assert not list((tmp_path / "run").glob("partial*"))


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module", params=TASKS, ids=lambda work: work.__name__)
def whole(
    request: pytest.FixtureRequest, material: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Work, Path, list[Operation]]:
    """A task without interruption, its folder, and its operations on files."""
    folder = tmp_path_factory.mktemp("whole")
    operations = run(request.param, material, folder)
    assert operations
    return request.param, folder, operations


def runs(folder: Path) -> dict[str, Run]:
    """All runs in the folder of a task: most have one, claims and the atlas have several."""
    return {str(path.parent.relative_to(folder)): Run.open(path.parent) for path in folder.rglob("run.json")}


def facts(opened: Run) -> dict[str, Any]:
    """Everything that must be equal in two runs: records in order, replicates, statistics, losses, weights."""
    return {
        "records": list(opened.records()),
        "replicates": opened.replicates(),
        "statistics": opened.statistics(),
        "losses": read_losses(opened.path),
        "complete": opened.info.get("complete"),
        "integrity": opened.info.get("integrity"),
        "evidence": opened.info.get("evidence"),
    }


def results(folder: Path) -> list[dict[str, Any]]:
    """The files of results that are not runs, without what depends on the clock and the machine."""
    read = [json.loads(path.read_text()) for path in sorted((folder / "evidence").glob("*.json"))]
    return [{**each, "seconds": 0, "memory": 0} for each in read]


def weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    files = sorted((folder / "run").glob("checkpoints/step-*/model.safetensors"))
    return {file.parent.name: load_file(file) for file in files}


def require_readable(folder: Path) -> None:
    """Check that killed runs can be read, each record once; a folder without run.json is not a run yet."""
    for opened in runs(folder).values():
        keys = [record_key(record) for record in opened.records()]
        assert len(keys) == len(set(keys)) == len(table_of([opened]))
        assert set(opened.replicates()) <= set(keys)
        for step, site, tokens, block in opened.statistics():
            opened.load_statistics(step, site, tokens, block)


def require_same(folder: Path, whole: Path) -> None:
    found, wanted = runs(folder), runs(whole)
    assert found.keys() == wanted.keys()
    for path, run_ in wanted.items():
        other = facts(found[path])
        for name, value in facts(run_).items():
            assert other[name] == value, (path, name)
    assert results(folder) == results(whole)
    stored, expected = weights(folder), weights(whole)
    assert stored.keys() == expected.keys()
    for name, tensors in expected.items():
        assert all(torch.equal(stored[name][key], tensor) for key, tensor in tensors.items())
    left = [path.name for path in (folder / "run").rglob("*") if path.name.endswith((".tmp", ".new", ".writing"))]
    assert not left
    assert not list((folder / "run").rglob("partial*"))


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
def test_kills_of_every_sort_lose_and_repeat_nothing(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """SIGKILL, SIGTERM, SIGSTOP with SIGCONT, no more memory and no more disk, at random moments of random attempts.

    `--kills 1000` sets their number over all tasks, `--kill-seed 1` draws others.
    """
    work, folder, operations = whole
    chance = random.Random(f"{pytestconfig.getoption('--kill-seed')} {work.__name__}")
    gap = (operations[-1].seconds - operations[0].seconds) / len(operations)
    wanted = -(-int(pytestconfig.getoption("--kills")) // len(TASKS))
    struck: Counter[str] = Counter()
    while struck.total() < wanted:
        home = tmp_path / "killed"
        for _ in range(ATTEMPTS):
            fault = draw(len(operations), gap, chance)
            ended = strike(work, material, home, fault)
            require_readable(home)
            struck[fault.sort] += ended or fault.sort == "SIGSTOP"
            if not ended:
                break
        assert run(work, material, home) is not None
        require_same(home, folder)
        shutil.rmtree(home)
    writer = pytestconfig.get_terminal_writer()
    writer.line(f"{work.__name__}: {dict(struck)}")
    writer.flush()


@pytest.mark.slow
def test_repeated_kills_before_the_first_result(
    whole: tuple[Work, Path, list[Operation]], material: Path, tmp_path: Path
) -> None:
    work, folder, operations = whole
    kill_and_resume(work, material, folder, tmp_path, spread(operations, 6, seed=3))


def test_what_a_training_leaves_that_is_killed_before_its_folder_exists_is_removed(
    material: Path, tmp_path: Path
) -> None:
    operations = run(lab, material, tmp_path / "whole")
    assert operations
    position = next(i for i, each in enumerate(operations) if (each.kind, each.name) == ("os.rename", "run"))
    assert run(lab, material, tmp_path / "killed", Kill(position)) is None
    assert len(list((tmp_path / "killed").glob(".run.creating-*/run/run.json"))) == 1
    run(lab, material, tmp_path / "killed")
    assert not list((tmp_path / "killed").glob(".*"))
    require_same(tmp_path / "killed", tmp_path / "whole")


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
