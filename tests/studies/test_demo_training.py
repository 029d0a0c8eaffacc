"""The demo: two trainings small enough for a test, and made-up curves with known answers."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from anisoscope.cli.claims_page import write_claims_page
from anisoscope.cli.demo_view import CurvesDisplay, curves_view, judged_view
from anisoscope.errors import StoreError
from anisoscope.studies.claims.conditions import UNTESTABLE
from anisoscope.studies.claims.judging import judge
from anisoscope.studies.demo_curves import (
    RANK,
    DemoMeasurement,
    demo_measurement,
    gradient_energies,
    log_enrichment,
    read_measurements,
)
from anisoscope.studies.demo_training import (
    DemoTraining,
    curves_file,
    demo_evidence,
    keep_demo_evidence,
    measured_steps,
    read_trainings,
    train_side_by_side,
)
from anisoscope.studies.lab.transformer import Config, Transformer

TINY = {"layers": 3, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 6}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, DemoTraining]]:
    out = tmp_path_factory.mktemp("demo")
    return out, train_side_by_side(out, TINY, on_change=lambda _: None)


def text_of(renderable: object, width: int = 100) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


def test_both_models_are_measured_at_every_step_and_judged(demo: tuple[Path, dict[str, DemoTraining]]) -> None:
    out, trainings = demo
    for name, training in trainings.items():
        assert [each.step for each in training.measurements] == list(measured_steps(6))
        assert all(len(each.profile) == 7 for each in training.measurements)
        assert all(bool(each.energy) == (name == "decoder") for each in training.measurements)
    evidence = demo_evidence(trainings)
    judged = [(claim, judge(claim, each)) for claim, each in evidence]
    assert [claim.id for claim, _ in judged] == ["T4", "S1", "S2"]
    assert {verdict.outcome for _, pair in judged for verdict in pair} == {UNTESTABLE}  # six steps teach nothing
    assert "Step 6 of 6" in text_of(curves_view(trainings, 6))
    assert "intrinsic dimension (S2)" in text_of(judged_view(judged))
    for _ in range(2):  # the second time replaces the first
        run = keep_demo_evidence(out / "claims", evidence)
        assert len(list(run.records())) == 6
    page = write_claims_page(run.path, out / "curves.html").read_text()
    assert page.count("<svg") == 3
    assert "GPT-2, published" in page
    again = train_side_by_side(out, TINY, on_change=lambda _: None)  # reads what is there
    assert again == trainings
    with pytest.raises(StoreError, match=r"steps \(6 before, 7 now\)"):
        train_side_by_side(out, {**TINY, "steps": 7}, on_change=lambda _: None)


def test_without_a_terminal_each_measurement_is_one_line(demo: tuple[Path, dict[str, DemoTraining]]) -> None:
    out, _ = demo
    stream = StringIO()
    with CurvesDisplay(Console(file=stream, width=200), 6) as display:
        display(read_trainings(out))
        display(read_trainings(out))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 * len(measured_steps(6))
    assert any(line.startswith("decoder step 6: loss ") and "× chance" in line for line in lines)


def model() -> Transformer:
    return Transformer(Config(vocabulary=20, width=32, layers=3, heads=2, context=16), seed=3)


def test_gradient_energy_is_that_of_a_direct_computation() -> None:
    """One group of windows, gradients by a leaf in the middle of the network."""
    network, ids = model().eval(), torch.randint(0, 20, (4, 16), generator=torch.Generator().manual_seed(0))
    q = torch.linalg.qr(torch.randn(32, RANK, generator=torch.Generator().manual_seed(1)))[0]
    energies = gradient_energies(network, ids, [q, q, q])
    assert len(energies) == 4
    x = network.tokens(ids[:1])
    x = network.blocks[0](x, network.rotation, None).detach().requires_grad_()
    y = network.blocks[2](network.blocks[1](x, network.rotation, None), network.rotation, None)
    logits = network.head(network.final_norm(y))
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:1, 1:].flatten()).backward()
    assert x.grad is not None
    wanted = float((x.grad @ q).square().sum() / x.grad.square().sum())
    assert energies[0][0] == pytest.approx(wanted, rel=1e-3)
    assert all(parameter.grad is None or parameter.grad is not x.grad for parameter in network.parameters())


def test_measuring_leaves_the_model_as_it_was() -> None:
    network, ids = model().train(), torch.randint(0, 20, (16, 16), generator=torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    look = demo_measurement(network, ids, 5)
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert look.step == 5
    assert look.enrichment is not None


def test_enrichment_is_one_at_chance_and_half_written_lines_are_ignored(tmp_path: Path) -> None:
    assert log_enrichment([RANK / 64] * 3, 64) == pytest.approx(0)
    path = curves_file(tmp_path, "decoder")
    path.write_text(
        '{"step": 1, "profiles": [[0.1]], "dimension": [2.0], "dimension_paper": [3.0], "energy": []}\n{"st'
    )
    (only,) = read_measurements(path)
    assert only == DemoMeasurement(1, [[0.1]], [2.0], [3.0], [])


@pytest.mark.slow
def test_the_whole_demo_shows_its_curves_and_its_decoder_beats_bigrams(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anisoscope", "demo", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stderr
    assert "Step 2,000 of 2,000" in done.stdout
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    decoder = read_trainings(tmp_path / "demo")["decoder"]
    assert decoder.loss is not None
    assert decoder.loss < 2.57 - 0.3
