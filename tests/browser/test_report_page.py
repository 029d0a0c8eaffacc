"""The report in a real browser: from disk, without a network, in light and dark, on a laptop and a phone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from anisoscope.records import Record
from anisoscope.report.outline import cards_of, outline_of
from anisoscope.report.packed_table import pack
from anisoscope.report.page import write_report
from anisoscope.report.picks import pick_rows
from anisoscope.report.shapes import drawable
from anisoscope.report.tables import depths_of, of_metric, rows_of, table_of
from anisoscope.report.templates import asset
from anisoscope.store.run import Run
from tests import report_runs as runs
from tests.browser.conftest import problems, shot

MARKS = "return document.querySelectorAll('#chart svg [class*=\"mark-\"] path').length"
READY = "return document.documentElement.dataset.ready"
SHOWN = "return document.getElementById('chart').dataset.shown"
GROUND = "return getComputedStyle(document.querySelector('#chart svg')).backgroundColor"
CHOOSE = """
const select = document.getElementById(arguments[0]);
select.value = arguments[1];
select.dispatchEvent(new Event('change'));
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return runs.make_run(tmp_path_factory.mktemp("page") / "exp", runs.every_shape())


@pytest.fixture(scope="module")
def report(run: Run) -> str:
    return write_report([run], run.path / "report.html").as_uri()


@pytest.fixture
def offline(browser: Any) -> Iterator[None]:
    conditions = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
    yield
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", {**conditions, "offline": False})
    browser.execute_cdp_cmd("Network.disable", {})


@pytest.fixture
def opened(browser: Any, report: str, until: Any, set_view: Any, offline: None) -> Any:
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(report)
    until(READY)
    return browser


def test_the_report_opens_from_disk_without_network_or_errors(opened: Any, until: Callable[..., Any]) -> None:
    assert until(MARKS) > 3
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert problems(opened) == []


def test_picking_a_metric_changes_the_chart_and_the_address(opened: Any, until: Callable[..., Any]) -> None:
    before = opened.execute_script("return document.querySelector('#chart svg').outerHTML")
    opened.execute_script(CHOOSE, "metric", "qk_cosine")
    until(SHOWN + " === 'qk_cosine heads'")
    after = opened.execute_script("return document.querySelector('#chart svg').outerHTML")
    assert after != before
    assert "metric=qk_cosine" in opened.current_url


def test_every_metric_and_kind_has_marks(opened: Any, until: Callable[..., Any]) -> None:
    metrics = opened.execute_script("return [...document.querySelectorAll('#metric option')].map((o) => o.value)")
    assert {"spectral_anisotropy", "gradient_energy", "verdict"} <= set(metrics)
    for metric in metrics:
        opened.execute_script(CHOOSE, "metric", metric)
        until(SHOWN + ".startsWith(arguments[0] + ' ')", metric)
        kinds = opened.execute_script("return document.querySelectorAll('#kinds button').length")
        for position in range(kinds):
            opened.execute_script("document.querySelectorAll('#kinds button')[arguments[0]].click()", position)
            until("return document.querySelectorAll('#kinds button')[arguments[0]].ariaPressed === 'true'", position)
            assert until(MARKS) > 0, (metric, position)
    assert problems(opened) == []


def test_the_address_contains_the_view(opened: Any, report: str, until: Callable[..., Any]) -> None:
    opened.get("about:blank")
    opened.get(report + "#metric=two_nn&kind=steps&colour=layer")
    until(SHOWN + " === 'two_nn steps'")
    assert opened.execute_script("return document.getElementById('colour').value") == "layer"


def test_a_slider_picks_the_step(opened: Any, until: Callable[..., Any]) -> None:
    path = "return document.querySelector('#chart svg .mark-line path').getAttribute('d')"
    late = until(path)
    opened.execute_script(
        "const s = document.getElementById('pick-step'); s.value = 0; s.dispatchEvent(new Event('input'))"
    )
    until("return document.querySelector('#picks output').textContent === '0'")
    until("return (" + path.removeprefix("return ") + ") !== arguments[0]", late)
    assert "pick.step=0" in opened.current_url


def test_the_records_can_be_saved_as_csv(opened: Any, run: Run, downloads: Path) -> None:
    opened.execute_script("document.getElementById('csv').click()")
    target = downloads / "records.csv"
    deadline = time.monotonic() + 20
    while not target.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    saved, kept = pd.read_csv(target), run.table()
    key = ["metric", "site", "step", "tokens", "index", "variant"]
    together = kept.assign(index=kept["index"].astype("float64")).merge(
        saved.assign(variant=saved["variant"].astype("string")), on=key, suffixes=("", "_saved")
    )
    assert len(together) == len(saved) == len(kept)
    assert ((together["value"] - together["value_saved"]).abs() <= 1e-6 * together["value"].abs() + 1e-12).all()


