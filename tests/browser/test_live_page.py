"""The live page in a real browser: an appended record appears by itself."""

from __future__ import annotations

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
from anisoscope.store.run import Run
from tests import report_runs as runs
from tests.browser.conftest import problems, serving

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
