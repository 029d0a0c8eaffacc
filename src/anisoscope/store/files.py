"""Files that survive a kill -9, a full disk and a crafted folder: whole lines, whole files, one writer. Stdlib only."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, InputError, StoreError, first_line

TEMPORARY = ".tmp"
# Far above anything real, so that a crafted file cannot fill the memory.
LINE_LIMIT = 16 << 20
JSON_LIMIT = 64 << 20
# About a thousand records: large enough to check many at once, small enough to stay in the cache.
_CHUNK = 1 << 18
# How libraries written in Rust, safetensors among them, pass on what the system said.
_IN_RUST = re.compile(r"\(os error ([0-9]{1,4})\)")
_REMEDY = "check the path and the disk"
_REMEDIES = {
    errno.ENOSPC: "free some space; what was stored before is intact",
    errno.EDQUOT: "free some space; what was stored before is intact",
    errno.EFBIG: "choose a disk that takes larger files; what was stored before is intact",
    errno.EACCES: "choose a folder you may use, or change its permissions",
    errno.EPERM: "choose a folder you may use, or change its permissions",
    errno.EROFS: "choose a folder on another disk",
    errno.ELOOP: "it is a link; replace it by the file itself",
}


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """What the system refuses inside becomes one line: what could not be done, to which file, why, and the remedy."""
    try:
        yield
    except Exception as error:
        told = refusal(error)
        if told is None:
            raise
        raise StoreError(f"cannot {action} {path}: {told}") from error


def refusal(error: Exception) -> str | None:
    """Why the system refused something, and the remedy; None for an error of any other kind.

    >>> refusal(OSError(errno.ENOSPC, "No space left on device"))
    'No space left on device; free some space; what was stored before is intact'
    """
    if isinstance(error, OSError):
        return f"{error.strerror or error}; {_REMEDIES.get(error.errno or 0, _REMEDY)}"
    number = _IN_RUST.search(str(error))
    if number is None:
        return None
    return f"{os.strerror(int(number[1]))}; {_REMEDIES.get(int(number[1]), _REMEDY)}"


def given_path(source: str | os.PathLike[str]) -> Path:
    """The path that a user named, ~ as the home; one that no system could have is an InputError."""
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long, not to be looked at, ~ of nobody
        text = os.fspath(source)
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise InputError(f"{shown!r} is no path ({getattr(error, 'strerror', None) or error}); check it") from error
    return path


@contextmanager
def understood(path: Path | str, remedy: str, kind: type[AnisoscopeError] = InputError) -> Iterator[None]:
    """Whatever a parser makes of damaged or crafted bytes becomes one line that names the file.

    Catches every Exception on purpose: the readers of other libraries raise dozens of kinds on bytes that are not
    theirs.
    """
    try:
        yield
    except AnisoscopeError:
        raise
    except Exception as error:
        seen = f"cannot be read, it is damaged or not what its name says ({first_line(error)}); {remedy}"
        raise kind(f"{path}: {impostor(path) or seen}") from error


def impostor(path: Path | str) -> str | None:
    """What a file really is where a download left something else in its place, and what to do; None where it did not.

    >>> impostor(__file__) is None
    True
    """
    try:
        with Path(path).open("rb") as file:
            start = file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    except (OSError, ValueError):
        return None
    if start.startswith(b"version https://git-lfs"):
        return "it is a pointer of git-lfs, not the file itself; fetch it with: git lfs pull"
    if start.startswith((b"<!doctype html", b"<html")):
        return "it is a web page, not the file itself; download it again from the address of the raw file"
    return None


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """The value in a JSON file; anything else, one that is too long or too deep included, is a ValueError."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"longer than {limit:,} bytes")
    return parse_json(data)


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text; one that is nested too deeply is a ValueError like all others."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def near_paths(path: Path) -> str:
    """The names most like a missing path's that are there, as the rest of a sentence: ` (did you mean …?)`.

    Of names that differ by their last number only, such as checkpoints, the nearest numbers. Where the folder is
    missing too, what is most like the first part of the path that is not there.
    """
    given = path
    while not path.parent.is_dir() and path.parent != path.parent.parent:
        path = path.parent
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(path.parent))
    near = _near_numbers(path.name, names) or difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if near:
        return f" (did you mean {' or '.join(str(path.parent / name) for name in near)}?)"
    return f" (there is no folder {path})" if path != given else ""


