"""The demo: a training small enough for a test, and made-up records with known answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from anisoscope.cli.claims import verdicts_view
from anisoscope.cli.lab_tables import demo_table, losses_table
from anisoscope.errors import StoreError
from anisoscope.records import Record
from anisoscope.store.run import Run
from anisoscope.studies.claims.claim import CONTROL, INCONCLUSIVE, Verdict
from anisoscope.studies.claims.razzhigaev2023 import bell_evidence, growth_evidence, mask_evidence
from anisoscope.studies.demo_training import (
    TrackedModel,
    TrackedSource,
    TrackedTraining,
    demo_verdicts,
    table_rows,
    train_models,
)
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.train import OnStep, Trained

TINY = {"layers": 3, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 6}
Demo = tuple[Path, dict[str, TrackedTraining], "Steps"]


class Steps:
    """Notes what a progress bar would show."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    @contextmanager
    def __call__(self, name: str, steps: int) -> Iterator[OnStep]:
        yield lambda step, loss: self.calls.append((name, step))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    out, steps = tmp_path_factory.mktemp("demo"), Steps()
    return out, train_models(out, steps, TINY), steps


def text_of(renderable: object, width: int = 80) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


def test_the_table_has_first_and_last_values_for_every_model(demo: Demo) -> None:
    _, trainings, steps = demo
    table = table_rows(trainings)
    assert [row.label.strip() for row in table][:2] == ["loss", "anisotropy λ1/Σλ"]
    for row in table:
        assert list(row.curves) == ["decoder", "causal-masked", "encoder"]
        for curve in row.curves.values():
            assert curve[0][0] == 0
            assert curve[-1][0] == (5 if row.label == "gradient in proxy" else 6), row.label
    assert {name for name, _ in steps.calls} == set(trainings)


def test_the_numbers_of_the_table_are_those_of_the_records(demo: Demo) -> None:
    out, trainings, _ = demo
    curves = {row.label.strip(): row.curves["encoder"] for row in table_rows(trainings)}
    frame = Run.open(out / "encoder").frame()
    last = frame[frame.step == 6]
    middle = last[(last.site == "resid.1") & (last.tokens == "all") & (last.metric == "spectral_anisotropy")]
    assert curves["anisotropy λ1/Σλ"][-1][1] == pytest.approx(middle.value.item())
    heads = last[last.metric == "qk_cosine"]
    assert len(heads) == 6
    assert curves["|cos(q̄, k̄)|"][-1][1] == pytest.approx(heads.value.abs().mean())
    assert set(last[last.error.notna()].metric) >= {"spectral_anisotropy", "mean_cosine"}


def test_everything_fits_into_eighty_columns(demo: Demo) -> None:
    _, trainings, _ = demo
    table = text_of(demo_table(table_rows(trainings), trainings))
    assert "…" not in table
    assert "From step 0 to step 6" in table
    assert f"unigrams {trainings['decoder'].trained.baselines['unigram']:.2f}" in table
    claims = text_of(verdicts_view(demo_verdicts(trainings), settle=False))
    assert all(name in claims for name in ("S1", "S5", "S6", "A1", "A5"))
    summary = {"name": "decoder", "step": 6, "stopped": None, "train": None, "validation": 4.5, "seconds": 1.0}
    assert "4.500" in text_of(losses_table([summary | {"unigram": 3.0, "bigram": 2.0}]))


def test_a_second_call_reads_the_models_of_the_first(demo: Demo) -> None:
    out, trainings, _ = demo
    steps = Steps()
    again = train_models(out, steps, TINY)
    assert steps.calls == []
    assert table_rows(again) == table_rows(trainings)


def test_overwrite_trains_again_and_another_request_is_refused(tmp_path: Path) -> None:
    one = {**TINY, "steps": 1}
    train_models(tmp_path, Steps(), one)
    with pytest.raises(StoreError, match=r"steps \(1 before, 2 now\)"):
        train_models(tmp_path, Steps(), {**one, "steps": 2})
    steps = Steps()
    train_models(tmp_path, steps, {**one, "steps": 2}, overwrite=True)
    assert {name for name, _ in steps.calls} == {"decoder", "causal-masked", "encoder"}


