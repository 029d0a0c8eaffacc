"""Gradients against the bases that are fitted on held-out tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anisoscope import InputError, Run
from anisoscope.records import Site
from anisoscope.schedule import every
from anisoscope.tangent import Tangent
from anisoscope.tangent.gradient_records import ENERGY_NULLS
from tests.oracles.hidden_gradients import hidden_gradients, pca_energy
from tests.training import (
    LAYERS,
    WIDTH,
    records,
    small_model,
    tracked,
    train,
    value,
    words,
)

FEW: dict[str, Any] = {"metrics": ["mean_cosine"], "bars_every": None}  # cheap: these tests use only gradients


def test_an_overflow_of_the_loss_scale_is_recorded(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, **FEW) as tracker:
        tracker.probe(0)
        (model(**words(0)).loss * float("inf")).backward()
        tracker.watch(0)
    found = records(tmp_path, site="grad.resid.1")
    assert [(r.metric, r.value) for r in found] == [("gradient_norm", None)]
    assert "NaN or Inf" in (found[0].note or "")


def test_energy_inside_the_pca_basis_is_that_of_numpy_and_its_null_is_chance(tmp_path: Path) -> None:
    model = small_model()
    kept: dict[str, Any] = {}
    with tracked(tmp_path, model, tangent=Tangent(ranks=[4], nulls=["orientation"])) as tracker:
        train(model, tracker, range(1))
        run = Run.open(tmp_path / "run")
        for step, site, tokens, _ in run.statistics():
            if tokens == "reference" and Site.parse(site).kind == "resid":
                kept[site] = run.load_statistics(step, site, tokens)["Sample/x"]
    again = small_model()
    torch.manual_seed(7)
    for layer, g in enumerate(hidden_gradients(again, again.transformer.h, [words(0)])):
        h = kept[f"resid.{layer}"].astype(np.float64)
        (energy,) = records(tmp_path, site=f"grad.resid.{layer}", metric="gradient_energy")
        expected = pca_energy(h, g, 4)
        assert energy.value == pytest.approx(expected, rel=1e-4)
        assert energy.null == pytest.approx(4 / WIDTH)
        assert energy.index == 4
        assert dict(energy.variant) == {"proxy": "pca", "gradient": "hidden", "basis": "refreshed", "rows": "plain"}
        assert value(tmp_path, site=f"grad.resid.{layer}", metric="gradient_enrichment") == pytest.approx(
            expected / (4 / WIDTH), rel=1e-4
        )


def test_every_null_that_needs_only_sums_is_available_and_others_are_refused(tmp_path: Path) -> None:
    model = small_model()
    with tracked(tmp_path, model, **FEW, tangent=Tangent(ranks=[4])) as tracker:
        train(model, tracker, range(1))
    excess = records(tmp_path, site="grad.resid.1", metric="gradient_excess")
    nulls = {r.variant["null"]: r.value for r in excess}
    assert set(nulls) == {null.name for null in ENERGY_NULLS}
    energy = value(tmp_path, site="grad.resid.1", metric="gradient_energy")
    assert nulls["orientation"] == pytest.approx(energy - 4 / WIDTH)
    for p in records(tmp_path, metric="gradient_p"):
        assert p.value is not None
        assert 0 <= p.value <= 1
    with pytest.raises(InputError, match="The null local_test needs more than the sums"):
        tracked(tmp_path / "other", model, tangent=Tangent(nulls=["local_test"]))


def test_bases_freeze_after_their_share_of_the_steps_and_survive_a_restart(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        **FEW,
        "tangent": Tangent(ranks=[4], nulls=["orientation"], frozen_after=0.4, total_steps=10),
    }
    model = small_model()
    with tracked(tmp_path, model, **options) as tracker:
        train(model, tracker, range(7))

    def frozen(step: int) -> list[float | None]:
        found = records(tmp_path, step=step, metric="gradient_energy")
        return [r.value for r in found if r.variant["basis"] == "frozen"]

    assert [len(frozen(step)) for step in (0, 2, 4, 6)] == [0, 0, LAYERS, LAYERS]
    before = frozen(6)
    assert before != [
        r.value for r in records(tmp_path, step=6, metric="gradient_energy") if r.variant["basis"] == "refreshed"
    ]
    # the same weights at step 6 again, by way of a restart at 5: the basis is still that of step 4
    again = small_model()
    with tracked(tmp_path, again, **{**options, "schedule": every(100)}, resume=5):
        pass
    restarted = tracked(tmp_path, again, **options, resume=5)
    assert set(restarted._fits.bases.frozen) == {Site("resid", i) for i in range(LAYERS)}
    restarted.close()