def _near_numbers(name: str, names: list[str]) -> list[str]:
    """
    >>> _near_numbers("step-99", ["data", "step-8", "step-64", "step-100"])
    ['step-100', 'step-64']
    """
    numbered = re.compile(r"(.*?)(\d{1,18})")
    wanted = numbered.fullmatch(name)
    found = [there for each in names if wanted and (there := numbered.fullmatch(each)) and there[1] == wanted[1]]
    found.sort(key=lambda there: abs(int(there[2]) - int(wanted[2])) if wanted else 0)
    return [there[0] for there in found[:2]]


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a regular file: a link is refused, and a pipe in the file's place cannot block."""
    safe = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))  # each absent somewhere
    descriptor = os.open(path, flags | safe, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path} is not a plain file; replace it by the file itself")
    return descriptor


def require_folder(path: Path) -> None:
    """A real folder, not a link: a folder from elsewhere must not lead a writer out of itself."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise StoreError(f"{path} is not a folder; replace it by the folder itself")


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[int, list[bytes]]]:
    """The complete lines of a file in small lots, each with the number of its first line, counted from 1.

    `start` is the offset of the line to begin at. What follows the last newline was torn by a kill and is left out; a
    file that is not there has no lines.
    """
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    number, rest = 1, b""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(start)
        while chunk := file.read(_CHUNK):
            if b"\n" not in chunk:
                rest += chunk
            else:
                *lines, rest = (rest + chunk).split(b"\n")
                yield number, lines
                number += len(lines)
            if len(rest) > LINE_LIMIT:
                raise StoreError(f"{path}, line {number}: longer than {LINE_LIMIT} bytes; not a file of a run")


def append_lines(path: Path, data: bytes) -> None:
    """Add whole lines and bring them to the disk; a torn line is cut off first, a failed append is taken back."""
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
    try:
        end = _end_of_lines(descriptor)
        os.ftruncate(descriptor, end)
        os.lseek(descriptor, end, os.SEEK_SET)
        try:
            _write(descriptor, data)
            os.fsync(descriptor)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)


def _end_of_lines(descriptor: int) -> int:
    """The offset behind the last newline of a file, looked for from its end."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _CHUNK)
        os.lseek(descriptor, start, os.SEEK_SET)
        found = os.read(descriptor, end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:  # one call may write less than it was given
        rest = rest[os.write(descriptor, rest) :]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place, whole and on the disk, when the block ends well."""
    temporary = path.with_name(f".{path.stem[:180]}.{os.getpid()}{TEMPORARY}")
    temporary.unlink(missing_ok=True)
    os.close(open_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield temporary
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, path)
        if os.name != "nt":  # Windows cannot open a folder
            _sync(path.parent, os.O_RDONLY)  # or a power cut could undo the rename
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sweep_temporaries(folder: Path) -> None:
    """Remove what `replacing` left in a folder when its process was killed; that of a living process stays."""
    for path in folder.glob(f".*{TEMPORARY}"):
        owner = path.name.removesuffix(TEMPORARY).rpartition(".")[2]
        if owner.isascii() and owner.isdigit() and not _is_alive(int(owner)):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # there a signal of 0 ends the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def acquire(path: Path) -> int:
    """The descriptor of a lock file, or a StoreError that names the process that holds it.

    The lock belongs to the open file: close the descriptor to give it up; the system does so when the process dies,
    however it dies.
    """
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
    try:
        if not _try_lock(descriptor):
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise StoreError(
                f"{path.parent} is being written by process {holder if holder.isdigit() else 'unknown'} "
                "(or a child it left behind); wait until it ends, or write to another folder"
            )
        os.ftruncate(descriptor, 0)
        _write(descriptor, f"{os.getpid()}\n".encode())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


if sys.platform == "win32":

    def _try_lock(descriptor: int) -> bool:
        import msvcrt

        # Windows locks ranges of bytes and nobody can read a locked range: lock one byte far behind the pid's text.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True

else:

    def _try_lock(descriptor: int) -> bool:
        import fcntl

        # flock, not lockf: it also keeps out a second writer in the same process.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