def test_hostile_texts_stay_text_in_the_browser(
    browser: Any, tmp_path: Path, until: Callable[..., Any], set_view: Any
) -> None:
    attack = "<img src=x onerror=\"document.title='taken'\">"
    records = [
        Record(f"resid.{i}", attack, 0.5 + i, tokens=attack, variant={attack: attack}, note=attack) for i in range(3)
    ]
    hostile = runs.make_run(tmp_path / "exp", [*records, *runs.profiles()], name=runs.HOSTILE.replace("/", ""))
    browser.get(write_report([hostile], tmp_path / "report.html").as_uri())
    until(READY)
    browser.execute_script(CHOOSE, "metric", attack)
    until(SHOWN + ".startsWith('<img')")
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0
    assert hostile.name in browser.execute_script("return document.querySelector('.about').textContent")
    assert browser.title == hostile.name


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_fit_and_follow_the_system_s_theme(
    browser: Any, report: str, until: Callable[..., Any], set_view: Any, tmp_path: Path, width: int, dark: bool
) -> None:
    set_view(width, dark)
    browser.get("about:blank")
    browser.get(report)
    until(READY)
    until(MARKS)
    image = shot(browser, tmp_path / "page.png")
    assert image.size[0] == width
    assert (sum(image.getpixel((3, 3))) < 200) is dark
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert until(GROUND) == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")


def test_the_button_turns_the_page_dark(opened: Any, until: Callable[..., Any]) -> None:
    opened.execute_script("document.getElementById('theme').click()")
    assert opened.execute_script("return document.documentElement.dataset.theme") == "dark"
    until(GROUND + " === 'rgb(21, 24, 28)'")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three runs with long names, in an order that is not alphabetical."""
    folder = tmp_path_factory.mktemp("three")
    names = ("decoder", "causal-masked-language-model", "bidirectional-encoder")
    made = [runs.make_run(folder / name, [*runs.profiles(), *runs.heads()]) for name in names]
    return write_report(made, folder / "report.html").as_uri()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_text_of_a_chart_is_cut_off(
    browser: Any, three: str, until: Callable[..., Any], set_view: Any, width: int
) -> None:
    set_view(width)
    browser.get("about:blank")
    browser.get(three)
    until(READY)
    browser.execute_script("document.getElementById('all-charts').open = true")
    until("return document.querySelectorAll('#gallery figure').length")
    browser.execute_script("document.querySelectorAll('#gallery figure').forEach((figure) => figure.draw())")
    until("return [...document.querySelectorAll('#gallery figure')].every((figure) => figure.querySelector('svg'))")
    outside = """
    return [...document.querySelectorAll('.chart svg')].flatMap((svg) => {
      const box = svg.parentElement.closest('.chart').getBoundingClientRect();
      return [...svg.querySelectorAll('text')].filter((text) => {
        const own = text.getBoundingClientRect();
        return text.textContent && (own.left < box.left - 1 || own.right > box.right + 1);
      }).map((text) => text.textContent);
    });
    """
    assert browser.execute_script(outside) == []


def test_a_map_of_one_run_of_three_says_so(browser: Any, three: str, until: Callable[..., Any], set_view: Any) -> None:
    browser.get("about:blank")
    browser.get(three)
    until(READY)
    browser.execute_script("document.getElementById('all-charts').open = true")
    until("return document.querySelector('figure[data-metric=qk_cosine]')")
    caption = "const f = document.querySelector('figure[data-metric=qk_cosine]'); f.draw(); return f.textContent"
    assert "run decoder (one of 3 runs)" in browser.execute_script(caption)


PICKS = """
const [page, done] = [arguments[0], arguments[arguments.length - 1]];
(async () => {
  const table = await unpack(page);
  done(table.outline.views.flatMap((view) => view.kinds.flatMap((kind) => kind.colours.map(({ field }) => {
    const [picks, shown] = pickRows(table.rows(view.metric), kind, field);
    return [view.metric, kind.kind, field, picks.map(([name, , value]) => [name, value]), shown.length];
  }))));
})();
"""


def test_the_page_picks_what_python_picks(browser: Any, run: Run, until: Callable[..., Any]) -> None:
    """`chart.js` and `picks.py` are two forms of one rule."""
    table = table_of([run])
    outline = outline_of(table, cards_of([run]))
    expected = []
    for view in outline["views"]:
        for kind in view["kinds"]:
            part = rows_of(drawable(of_metric(table, view["metric"]), kind["kind"]), depths_of(table))
            for colour in kind["colours"]:
                picks, shown = pick_rows(part, kind["kind"], colour["field"], kind["headline"])
                picked = [[pick.field, pick.value] for pick in picks]
                expected.append([view["metric"], kind["kind"], colour["field"], picked, len(shown)])
    browser.get("about:blank")
    browser.set_script_timeout(60)
    script = "\n".join(asset(name).replace('"use strict";', "") for name in ("table.js", "chart.js")) + PICKS
    assert browser.execute_async_script(script, pack(table, outline)) == expected
