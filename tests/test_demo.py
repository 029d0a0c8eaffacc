"""The demo: the story of three twins, from a training small enough for a test and from made-up lives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.cli.lab_tables import findings_table, losses_table, story_table
from anisoscope.records import Record
from anisoscope.store.run import Run
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.train import Told, Trained
from anisoscope.studies.story import Finding, Grown, bell, findings, grow, rows, spearman

TINY = {"layers": 3, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 6}


class Bars:
    """Notes what a progress bar would show."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    @contextmanager
    def __call__(self, name: str, steps: int) -> Iterator[Told]:
        yield lambda step, loss: self.told.append((name, step))


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Grown], Bars]:
    out, bars = tmp_path_factory.mktemp("demo"), Bars()
    return out, grow(out, bars, TINY), bars


def text_of(renderable: object, width: int = 80) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


def test_the_table_has_a_first_and_a_last_value_of_everything_for_every_twin(
    twins: tuple[Path, dict[str, Grown], Bars],
) -> None:
    _, grown, bars = twins
    table = rows(grown)
    assert [row.label.strip() for row in table][:2] == ["loss", "anisotropy λ1/Σλ"]
    for row in table:
        assert list(row.curves) == ["decoder", "causal-masked", "encoder"]
        for curve in row.curves.values():
            assert curve[0][0] == 0
            assert curve[-1][0] == (5 if row.label == "gradient in proxy" else 6), row.label
    assert {name for name, _ in bars.told} == set(grown)


def test_the_numbers_of_the_table_are_those_of_the_records(twins: tuple[Path, dict[str, Grown], Bars]) -> None:
    out, grown, _ = twins
    found = {row.label.strip(): row.curves["encoder"] for row in rows(grown)}
    frame = Run.open(out / "encoder").frame()
    last = frame[frame.step == 6]
    middle = last[(last.site == "resid.1") & (last.tokens == "all") & (last.metric == "spectral_anisotropy")]
    assert found["anisotropy λ1/Σλ"][-1][1] == pytest.approx(middle.value.item())
    heads = last[last.metric == "qk_cosine"]
    assert len(heads) == 6
    assert found["|cos(q̄, k̄)|"][-1][1] == pytest.approx(heads.value.abs().mean())
    assert set(last[last.error.notna()].metric) >= {"spectral_anisotropy", "mean_cosine"}


def test_everything_fits_into_eighty_columns(twins: tuple[Path, dict[str, Grown], Bars]) -> None:
    _, grown, _ = twins
    table = text_of(story_table(rows(grown), grown))
    assert "…" not in table
    assert "From step 0 to step 6" in table
    assert f"unigrams {grown['decoder'].trained.baselines['unigram']:.2f}" in table
    claims = text_of(findings_table(findings(grown)))
    assert all(name in claims for name in ("S1", "S2", "S5", "S6", "A1", "A5", "T1", "T4"))
    summary = {"name": "decoder", "step": 6, "stopped": None, "train": None, "validation": 4.5, "seconds": 1.0}
    assert "4.500" in text_of(losses_table([summary | {"unigram": 3.0, "bigram": 2.0}]))


def test_a_second_call_reads_what_the_first_one_trained(twins: tuple[Path, dict[str, Grown], Bars]) -> None:
    out, grown, _ = twins
    bars = Bars()
    again = grow(out, bars, TINY)
    assert bars.told == []
    assert rows(again) == rows(grown)


# --- lives with known answers ---

STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 99, 100)


