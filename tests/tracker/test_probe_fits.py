"""Bases and concepts in a real training: off by default, invisible, repeatable, and continued after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope import Record, Run, Tracker, recompute
from anisoscope.schedule import every
from anisoscope.tracker.concept_history import ConceptHistory
from tests.training import LAYERS, held_out, records, small_model, train, words

CONCEPTS: dict[str, Any] = {
    "concepts": 4,
    "metrics": ["mean_cosine"],
    "gradients": False,
    "schedule": every(2),
    "bars_every": None,
    "scalars": False,
}


def follow(folder: Path, steps: range = range(6), **options: Any) -> Any:
    model = small_model()
    with Tracker(model, held_out(16), folder / "run", **{**CONCEPTS, **options}) as tracker:
        train(model, tracker, steps)
    return model


def of_concepts(folder: Path) -> list[Record]:
    return [r for r in records(folder) if r.metric.startswith("concept")]


def test_concepts_cost_nothing_unless_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConceptHistory, "update", None)
    follow(tmp_path, concepts=0)
    assert not of_concepts(tmp_path)
    assert not [tokens for _, _, tokens, _ in Run.open(tmp_path / "run").statistics() if tokens == "concepts"]


def test_every_residual_site_has_concepts_and_the_weights_stay_bit_identical(tmp_path: Path) -> None:
    alone = small_model()
    train(alone, None, range(6))
    followed = follow(tmp_path, tokenizer=lambda ids: f"w{ids[0]}")
    assert all(torch.equal(x, followed.state_dict()[name]) for name, x in alone.state_dict().items())
    found = of_concepts(tmp_path)
    assert {(r.site, r.step) for r in found if r.metric == "concept_stability"} == {
        (f"resid.{layer}", step) for layer in range(LAYERS) for step in (0, 2, 4)
    }
    assert all(r.value is not None for r in found)
    shares = [r for r in found if r.metric == "concept_share"]
    assert shares
    assert all(r.note is not None and r.note.startswith("'w") and r.tokens == "no-sink" for r in shares)
    assert set(Run.open(tmp_path / "run").metrics()) >= {r.metric for r in found}


def test_two_trainings_with_the_same_seeds_have_the_same_concepts(tmp_path: Path) -> None:
    follow(tmp_path / "a")
    follow(tmp_path / "b")
    assert of_concepts(tmp_path / "a") == of_concepts(tmp_path / "b")


def test_a_restarted_training_continues_its_concepts(tmp_path: Path) -> None:
    follow(tmp_path / "whole", range(8))
    model = small_model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(7)
    for steps, resume in ((range(4), None), (range(4, 8), 4)):
        with Tracker(model, held_out(16), tmp_path / "parts" / "run", resume=resume, **CONCEPTS) as tracker:
            for step in steps:
                tracker.probe(step)
                model(**words(100 * step)).loss.backward()
                tracker.watch(step)
                optimiser.step()
                optimiser.zero_grad()
    assert of_concepts(tmp_path / "parts") == of_concepts(tmp_path / "whole")


def test_a_run_with_concepts_can_be_recomputed(tmp_path: Path) -> None:
    follow(tmp_path, sites=["resid"])
    recompute(tmp_path / "run", ["two_nn"])
    assert "two_nn" in Run.open(tmp_path / "run").metrics()


def test_concepts_that_fail_are_recorded_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(ConceptHistory, "update", fail)
    follow(tmp_path)
    assert {r.note for r in of_concepts(tmp_path)} == {"RuntimeError: no memory"}
    assert records(tmp_path, metric="mean_cosine")
    with pytest.raises(RuntimeError, match="no memory"):
        follow(tmp_path / "strict", strict=True)
