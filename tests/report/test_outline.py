"""A law for the pages of every kind of run: no chart is drawn without marks, and no choice leads to one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import vl_convert

from anisoscope.report.charts import filled, with_series
from anisoscope.report.outline import cards_of, outline_of
from anisoscope.report.picks import field_value, pick_rows
from anisoscope.report.shapes import drawable
from anisoscope.report.tables import Row, by_metric, depths_of, rows_of, table_of
from anisoscope.store.run import Run
from tests.run_kinds import PAGES, make_runs

_SAMPLE = 20  # choices that are drawn on each page, besides the first of each chart


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    return make_runs(tmp_path_factory.mktemp("kinds"))


def marks(spec: Mapping[str, Any], rows: Sequence[Row]) -> int:
    """The number of marks inside the axes of a chart."""
    sized = {**filled(spec, rows, "m"), "width": 200, "height": 120}

    def count(item: Mapping[str, Any], inside: bool) -> int:
        inside = inside or str(item.get("name") or "").endswith("marks")
        within = [each for each in item.get("items", ()) if isinstance(each, Mapping)]
        leaf = inside and item.get("marktype") not in (None, "group")
        return len(within) if leaf else sum(count(each, inside) for each in within)

    return count(vl_convert.vegalite_to_scenegraph(sized)["scenegraph"], False)


Chart = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], list[Row]]


def charts_of(runs: Sequence[Run]) -> Iterator[Chart]:
    """Every metric, kind and colour of a page, with the specifications and the rows that the kind can draw."""
    table = table_of(runs)
    outline, depths, groups = outline_of(table, cards_of(runs)), depths_of(table), by_metric(table)
    for view in outline["views"]:
        for kind in view["kinds"]:
            rows = rows_of(drawable(groups[view["metric"]], kind["kind"]), depths)
            for colour in kind["colours"]:
                yield view["metric"], kind, colour, outline["specs"], rows


@pytest.mark.parametrize("page", PAGES)
def test_every_chart_of_every_page_has_marks_whatever_is_chosen(pages: dict[str, list[Run]], page: str) -> None:
    """What each chart shows first is drawn; so is a sample of everything else that can be chosen."""
    others = []
    for metric, kind, colour, specs, rows in charts_of(pages[page]):
        field, spec = colour["field"], specs[colour["spec"]]
        picks, shown = pick_rows(rows, kind["kind"], field, kind["headline"])
        where = (page, metric, kind["kind"], field)
        assert shown, where
        if colour is kind["colours"][0]:
            assert marks(spec, with_series(shown, kind["kind"], field)) > 0, (where, picks)
        for pick in picks:
            for value in pick.values:
                _, shown = pick_rows(rows, kind["kind"], field, kind["headline"], {pick.field: value})
                assert shown, (where, pick, value)
                assert all(field_value(row, pick.field) == value for row in shown)
                others.append(((*where, pick.field, value), spec, with_series(shown, kind["kind"], field)))
    for chosen, spec, shown in random.Random(0).sample(others, min(_SAMPLE, len(others))):
        assert marks(spec, shown) > 0, chosen


@pytest.mark.parametrize("page", PAGES)
def test_no_line_mixes_streams_sites_or_variants(pages: dict[str, list[Run]], page: str) -> None:
    """Two marks of one series are two positions on the axes: everything else is the same."""
    for metric, kind, colour, _, rows in charts_of(pages[page]):
        field = colour["field"]
        _, shown = pick_rows(rows, kind["kind"], field, kind["headline"])
        places = [
            (str(row["series"]), row["tokens"], *(str(row.get(axis)) for axis in kind["axes"]))
            for row in with_series(shown, kind["kind"], field)
        ]
        assert len(set(places)) == len(places), (page, metric, kind["kind"], field)


def test_a_chart_without_rows_has_no_marks(pages: dict[str, list[Run]]) -> None:
    """So that the law above can fail."""
    for _, kind, colour, specs, rows in charts_of(pages["measure"]):
        assert marks(specs[colour["spec"]], with_series(rows[:0], kind["kind"], colour["field"])) == 0
        break
