"""The live page in a real browser: an appended record appears by itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anisoscope.records import Record
from anisoscope.report import live
from anisoscope.report.live import live_app
from anisoscope.report.topics import QUESTIONS
from anisoscope.store.run import Run
from tests import report_pages
from tests import report_runs as runs
from tests.browser.conftest import barriers, problems, serving

READY = "return document.documentElement.dataset.ready"
LIVE = "return document.getElementById('pulse').classList.contains('live')"
SERIES = "return document.querySelectorAll('#chart svg .mark-line path').length"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs of this test alone: what it appends, no other test sees."""
    root = tmp_path / "live"
    runs.make_run(root / "b", runs.profiles((0, 1, 10, 100), scale=0.5))
    runs.make_run(root / "a", runs.profiles((0, 1, 10, 100)))
    os.utime(root / "b" / "records.jsonl", (1, 1))  # changed long before a
    return root


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with serving(live_app(str(folder))) as address:
        yield address


@pytest.fixture
def opened(browser: Any, address: str, until: Any, set_view: Any) -> Any:
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(address)
    until(READY)
    until(LIVE)
    return browser


def append(folder: Path, records: list[Record]) -> None:
    with Run.create(folder, resume=True) as run:
        run.append(records)


def test_the_run_that_changed_last_is_shown(opened: Any, until: Callable[..., Any]) -> None:
    assert until("return document.querySelector('#runs input:checked').value") == "a"
    assert until(SERIES) > 0
    assert problems(opened) == []


def test_an_appended_record_appears_soon(opened: Any, until: Callable[..., Any], folder: Path) -> None:
    """The server polls a few times per second; a busy machine may take longer."""
    assert live._POLL_EVERY < 1
    until("return document.getElementById('chart').dataset.shown")
    latest = "return document.querySelector('#picks output').textContent"
    assert until(latest) == "100"
    for step in (200, 300, 400):
        append(folder / "a", [r for r in runs.profiles((step,)) if r.metric == "spectral_anisotropy"])
        until(latest + " === arguments[0]", str(step), seconds=20)


def test_a_record_that_is_measured_again_is_counted_once(opened: Any, until: Callable[..., Any], folder: Path) -> None:
    count = (
        "return Number(document.getElementById('status').textContent.match(/([0-9,]+) records/)[1].replaceAll(',', ''))"
    )
    known = [r for r in runs.profiles((100,)) if r.metric == "spectral_anisotropy"]
    before = until(count)
    append(folder / "a", [replace(known[0], value=0.5), replace(known[0], step=777), replace(known[0], step=777)])
    until(count + " === arguments[0]", before + 1, seconds=20)


def test_a_new_metric_appears_by_itself(opened: Any, until: Callable[..., Any], folder: Path) -> None:
    append(folder / "a", [Record(f"resid.{i}", "isoscore", 0.1 * i) for i in range(6)])
    until("return [...document.querySelectorAll('#metric option')].some((o) => o.value === 'isoscore')", seconds=20)


def test_choosing_a_second_run_compares_them(opened: Any, until: Callable[..., Any]) -> None:
    opened.execute_script("document.querySelector('#runs input[value=b]').click()")
    until("return document.querySelector('#chart svg').textContent.includes('run')")
    assert '"a","b"' in opened.execute_script("return decodeURIComponent(location.hash)")


def test_a_link_contains_runs_and_view(opened: Any, address: str, until: Callable[..., Any]) -> None:
    opened.get("about:blank")
    opened.get(address + "#runs=%5B%22b%22%5D&metric=two_nn&kind=map")
    until("return document.getElementById('chart').dataset.shown === 'two_nn map'")
    assert opened.execute_script("return document.querySelector('#runs input:checked').value") == "b"


def test_finding_a_run_hides_the_others(opened: Any) -> None:
    opened.execute_script(
        "const f = document.getElementById('filter'); f.value = 'b'; f.dispatchEvent(new Event('input'))"
    )
    shown = opened.execute_script(
        "return [...document.querySelectorAll('#runs tr:not([hidden]) input')].map((i) => i.value)"
    )
    assert shown == ["b"]


