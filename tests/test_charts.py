"""Charts: the shape of the records chooses, every kind draws, the specification is valid Vega-Lite."""

from __future__ import annotations

import io
from pathlib import Path

import altair as alt
import pytest
from PIL import Image
from scipy import stats

from anisoscope.errors import InputError
from anisoscope.records import Record
from anisoscope.report.charts import DRAWN, plot, save_chart, spec_of
from anisoscope.report.interval import half_width
from anisoscope.report.lines import ChartStyle
from anisoscope.report.shapes import KINDS, choose, colours_of, distinct, picks_of, shape_of
from anisoscope.report.tables import depths_of, of_metric, rows_of, table_of
from anisoscope.report.theme import COLOURS, config
from anisoscope.store.run import Run
from tests import report_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return runs.make_run(tmp_path_factory.mktemp("charts") / "exp", runs.every_shape())


def kinds_of(records: list[Record]) -> tuple[str, ...]:
    return choose(shape_of(runs.frame_of(records)))


def test_layers_alone_are_a_profile() -> None:
    assert kinds_of([r for r in runs.profiles() if r.metric == "two_nn"]) == ("profile",)


def test_layers_and_steps_are_a_profile_a_trajectory_and_a_map() -> None:
    records = [r for r in runs.profiles((0, 10)) if r.metric == "two_nn"]
    assert kinds_of(records) == ("profile", "steps", "map")


def test_heads_are_a_heat_map_whatever_the_metric_is_called() -> None:
    records = [Record(f"pattern.{i}", "never_seen_before", 0.5, index=h) for i in range(2) for h in range(3)]
    assert kinds_of(records)[0] == "heads"


def test_heads_of_q_sites_are_heads_too() -> None:
    records = [Record(f"q.{i}.{h}", "mean_cosine", 0.5) for i in range(2) for h in range(3)]
    assert kinds_of(records)[0] == "heads"


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


def test_every_field_that_varies_is_an_axis_a_colour_or_picked(run: Run) -> None:
    table = table_of([run])
    for metric in run.metrics():
        shape = shape_of(of_metric(table, metric), depths_of(table))
        for kind in choose(shape):
            colour = next(iter(colours_of(kind, shape)), None)
            shown = {*KINDS[kind].axes, colour, *picks_of(kind, shape, colour)}
            shown |= {"site"} if shape.has("place") else set()
            shown |= {"tokens"} if KINDS[kind].dash else set()
            assert set(shape.many) <= shown, (metric, kind)


def test_every_kind_is_valid_vega_lite() -> None:
    for kind in KINDS:
        for style in (
            ChartStyle(kind),
            ChartStyle(kind, "run"),
            ChartStyle(kind, "place", ordered=True, null=True, log_y=True),
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


def test_embed_stands_before_the_first_layer_and_final_behind_the_last(run: Run) -> None:
    rows = run.plot("two_nn", step=0).to_dict()["datasets"]["rows"]
    places = {row["site"]: row["place"] for row in rows}
    assert (places["embed"], places["resid.0"], places["final"]) == (-1, 0, runs.LAYERS)


def test_step_zero_has_a_place_on_the_log_axis(run: Run) -> None:
    rows = run.plot("mean_direction_drift", kind="steps").to_dict()["datasets"]["rows"]
    assert {row["at"] for row in rows if row["step"] == 0} == {0.5}
    assert all(row["at"] == row["step"] for row in rows if row["step"])


def test_energy_is_drawn_against_the_variance_along_the_same_axis(run: Run) -> None:
    rows = run.plot("gradient_along_axis", step=0).to_dict()["datasets"]["rows"]
    for row in rows:
        assert row["x"] == pytest.approx(row["index"] ** -1.2)


def test_strata_and_plain_energies_are_told_apart(run: Run) -> None:
    rows = run.plot("gradient_energy", kind="curve", colour="place").to_dict()["datasets"]["rows"]
    assert {row["v_stratum"] for row in rows} == {"–"}
    assert len(rows) == runs.LAYERS * 4


def test_two_runs_are_told_apart_by_colour_and_policies_by_dash(tmp_path: Path) -> None:
    pair = [runs.make_run(tmp_path / name, runs.profiles()) for name in ("a", "b")]
    chart = plot(pair, "spectral_anisotropy").to_dict()
    assert {row["series"] for row in chart["datasets"]["rows"]} == {"a", "b"}
    assert any("strokeDash" in layer["encoding"] for layer in chart["layer"])


def test_what_is_picked_is_no_longer_a_colour(run: Run) -> None:
    rows = run.plot("two_nn", kind="steps", layer=3, tokens="all").to_dict()["datasets"]["rows"]
    assert {row["series"] for row in rows} == {"resid.3"}
    assert {row["tokens"] for row in rows} == {"all"}


def test_picks_that_no_record_has_together_are_explained(run: Run) -> None:
    with pytest.raises(InputError, match="no record has all of null haar, stratum rare"):
        run.plot("gradient_energy", null="haar", stratum="rare")


def test_runs_of_one_name_stay_two(tmp_path: Path) -> None:
    pair = [runs.make_run(tmp_path / folder / "exp", runs.profiles()) for folder in ("one", "two")]
    assert set(table_of(pair)["run"]) == {"one/exp", "two/exp"}


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png", "html", "json"])
def test_a_figure_is_written_in_every_format(run: Run, tmp_path: Path, suffix: str) -> None:
    written = save_chart(run.plot("two_nn"), tmp_path / f"fig.{suffix}")
    head = written.read_bytes()[:2048]
    assert {"pdf": b"%PDF", "svg": b"<svg", "png": b"PNG", "html": b"<!DOCTYPE", "json": b"{"}[suffix] in head


def test_a_figure_has_ink_in_the_palette(run: Run, tmp_path: Path) -> None:
    image = Image.open(save_chart(run.plot("spectral_anisotropy"), tmp_path / "fig.png", scale=1)).convert("RGB")
    colours = {colour for _, colour in image.getcolors(1 << 20) or []}
    assert tuple(int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5)) in colours