def test_one_training_per_model_is_measured_but_decides_no_claim(demo: Demo) -> None:
    _, trainings, _ = demo
    judged = demo_verdicts(trainings)
    assert {verdict.outcome for _, pair in judged for verdict in pair} == {INCONCLUSIVE}
    for claim, (published, _) in judged:
        assert published.effect is not None, claim.id
        assert published.effect.n == 1, claim.id
        assert "1 seed; an interval needs 3" in published.reason, claim.id
    controls = {claim.id: control for claim, (_, control) in judged}
    assert controls["S6"].effect is not None  # the mask alone
    assert "relative rise of entropy without the mean query: " in controls["A5"].reason
    assert "relative rise of entropy without the mean query: not measured" not in controls["A5"].reason


# --- records with known answers ---

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 99, 100)
BELL, FLAT = [0.1, 0.4, 0.9, 0.9, 0.4, 0.1], [0.2] * 6


def training(kind: str, profile: list[float], growth: float = 1.0) -> TrackedTraining:
    """A model of six layers whose anisotropy grows towards a profile, or falls from it."""
    records = []
    for index, step in enumerate(STEPS):
        done = (index + 1) / len(STEPS) if growth > 0 else 1 - index / len(STEPS)
        for layer, height in enumerate(profile):
            records += [
                Record(f"resid.{layer}", "spectral_anisotropy", height * done, step=step, tokens=tokens)
                for tokens in ("all", "no-sink")
            ]
            records.append(Record(f"grad.resid.{layer}", "spectral_anisotropy", 0.9, step=step))  # not an activation's
    experiment = changed(Experiment(), {"kind": kind, "layers": 6, "steps": 100})
    return TrackedTraining.of(Trained(Path("run"), experiment, 100, None, [], {}, 0.0), records)


def source(decoder: list[float], masked: list[float], encoder: list[float], growth: float = 1.0) -> TrackedSource:
    profiles = {"decoder": decoder, "causal-masked": masked, "encoder": encoder}
    return TrackedSource({kind: training(kind, profile, growth) for kind, profile in profiles.items()})


def test_claims_read_the_tracked_values_at_the_last_step() -> None:
    models = source(BELL, FLAT, FLAT)
    shapes = bell_evidence(models).estimates
    assert shapes["bell"].value == pytest.approx(0.8)
    assert shapes["bell_no_sink"].value == pytest.approx(0.8)
    assert shapes["range"].value == pytest.approx(0.0)
    masks = mask_evidence(models).estimates
    assert masks["causal"].value == pytest.approx(0.8)  # mask and objective together
    assert masks["mask_alone"].value == pytest.approx(0.0)  # the objective explains it


@pytest.mark.parametrize("growth", [1.0, -1.0])
def test_growth_has_the_sign_of_the_change_over_training(growth: float) -> None:
    found = growth_evidence(source(BELL, BELL, FLAT, growth)).estimates
    assert found["growth"].value == pytest.approx(growth * 0.9 * sum(BELL) / 6)
    assert found["order"].value == pytest.approx(growth)
    assert "growth_tyler" not in found  # the tracker does not measure it


def test_a_tracked_model_has_nothing_for_halves_of_the_text() -> None:
    from anisoscope.studies.claims.measurements import DIMENSION

    model = TrackedModel(training("decoder", BELL), "decoder", 100)
    assert model.decoder
    assert not model.measure(DIMENSION, 0).parts[0].entries


def test_verdicts_keep_their_reasons_apart() -> None:
    from anisoscope.studies.claims.claim import Reasons

    verdict = Verdict("X", CONTROL, INCONCLUSIVE, None, Reasons(("a: 1", "b: 2"), "do this", "that"))
    assert verdict.reason == "a: 1; b: 2. To settle it: do this. Run: that"
    assert verdict.reasons.context == ("To settle it: do this", "Run: that")


@pytest.mark.slow
def test_the_whole_demo_prints_its_tables_and_its_decoder_beats_bigrams(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anisoscope", "demo", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "From step 0 to step 250" in done.stdout
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    run = Run.open(tmp_path / "demo" / "decoder")
    losses = (tmp_path / "demo" / "decoder" / "losses.jsonl").read_text().splitlines()
    assert '"step": 250' in losses[-1]
    assert float(losses[-1].rsplit(" ", 1)[1].rstrip("}")) < run.info["baselines"]["bigram"] - 0.3
