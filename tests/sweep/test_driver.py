"""A sweep over checkpoints: one run with steps, the numbers of `measure`, resumable."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import anisoscope
from anisoscope.errors import InputError, StoreError
from anisoscope.sweep import sweep
from anisoscope.sweep.engines import Outcome, Pull
from anisoscope.sweep.jobs import Answer, Measure
from tests.canned_sweep import SMALL, canned, canned_engine, steps_of
from tests.oracles import drift
from tests.sweep_folders import STEPS


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "tasks.jsonl").read_text().splitlines()]


def test_every_step_has_the_numbers_of_measure_and_its_drift(
    made: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    request = SMALL | {"errors": True, "metrics": ["mean_cosine", "isoscore"], "sites": ["embed", "resid", "pattern"]}
    swept = sweep(made[0], out=tmp_path / "run", text=text, **request)
    assert (swept.measured, swept.skipped, swept.failed, swept.findings) == (4, 0, {}, [])
    run = anisoscope.Run.open(tmp_path / "run")
    assert steps_of(run.path) == list(STEPS)
    alone = anisoscope.measure(made[0] / "checkpoint-200", text=text, **request)
    mine = {(r.site, r.metric, r.tokens): (r.value, r.error, r.n) for r in run.records() if r.step == 200}
    others = run.replicates()
    for record in alone.records():
        assert mine[record.site, record.metric, record.tokens] == (record.value, record.error, record.n)
    assert len([key for key in others if key[0] == 200]) == len(alone.replicates())
    cka = {(r.step, r.site, r.variant.get("against")): r.value for r in run.records() if r.metric == "cka"}
    assert cka[0, "resid.1", None] == pytest.approx(1.0)
    assert cka[300, "resid.1", None] < cka[100, "resid.1", None] < 1  # type: ignore[operator]
    assert cka[300, "resid.1", "previous step"] > cka[300, "resid.1", None]  # type: ignore[operator]
    assert (300, "resid.1", "layer before") in cka
    assert (300, "embed", "layer before") not in cka
    turned = [r for r in run.records() if r.metric == "q_direction_drift" and r.step == 300 and not r.variant]
    assert {r.site for r in turned} == {"pattern.0", "pattern.1"}
    assert {"cka", "mean_cosine", "subspace_angle"} <= set(run.metrics())
    assert all(run.metrics().values())  # every metric has its card
    assert {file.name for file in (run.path / "paired").iterdir()} == {"0.safetensors", "300.safetensors"}


def test_a_sweep_measures_one_row_per_sequence_like_measure(
    made: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    request = SMALL | {"metrics": ["isoscore"], "sites": ["resid"], "rows": "mean"}
    assert not sweep(made[0], out=tmp_path / "run", text=text, **request).failed
    run = anisoscope.Run.open(tmp_path / "run")
    alone = anisoscope.measure(made[0] / "checkpoint-200", text=text, **request)
    mine = {(r.site, r.metric, r.tokens): r.value for r in run if r.step == 200}
    assert {(r.site, r.metric, r.tokens): r.value for r in alone}.items() <= mine.items()
    assert run.info["rows"] == "mean"
    assert any(r.metric == "cka" and r.step == 300 and r.tokens == "no-sink" for r in run)  # drift of the means


def test_similarity_between_steps_is_that_of_the_same_tokens(
    made: tuple[Path, Path], text: Path, tmp_path: Path
) -> None:
    sweep(made[0], revisions="checkpoint-0,checkpoint-100", out=tmp_path / "run", text=text, **SMALL)
    rows: dict[int, dict[int, torch.Tensor]] = {}
    for step in (0, 100):
        kept = load_file(tmp_path / "run" / "paired" / f"{step}.safetensors")
        table, x = kept["resid.1~no-sink~Sample/table"], kept["resid.1~no-sink~Sample/x"]
        rows[step] = dict(zip(table[:, 0].tolist(), x, strict=True))
    shared = sorted(rows[0].keys() & rows[100].keys())
    assert len(shared) > 300
    now, then = (torch.stack([rows[step][key] for key in shared]).double().numpy() for step in (100, 0))
    run = anisoscope.Run.open(tmp_path / "run")
    found = {r.metric: r.value for r in run.records() if (r.step, r.site) == (100, "resid.1") and not r.variant}
    assert found["cka"] == pytest.approx(drift.cka(now, then), abs=1e-6)
    # the path of the mean, at the reference and after it, once per axis: comparisons with the previous step have none
    path = {(r.step, r.variant["axis"]): r for r in run.records() if (r.site, r.metric) == ("resid.1", "trajectory")}
    assert sorted(path) == [(0, 1), (0, 2), (100, 1), (100, 2)]
    assert all(dict(r.variant) == {"axis": axis, "of": "mean"} for (_, axis), r in path.items())
    every = [torch.stack(list(rows[step].values())).double().numpy() for step in (100, 0)]
    assert path[100, 1].value == pytest.approx(drift.trajectory(*every)[0], abs=1e-6)
    assert "trajectory" in run.info["metrics"]


def test_a_complete_sweep_is_not_repeated_and_a_longer_series_measures_only_new_steps(
    train: Path, text: Path, tmp_path: Path
) -> None:
    shutil.move(train / "checkpoint-300", tmp_path / "later")
    first = sweep(train, out=tmp_path / "run", text=text, engine=canned_engine, **SMALL)
    assert first.measured == 3
    again = sweep(train, out=tmp_path / "run", text=text, engine=canned_engine, **SMALL)
    assert (again.measured, again.skipped) == (0, 3)
    shutil.move(tmp_path / "later", train / "checkpoint-300")
    longer = sweep(train, out=tmp_path / "run", text=text, engine=canned_engine, **SMALL)
    assert (longer.measured, longer.skipped) == (1, 3)
    with pytest.raises(StoreError, match="different: tokens"):
        sweep(train, out=tmp_path / "run", text=text, engine=canned_engine, **SMALL | {"tokens": 300})


def test_weights_that_were_replaced_are_measured_and_compared_again(train: Path, text: Path, tmp_path: Path) -> None:
    request = SMALL | {"revisions": "checkpoint-0,checkpoint-100"}
    sweep(train, out=tmp_path / "run", text=text, **request)
    shutil.copy(train / "checkpoint-300" / "model.safetensors", train / "checkpoint-100" / "model.safetensors")
    again = sweep(train, out=tmp_path / "run", text=text, **request)
    fresh = sweep(train, out=tmp_path / "fresh", text=text, **request)
    assert (again.measured, again.skipped, fresh.measured) == (1, 1, 2)
    found, wanted = (
        {(r.step, r.site, r.metric, r.tokens, str(r.variant)): r.value for r in anisoscope.Run.open(run).records()}
        for run in (tmp_path / "run", tmp_path / "fresh")
    )
    assert found == wanted


def test_a_step_with_nan_activations_is_reported(train: Path, text: Path, tmp_path: Path) -> None:
    file = train / "checkpoint-100" / "model.safetensors"
    weights = load_file(file)
    weights["transformer.h.1.mlp.c_proj.bias"][0] = torch.nan
    save_file(weights, file, {"format": "pt"})
    swept = sweep(train, out=tmp_path / "run", text=text, revisions="checkpoint-0,checkpoint-100", **SMALL)
    assert any("checkpoint-100" in finding and "from resid.1 on" in finding for finding in swept.findings)
    values = {(r.step, r.site): r.value for r in anisoscope.Run.open(tmp_path / "run").records() if r.tokens == "all"}
    assert values[100, "resid.0"] is not None
    assert values[100, "resid.1"] is None


class Killed(Exception):
    """The driver's end, where nothing can be cleaned up."""


