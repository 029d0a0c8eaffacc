"""Loggers: each receives every value under a name of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import anisoscope
from anisoscope import InputError, Record, Run, Tracker
from anisoscope.integrations.logged_values import by_step, flat_name, heat_maps, name_of, summarised
from anisoscope.schedule import every
from tests.training import held_out, small_model, words

RECORDS = [
    Record("resid.0", "isoscore", 0.25, step=7, tokens="no-sink"),
    Record("pattern.1", "attention_entropy", 0.5, step=7, index=3),
    Record("grad.resid.0", "gradient_energy", 0.125, step=7, index=8, variant={"proxy": "pca", "basis": "frozen"}),
    Record("resid.0", "two_nn", None, step=7, note="no value"),
]
NAMES = {
    "geometry/isoscore/resid.0/no-sink": 0.25,
    "geometry/attention_entropy/pattern.1/3": 0.5,
    "geometry/gradient_energy/grad.resid.0/frozen/pca/8": 0.125,
}


def test_records_become_named_values_by_step() -> None:
    assert by_step(RECORDS, detail=True) == [(7, NAMES)]


LAYERS = [Record(f"resid.{i}", "isoscore", value, step=7) for i, value in enumerate((0.1, 0.4, 0.2))]
HEADS = [Record(f"pattern.{i}", "sink_mass", 0.1 * i + 0.01 * h, step=7, index=h) for i in range(2) for h in range(4)]
RANKS = [Record("grad.resid.0", "gradient_energy", 0.5, step=7, index=rank) for rank in (8, 32)]
LOOP = [Record("loop", "train_loss", 3.5, step=7)]


def test_layers_and_heads_are_summarised_and_ranks_and_the_loop_are_not() -> None:
    assert dict(summarised([*LAYERS, *HEADS, *RANKS, *LOOP])) == {
        "geometry/isoscore/resid/min": 0.1,
        "geometry/isoscore/resid/median": 0.2,
        "geometry/isoscore/resid/max": 0.4,
        "geometry/sink_mass/pattern/min": 0.0,
        "geometry/sink_mass/pattern/median": pytest.approx(0.065),
        "geometry/sink_mass/pattern/max": pytest.approx(0.13),
        "geometry/gradient_energy/grad.resid.0/8": 0.5,
        "geometry/gradient_energy/grad.resid.0/32": 0.5,
        "geometry/train_loss/loop": 3.5,
    }


def test_a_summary_has_one_token_policy_per_metric_and_site() -> None:
    both = [Record("embed", "isoscore", value, tokens=tokens) for tokens, value in (("all", 0.1), ("no-sink", 0.2))]
    undefined = Record("final", "isoscore", None, tokens="no-sink", note="too few rows")
    found = dict(summarised([*both, Record("final", "isoscore", 0.3), undefined]))
    assert found == {"geometry/isoscore/embed/no-sink": 0.2, "geometry/isoscore/final": 0.3}
    assert len(by_step(both, detail=True)[0][1]) == 2


def test_concepts_are_summarised_over_their_numbers_which_layers_do_not_share() -> None:
    concepts = [
        Record(f"resid.{layer}", "concept_share", 0.1 * index, index=index) for layer in range(2) for index in range(3)
    ]
    assert dict(summarised(concepts)) == {
        "geometry/concept_share/resid/min": 0.0,
        "geometry/concept_share/resid/median": 0.1,
        "geometry/concept_share/resid/max": 0.2,
    }


def test_a_step_logs_a_bounded_number_of_curves_whatever_the_number_of_layers() -> None:
    def curves(layers: int) -> int:
        metrics = ("isoscore", "mean_cosine")
        return len(dict(summarised([Record(f"resid.{i}", m, 0.5) for i in range(layers) for m in metrics])))

    assert curves(96) == curves(6) == 6


def test_a_metric_of_heads_becomes_one_image_with_layers_from_the_bottom_up() -> None:
    ((step, image),) = heat_maps([*LAYERS, *HEADS])
    assert (step, image.name) == (7, "geometry/maps/sink_mass")
    assert image.pixels.shape == (2 * 12, 4 * 12, 3)
    assert image.pixels[-1, 0].tolist() == [68, 1, 84]  # the smallest value: layer 0, head 0
    assert image.pixels[0, -1].tolist() == [253, 231, 37]  # the largest: layer 1, head 3
    assert image.caption == "0 (dark) to 0.13 (light)"


def test_no_two_records_of_a_step_share_a_name(tmp_path: Path) -> None:
    model = small_model()
    with Tracker(model, held_out(), tmp_path / "run", schedule=every(1)) as tracker:
        tracker.probe(0)
        model(**words(0)).loss.backward()
        tracker.watch(0, loss=1.0)
    found = list(Run.open(tmp_path / "run").records())
    assert len({name_of(record) for record in found}) == len(found)
    flat = {flat_name(name_of(record)) for record in found}
    assert len(flat) == len(found)
    assert not [name for name in flat if any(other.startswith(f"{name}/") for other in flat)]


def test_tensorboard_receives_every_value_and_heat_maps(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = anisoscope.integrations.to_tensorboard(tmp_path / "events", detail=True)
    log(RECORDS)
    anisoscope.integrations.to_tensorboard(tmp_path / "maps")(HEADS)
    maps = accumulator.EventAccumulator(str(tmp_path / "maps"))
    maps.Reload()
    assert maps.Tags()["images"] == ["geometry/maps/sink_mass"]
    events = accumulator.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]} == NAMES
    assert events.Scalars("geometry/isoscore/resid.0/no-sink")[0].step == 7


def test_mlflow_receives_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs the full package
    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    both = [*RECORDS, Record("resid.0", "isoscore", 0.75, step=7)]  # a file and a folder of the same name, if nested
    with mlflow.start_run() as run:
        anisoscope.integrations.to_mlflow(detail=True)(both)
    found = mlflow.get_run(run.info.run_id).data.metrics
    names = {flat_name(name): value for name, value in NAMES.items()}
    assert found == {**names, "geometry/isoscore/resid.0": 0.75}


def test_wandb_receives_every_value_against_its_own_step_metric() -> None:
    defined: list[tuple[str, ...]] = []
    logged: list[dict[str, float]] = []
    run = SimpleNamespace(log=logged.append, define_metric=lambda *names, **by: defined.append((*names, *by.values())))
    log = anisoscope.integrations.to_wandb(run, detail=True, images=False)
    log(RECORDS)
    log(RECORDS)
    assert defined == [("geometry/*", "geometry/step")]
    assert logged == [{**NAMES, "geometry/step": 7}] * 2


def test_wandb_without_a_run_is_an_error_that_names_the_missing_call() -> None:
    pytest.importorskip("wandb")
    with pytest.raises(InputError, match=r"wandb\.init"):
        anisoscope.integrations.to_wandb()(RECORDS)


def test_trackio_receives_every_value_and_heat_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, Any]] = []
    stand_in: Any = ModuleType("trackio")
    stand_in.log, stand_in.Image = logged.append, lambda pixels, caption: (pixels.shape, caption)
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    anisoscope.integrations.to_trackio(detail=True)(RECORDS)
    assert logged == [{**NAMES, "geometry/step": 7}]
    anisoscope.integrations.to_trackio()(HEADS)
    assert logged[-1] == {"geometry/maps/sink_mass": ((24, 48, 3), "0 (dark) to 0.13 (light)"), "geometry/step": 7}


def test_the_real_trackio_accepts_values_and_heat_maps(tmp_path: Path) -> None:
    """In a process of its own: the library reads its folder from the environment once."""
    pytest.importorskip("trackio", reason="trackio is not installed")
    code = """
import trackio
from anisoscope.integrations import to_trackio
from tests.integrations.test_loggers import HEADS, RECORDS
trackio.init("test")
to_trackio(detail=True)(RECORDS)
to_trackio()(HEADS)
trackio.finish()
from trackio.sqlite_storage import SQLiteStorage
print([sorted(key for key in row if "/" in key) for run in SQLiteStorage.get_runs("test")
       for row in SQLiteStorage.get_logs("test", run)])
"""
    folder = {**os.environ, "TRACKIO_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=folder, check=True)
    for name in (*NAMES, "geometry/maps/sink_mass"):
        assert name in done.stdout


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(InputError, match="pip install trackio"):
        anisoscope.integrations.to_trackio()


def test_importing_the_integrations_loads_none_of_the_libraries() -> None:
    heavy = "('torch', 'transformers', 'lightning', 'wandb')"
    code = f"import sys, anisoscope.integrations; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
