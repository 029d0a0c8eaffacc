"""Texts of an untrusted run that look like scripts stay text in a real browser, on report and live page."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anisoscope.records import Record
from anisoscope.report.live import live_app
from anisoscope.report.page import write_report
from anisoscope.store.run import Run
from tests import report_runs as runs
from tests.browser.conftest import serving

READY = "return document.documentElement.dataset.ready"
ATTACKS = (
    "</script><script>window.taken=1;alert(1)</script>",
    '<img src=x onerror="window.taken=1;alert(1)">',
    "'\"><svg onload=window.taken=1>",
    "datum.constructor.constructor('window.taken=1')()",
    "javascript:window.taken=1",
    "__proto__",
)
SHOW_ALL = """
const done = arguments[arguments.length - 1];
(async () => {
  const select = document.getElementById('metric');
  for (const option of [...select.options]) {
    select.value = option.value;
    select.dispatchEvent(new Event('change'));
    await new Promise((go) => setTimeout(go, 150));
    for (const button of document.querySelectorAll('#kinds button')) {
      button.click();
      await new Promise((go) => setTimeout(go, 100));
    }
  }
  for (const mark of document.querySelectorAll('#chart svg path')) {
    mark.dispatchEvent(new MouseEvent('mousemove', { bubbles: true, clientX: 5, clientY: 5 }));
    mark.dispatchEvent(new MouseEvent('mouseover', { bubbles: true, clientX: 5, clientY: 5 }));
  }
  done([...select.options].length);
})();
"""


def hostile_run(path: Path, name: str = "<script>window.taken=1<script>") -> Run:
    """A run in which every text is an attack: names, sites, notes, cards, the words of removed tokens."""
    records = [
        Record(f"{site}.{i}" if site == "resid" else f"{site}.{text}", text, 0.5 + i, tokens=text, step=step, note=text)
        for text in ATTACKS
        for i in range(2)
        for step in (0, 1)
        for site in ("resid", "weight")
    ]
    records += [
        Record(f"resid.{i}", "two_nn", 1.0 + i, variant={text: text}, error_kind=text, error=0.1)
        for text in ATTACKS
        for i in range(3)
    ]
    cards = {
        text: {"meaning": text, "text": f"{text}\n\n{text}", "paper": text, "family": text, "ignores": [text]}
        for text in ATTACKS
    }
    tokens = [{"text": text, "token": 1} for text in ATTACKS]
    run = runs.make_run(path, [*records, *runs.profiles()], name=name)
    head = json.loads((path / "run.json").read_text())
    head["info"] |= {"metrics": cards, "removed": {"count": 6, "tokens": tokens}, "model": {"source": ATTACKS[0]}}
    head["command"] = ATTACKS[0]
    (path / "run.json").write_text(json.dumps(head))
    return Run.open(run.path)


def untouched(browser: Any) -> None:
    """No script of the run has run: no dialog, nothing set, no element of its making, no tampered prototypes."""
    assert browser.execute_script("return window.taken === undefined && {}.taken === undefined")
    assert browser.execute_script("return document.querySelectorAll('img, svg[onload], iframe, object').length") == 0
    own = "return [...document.scripts].filter((s) => s.textContent.startsWith('window.taken')).length"
    assert browser.execute_script(own) == 0


@pytest.fixture
def patient(browser: Any) -> Any:
    browser.set_script_timeout(120)
    return browser


def test_a_report_of_a_hostile_run_stays_a_report(
    patient: Any, tmp_path: Path, until: Callable[..., Any], set_view: Any
) -> None:
    run = hostile_run(tmp_path / "r")
    patient.get(write_report([run], tmp_path / "report.html").as_uri())
    until(READY)
    assert patient.execute_async_script(SHOW_ALL) >= len(ATTACKS)
    untouched(patient)
    assert run.name in patient.execute_script("return document.querySelector('.about').textContent")


SAVED_TEXT = """
const done = arguments[arguments.length - 1];
URL.createObjectURL = (blob) => { blob.text().then(done); return '#'; };
document.getElementById('csv').click();
"""


def test_a_saved_table_holds_no_formula(patient: Any, tmp_path: Path, until: Callable[..., Any], set_view: Any) -> None:
    texts = ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)"]
    records = [Record(f"resid.{i}", "two_nn", -1.0 - i, tokens=text, note=text) for i, text in enumerate(texts)]
    run = runs.make_run(tmp_path / "r", [*records, *runs.profiles()])
    patient.get(write_report([run], tmp_path / "report.html").as_uri())
    until(READY)
    rows = list(csv.DictReader(io.StringIO(patient.execute_async_script(SAVED_TEXT), newline="")))
    saved = {row["tokens"]: row for row in rows if row["tokens"].startswith("'")}
    assert sorted(saved) == sorted("'" + text for text in texts)
    assert [saved["'" + text]["note"] for text in texts] == ["'" + text for text in texts]
    assert [float(saved["'" + text]["value"]) for text in texts] == [-1.0, -2.0, -3.0, -4.0]  # numbers stay numbers


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    hostile_run(tmp_path / "<img src=x onerror=window.taken=1>")
    with serving(live_app(str(tmp_path))) as address:
        yield address, tmp_path


def test_the_live_page_of_a_hostile_run_stays_itself(
    patient: Any, served: tuple[str, Path], until: Callable[..., Any], set_view: Any
) -> None:
    address, folder = served
    patient.get(address)
    until(READY)
    assert patient.execute_async_script(SHOW_ALL) >= len(ATTACKS)
    untouched(patient)
    [path] = [entry for entry in folder.iterdir() if (entry / "run.json").is_file()]
    with Run.create(path, resume=True) as run:  # rows that arrive while the page is open
        run.append([Record("resid.0", text, 2.0, tokens=text, step=5, note=text) for text in ATTACKS])
    until("return document.getElementById('status').textContent.includes('records')")
    time.sleep(1.5)
    untouched(patient)
    patient.get(f"{address}#runs=%5B%22%3Cscript%3Ewindow.taken=1%3C/script%3E%22%5D&metric=%3Cimg%20src=x%3E")
    until(READY)
    untouched(patient)
