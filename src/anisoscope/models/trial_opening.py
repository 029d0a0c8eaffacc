"""Open an untrusted model on trial: in a child process with limits on memory and time, before this process opens it.

What a configuration may build is bounded before it is built (configs.py, construction.py). The trial is for what no
bound knows: loops in the code of a model or a tokenizer whose length a crafted file sets.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import InputError

_SPACE = 2 << 30  # bytes of memory beyond what this process has: a trial loads no weights
_SECONDS = 60  # of processor time: building the largest published models takes less than ten
_PATIENCE = 900.0  # seconds on the clock, for a busy machine
_POLL = 0.002  # seconds between two looks at the child
_NO_MEMORY = 71  # exit code
_OUT_OF_TIME = (signal.SIGXCPU, signal.SIGALRM)


def require_openable(source: str, attempt: Callable[[], object]) -> None:
    """Refuse a model whose opening exceeds the limits or crashes.

    The child is forked, so it starts in milliseconds with all libraries loaded. An ordinary error in it is no verdict:
    the same call in this process reports it. Without `fork` (Windows, and macOS, where it is unsafe) there is no trial.

    Args:
        source: The name of the model in the message.
        attempt: Opens the model without its weights. It runs in the child only.

    Raises:
        InputError: The attempt used too much memory or time, or crashed the process.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of threads; torch's loaders of data fork the same way
            child = os.fork()
    except OSError:
        return  # the system allows no further process
    if child == 0:
        _run(attempt)
    if (reason := _verdict(child)) is not None:
        raise InputError(
            f"Opening {source} on trial {reason}, although no weights were loaded. "
            "Its files are damaged or crafted; pass trust=True (--trust) if you trust their author."
        )


def _run(attempt: Callable[[], object]) -> None:
    """In the child: set the limits, make the attempt, and end without cleaning up what belongs to the parent."""
    import resource

    code = 0
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(_PATIENCE))
        torch.set_num_threads(1)  # threads of the parent do not exist here
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + _SECONDS
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for kind, limit in (
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_AS, mapped + _SPACE),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
        attempt()
    except MemoryError:
        code = _NO_MEMORY
    except BaseException as error:  # an ordinary one will be reported by the parent, which fails in the same way
        code = _NO_MEMORY if "allocate memory" in str(error) else 0
    finally:
        os._exit(code)


def _verdict(child: int) -> str | None:
    """Wait for the child; return what it did wrong, None if nothing."""
    try:
        status = _wait(child)
    except BaseException:  # an interrupt
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in _OUT_OF_TIME:
            return f"took more than {_SECONDS} seconds of processor time"
        return f"crashed ({signal.Signals(number).name})"
    return f"needed more than {_SPACE >> 30} GB of memory" if os.WEXITSTATUS(status) == _NO_MEMORY else None


def _wait(child: int) -> int:
    pause = _POLL
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)


def sample_use(processor: Any) -> None:
    """Tokenise a short text, in which a crafted tokenizer would already hang."""
    processor("The quick brown fox jumps over the lazy dog. " + "a" * 64 + " 0123456789" * 4)