@pytest.mark.parametrize("after", range(11))
def test_a_killed_sweep_repeats_no_finished_work(train: Path, text: Path, tmp_path: Path, after: int) -> None:
    measured: list[str] = []

    def engine(pull: Pull) -> Iterator[Outcome]:
        for number, outcome in enumerate(canned_engine(pull)):
            if isinstance(outcome.job, Measure):
                measured.append(outcome.job.task.checkpoint.label)
            if number == after and after >= 0:
                raise Killed
            yield outcome

    with pytest.raises(Killed):
        sweep(train, out=tmp_path / "run", text=text, engine=engine, **SMALL)
    in_flight = measured[-1] if measured else None
    after = -1
    sweep(train, out=tmp_path / "run", text=text, engine=engine, **SMALL)
    assert sorted(set(measured)) == [f"checkpoint-{step}" for step in STEPS]
    assert {name for name in measured if measured.count(name) > 1} <= {in_flight}
    keys = [line["key"] for line in lines_of(tmp_path / "run")]
    assert len(keys) == len(set(keys)) == 4 + 4 + 3  # steps, against the reference, against the step before
    assert steps_of(tmp_path / "run") == list(STEPS)


def failing(broken: str, times: int, *, hopeless: bool = False) -> Any:
    """An engine whose worker fails on one checkpoint so many times."""
    left = [times]

    def engine(pull: Pull) -> Iterator[Outcome]:
        while (job := pull()) is not None:
            if isinstance(job, Measure) and job.task.checkpoint.label == broken and left[0] > 0:
                left[0] -= 1
                yield Outcome(job, Answer(error="the disk is on fire", hopeless=hopeless))
            else:
                yield Outcome(job, canned(job))

    return engine