def test_dark_and_light_differ_in_ground_and_hues() -> None:
    light, dark = config(), config(dark=True)
    assert light["background"] != dark["background"]
    assert not set(light["range"]["category"][:4]) & set(dark["range"]["category"][:4])


def test_a_metric_that_is_not_there_is_named_with_its_neighbours(run: Run) -> None:
    with pytest.raises(InputError, match="did you mean two_nn"):
        run.plot("two_n")


def test_a_kind_that_does_not_fit_says_which_do(run: Run) -> None:
    with pytest.raises(InputError, match="kinds that fit: profile, steps, map"):
        run.plot("two_nn", kind="heads")


def test_a_pick_that_is_not_there_says_what_is(run: Run) -> None:
    with pytest.raises(InputError, match="existing values: 0, 1, 10, 100, 1000"):
        run.plot("two_nn", step=7)


def test_a_colour_that_does_not_fit_says_which_do(run: Run) -> None:
    with pytest.raises(InputError, match="possible: tokens, training step"):
        run.plot("two_nn", colour="layer")
    with pytest.raises(InputError, match="no field of these records is called 'hed'"):
        run.plot("attention_entropy", colour="hed")


def test_layers_and_keys_of_the_variant_are_picked_by_their_own_names(run: Run) -> None:
    rows = run.plot("gradient_energy", kind="curve", colour="step", layer=2, stratum="rare").to_dict()["datasets"][
        "rows"
    ]
    assert {(row["place"], row["v_stratum"]) for row in rows} == {(2, "rare")}


def test_a_figure_in_no_folder_or_format_is_refused(run: Run, tmp_path: Path) -> None:
    chart = run.plot("two_nn")
    with pytest.raises(InputError, match="must end in"):
        save_chart(chart, tmp_path / "fig.gif")
    with pytest.raises(InputError, match="create it first"):
        save_chart(chart, tmp_path / "none" / "fig.png")


def test_specifications_are_copies() -> None:
    spec_of(ChartStyle("profile"))["layer"] = []
    assert spec_of(ChartStyle("profile"))["layer"]


def test_distinct_sorts_numbers_before_texts() -> None:
    assert distinct([3, None, "b", 1.5, "a", 3]) == (1.5, 3, "b", "a")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 15, 31, 100])
def test_the_half_width_of_an_interval_is_the_quantile_of_student_t(freedom: int) -> None:
    assert half_width(freedom + 1) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_a_site_off_the_axis_of_layers_has_no_place() -> None:
    [row] = rows_of(runs.frame_of([Record("weight.lm_head", "isoscore", 0.5)]))
    assert row["place"] is None
    assert row["site"] == "weight.lm_head"


def test_altair_reads_the_chart_back(run: Run) -> None:
    assert isinstance(run.plot("two_nn"), alt.LayerChart | alt.Chart)
