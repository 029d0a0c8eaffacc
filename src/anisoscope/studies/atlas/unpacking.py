"""Take chosen files out of an archive: no links, no paths that lead elsewhere, no more bytes than allowed."""

from __future__ import annotations

import fnmatch
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from anisoscope.errors import InputError

LIMIT = 2 << 30  # bytes that one archive may unpack to
_CHUNK = 1 << 20


def unpack(archive: Path, patterns: Sequence[str], folder: Path, limit: int = LIMIT) -> list[Path]:
    """Write the files of an archive that match a pattern into a folder, under their paths in the archive.

    Args:
        archive: A wheel or zip, or a tar file.
        patterns: Patterns of paths, such as `package/models/*`.
        folder: Where to write them.
        limit: Bytes that the files may have in all.

    Returns:
        The files, sorted by path.

    Raises:
        InputError: A pattern matches nothing, a file would be written outside `folder`, or there are too many bytes.
    """
    written: dict[str, Path] = {}
    left = limit
    with _entries(archive) as entries:
        for name, stream in entries:
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                continue
            path = _inside(folder, name, archive)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                while chunk := stream.read(_CHUNK):
                    left -= len(chunk)
                    if left < 0:
                        shutil.rmtree(folder)
                        raise InputError(f"{archive.name} unpacks to more than {limit:,} bytes. It is not used.")
                    out.write(chunk)
            written[name] = path
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in written):
            raise InputError(f"{archive.name} has no file {pattern}. Its version is not the one that is expected.")
    return [written[name] for name in sorted(written)]


def _inside(folder: Path, name: str, archive: Path) -> Path:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in name or ":" in name:
        raise InputError(f"{archive.name} holds a file {name!r}, which leads out of its folder. It is not used.")
    return folder / parts


@contextmanager
def _entries(archive: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """Open an archive; yields the paths and contents of its plain files, and skips links and devices."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                yield ((i.filename, zipped.open(i)) for i in zipped.infolist() if not i.is_dir())
        else:
            with tarfile.open(archive) as tar:
                yield ((m.name, stream) for m in tar if m.isreg() and (stream := tar.extractfile(m)) is not None)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{archive.name} cannot be read ({error}). Delete it and run the command again.") from error
