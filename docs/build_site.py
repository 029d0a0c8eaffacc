"""Build the static site from docs/ (`make site`), and check every link of the result.

Pages are first copied to a scratch folder: links between files of the repository become links between pages, the marks
of blocks that tests read are dropped, and the gallery and the notebook are added. Then zensical builds the site with
warnings as errors.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).parent))  # find the helpers next to this file from any folder

from gallery import SAMPLES, notebook_page, write_samples

HERE = Path(__file__).parent
ROOT = HERE.parent
# Where files outside docs/ are on the site, and files of docs/ that have another place there.
MOVED = {
    "README.md": "index.md",
    "docs/index.md": "all-pages.md",
    "docs/atlas.html": "gallery/atlas.html",
    "DESIGN.md": "project/design.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "CITATION.cff": "project/CITATION.cff",
    "LICENSE": "project/LICENSE.txt",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/results": "project/benchmark-tables.md",
    "benchmarks/results/tables.md": "project/benchmark-tables.md",
    "benchmarks/results/core.png": "project/core.png",
    "examples": "examples.md",
    "examples/notebook.ipynb": "notebook.md",
}
_FENCE = re.compile(r"^```(\w*).*$")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
# The generator loads this script from a host; `site_assets/file-worker.js` does the same.
_WORKER = "https://unpkg.com/iframe-worker/shim"
# A browser refuses every request to another host, whatever a script tries.
_POLICY = "default-src 'self' file: data: blob: 'unsafe-inline'; connect-src 'self'; form-action 'none'"


def build(
    out: Path, samples: Callable[[Path], None] = write_samples, notebook: Callable[[Path], str] = notebook_page
) -> None:
    """Build the site into a folder, which is replaced.

    Args:
        out: The folder.
        samples: Writes the sample pages of the gallery into a folder.
        notebook: Returns a notebook as Markdown.

    Raises:
        SystemExit: Zensical has warnings, or a link of the site is broken.
    """
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        prepare(work / "pages", samples, notebook)
        shutil.copy(HERE / "zensical.toml", work)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=work, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"zensical failed:\n{done.stdout}\n{done.stderr}")
        for page in (work / "site").rglob("*.html"):
            if page.parent.name != "gallery":  # these have a policy of their own
                page.write_text(closed(page.read_text(), os.path.relpath(work / "site" / "assets", page.parent)))
        problems = list(broken(work / "site"))
        if problems:
            raise SystemExit("\n".join(problems))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(work / "site", out)


def prepare(pages: Path, samples: Callable[[Path], None], notebook: Callable[[Path], str]) -> None:
    """Write all pages and pictures of the site into a folder, ready for zensical."""
    for source in sources():
        target = pages / site_path(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(prepared(source))
        else:
            shutil.copy(source, target)
    shutil.copytree(HERE / "site_assets", pages / "assets")
    (pages / "notebook.md").write_text(notebook(ROOT / "examples" / "notebook.ipynb"))
    (pages / "examples.md").write_text(examples_page())
    gallery = pages / "gallery.md"
    gallery.write_text(with_links(gallery.read_text()))
    samples(pages / "gallery")


def sources() -> list[Path]:
    """List the files that the site copies."""
    inside = [path for suffix in ("md", "png", "svg") for path in sorted(HERE.rglob(f"*.{suffix}"))]
    made = ("docs/atlas.html", "examples/notebook.ipynb")  # written for the site
    moved = [ROOT / name for name in MOVED if name not in made and (ROOT / name).is_file()]
    return [*inside, *(path for path in moved if path not in inside)]


def site_path(source: Path) -> str:
    """Return where a file of the repository is on the site.

    Raises:
        SystemExit: The site does not have it.
    """
    name = source.resolve().relative_to(ROOT.resolve()).as_posix()
    if name in MOVED:
        return MOVED[name]
    if not name.startswith("docs/"):
        raise SystemExit(f"The site does not have {name}. Add it to MOVED in docs/build_site.py, or do not link to it.")
    return name.removeprefix("docs/")


def prepared(source: Path) -> str:
    """Return a page as the site shows it: without the marks of blocks, with links between pages of the site."""
    here = Path(site_path(source)).parent

    def moved(match: re.Match[str]) -> str:
        name, _, anchor = match[2].partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return match[0]
        target = os.path.relpath(site_path(source.parent / name), here)
        return f"{match[1]}{target}{'#' + anchor if anchor else ''}{match[3]}"

    lines, inside = [], False
    for line in source.read_text().splitlines():
        if line.startswith("```"):
            inside = not inside
            lines.append(_FENCE.sub(r"```\1", line))
        else:
            lines.append(line if inside else _LINK.sub(moved, line))
    return "\n".join(lines) + "\n"


def examples_page() -> str:
    """Return the example programs as one page."""
    parts = ["# Examples", "Complete programs from the folder `examples/`. The tests run them."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts += [f"## {path.stem.replace('_', ' ').capitalize()}", f"```python\n{path.read_text().rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def with_links(gallery: str) -> str:
    """Return the page of the gallery with a link to each sample below its heading."""
    for title, name in SAMPLES.items():
        heading = f"## {title}\n"
        if gallery.count(heading) != 1:
            raise SystemExit(f"docs/gallery.md needs one heading {heading.strip()!r}.")
        gallery = gallery.replace(heading, f"{heading}\n[Open the page](gallery/{name}.html){{ .md-button }}\n")
    return gallery


def closed(html: str, assets: str) -> str:
    """Return a page of the generator with a policy that forbids requests to other hosts, and our script for workers."""
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    return html.replace(_WORKER, f"{assets}/file-worker.js").replace("<head>", f"<head>{policy}", 1)


class _Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "alternate"):
            self.loads.append(values.get("href", ""))
        elif tag in _LOADED and _LOADED[tag] in values:
            self.loads.append(values[_LOADED[tag]])


def broken(site: Path) -> Iterator[str]:
    """Yield every link to a missing page or anchor, and everything that is missing or loaded from another host."""
    pages = {path.resolve(): _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":  # its links start at the root of the host
            continue
        where = path.relative_to(site.resolve())
        for link in page.links + page.loads:
            name, _, anchor = unquote(link).partition("#")
            if re.match(r"(https?:)?//", name):
                if link in page.loads:
                    yield f"{where} loads {link} from another host"
                continue
            if re.match(r"(mailto|data|javascript):", name):
                continue
            target = (path.parent / name.partition("?")[0]).resolve() if name else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{where} links to {link}, which does not exist"
            elif anchor and target in pages and anchor not in pages[target].anchors and link in page.links:
                yield f"{where} links to {link}, but {target.name} has no such anchor"
    for path in sorted(site.rglob("*.css")):
        for url in re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^)'\"]+)", path.read_text()):
            yield f"{path.relative_to(site)} loads {url} from another host"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="The folder of the site, which is replaced.")
    folder: Path = parser.parse_args().out
    build(folder)
    sys.stdout.write(f"site: {folder / 'index.html'}\n")
