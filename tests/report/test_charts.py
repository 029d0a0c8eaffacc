"""Charts of records: what they draw, and which requests are refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import vl_convert
from scipy import stats

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.report.charts import DRAWN, filled, plot, spec_of, style_of, with_series
from anisoscope.report.lines import ChartStyle
from anisoscope.report.shapes import KINDS, choose, drawable, fitting_kinds, shape_of
from anisoscope.report.tables import depths_of, of_metric, rows_of, table_of
from anisoscope.store.run import Run
from tests import report_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return runs.make_run(tmp_path_factory.mktemp("charts") / "exp", runs.every_shape())


def test_every_kind_is_valid_vega_lite() -> None:
    for kind in KINDS:
        for style in (
            ChartStyle(kind),
            ChartStyle(kind, "run"),
            ChartStyle(kind, "layer", ordered=True, null=True, log_y=True),
        ):
            DRAWN[kind](style).to_dict(validate=True)


def test_every_kind_draws_the_records_that_it_fits(run: Run) -> None:
    table = table_of([run])
    fitting = {
        kind: metric
        for metric in run.metrics()
        for kind in choose(shape_of(of_metric(table, metric), depths_of(table)))
    }
    assert set(fitting) == set(KINDS) - {"points"}
    for kind, metric in fitting.items():
        svg = io.StringIO()
        run.plot(metric, kind=kind).save(svg, format="svg")
        assert "mark-" in svg.getvalue(), (metric, kind)
        assert "NaN" not in svg.getvalue(), (metric, kind)


def test_a_profile_shows_values_bands_null_and_both_policies(run: Run) -> None:
    chart = run.plot("spectral_anisotropy", step=1000).to_dict()
    rows = chart["datasets"]["rows"]
    assert {row["tokens"] for row in rows} == {"all", "no-sink"}
    assert {row["step"] for row in rows} == {1000}
    marks = [layer["mark"]["type"] for layer in chart["layer"]]
    assert marks == ["area", "line", "line", "circle"]  # band, null, value, points
    top = max(rows, key=lambda row: row["value"])
    assert top["high"] - top["value"] == pytest.approx(0.01 * stats.t.ppf(0.975, 15), rel=1e-4)


def test_embed_is_before_the_first_layer_and_final_after_the_last(run: Run) -> None:
    rows = run.plot("two_nn", step=0).to_dict()["datasets"]["rows"]
    layers = {row["site"]: row["layer"] for row in rows}
    assert (layers["embed"], layers["resid.0"], layers["final"]) == (-1, 0, runs.LAYERS)


def test_step_zero_is_shown_on_the_log_axis(run: Run) -> None:
    rows = run.plot("mean_direction_drift", kind="steps").to_dict()["datasets"]["rows"]
    assert {row["at"] for row in rows if row["step"] == 0} == {0.5}
    assert all(row["at"] == row["step"] for row in rows if row["step"])


def test_energy_is_drawn_against_the_variance_along_the_same_axis(run: Run) -> None:
    rows = run.plot("gradient_along_axis", step=0).to_dict()["datasets"]["rows"]
    for row in rows:
        assert row["x"] == pytest.approx(row["index"] ** -1.2)


def test_strata_and_plain_energies_are_different_variants(run: Run) -> None:
    rows = run.plot("gradient_energy", kind="curve", colour="layer").to_dict()["datasets"]["rows"]
    assert {row["v_stratum"] for row in rows} == {"–"}
    assert len(rows) == runs.LAYERS * 4


def test_two_runs_differ_in_colour_and_token_policies_in_dash(tmp_path: Path) -> None:
    pair = [runs.make_run(tmp_path / name, runs.profiles()) for name in ("a", "b")]
    chart = plot(pair, "spectral_anisotropy").to_dict()
    assert {row["series"] for row in chart["datasets"]["rows"]} == {"a", "b"}
    assert any("strokeDash" in layer["encoding"] for layer in chart["layer"])


def test_what_is_picked_is_no_longer_a_colour(run: Run) -> None:
    rows = run.plot("two_nn", kind="steps", layer=3, tokens="all").to_dict()["datasets"]["rows"]
    assert {row["series"] for row in rows} == {"resid.3"}
    assert {row["tokens"] for row in rows} == {"all"}


def test_picks_that_no_record_has_together_are_refused(run: Run) -> None:
    with pytest.raises(InputError, match="no record has all of null haar, stratum rare"):
        run.plot("gradient_energy", null="haar", stratum="rare")


def test_an_unknown_metric_is_refused_with_similar_names(run: Run) -> None:
    with pytest.raises(InputError, match="Did you mean 'two_nn"):
        run.plot("two_n")


def test_a_kind_that_does_not_fit_is_refused_with_those_that_do(run: Run) -> None:
    with pytest.raises(InputError, match="kinds that fit: profile, steps, map"):
        run.plot("two_nn", kind="heads")


def test_a_pick_that_no_record_has_is_refused_with_existing_values(run: Run) -> None:
    with pytest.raises(InputError, match="existing values: 0, 1, 10, 100, 1000"):
        run.plot("two_nn", step=7)


def test_a_colour_that_does_not_fit_is_refused_with_those_that_do(run: Run) -> None:
    with pytest.raises(InputError, match="possible: tokens, training step"):
        run.plot("two_nn", colour="layer")
    with pytest.raises(InputError, match="No field of these records named 'hed'"):
        run.plot("attention_entropy", colour="hed")


def test_layers_and_keys_of_the_variant_are_picked_by_name(run: Run) -> None:
    rows = run.plot("gradient_energy", kind="curve", colour="step", layer=2, stratum="rare").to_dict()["datasets"][
        "rows"
    ]
    assert {(row["layer"], row["v_stratum"]) for row in rows} == {(2, "rare")}


def axis_of(chart: dict[str, Any], channel: str) -> dict[str, Any]:
    axis: dict[str, Any] = chart["layer"][-1]["encoding"][channel]["axis"]
    return axis


def test_an_axis_of_layers_has_whole_ticks_without_repeats() -> None:
    """Three layers: Vega's own choice was 0, 0.5, 1, 1.5, 2, named 0 1 1 2 2."""
    table = runs.frame_of([Record(f"resid.{i}", "m", 1.0 + i) for i in range(3)])
    for kind, (_, shape) in fitting_kinds(table).items():
        assert style_of(kind, shape, None).ticks == (0, 1, 2)
    deep = shape_of(runs.frame_of([Record(f"resid.{i}", "m", 1.0) for i in range(80)]))
    ticks = style_of("profile", deep, None).ticks
    assert len(ticks) < 20
    assert all(tick == int(tick) for tick in ticks)


