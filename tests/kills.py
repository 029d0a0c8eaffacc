"""Real kills: a task runs in a subprocess and is struck at a chosen operation on its files: by a signal or a shortage.

The processes are forked from one that has imported everything, so a kill costs only the task. An operation is
what changes a file in the task's folder: opening for writing, writing, syncing, cutting, renaming, removing, making
folders. A kill in a write leaves its first half on the disk; a kill with a delay hits what comes between operations:
passes, evaluations, steps of a training. A shortage of memory or disk is a limit of the system from that operation on.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.warmed"])
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PATHS = {
    "os.rename": 1,
    "os.mkdir": 0,
    "os.remove": 0,
    "os.rmdir": 0,
}  # which argument is the path
_NEEDS_SPACE = ("open", "write", "sync", "os.mkdir")  # what a full disk refuses: removing always works
PATIENCE = 300.0  # seconds; only a hang takes that long


@dataclass(frozen=True)
class Operation:
    """A change of a file, and its time in seconds since the start of the task."""

    kind: str
    name: str
    seconds: float


@dataclass(frozen=True)
class Kill:
    """The operation, counted from 0, at which the process gets a signal, and the delay in seconds."""

    operation: int
    delay: float = 0.0
    signal: int = signal.SIGKILL

    @property
    def sort(self) -> str:
        return signal.Signals(self.signal).name


@dataclass(frozen=True)
class Pause:
    """The operation, counted from 0, at which the process is stopped for a moment (SIGSTOP, then SIGCONT)."""

    operation: int
    sort = "SIGSTOP"


@dataclass(frozen=True)
class Shortage:
    """The operation, counted from 0, from which on the system gives no more of a resource: RLIMIT_AS, RLIMIT_FSIZE."""

    operation: int
    resource: int

    @property
    def sort(self) -> str:
        return "memory" if self.resource == resource.RLIMIT_AS else "disk"


@dataclass(frozen=True)
class Refusal:
    """The operation, counted from 0, from which on the system refuses to change files in `within`, and the error."""

    operation: int
    error: int  # such as errno.ENOSPC
    within: str = ""


Fault = Kill | Refusal | Pause | Shortage
Work = Callable[[Path, Path], None]  # arguments: the folder of its inputs, and its own, which may be half done


def run(work: Work, material: Path, folder: Path, kill: Kill | None = None) -> list[Operation] | None:
    """Run the task in a process; returns its operations, or None if it was killed. A failure is an AssertionError."""
    code, answer = _run(work, material, folder, kill)
    if code == -signal.SIGKILL and kill is not None:
        return None
    assert isinstance(answer, list), f"{work.__name__} under {kill} failed: {answer}"
    return answer


def strike(work: Work, material: Path, folder: Path, fault: Fault) -> bool:
    """Run the task under a fault; returns whether it ended early. A pause must not end it."""
    code, answer = _run(work, material, folder, fault)
    ended = not isinstance(answer, list)
    assert not (ended and isinstance(fault, Pause)), f"{work.__name__} under {fault} failed: {code}, {answer}"
    return ended


def draw(operations: int, gap: float, chance: random.Random) -> Kill | Pause | Shortage:
    """A random fault at one of the operations of a task, or within `gap` seconds after it."""
    position = chance.randrange(operations)
    kind = chance.choice(("kill", "kill", "kill", "term", "term", "pause", "memory", "disk"))
    if kind in ("kill", "term"):
        delay = chance.choice((0.0, chance.uniform(0, gap)))
        return Kill(position, delay, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
    if kind == "pause":
        return Pause(position)
    return Shortage(position, resource.RLIMIT_AS if kind == "memory" else resource.RLIMIT_FSIZE)


def failure(work: Work, material: Path, folder: Path, fault: Refusal | None = None) -> str:
    """The error output of a task that fails, with or without a refusal; "" if it does not fail."""
    _, answer = _run(work, material, folder, fault)
    return answer if isinstance(answer, str) else ""


def _run(
    work: Work, material: Path, folder: Path, fault: Fault | None
) -> tuple[int | None, list[Operation] | str | None]:
    """The exit code of the process, and its answer."""
    folder.mkdir(parents=True, exist_ok=True)
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    # one thread each, even if the caller set nothing: results are compared to the bit
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    process = _CONTEXT.Process(target=_begin, args=(work, material, folder, fault, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv() if receiver.poll(PATIENCE) else "it hangs"
    except EOFError:
        answer = None
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"{work.__name__} under {fault}: {answer}")
    return process.exitcode, answer


def spread(operations: list[Operation], count: int, seed: int) -> list[Kill]:
    """`count` different kills: alternately at an operation and at a moment, which usually is between two operations."""
    chance = random.Random(seed)
    began, took = operations[0].seconds, operations[-1].seconds - operations[0].seconds
    kills = []
    for part in range(count):
        share = (part + chance.random()) / count
        moment = began + share * took
        position = (
            int(share * len(operations)) if part % 2 == 0 else sum(each.seconds <= moment for each in operations) - 1
        )
        kills.append(Kill(position, 0.0 if part % 2 == 0 else moment - operations[position].seconds))
    return kills


def _begin(work: Work, material: Path, folder: Path, fault: Fault | None, sender: Any) -> None:
    """In the new process."""
    import torch

    torch.set_num_threads(1)
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    seen = _watch(folder.resolve(), fault)
    try:
        work(material, folder)
    except BaseException as error:
        sender.send(sys.stderr.getvalue() or f"{type(error).__name__}: {error}")
        return
    if isinstance(fault, Kill) and len(seen) > fault.operation:
        time.sleep(fault.delay + 1)  # the last operation's kill comes after the work
    sender.send(list(seen))


def _watch(root: Path, fault: Fault | None) -> list[Operation]:
    """Record every operation in the folder, and die or refuse at the chosen one."""
    began = time.perf_counter()
    seen: list[Operation] = []
    inside = os.fspath(root)

    def note(kind: str, path: object) -> bool:
        """Whether the process dies at this operation."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}") if os.path.exists(f"/proc/self/fd/{path}") else ""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        text = os.path.abspath(os.fsdecode(path))
        if not text.startswith(inside):
            return False
        seen.append(Operation(kind, os.path.basename(text), time.perf_counter() - began))
        if isinstance(fault, Refusal) and len(seen) > fault.operation and kind in _NEEDS_SPACE and fault.within in text:
            raise OSError(fault.error, os.strerror(fault.error), text)
        if fault is None or isinstance(fault, Refusal) or len(seen) != fault.operation + 1:
            return False
        if isinstance(fault, Kill) and not fault.delay and fault.signal == signal.SIGKILL:
            return True
        if isinstance(fault, Kill):
            threading.Timer(fault.delay, os.kill, (os.getpid(), fault.signal)).start()
        elif isinstance(fault, Shortage):
            _limit(fault.resource)
        else:
            subprocess.Popen(["sh", "-c", f"sleep 0.05; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        return False

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _CHANGING and not isinstance(path, int) and note("open", path):
                _die()
        elif event in _PATHS:
            if note(event, arguments[_PATHS[event]]):
                _die()
        elif event == "os.truncate" and note("truncate", arguments[0]):
            _die()

    write, sync = os.write, os.fsync

    def torn_write(descriptor: int, data: Any) -> int:
        if note("write", descriptor):
            write(descriptor, bytes(data)[: len(data) // 2])
            _die()
        return write(descriptor, data)

    def watched_sync(descriptor: int) -> None:
        if note("sync", descriptor):
            _die()
        sync(descriptor)

    os.write, os.fsync = torn_write, watched_sync  # type: ignore[assignment]
    sys.addaudithook(audit)
    return seen


def _limit(kind: int) -> None:
    """Allow no more address space than there is, or no further byte in any file."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = mapped if kind == resource.RLIMIT_AS else 0
    resource.setrlimit(kind, (most, most))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal is on its way
