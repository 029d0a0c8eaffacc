"""The atlas page in a real browser: every table sorts by the column that is clicked, and a model opens its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anisoscope.studies.atlas.atlas_page import atlas_html
from anisoscope.studies.atlas.quantisation import Shift
from tests.studies.atlas.made_evidence import model

FIRST = "return [...document.querySelectorAll('table.sortable')[{}].tBodies[0].rows].map(r => r.cells[{}].textContent)"
CLICK = "document.querySelectorAll('table.sortable')[{}].querySelectorAll('th button')[{}].click()"


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    tiny = model("tiny", spectral_anisotropy=[0.1, 0.2, 0.3], two_nn=[3.0, 4.0, 5.0])
    models = [replace(tiny, name=name, parameters=size) for name, size in (("b", 900), ("c", 10_000), ("a", 2_000))]
    shifts = [
        Shift("a", "Q4_0", metric, "all", change, 0.5, 0.5)
        for metric, change in (("isoscore", 0.3), ("two_nn", 0.1), ("mean_cosine", 0.2))
    ]
    file = tmp_path / "atlas.html"
    file.write_text(atlas_html(models, shifts), "utf-8")
    browser.get(file.as_uri())
    return browser


def test_a_click_sorts_by_numbers_and_a_second_click_turns_the_order(page: Any) -> None:
    page.execute_script(CLICK.format(0, 4))
    assert page.execute_script(FIRST.format(0, 4)) == ["0.0009", "0.002", "0.01"]  # millions
    page.execute_script(CLICK.format(0, 4))
    assert page.execute_script(FIRST.format(0, 0)) == ["c", "a", "b"]
    page.execute_script(CLICK.format(0, 0))
    assert page.execute_script(FIRST.format(0, 0)) == ["a", "b", "c"]


def test_the_second_table_sorts_by_its_own_columns(page: Any) -> None:
    page.execute_script(CLICK.format(1, 2))
    assert page.execute_script(FIRST.format(1, 0)) == ["two_nn", "mean_cosine", "isoscore"]


def test_a_click_on_a_model_opens_its_report(page: Any) -> None:
    opened = "return [...document.querySelectorAll('details.report[open]')].map(d => d.id)"
    assert page.execute_script(opened) == []
    page.execute_script("document.querySelector('a[href=\"#model-c\"]').click()")
    page.execute_async_script("setTimeout(arguments[0], 100)")
    assert page.execute_script(opened) == ["model-c"]


def test_another_metric_shows_its_profiles(page: Any) -> None:
    page.execute_script("metric.value = 'two_nn'; metric.dispatchEvent(new Event('change'))")
    shown = "return [...document.querySelectorAll('.grid[data-metric]:not([hidden])')].map(g => g.dataset.metric)"
    assert page.execute_script(shown) == ["two_nn"]
