"""Trainings that other processes make while this one looks at those that are done."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from anisoscope.sweep.engines import Worker

Timed = tuple[Any, float]  # what came of a piece of work, and the seconds of processor it took


@dataclass
class Ahead:
    """Work that was begun ahead of being asked for, by name; empty, it has nothing for anyone."""

    _begun: dict[Hashable, Future[Timed]] = field(default_factory=dict)
    seconds: float = 0.0  # of processor, in other processes, for what was taken

    def taken(self, name: Hashable) -> Any | None:
        """What came of it, waited for where it is under way; None where nobody has begun it, who asks does it then."""
        future = self._begun.pop(name, None)
        if future is None or future.cancel():
            return None
        try:
            made, seconds = future.result()
        except (BrokenProcessPool, CancelledError):  # the process died: what it left is gone on with here
            return None
        self.seconds += seconds
        return made

    @contextmanager
    def begun(self, work: Callable[..., Any], names: Sequence[tuple[Any, ...]], *, processes: int) -> Iterator[None]:
        """Does work(*name) for all names in their order, in so many processes of one thread, until the context ends.

        This process has the other cores to itself, and does what no other has begun.
        """
        if processes < 1 or not names:
            yield
            return
        mine, threads = threading.local(), torch.get_num_threads()
        workers: list[Worker] = []

        def hire() -> None:
            mine.worker = Worker(threads=1)
            workers.append(mine.worker)

        def done(name: tuple[Any, ...]) -> Timed:
            answer: Timed = mine.worker.pool.submit(_timed, work, name).result()
            return answer

        drivers = ThreadPoolExecutor(processes, thread_name_prefix="ahead", initializer=hire)
        self._begun.update({name: drivers.submit(done, name) for name in names})
        torch.set_num_threads(max(1, threads - processes))
        try:
            yield
        finally:
            drivers.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.end()
            self._begun.clear()
            torch.set_num_threads(threads)


def spare_processes() -> int:
    """How many other processes may train beside this one: one a core, none where a GPU does the work."""
    return 0 if torch.cuda.is_available() else (os.cpu_count() or 1) - 1


def _timed(work: Callable[..., Any], name: tuple[Any, ...]) -> Timed:
    before = time.process_time()
    made = work(*name)
    return made, time.process_time() - before
