"""Write requirements-hashed.txt (`make hashes`): every pinned version with the checksums of its files on the index.

`pip install --require-hashes --no-deps -r requirements-hashed.txt` then installs exactly these files on any machine.
torch is left out: its builds for CPU and GPU have the same version and different files, so you choose one yourself.
Pinned packages that no extra of anisoscope needs are left out too, such as the loggers of experiments.
A version that the index has withdrawn is refused: that is the only warning that an index gives about a package.
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from anisoscope.studies.atlas.packages import pip_indexes

ROOT = Path(__file__).parent.parent
CONSTRAINTS, HASHED = ROOT / "constraints.txt", ROOT / "requirements-hashed.txt"
CHOSEN_BY_USER = ("torch",)
_SECONDS = 60.0
_OTHER_PYTHONS = re.compile(r"^(cp(2|3[0-9]$|310)|pp|graalpy|py2$)")  # below 3.11, and other interpreters
_OTHER_PLATFORMS = re.compile(r"musllinux|win32|i686|ppc64|s390x|armv7|riscv|ios_|android|emscripten|wasm|pyodide")
_HEADER = (
    "# Written by `make hashes` from constraints.txt and the package index: do not edit.\n"
    "# pip install torch==2.13.0 && pip install --require-hashes --no-deps -r requirements-hashed.txt\n"
)


class File(NamedTuple):
    """A file of a package on an index."""

    name: str
    sha256: str
    withdrawn: bool


def pinned(constraints: str) -> list[tuple[str, Version]]:
    """Read the lines `name==version` of a file of constraints."""
    lines = [line.strip() for line in constraints.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, Version(version)) for name, _, version in (line.partition("==") for line in lines)]


def needed(name: str, *extras: str) -> set[str]:
    """Return the packages that an installed package needs with these extras, and what those need in turn."""
    remaining, seen = [(canonicalize_name(name), frozenset(extras))], set()
    while remaining:
        wanted = remaining.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            lines = distribution(wanted[0]).requires or []
        except PackageNotFoundError:  # for another system
            continue
        used = [line for line in map(Requirement, lines) if _applies(line, wanted[1])]
        remaining += [(canonicalize_name(line.name), frozenset(line.extras)) for line in used]
    return {package for package, _ in seen}


def _applies(line: Requirement, extras: frozenset[str]) -> bool:
    return line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def files_on(page: str) -> list[File]:
    """Read the links of a page of a simple index that have a checksum."""
    parser = _Links()
    parser.feed(page)
    return parser.files


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.files: list[File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address, _, checksum = (values.get("href") or "").partition("#sha256=")
        if tag == "a" and checksum:
            name = urllib.parse.unquote(address.rpartition("/")[2])
            self.files.append(File(name, checksum, "data-yanked" in values))


def is_wanted(file: str, name: str, version: Version) -> bool:
    """Whether a file is this version of a package, for a Python and a platform that the project supports."""
    try:
        if not file.endswith(".whl"):
            return parse_sdist_filename(file) == (canonicalize_name(name), version)
        found, number, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False
    usable = [t for t in tags if not _OTHER_PYTHONS.match(t.interpreter) or t.abi == "abi3"]
    return (found, number) == (canonicalize_name(name), version) and any(
        not _OTHER_PLATFORMS.search(tag.platform) for tag in usable
    )


def entry(name: str, version: Version, files: Sequence[File]) -> str:
    """Return the requirement of a version with its checksums.

    Raises:
        ValueError: The index has no such file, or has withdrawn the version.
    """
    wanted = [file for file in files if is_wanted(file.name, name, version)]
    if not wanted:
        raise ValueError(f"{name}=={version} is not on the index")
    if any(file.withdrawn for file in wanted):
        raise ValueError(f"{name}=={version} was withdrawn from the index")
    checksums = [f"    --hash=sha256:{checksum}" for checksum in sorted({file.sha256 for file in wanted})]
    return " \\\n".join([f"{name}=={version}", *checksums]) + "\n"


def _page(name: str, index: str) -> str:
    """The page of a package on an index."""
    address = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
    request = urllib.request.Request(address, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        return str(answer.read().decode())


def _entries(versions: Sequence[tuple[str, Version]]) -> Iterator[str]:
    problems, index = [], pip_indexes()[0]
    with ThreadPoolExecutor(8) as pool:
        pages = [(name, version, pool.submit(_page, name, index)) for name, version in versions]
        for name, version, page in pages:
            try:
                yield entry(name, version, files_on(page.result()))
            except (ValueError, urllib.error.URLError) as error:
                problems.append(f"{name}: {error}")
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    names = needed("anisoscope", "dev") - set(CHOSEN_BY_USER)
    versions = [pair for pair in pinned(CONSTRAINTS.read_text()) if canonicalize_name(pair[0]) in names]
    HASHED.write_text(_HEADER + "".join(_entries(versions)))
    sys.stdout.write(f"{len(versions)} versions in {HASHED.name}\n")