def test_the_report_of_the_chosen_runs_opens(opened: Any, until: Callable[..., Any]) -> None:
    opened.get(opened.execute_script("return document.getElementById('report').href"))
    until(READY)
    until(SERIES)
    assert problems(opened) == []


def test_times_are_written_in_one_form_for_every_reader(opened: Any) -> None:
    text = opened.execute_script("return document.querySelector('#runs input[value=a]').closest('tr').textContent")
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text)


@pytest.fixture
def training_page(browser: Any, tmp_path: Path, until: Any, set_view: Any) -> Iterator[tuple[Any, Path, str]]:
    """The live page of a training that stopped before its last step, and of a second one."""
    root = tmp_path / "trainings"
    for name in ("first", "second"):
        report_pages.training(root / name)
        path = root / name / "training"
        head = json.loads((path / "run.json").read_text())
        head["info"] |= {"settings": {"steps": 1000, "width": 64}, "complete": False}
        (path / "run.json").write_text(json.dumps(head))
    with serving(live_app(str(root))) as address:
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(address + "#runs=%5B%22first%2Ftraining%22%5D")
        until(READY)
        until(LIVE)
        yield browser, root, address


DRAWN = """
const holders = [...document.querySelectorAll('#sections .holder')];
holders.forEach((holder) => { if (!holder.firstChild) holder.scrollIntoView(); });
return holders.length && holders.every((holder) => holder.querySelector('svg, canvas'));
"""
HOVER = """
const svg = document.querySelector('#loop-charts svg'), box = svg.getBoundingClientRect();
const at = { clientX: box.left + arguments[0] * box.width, clientY: box.top + 20 };
svg.dispatchEvent(new PointerEvent('pointermove', at));
"""
CURSORS = """
return [...document.querySelectorAll('.step-chart .cursor')].map((line) => {
  const svg = line.closest('svg'), box = svg.viewBox.baseVal;
  return (line.x1.baseVal.value - 52) / (box.width - 70);
});
"""
DRAG = """
const svg = document.querySelector('#loop-charts svg'), box = svg.getBoundingClientRect();
const at = (share) => ({ clientX: box.left + share * box.width, clientY: box.top + 20 });
const send = (type, share) => svg.dispatchEvent(new PointerEvent(type, at(share)));
send('pointerdown', 0.4); send('pointermove', 0.5); send('pointerup', 0.6);
"""
TICKS = """
return [...document.querySelectorAll('.step-chart svg')].map((svg) =>
  [...svg.querySelectorAll('text[text-anchor=middle]')].map((text) => text.textContent).join(' '));
"""


def test_sections_follow_the_questions_of_a_report(training_page: Any, until: Callable[..., Any]) -> None:
    page, *_ = training_page
    until(DRAWN)
    titles = page.execute_script("return [...document.querySelectorAll('#sections h2')].map((h) => h.textContent)")
    known = [title for title in QUESTIONS.values() if title in titles]
    assert titles[: len(known)] == known
    assert len(known) >= 4
    assert page.execute_script("return document.querySelectorAll('#sections .cell').length") > 50
    assert problems(page) == []


def test_the_cursor_marks_the_same_step_on_every_axis_of_steps(training_page: Any, until: Callable[..., Any]) -> None:
    page, *_ = training_page
    until(DRAWN)
    page.execute_script(
        "[...document.querySelectorAll('#kinds button')].find((b) => b.textContent === 'over steps').click()"
    )
    until("return document.getElementById('chart').dataset.shown.endsWith(' steps')")
    page.execute_script(HOVER, 0.5)
    shares = page.execute_script(CURSORS)
    assert len(shares) > 5
    assert max(shares) - min(shares) < 0.01
    assert 0.4 < shares[0] < 0.6
    until("return document.querySelector('#chart .cursor-line')")
    page.execute_script("document.querySelector('#loop-charts svg').dispatchEvent(new PointerEvent('pointerleave'))")
    assert max(page.execute_script(CURSORS)) < 0
    assert page.execute_script("return document.querySelector('#chart .cursor-line')") is None


