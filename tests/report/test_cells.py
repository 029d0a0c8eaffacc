"""Numbers, folded names and small curves in the cells of tables."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from anisoscope.report.cells import FittedTable, folded, new_table, number, sparkline


def test_first_highest_lowest_and_last_bar_are_those_of_the_curve() -> None:
    values = [30.0 + i for i in range(20)] + [749.0] + [20.0] * 3 + [30.7] * 8
    drawn = sparkline(values, 14)
    assert len(drawn) == 14
    assert drawn.count("█") == 1  # one site is high: no neighbour is averaged with it
    assert drawn[-1] == drawn[0] == "▁"  # 749 at the top: 30 and 30.7 are at the bottom


@pytest.mark.parametrize("place", range(30))
def test_a_single_peak_is_drawn_at_full_height_wherever_it_is(place: int) -> None:
    values = [0.0] * 30
    values[place] = 1.0
    assert sparkline(values, 14).count("█") == 1
    assert sparkline(values, 30) == "▁" * place + "█" + "▁" * (29 - place)


def test_a_curve_without_a_range_is_flat() -> None:
    assert sparkline([0.99998, 1.0, 0.99999]) == "▄▄▄"
    assert sparkline([0.0, 0.0]) == "▄▄"
    assert sparkline([0.5, 0.6], error=0.2) == "▄▄"
    assert sparkline([0.5, 0.6], error=0.05) == "▁█"
    assert sparkline([-1e308, 1e308]) == "▁█"


def test_missing_values_are_gaps() -> None:
    assert sparkline([None, 1.0, None, 2.0]) == " ▁ █"
    assert sparkline([None, None]) == ""
    assert sparkline([None] * 40) == ""


def test_numbers_are_short() -> None:
    assert [number(x) for x in (0.0, 0.000123456, 123456.0, 1e7, None)] == [
        "0",
        "0.0001235",
        "123456",
        "1.000e+07",
        "–",
    ]


def test_long_names_fold_after_an_underscore() -> None:
    assert folded("participation_ratio_unbiased", 20) == "participation_ratio_\nunbiased"
    assert folded("neighbours=other documents", 20) == "neighbours=other\ndocuments"
    assert max(map(len, folded("x" * 50, 20).split("\n"))) <= 20


@pytest.mark.parametrize(("width", "expected"), [(80, "a wide cell"), (20, "narrow")])
def test_the_first_layout_that_fits_is_used(width: int, expected: str) -> None:
    def layout(text: str):  # type: ignore[no-untyped-def]
        table = new_table("", "metric", "value")
        table.add_row("isoscore", text)
        return table

    console = Console(width=width, file=StringIO(), record=True)
    console.print(FittedTable([lambda: layout("a wide cell"), lambda: layout("narrow")]))
    assert expected in console.export_text()
