"""The tiles of a report."""

from __future__ import annotations

from pathlib import Path

from anisoscope.records import Record
from anisoscope.report.reported_run import page_kind, reported_runs
from anisoscope.report.tiles import MOST, Tile, svg_path, tiles_of
from tests import report_runs as runs


def tiles(folder: Path, **by_name: list[Record]) -> list[Tile]:
    found = reported_runs([runs.make_run(folder / name, records) for name, records in by_name.items()])
    return tiles_of(found, page_kind(found))


def test_a_tile_shows_what_sink_tokens_change(tmp_path: Path) -> None:
    first = tiles(tmp_path, a=runs.profiles())[0]
    assert first.metric == "spectral_anisotropy"
    assert "→ 10 %" in first.value
    assert "first and massive tokens" in first.detail
    assert len(first.curve) == len(first.ghost) == len(first.null) == runs.LAYERS + 2


def test_at_most_five_tiles_are_shown(tmp_path: Path) -> None:
    metrics = ("spectral_anisotropy", "mean_cosine", "participation_ratio", "two_nn", "isoscore", "effective_rank")
    records = [Record(site, metric, 0.5) for metric in metrics for site in runs.sites()]
    assert len(tiles(tmp_path, a=[*records, *runs.heads()])) == MOST


def test_several_runs_have_one_value_each(tmp_path: Path) -> None:
    found = tiles(tmp_path, a=runs.profiles(), b=runs.profiles(scale=0.5))
    assert [name for name, _ in found[0].parts] == ["a", "b"]


def test_a_training_has_its_loss_first_and_then_its_alerts(tmp_path: Path) -> None:
    losses = [Record("loop", "validation_loss", 4.0 - step / 100, step=step) for step in (0, 100)]
    alert = Record("resid.1", "alert", 0.6, step=100, variant={"rule": "r"}, note="n")
    found = tiles(tmp_path, a=[*runs.profiles((0, 100)), *losses, alert])
    assert [tile.metric for tile in found[:3]] == ["validation_loss", "alert", "spectral_anisotropy"]
    assert found[0].value == "4 → 3"


def test_unknown_metrics_have_tiles_too(tmp_path: Path) -> None:
    assert [tile.value for tile in tiles(tmp_path, a=[Record("resid.0", "mine", 0.25)])] == ["0.25"]


def test_all_curves_of_a_tile_share_one_scale() -> None:
    assert svg_path([0.0, 1.0], [0.0, 1.0]) == "M0.0,27.0L100.0,3.0"
    assert svg_path([0.0, 1.0], [0.0, 2.0]) == "M0.0,27.0L100.0,15.0"
