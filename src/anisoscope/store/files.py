"""Files that survive a kill -9, a full disk and a crafted folder: whole lines, whole files, one writer."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from anisoscope.errors import AnisoscopeError, InputError, StoreError, first_line

TEMPORARY = ".tmp"
# Far above anything real, so that a crafted file cannot fill the memory.
LINE_LIMIT = 16 << 20
JSON_LIMIT = 64 << 20
# About a thousand records: large enough to check many at once, small enough to stay in the cache.
_CHUNK = 1 << 18
# How libraries written in Rust, such as safetensors, pass on an error of the system.
_IN_RUST = re.compile(r"\(os error ([0-9]{1,4})\)")
_MAX_DEPTH = 255  # folders; making more at once would exceed Python's recursion limit
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
def file_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one line: the action, the file, the reason and the remedy."""
    try:
        yield
    except Exception as error:
        reason = refusal(error)
        if reason is None:
            raise
        raise StoreError(f"cannot {action} {path}: {reason}") from error


def refusal(error: Exception) -> str | None:
    """Why the operating system refused something, and the remedy; None for any other kind of error.

    >>> refusal(OSError(errno.ENOSPC, "No space left on device"))
    'No space left on device; free some space; what was stored before is intact'
    """
    if isinstance(error, OSError):
        return f"{error.strerror or error}; {_REMEDIES.get(error.errno or 0, _REMEDY)}"
    number = _IN_RUST.search(str(error))
    if number is None:
        return None
    return f"{os.strerror(int(number[1]))}; {_REMEDIES.get(int(number[1]), _REMEDY)}"


def user_path(source: str | os.PathLike[str]) -> Path:
    """The path that a user typed, with ~ as the home folder; an InputError if no system can have such a path."""
    try:
        path = Path(source).expanduser()
        path.exists()
        if len(path.parts) > _MAX_DEPTH:
            raise ValueError(f"more than {_MAX_DEPTH} folders deep")
    except (OSError, ValueError, RuntimeError) as error:  # too long, not accessible, ~ of an unknown user
        text = os.fspath(source)
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise InputError(f"{shown!r} is not a path ({getattr(error, 'strerror', None) or error}); check it") from error
    return path


@contextmanager
def parse_errors(path: Path | str, remedy: str, kind: type[AnisoscopeError] = InputError) -> Iterator[None]:
    """Turn any error of a parser into one line that names the file.

    Catches every Exception on purpose: the readers of other libraries raise dozens of kinds on damaged bytes.
    """
    try:
        yield
    except AnisoscopeError:
        raise
    except Exception as error:
        reason = f"cannot be read, it is damaged or not what its name says ({first_line(error)}); {remedy}"
        raise kind(f"{path}: {wrong_content(path) or reason}") from error


