"""An untrusted model is opened on trial in a child process, whose limits hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.models import trial_opening
from anisoscope.models.open import open_model
from anisoscope.models.trial_opening import require_openable
from anisoscope.report.run_status import is_written
from anisoscope.store.run import Run
from anisoscope.store.run_header import LOCK
from tests import model_folders as made

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="trials fork, which is safe on Linux")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_opening, "_SECONDS", 1)


def _spin(*_: Any) -> None:
    while True:
        pass


@pytest.mark.usefixtures("hurried")
def test_a_model_whose_building_never_ends_is_refused(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made.hf.GPT2Model, "__init__", _spin)
    with pytest.raises(InputError, match="more than 1 seconds of processor time, although no weights were loaded"):
        open_model(gpt2)


def test_too_much_memory_is_refused() -> None:
    for attempt in (lambda: torch.ones(1 << 30), lambda: bytearray(4 << 30)):
        with pytest.raises(InputError, match=r"needed more than 2 GB of memory.*--trust"):
            require_openable("crafted", attempt)


@pytest.mark.usefixtures("hurried")
def test_a_loop_is_refused_and_its_process_is_gone() -> None:
    with pytest.raises(InputError, match="processor time"):
        require_openable("crafted", _spin)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_crash_is_refused_with_its_signal() -> None:
    with pytest.raises(InputError, match=r"crashed \(SIGKILL\)"):
        require_openable("crafted", lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_an_ordinary_error_is_left_to_the_opening_itself(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        os.write(2, b"noise of a library")
        raise ValueError("wrong")

    require_openable("damaged", fails)
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial_opening.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        require_openable("slow", _spin)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_trusted_model_has_no_trial(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr("anisoscope.models.open.require_openable", lambda source, attempt: tried.append(source))
    open_model(gpt2, trust=True)
    open_model(gpt2, trust_remote_code=True)
    assert tried == []
    open_model(gpt2)
    assert tried == [str(gpt2)]


def test_a_trial_builds_what_opening_builds(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a trial that fails at its first line would look like one that passed."""
    from anisoscope.models import open as opening

    seen: list[Any] = []
    monkeypatch.setattr(opening, "sample_use", seen.append)
    monkeypatch.setattr(opening, "require_openable", lambda source, attempt: attempt())
    open_model(gpt2)
    assert [type(each).__name__ for each in seen] == [type(made.byte_pairs()).__name__]


def test_a_process_without_forks_opens_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(trial_opening.os, "fork", refused)
    require_openable("any", lambda: None)


def test_a_run_stays_locked_during_and_after_a_trial(tmp_path: Path) -> None:
    """The child inherits the lock's file; neither its start nor its end may release it."""
    with Run.create(tmp_path / "run"):
        require_openable("any", lambda: None)
        assert is_written(tmp_path / "run" / LOCK)
    assert not is_written(tmp_path / "run" / LOCK)


def test_a_trial_works_from_a_process_that_computes_with_several_threads(gpt2: Path) -> None:
    code = (
        "import torch; torch.set_num_threads(2); x = torch.ones(1500, 1500); x @ x\n"
        f"from anisoscope.models.open import open_model; print(open_model({str(gpt2)!r}).modality)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "text"