def test_a_zoom_changes_every_axis_of_steps_and_is_in_the_address(
    training_page: Any, until: Callable[..., Any]
) -> None:
    page, *_ = training_page
    until(DRAWN)
    page.execute_script(DRAG)
    zoomed = page.execute_script(TICKS)
    assert "0" not in zoomed[0].split()
    assert {ticks.split()[-1] for ticks in zoomed} <= {"150", "140", "160"}
    page.execute_script("document.getElementById('log-y').click(); document.getElementById('pin').click()")
    shared = page.current_url
    page.get("about:blank")
    page.get(shared)
    until(READY)
    assert until(TICKS)[0] == zoomed[0]
    assert page.execute_script("return document.getElementById('log-y').checked")
    until("return document.querySelectorAll('#pins figure svg').length === 1")


def test_alerts_are_marks_on_a_timeline(training_page: Any) -> None:
    page, *_ = training_page
    assert page.execute_script("return document.querySelectorAll('.alert-mark').length") == 2
    assert page.execute_script("return document.querySelector('text.lane').textContent") == "collapse"
    assert page.execute_script("return document.querySelectorAll('#alert-list li').length") == 2


def test_a_run_that_stopped_is_shown_as_such(training_page: Any) -> None:
    page, *_ = training_page
    note = page.execute_script("const n = document.getElementById('stopped'); return n.hidden ? '' : n.textContent")
    assert note == "first/training stopped at step 256: its process ended before the run was complete."
    assert page.execute_script("return document.querySelectorAll('.state.stopped').length") == 2


def test_a_map_grows_with_its_run(training_page: Any, until: Callable[..., Any]) -> None:
    page, root, _ = training_page
    until(DRAWN)
    count = "return document.querySelectorAll('#topic-cone .holder[data-metric=mean_cosine] .cell').length"
    before = page.execute_script(count)
    records = [
        record for record in report_pages.model_records(8, sinks=0.3, step=320) if record.metric == "mean_cosine"
    ]
    append(root / "first" / "training", records)
    until(count + " > arguments[0]", before, seconds=20)


def test_the_table_of_runs_is_sorted_and_has_a_column_of_the_settings(training_page: Any) -> None:
    page, *_ = training_page
    order = "return [...document.querySelectorAll('#runs tr')].map((row) => row.dataset.run)"
    click = "[...document.querySelectorAll('#run-heads button')].find((b) => b.textContent.startsWith('run')).click()"
    page.execute_script(click)
    assert page.execute_script(order) == ["first/training", "second/training"]
    page.execute_script(click)
    assert page.execute_script(order) == ["second/training", "first/training"]
    page.execute_script(
        "const c = document.getElementById('column'); c.value = 'width'; c.dispatchEvent(new Event('change'))"
    )
    assert page.execute_script("return document.querySelector('#runs tr').lastElementChild.textContent") == "64"


def test_lines_that_coincide_are_both_visible(training_page: Any, until: Callable[..., Any]) -> None:
    page, *_ = training_page
    page.execute_script("document.querySelector('#runs input[value=\"second/training\"]').click()")
    until("return document.querySelectorAll('#loop-charts .line.over').length")
    assert page.execute_script("return document.querySelectorAll('#run-legend span').length") == 2


def test_no_serious_barrier_is_found(training_page: Any, until: Callable[..., Any]) -> None:
    page, *_ = training_page
    until(DRAWN)
    assert barriers(page) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_a_laptop_and_a_phone(training_page: Any, until: Any, set_view: Any, width: int) -> None:
    page, *_ = training_page
    set_view(width)
    until(DRAWN)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    outside = """
    return [...document.querySelectorAll('.step-chart svg')].flatMap((svg) => {
      const frame = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.left < frame.left - 1 || box.right > frame.right + 1;
      }).map((text) => text.textContent);
    });
    """
    assert page.execute_script(outside) == []
