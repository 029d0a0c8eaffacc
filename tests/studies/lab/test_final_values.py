"""Numbers at the end of a training, read from its run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from anisoscope.records import Record
from anisoscope.store.run import Run
from anisoscope.studies.lab.factorial import factorial
from anisoscope.studies.lab.final_values import LOSS, final_effects, final_values
from anisoscope.studies.lab.train import Trained
from tests.lab_trainings import tiny

CARDS = {"two_nn": {"name": "two_nn", "headline": {"neighbours": "all"}}, "mean_cosine": {"name": "mean_cosine"}}


def finished(folder: Path, cosine: float, loss: float = 2.0, **switches: object) -> Trained:
    def record(site: str, metric: str, value: float, tokens: str = "no-sink", **facts: object) -> Record:
        return Record(site, metric, value, tokens=tokens, step=12, variant=facts)

    with Run.create(folder, {"metrics": CARDS}) as run:
        run.append([replace(record("resid.0", "mean_cosine", 0.9), step=6)])
        run.append([record("embed", "mean_cosine", 0.7), record("resid.0", "mean_cosine", 0.8, "all")])
        run.append([record("resid.0", "mean_cosine", cosine), record("resid.1", "mean_cosine", cosine + 0.2)])
        run.append([record("resid.0", "two_nn", 5.0, neighbours="other documents")])
        run.append([record("resid.0", "two_nn", 3.0, neighbours="all")])
        run.append([record("pattern.0", "sink_mass", 0.5, "all"), record("pattern.1", "sink_mass", 0.25, "all")])
    losses = [{"step": 12, "train": loss, "validation": loss}]
    return Trained(folder, tiny(**switches), 12, None, losses, {}, 0.0)


def test_metrics_are_those_of_the_last_step_without_sinks_averaged_over_layers(tmp_path: Path) -> None:
    values = final_values(finished(tmp_path / "run", 0.2), ["mean_cosine", "two_nn", "sink_mass", "isoscore"])
    assert values[LOSS] == 2.0
    assert values["mean_cosine"] == pytest.approx(0.3)
    assert values["two_nn"] == 3.0
    assert values["sink_mass"] == pytest.approx(0.375)  # of attention layers, which have no policy without sinks
    assert values["isoscore"] is None


def test_effects_use_complete_trainings_only(tmp_path: Path) -> None:
    design = factorial(tiny(), ["attention=softmax,uniform"])
    done = [
        finished(tmp_path / f"{name}-{seed}", 0.1 + 0.3 * (name == "uniform"), attention=name, seed=seed)
        for seed in range(3)
        for name in ("softmax", "uniform")
    ]
    found = final_effects(design, [(each.experiment, each) for each in done], ["mean_cosine"])
    assert list(found) == [LOSS, "mean_cosine"]
    (effect,) = found["mean_cosine"]
    assert effect.estimate is not None
    assert effect.estimate.value == pytest.approx(0.3)
    assert effect.interval is not None
    stopped = [replace(each, stopped="diverged") if n == 0 else each for n, each in enumerate(done)]
    (effect,) = final_effects(design, [(each.experiment, each) for each in stopped], ["mean_cosine"])["mean_cosine"]
    assert effect.estimate is not None
    assert effect.estimate.n == 2
    assert effect.interval is None