def test_a_legend_of_layers_names_layers_only(run: Run) -> None:
    legend = run.plot("removal_curve", colour="layer").to_dict()["layer"][-1]["encoding"]["color"]["legend"]
    assert legend["values"] == [-1, 0, 1, 2, 3, 4, 5, 6]


def test_shares_are_in_percent_on_the_axis_as_in_the_table(run: Run) -> None:
    assert "%" in axis_of(run.plot("spectral_anisotropy").to_dict(), "y")["labelExpr"]
    assert "%" not in axis_of(run.plot("two_nn").to_dict(), "y")["labelExpr"]


def test_small_numbers_have_exponents_and_no_tick_reads_zero() -> None:
    """Probabilities of 1e-14 were drawn over ticks that all read 0.0000000000000."""
    records = [Record(f"resid.{i}", "gradient_p", 1e-14 * (1 + i)) for i in range(3)]
    table = runs.frame_of(records)
    _, shape = fitting_kinds(table)["profile"]
    spec = filled(spec_of(style_of("profile", shape, None)), with_series(rows_of(table), "profile", None), "m")
    svg = vl_convert.vegalite_to_svg(spec)
    assert "2e-14" in svg
    assert ">0.0000" not in svg


def test_probabilities_of_zero_are_drawn() -> None:
    records = [Record("resid.0", "gradient_p", p, index=k) for k, p in enumerate((0.0, 1e-9, 0.5), 1)]
    assert len(drawable(runs.frame_of(records), "curve")) == 3


def test_the_axis_of_values_names_the_metric_and_its_stream(tmp_path: Path) -> None:
    records = [Record(f"grad.resid.{i}", "participation_ratio", 10.0 + i) for i in range(3)]
    chart = runs.make_run(tmp_path / "exp", records).plot("participation_ratio").to_dict()
    assert chart["layer"][-1]["encoding"]["y"]["title"] == "participation_ratio of gradients"
    assert chart["title"]["text"] == "participation_ratio of gradients"


def test_dimensions_stand_at_their_own_distance(run: Run) -> None:
    assert run.plot("cosine_contribution").to_dict()["layer"][0]["encoding"]["x"]["type"] == "quantitative"


def test_a_run_keeps_its_colour_in_a_chart_of_another_metric(tmp_path: Path) -> None:
    """The order given decides, also where the first run lacks the metric."""
    first = runs.make_run(tmp_path / "z", [r for r in runs.profiles() if r.metric == "two_nn"])
    others = [runs.make_run(tmp_path / name, runs.profiles()) for name in ("b", "a")]
    for metric, present in (("two_nn", ["z", "b", "a"]), ("spectral_anisotropy", ["b", "a"])):
        colour = plot([first, *others], metric).to_dict()["layer"][-1]["encoding"]["color"]
        assert colour["scale"]["domain"] == ["z", "b", "a"]
        assert colour["legend"]["values"] == present


def test_specifications_are_copies() -> None:
    spec_of(ChartStyle("profile"))["layer"] = []
    assert spec_of(ChartStyle("profile"))["layer"]


def test_altair_reads_the_chart_back(run: Run) -> None:
    assert isinstance(run.plot("two_nn"), alt.LayerChart | alt.Chart)
