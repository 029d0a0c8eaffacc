"""Every odd input ends with success, one line or the usage: no traceback, no hang, no gigabytes."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from anisoscope.cli import main
from anisoscope.errors import is_out_of_memory
from tests import odd_models
from tests.odd_inputs import OddInput, cases, copy_desk, make_desk

CASES = [*cases(), *odd_models.cases()]
SHORT = [case for number, case in enumerate(CASES) if case.expected or number % 32 == 0]
SECONDS = 60  # of processor time per case
GROWTH = 2 << 30  # bytes of memory per case
SPACE = 6 << 30  # bytes of address space per case: what asks for more is refused by the system, and fails here

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.warmed"])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_desk(tmp_path_factory.mktemp("odd") / "desk")


def test_there_are_a_thousand_cases_with_unique_names() -> None:
    assert len(CASES) >= 1000
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_an_odd_input_ends_with_one_line(
    case: OddInput, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copy_desk(desk, tmp_path / "desk"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "argv", ["anisoscope", *case.arguments])
    if case.make is not None:
        case.make(Path())
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert problem(case, ended.value.code, printed.err) is None, printed.err[-2000:]


def problem(case: OddInput, code: Any, printed: str) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    lines = [line for line in printed.splitlines() if line.startswith("anisoscope: ")]
    if "Traceback" in printed or code not in (0, 1, 2, None):
        return f"exit code {code}"
    if code == 1 and len(lines) != 1:
        return f"{len(lines)} lines"
    if "\x1b]" in printed:
        return "control characters"
    if is_out_of_memory(RuntimeError(printed)) or "MemoryError" in printed:
        return "out of memory"
    flat = " ".join(printed.replace("│", " ").split())
    if case.expected not in flat or (case.expected and not code):
        return f"does not say {case.expected!r}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_all_odd_inputs_end_within_their_limits(part: int, desk: Path, tmp_path: Path) -> None:
    failed = {}
    for number, case in enumerate(CASES[part::16]):
        answer = _answer(case, copy_desk(desk, tmp_path / str(number)))
        if answer is not None:
            failed[case.name] = answer
    assert not failed


def _answer(case: OddInput, folder: Path) -> str | None:
    """What is wrong with the answer of a case that runs in a process of its own, within limits."""
    if case.make is not None:
        case.make(folder)
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(case.arguments, folder, sender))
    process.start()
    sender.close()
    process.join(10 * SECONDS)  # the limit of processor time ends it earlier, unless it waits for something
    if process.is_alive():
        process.kill()
        process.join()
        return "hangs"
    code, growth = receiver.recv() if process.exitcode == 0 else (process.exitcode, 0)
    if growth > GROWTH:
        return f"grew by {growth >> 20} MB"
    return problem(case, code, (folder / "stderr").read_text(errors="replace"))


def _run(arguments: tuple[str, ...], folder: Path, sender: Any) -> None:
    """In the new process: run the command with its output in files."""
    os.chdir(folder)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name, stream in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), stream)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + SPACE, mapped + SPACE))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.argv = ["anisoscope", *arguments]
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    sys.stderr.flush()
    sender.send((code, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)))