def life(
    *,
    profile: list[float],
    dimension: list[float] | None = None,
    growth: float = 1.0,
    entropy: tuple[float, float] = (1.0, 0.5),
    energy: tuple[float, float] = (0.6, 0.3),
) -> Grown:
    """A model of six layers whose anisotropy grows towards a profile; chance is 0.125 for the gradients."""
    records = []
    for place, step in enumerate(STEPS):
        done = (place + 1) / len(STEPS) if growth > 0 else 1 - place / len(STEPS)
        for layer, height in enumerate(profile):
            for tokens in ("all", "no-sink"):
                records.append(Record(f"resid.{layer}", "spectral_anisotropy", height * done, step=step, tokens=tokens))
                records.append(Record(f"resid.{layer}", "mean_cosine", 0.5 * done, step=step, tokens=tokens))
                for which in ("all", "other documents"):
                    value = (dimension or [1.0] * len(STEPS))[place]
                    variant = {"neighbours": which}
                    records.append(Record(f"resid.{layer}", "two_nn", value, step=step, tokens=tokens, variant=variant))
            sharp = entropy[0] + (entropy[1] - entropy[0]) * done
            records.append(Record(f"pattern.{layer}", "attention_entropy", sharp, step=step, index=0))
            records.append(Record(f"pattern.{layer}", "qk_cosine", -done, step=step, index=0))
            inside = energy[0] if step <= 33 else energy[1]
            grad = {"site": f"grad.resid.{layer}", "step": step, "index": 8}
            records.append(Record(metric="gradient_energy", value=inside, null=0.125, **grad))  # type: ignore[arg-type]
            records.append(Record(metric="gradient_enrichment", value=inside / 0.125, **grad))  # type: ignore[arg-type]
            records.append(Record(f"grad.resid.{layer}", "spectral_anisotropy", 0.9, step=step))  # not an activation's
    by_metric: dict[str, list[Record]] = {}
    for record in records:
        by_metric.setdefault(record.metric, []).append(record)
    experiment = changed(Experiment(), {"layers": 6, "steps": 100})
    return Grown(Trained(Path("run"), experiment, 100, None, [], {}, 0.0), by_metric)


BELL, FLAT = [0.1, 0.4, 0.9, 0.9, 0.4, 0.1], [0.2] * 6
UP_AND_DOWN = [2.0, 3.0, 4.0, 6.0, 8.0, 9.0, 8.0, 7.0, 6.0, 5.0]


def verdicts(decoder: Grown, masked: Grown, encoder: Grown) -> dict[str, Finding]:
    return {f.claim: f for f in findings({"decoder": decoder, "causal-masked": masked, "encoder": encoder})}


def test_lives_as_the_papers_tell_them_agree_with_every_claim() -> None:
    decoder = life(profile=BELL, dimension=UP_AND_DOWN)
    found = verdicts(decoder, decoder, life(profile=FLAT))
    assert all(finding.published for finding in found.values())
    assert all(finding.controlled is not False for finding in found.values())
    assert found["S1"].seen == "bell +0.80 in the decoder; range 0.00 in the encoder"


def test_lives_that_tell_another_story_disagree() -> None:
    flat = life(profile=FLAT, growth=-1.0, dimension=UP_AND_DOWN[5:] + [1.0] * 5, entropy=(0.5, 1.0), energy=(0.1, 0.3))
    found = verdicts(flat, flat, life(profile=BELL))
    assert not any(finding.published for finding in found.values() if finding.claim != "A1")
    assert not any(finding.controlled for finding in found.values())


def test_a_mask_that_changes_nothing_is_not_blamed_for_the_objective() -> None:
    found = verdicts(life(profile=BELL), life(profile=FLAT), life(profile=FLAT))
    assert found["S6"].published
    assert not found["S6"].controlled


def test_a_bell_stands_above_both_ends() -> None:
    assert bell(BELL) == pytest.approx(0.8)
    assert bell([0.9, 0.8, 0.7, 0.6, 0.5, 0.4]) == pytest.approx(-0.25)
    assert bell([0.1, 0.5, 0.9]) == pytest.approx(-0.4)
    assert spearman([1.0, 2.0, 3.0, 4.0]) == 1
    assert spearman([4.0, 3.0, 2.0, 1.0]) == -1


# --- as a user meets it ---


def test_clouds_are_a_demo_of_their_own(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--clouds", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    assert "sphere" in done.stdout
    assert (tmp_path / "clouds.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_whole_demo_tells_its_story_and_its_decoder_beats_counting(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anisoscope", "demo", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "From step 0 to step 250" in done.stdout
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    run = Run.open(tmp_path / "demo" / "decoder")
    losses = (tmp_path / "demo" / "decoder" / "losses.jsonl").read_text().splitlines()
    assert '"step": 250' in losses[-1]
    assert float(losses[-1].rsplit(" ", 1)[1].rstrip("}")) < run.info["baselines"]["bigram"] - 0.3