def wrong_content(path: Path | str) -> str | None:
    """What a file really is if a download stored something else under its name, and what to do; None otherwise.

    >>> wrong_content(__file__) is None
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


def require_regular(path: Path) -> None:
    """Raise an OSError if a path is a pipe or a device: reading a pipe would wait for its writer."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """The value in a JSON file; a ValueError if it is not JSON, not a regular file, too long or nested too deeply."""
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")  # to open a pipe would wait for its writer
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"longer than {limit:,} bytes")
    return parse_json(data)


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text; a ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def similar_paths(path: Path) -> str:
    """Existing names most similar to a missing path, as the end of a sentence: ` (did you mean …?)`.

    Of names that differ only in their last number, such as checkpoints, the nearest numbers. If the folder is missing
    too, the names most similar to the first missing part of the path. A path that exists without being a folder is a
    pipe or a device.
    """
    if path.exists() and not path.is_dir():
        return " (it is not a regular file)"
    missing = path
    while not path.parent.is_dir() and path.parent != path.parent.parent:
        path = path.parent
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(path.parent))
    near = _near_numbers(path.name, names) or difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if near:
        return f" (did you mean {' or '.join(str(path.parent / name) for name in near)}?)"
    return f" (there is no folder {path})" if path != missing else ""


def _near_numbers(name: str, names: list[str]) -> list[str]:
    """Up to two names that differ from `name` only in their last number, the nearest first.

    >>> _near_numbers("step-99", ["data", "step-8", "step-64", "step-100"])
    ['step-100', 'step-64']
    """
    numbered = re.compile(r"(.*?)(\d{1,18})")
    wanted = numbered.fullmatch(name)
    matches = [match for each in names if wanted and (match := numbered.fullmatch(each)) and match[1] == wanted[1]]
    matches.sort(key=lambda match: abs(int(match[2]) - int(wanted[2])) if wanted else 0)
    return [match[0] for match in matches[:2]]


def open_plain(path: Path, flags: int) -> int:
    """Open a regular file; links are refused, and a pipe under its name cannot block."""
    safe = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))  # each absent somewhere
    descriptor = os.open(path, flags | safe, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path} is not a regular file; replace it by the file itself")
    return descriptor


def require_folder(path: Path) -> None:
    """Check that a path is a real folder: a link in an untrusted folder could lead a writer out of it."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise StoreError(f"{path} is not a folder; replace it by the folder itself")


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[int, list[bytes]]]:
    """The complete lines of a file, many at a time, each time with the number of the first line (from 1).

    `start` is the offset of the line to begin at. An incomplete last line, left by a kill, is left out; a missing file
    has no lines.
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
    """Append complete lines and sync them; an incomplete last line is removed first, a failed append is undone."""
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
    """The offset after the last newline of a file, searched from its end."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _CHUNK)
        os.lseek(descriptor, start, os.SEEK_SET)
        last = os.read(descriptor, end - start).rfind(b"\n")
        if last >= 0:
            return start + last + 1
        end = start
    return 0


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:  # one call may write only a part
        rest = rest[os.write(descriptor, rest) :]


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all. A link at `path` is replaced, not followed."""
    with file_errors("write", path), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file next to `path` that replaces it, complete and synced, if the block ends without an error."""
    temporary = path.with_name(f".{path.name[:180]}.{os.getpid()}{TEMPORARY}")
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
    """Remove temporary files that killed processes left in a folder; those of living processes stay."""
    for path in folder.glob(f".*{TEMPORARY}"):
        owner = path.name.removesuffix(TEMPORARY).rpartition(".")[2]
        if owner.isascii() and owner.isdigit() and not _is_alive(int(owner)):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_alive(process: int) -> bool:
    if os.name == "nt":  # on Windows a signal of 0 ends the process
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


class WriterLock:
    """The exclusive right of this process to write to a folder.

    The system releases the lock when the process ends, however it ends.

    Raises:
        StoreError: Another process, or another part of this one, holds the lock; the message names the process.
    """

    def __init__(self, path: Path) -> None:
        # Not per thread: the thread that closes a run need not be the one that opened it.
        self._lock = FileLock(path, thread_local=False)
        self._process = os.getpid()
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise StoreError(
                f"{path.parent} is being written by process {_lock_holder(path)} (or a child process of it). "
                "Wait until it ends, or write to another folder"
            ) from None
        try:
            _write_lock_holder(path)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; in a forked child this does nothing, because the lock belongs to the parent."""
        if os.getpid() == self._process:
            self._lock.release(force=True)


# The process id starts at the second byte of a lock file: Windows locks the first one, which nobody else can read then.


def _write_lock_holder(path: Path) -> None:
    descriptor = open_plain(path, os.O_RDWR)
    try:
        data = f"{os.getpid()}\n".encode()
        os.lseek(descriptor, 1, os.SEEK_SET)
        _write(descriptor, data)
        os.ftruncate(descriptor, 1 + len(data))
    finally:
        os.close(descriptor)


def _lock_holder(path: Path) -> str:
    """The process id in a lock file, or "unknown"."""
    with suppress(OSError, StoreError):
        descriptor = open_plain(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(1)
            text = file.read(32).decode("ascii", "replace").strip()
        if text.isdigit():
            return text
    return "unknown"
