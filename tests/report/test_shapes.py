"""The shape of records chooses the chart."""

from __future__ import annotations

import pytest

from anisoscope.records import Record
from anisoscope.report.shapes import choose, distinct, drawable, fitting_kinds, shape_of
from anisoscope.report.tables import depths_of, of_metric, table_of
from anisoscope.store.run import Run
from tests import report_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return runs.make_run(tmp_path_factory.mktemp("charts") / "exp", runs.every_shape())


def kinds_of(records: list[Record]) -> tuple[str, ...]:
    return choose(shape_of(runs.frame_of(records)))


def test_layers_alone_are_a_profile() -> None:
    assert kinds_of([r for r in runs.profiles() if r.metric == "two_nn"]) == ("profile",)


def test_layers_and_steps_are_a_profile_a_line_over_steps_and_a_map() -> None:
    records = [r for r in runs.profiles((0, 10)) if r.metric == "two_nn"]
    assert kinds_of(records) == ("profile", "steps", "map")


def test_heads_are_a_heat_map_for_any_metric() -> None:
    records = [Record(f"pattern.{i}", "never_seen_before", 0.5, index=h) for i in range(2) for h in range(3)]
    assert kinds_of(records)[0] == "heads"


def test_heads_of_q_sites_are_heads_too() -> None:
    records = [Record(f"q.{i}.{h}", "mean_cosine", 0.5) for i in range(2) for h in range(3)]
    assert kinds_of(records)[0] == "heads"


def test_pairs_of_layers_of_two_models_are_a_heat_map() -> None:
    pairs = [(i, j) for i in range(3) for j in range(2)]
    records = [Record(f"resid.{i}", "layer_cka", 0.5, variant={"other": f"resid.{j}"}) for i, j in pairs]
    assert kinds_of(records) == ("pairs", "profile")


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        ("spectrum", "curve"),
        ("gride", "curve"),
        ("removal_curve", "curve"),
        ("cosine_contribution", "spikes"),
        ("gradient_energy", "levels"),
        ("gradient_along_axis", "against"),
        ("mean_direction_drift", "profile"),
        ("verdict", "verdicts"),
    ],
)
def test_the_shape_of_the_records_chooses_the_chart(run: Run, metric: str, kind: str) -> None:
    table = table_of([run])
    assert choose(shape_of(of_metric(table, metric), depths_of(table)))[0] == kind


def test_two_indices_are_a_choice_and_not_a_curve() -> None:
    records = [Record(f"resid.{i}", "m", 1.0, index=k) for i in range(3) for k in (8, 16)]
    assert kinds_of(records) == ("profile",)


def test_a_single_number_is_a_point() -> None:
    assert kinds_of([Record("vectors", "isoscore", 0.5)]) == ("points",)


def test_a_row_without_a_layer_has_no_mark_over_layers() -> None:
    records = [*(Record(f"resid.{i}", "m", 1.0) for i in range(3)), Record("weight.head", "m", 1.0)]
    table = runs.frame_of(records)
    assert set(drawable(table, "profile")["site"]) == {"resid.0", "resid.1", "resid.2"}
    assert len(drawable(table, "points")) == 4


def test_only_rows_with_a_stratum_have_a_mark_by_stratum() -> None:
    table = runs.frame_of(runs.gradients((0,)))
    shown = drawable(of_metric(table, "gradient_energy"), "strata")
    assert len(shown)
    assert all("stratum" in text for text in shown["variant"])


def test_zeros_have_no_mark_on_a_log_axis() -> None:
    table = runs.frame_of([Record("resid.0", "m", value, index=k) for k, value in enumerate((1.0, 0.1, 0.001, 0.0))])
    assert list(drawable(table, "curve")["value"]) == [1.0, 0.1, 0.001]


def test_a_kind_without_a_single_mark_is_left_out() -> None:
    """Layers and steps vary, but no record has a value at a layer."""
    records = [Record(f"resid.{i}", "m", None) for i in range(3)] + [Record("weight.head", "m", 1.0)]
    assert list(fitting_kinds(runs.frame_of(records))) == ["points"]


def test_distinct_sorts_numbers_before_texts() -> None:
    assert distinct([3, None, "b", 1.5, "a", 3]) == (1.5, 3, "b", "a")


def test_two_axes_over_steps_are_a_path() -> None:
    records = runs.paths()
    assert kinds_of(records)[0] == "path"
    assert "path" not in kinds_of([record for record in records if record.variant["axis"] == 1])
