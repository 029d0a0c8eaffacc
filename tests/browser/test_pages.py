"""Every kind of report page in a real browser: what a reader sees first, legible text, axes, charts, accessibility."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest

from anisoscope.report.page import write_report
from tests.browser.conftest import barriers, problems
from tests.report_pages import KINDS

READY = "return document.documentElement.dataset.ready"
FIRST_SCREEN = """
const bottom = (element) => element.getBoundingClientRect().bottom + scrollY;
const parts = [...document.querySelectorAll('.tile, #hero .chart svg')];
return [parts.length, Math.max(...parts.map(bottom))];
"""
DRAW_ALL = """
const charts = [...document.querySelectorAll('[data-figure]')];
charts.forEach((chart) => { if (!chart.querySelector('svg')) chart.scrollIntoView(); });
return charts.every((chart) => chart.querySelector('svg'));
"""
MARKS = """
return [...document.querySelectorAll('[data-figure]')].map((chart) =>
  [chart.dataset.figure, chart.querySelectorAll('[class*="mark-"] path, [class*="mark-"] text').length]);
"""
# Texts of one chart whose boxes overlap by more than a pixel in both directions, or that leave the chart.
TEXTS = """
const wrong = [];
for (const chart of document.querySelectorAll('[data-figure]')) {
  const svg = chart.querySelector('svg'), frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].filter((text) =>
    text.textContent.trim() && getComputedStyle(text).opacity !== '0' && text.getAttribute('opacity') !== '0');
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  boxes.forEach(([name, box], i) => {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
        box.bottom > frame.bottom + 1)
      wrong.push([chart.dataset.figure, name, 'outside']);
    for (const [other, next] of boxes.slice(i + 1)) {
      const across = Math.min(box.right, next.right) - Math.max(box.left, next.left);
      const down = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
      if (across > 1 && down > 3) wrong.push([chart.dataset.figure, name, other]);
    }
  });
}
return wrong;
"""
# Elements of the page whose text is cut off: they hide what does not fit, without a way to scroll.
CLIPPED = """
return [...document.querySelectorAll('h1, h2, p, th, td, figcaption, summary, .tile, .tile *')].filter((element) =>
  element.checkVisibility() && element.scrollWidth > element.clientWidth + 1 && element.clientWidth &&
  getComputedStyle(element).overflowX === 'hidden').map((element) => element.textContent);
"""
# Lines of a tile that overlap.
TILES = """
const box = (element) => element.getBoundingClientRect();
return [...document.querySelectorAll('.tile')].flatMap((tile) => [...tile.children].slice(1).filter(
  (line, i) => box(line).top < box(tile.children[i]).bottom - 1).map((line) => line.textContent));
"""
# Parts of the page that a reader would have to scroll sideways to read.
SCROLLED = """
return [...document.querySelectorAll('.scroll, .side, .tile, .panel')].filter((part) =>
  part.checkVisibility() && part.scrollWidth > part.clientWidth + 1).map((part) => part.textContent.slice(0, 80));
"""
# Blocks of the page that overlap although neither contains the other.
COVERED = """
const blocks = [...document.querySelectorAll('h1, h2, p, figure, table, .tile, details, .legend')].filter((block) =>
  block.checkVisibility() && block.getBoundingClientRect().height);
const boxes = blocks.map((block) => block.getBoundingClientRect()), wrong = [];
boxes.forEach((box, i) => {
  for (let j = i + 1; j < boxes.length; j++) {
    const next = boxes[j];
    const across = Math.min(box.right, next.right) - Math.max(box.left, next.left);
    const down = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
    if (across > 1 && down > 2 && !blocks[i].contains(blocks[j]))
      wrong.push([blocks[i].textContent.slice(0, 60), blocks[j].textContent.slice(0, 60)]);
  }
});
return wrong;
"""
SIDEWAYS = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
REPEATED = """
const repeated = [];
for (const axis of document.querySelectorAll('[data-figure] svg .role-axis-label')) {
  const shown = [...axis.querySelectorAll('text')].filter((text) => text.getAttribute('opacity') !== '0');
  const labels = shown.map((text) => text.textContent);
  if (new Set(labels).size < labels.length) repeated.push(labels);
}
return repeated;
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("pages")
    addresses = {}
    for kind, make in KINDS.items():
        (root / kind).mkdir()
        addresses[kind] = write_report(make(root / kind), root / f"{kind}.html").as_uri()
    return addresses


