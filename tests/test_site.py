"""The documentation builds as a site without warnings, every link works, and nothing is loaded from another host."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def builder() -> Iterator[ModuleType]:
    """The script that builds the site, with its neighbours importable."""
    spec = importlib.util.spec_from_file_location("build_site", DOCS / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def site(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with empty sample pages: the slow test makes real ones."""

    def samples(folder: Path) -> None:
        folder.mkdir()
        for name in builder.SAMPLES.values():
            (folder / f"{name}.html").write_text(f"<title>{name}</title>")

    folder = tmp_path_factory.mktemp("site") / "site"
    builder.build(folder, samples, lambda _: "# Notebook\n")
    return folder


def pages_of(navigation: list[Any]) -> Iterator[str]:
    for entry in navigation:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from pages_of(target)


def test_every_page_is_in_the_navigation_once(builder: ModuleType) -> None:
    configuration = tomllib.loads((DOCS / "zensical.toml").read_text())
    listed = list(pages_of(configuration["project"]["nav"]))
    pages = {builder.site_path(path) for path in builder.sources() if path.suffix == ".md"}
    assert sorted(listed) == sorted({*pages, "notebook.md", "examples.md"})


def test_the_site_has_search_and_a_policy_against_other_hosts(site: Path) -> None:
    assert "spectral_anisotropy" in (site / "search.json").read_text()
    for page in site.rglob("*.html"):
        if page.parent.name != "gallery":
            assert "Content-Security-Policy" in page.read_text(), page
            assert not re.search(r"<script[^>]+src=\"https?:", page.read_text()), page


def test_marks_of_blocks_are_dropped_and_links_point_to_pages(builder: ModuleType) -> None:
    tour = builder.prepared(DOCS / "tour.md")
    assert "```sh fails" not in tour
    assert "```sh\nanisoscope measure runs/decoder --text" in tour
    assert "](notebook.md)" in tour
    assert "](../project/design.md)" in builder.prepared(DOCS / "howto" / "add-a-metric.md")
    assert "](howto/high-cosines.md)" in builder.prepared(ROOT / "README.md")
    assert "](gallery/atlas.html)" in builder.prepared(DOCS / "atlas.md")


def test_a_link_to_a_file_that_the_site_lacks_is_an_error(builder: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"does not have pyproject\.toml"):
        builder.site_path(ROOT / "pyproject.toml")


def test_broken_links_and_other_hosts_are_detected(builder: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="one"></p><a href="b.html#two">b</a><a href="https://example.org">out</a>')
    (tmp_path / "b.html").write_text('<p id="two"></p><a href="a.html#one">a</a><img src="data:,">')
    assert not list(builder.broken(tmp_path))
    (tmp_path / "b.html").write_text(
        '<a href="a.html#three"></a><a href="c.html"></a><script src="//host/x.js"></script>'
    )
    (tmp_path / "s.css").write_text("@font-face { src: url(https://host/font.woff2) }")
    problems = "\n".join(builder.broken(tmp_path))
    assert "a.html links to b.html#two, but b.html has no such anchor" in problems
    assert "b.html links to a.html#three, but a.html has no such anchor" in problems
    assert "b.html links to c.html, which does not exist" in problems
    assert "b.html loads //host/x.js from another host" in problems
    assert "s.css loads https://host/font.woff2 from another host" in problems


def test_a_warning_of_the_generator_ends_the_build(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(pages: Path, samples: object, notebook: object) -> None:
        pages.mkdir()
        (pages / "index.md").write_text("# Home\n\n[gone](gone.md)\n")

    monkeypatch.setattr(builder, "prepare", prepare)
    with pytest.raises(SystemExit, match="zensical failed"):
        builder.build(tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # libraries of the kernel emit warnings
def test_the_whole_site_with_sample_reports_and_notebook(builder: ModuleType, tmp_path: Path) -> None:
    builder.build(tmp_path / "site")
    for name in builder.SAMPLES.values():
        assert (tmp_path / "site" / "gallery" / f"{name}.html").stat().st_size > 50_000, name
    notebook = (tmp_path / "site" / "notebook.html").read_text()
    assert notebook.count('class="chart"') == 2
    assert "<table" in notebook
