"""A package index in a folder: simple pages and archives that a test makes, and an `npm` that copies an archive."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

from anisoscope.studies.atlas.packages import Package


def wheel(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> Package:
    """Write a wheel and its page; return the package, pinned."""
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return _listed(folder, name, version, file, data.getvalue())


def sdist(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> Package:
    """Write a source archive and its page; return the package, pinned."""
    file = f"{name}-{version}.tar.gz"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return _listed(folder, name, version, file, data.getvalue())


def index_of(folder: Path) -> list[str]:
    """Return the addresses of the index."""
    return [(folder / "simple").as_uri()]


def fake_npm(folder: Path, archive: Path, record: Path) -> Path:
    """Write a program `npm` that copies an archive into the folder after --pack-destination and records its call."""
    program = folder / "npm"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" > "{record}"\n'
        'while [ "$1" != "--pack-destination" ]; do shift; done\n'
        f'cp "{archive}" "$2/"\n'
    )
    program.chmod(0o755)
    return program


def _listed(folder: Path, name: str, version: str, file: str, content: bytes) -> Package:
    page = folder / "simple" / name
    page.mkdir(parents=True, exist_ok=True)
    (page / file).write_bytes(content)
    with (page / "index.html").open("a") as out:
        out.write(f'<a href="{file}#sha256=0">{file}</a><br>')
    return Package("pypi", name, version, file, hashlib.sha256(content).hexdigest(), len(content))