@pytest.fixture
def show(browser: Any, pages: dict[str, str], until: Any, set_view: Any) -> Callable[..., Any]:
    """Open a page of a kind in a window of a width, light or dark, with all figures drawn if wanted."""

    def open_page(kind: str, width: int = 1280, *, dark: bool = False, whole: bool = False) -> Any:
        set_view(width, dark)
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(pages[kind])
        until(READY)
        if whole:
            until(DRAW_ALL)
            browser.execute_script("scrollTo(0, 0)")
        return browser

    return open_page


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_and_hero_are_on_the_first_screen(show: Any, kind: str) -> None:
    count, bottom = show(kind).execute_script(FIRST_SCREEN)
    assert count >= 5  # four tiles and a chart, or more
    assert bottom <= 800


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_has_marks_and_legible_text_and_nothing_is_requested(show: Any, kind: str) -> None:
    page = show(kind, whole=True)
    marks = page.execute_script(MARKS)
    assert marks
    assert all(count for _, count in marks), marks
    assert page.execute_script(TEXTS) == []
    assert page.execute_script(REPEATED) == []
    assert page.execute_script(CLIPPED) == []
    assert page.execute_script(TILES) == []
    assert page.execute_script(SCROLLED) == []
    assert page.execute_script(COVERED) == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert problems(page) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_phone_shows_the_page_without_sideways_scrolling(show: Any, kind: str) -> None:
    page = show(kind, 400, dark=True, whole=True)
    assert page.execute_script(SIDEWAYS) <= 0
    assert page.execute_script(TILES) == []
    assert page.execute_script(COVERED) == []
    assert page.execute_script(REPEATED) == []
    assert page.execute_script(TEXTS) == []
    assert problems(page) == []


@pytest.mark.parametrize("kind", KINDS)
def test_no_serious_barrier_is_found(show: Any, kind: str) -> None:
    assert barriers(show(kind, dark=kind == "model")) == []


def test_every_chart_is_described_by_a_sentence(show: Any) -> None:
    labels = show("model").execute_script(
        "return [...document.querySelectorAll('[data-figure]')].map((chart) => chart.getAttribute('aria-label'))"
    )
    assert all(len(label) > 20 and label.endswith(".") for label in labels), labels


def test_controls_can_be_reached_with_the_keyboard(show: Any, until: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    page = show("model")
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB, Keys.TAB, Keys.TAB)
    assert page.execute_script("return document.activeElement.id") == "theme"
    page.switch_to.active_element.send_keys(Keys.ENTER)
    until("return document.documentElement.dataset.theme === 'dark'")


BREAKS = """
const parts = [...document.querySelectorAll('section.question')];
return parts.every((part) => getComputedStyle(part).breakBefore === 'page');
"""
PAPER = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll('.chart svg, table, .tile')].filter((part) =>
  part.checkVisibility() && part.getBoundingClientRect().right > wide + 1).map((part) => part.outerHTML.slice(0, 80));
"""


@pytest.mark.parametrize("kind", KINDS)
def test_paper_shows_every_section_on_its_page_in_light_colours(show: Any, browser: Any, kind: str) -> None:
    page = show(kind, dark=True, whole=True)
    sections = page.execute_script("return document.querySelectorAll('section.question').length")
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= sections + 2  # the top, and what was measured
    assert page.execute_script("return document.documentElement.dataset.theme") == "dark"  # again, after printing
    try:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        size = {"width": 700, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.execute_script("dispatchEvent(new Event('beforeprint'))")
        assert page.execute_script(PAPER) == []
        style = "return getComputedStyle(document.body).backgroundColor"
        assert page.execute_script(style) == "rgb(255, 255, 255)"
        assert page.execute_script(BREAKS)
        assert (
            page.execute_script("return document.querySelectorAll('section.question details:not([open])').length") == 0
        )
        assert not page.execute_script("return document.getElementById('explore').checkVisibility()")
        page.execute_script("dispatchEvent(new Event('afterprint'))")
        assert page.execute_script("return document.querySelectorAll('section.question details[open]').length") == 0
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