def test_a_failed_task_is_retried_then_reported_and_the_rest_continues(train: Path, text: Path, tmp_path: Path) -> None:
    said: list[str] = []
    swept = sweep(
        train, out=tmp_path / "a", text=text, engine=failing("checkpoint-100", 2), on_status=said.append, **SMALL
    )
    assert (swept.measured, swept.failed) == (4, {})
    assert sum("trying again" in line for line in said) == 2
    swept = sweep(train, out=tmp_path / "b", text=text, engine=failing("checkpoint-100", 9), **SMALL)
    assert swept.measured == 3
    assert swept.failed == {"train, checkpoint-100": "the disk is on fire"}
    info = anisoscope.Run.open(tmp_path / "b").info
    assert info["failed"] == {"checkpoint-100": "the disk is on fire"}
    assert not info["complete"]
    swept = sweep(train, out=tmp_path / "b", text=text, engine=canned_engine, **SMALL)
    assert (swept.measured, swept.skipped, swept.failed) == (1, 3, {})
    assert anisoscope.Run.open(tmp_path / "b").info["complete"]
    calls = failing("checkpoint-100", 2, hopeless=True)
    swept = sweep(train, out=tmp_path / "c", text=text, engine=calls, **SMALL)
    assert set(swept.failed) == {"train, checkpoint-100"}  # the same mistake would be made again


def test_a_checkpoint_that_cannot_be_opened_fails_alone(train: Path, text: Path, tmp_path: Path) -> None:
    config = train / "checkpoint-100" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"n_embd": 24}))
    swept = sweep(train, revisions="checkpoint-0,checkpoint-100", out=tmp_path / "run", text=text, **SMALL)
    assert swept.measured == 1
    [reason] = swept.failed.values()
    assert "checkpoint-100" in reason


def test_broken_and_copied_checkpoints_are_reported_and_excluded(train: Path, text: Path, tmp_path: Path) -> None:
    whole = (train / "checkpoint-200" / "model.safetensors").read_bytes()
    (train / "checkpoint-100" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    (train / "checkpoint-300" / "model.safetensors").write_bytes(whole)
    (train / "checkpoint-200" / "trainer_state.json").write_text('{"global_step": 250}')
    swept = sweep(train, out=tmp_path / "run", text=text, engine=canned_engine, **SMALL)
    assert steps_of(tmp_path / "run") == [0, 200]
    text_of = "\n".join(swept.findings)
    assert "step 100 (checkpoint-100) is left out" in text_of
    assert "is incomplete" in text_of
    assert "step 300 (checkpoint-300) is left out: its weights are those of step 200 (checkpoint-200)" in text_of
    assert "checkpoint-200 records step 250" in text_of
    assert anisoscope.Run.open(tmp_path / "run").info["integrity"] == [
        finding.removeprefix("train: ") for finding in swept.findings
    ]


def test_copies_found_after_a_download_are_excluded_too(train: Path, text: Path, tmp_path: Path) -> None:
    def engine(pull: Pull) -> Iterator[Outcome]:
        for outcome in canned_engine(pull):
            if isinstance(outcome.job, Measure) and outcome.job.task.checkpoint.step >= 200:
                about = {"model": {"digest": "same", "commit": None}}
                answer = Answer(outcome.answer.measured, about=about, sketch=outcome.answer.sketch)
                yield Outcome(outcome.job, answer)
            else:
                yield outcome

    swept = sweep(train, out=tmp_path / "run", text=text, engine=engine, **SMALL)
    assert steps_of(tmp_path / "run") == [0, 100, 200]
    assert any("its weights are those of step 200" in finding for finding in swept.findings)
    again = sweep(train, out=tmp_path / "run", text=text, engine=engine, **SMALL)
    assert (again.measured, again.skipped) == (0, 4)


def test_errors_explain_what_to_do(train: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to measure: give text"):
        sweep(train, out=tmp_path / "run")
    with pytest.raises(InputError, match="cannot come from standard input"):
        sweep(train, out=tmp_path / "run", text="-")
    with pytest.raises(InputError, match=r"No text at .*nope\.txt"):
        sweep(train, out=tmp_path / "run", text=tmp_path / "nope.txt")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="has no step 5 to measure drift from; it has 0, 100"):
        sweep(train, out=tmp_path / "run", text=text, reference=5, **SMALL)
    for place in train.iterdir():
        (place / "model.safetensors").unlink()
    with pytest.raises(
        InputError, match=r"no checkpoint to measure: step 0 .* is left out: .* has no model\.safetensors"
    ):
        sweep(train, out=tmp_path / "other", text=text, **SMALL)


def test_the_command_prints_its_outcome_and_fails_if_a_task_failed(train: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(train / "checkpoint-0", train / "checkpoint-50")
    config = train / "checkpoint-100" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"n_embd": 24}))
    options = ["--text", text, "--tokens", 200, "--window", 32, "--metrics", "mean_cosine", "--sites", "resid.0"]
    options += ["--revisions", "checkpoint-0,checkpoint-50,checkpoint-100", "--out", tmp_path / "run", "--json"]
    command = [sys.executable, "-m", "anisoscope", "sweep", *map(str, [train, *options])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert {record["step"] for record in json.loads(done.stdout)} == {0}
    said = " ".join(done.stderr.split())
    assert "step 50 (checkpoint-50) is left out: its weights are those of step 0 (checkpoint-0)" in said
    assert "checkpoint-100 failed:" in said
    assert "a task failed, see above; run the same command to try again" in said
