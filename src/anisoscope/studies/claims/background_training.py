"""Train in other processes while this one measures the trainings that are complete."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from anisoscope.sweep.engines import Worker

Timed = tuple[Any, float]  # the result of a job, and its processor time in seconds


@dataclass
class BackgroundTraining:
    """Jobs in other processes, by key. Without any job, `result` always returns None."""

    _jobs: dict[tuple[Any, ...], Future[Timed]] = field(default_factory=dict)
    seconds: float = 0.0  # processor time of the jobs whose results were fetched

    def result(self, key: tuple[Any, ...], meanwhile: Callable[..., Any] | None = None) -> Any | None:
        """Return the result of a job; None if it never started (the caller then does it).

        While the job runs elsewhere, this process calls meanwhile(*key) for jobs that have not started.
        """
        future = self._jobs.pop(key, None)
        if future is None or future.cancel():
            return None
        while meanwhile is not None and not future.done() and self._do_next(meanwhile):
            pass
        try:
            value, seconds = future.result()
        except (BrokenProcessPool, CancelledError):  # the process died: the caller resumes the training itself
            return None
        self.seconds += seconds
        return value

    def _do_next(self, work: Callable[..., Any]) -> bool:
        """Do the first job that has not started in this process; return whether there was one."""
        key = next((key for key, future in self._jobs.items() if future.cancel()), None)
        if key is None:
            return False
        self._jobs[key] = Future()
        try:
            self._jobs[key].set_result((work(*key), 0.0))  # the clock of this process counts its time
        except Exception as error:  # for the caller who needs this job, not for the one who waits for another
            self._jobs[key].set_exception(error)
        return True

    @contextmanager
    def running(self, work: Callable[..., Any], keys: Sequence[tuple[Any, ...]], *, processes: int) -> Iterator[None]:
        """Run work(*key) for all keys, in order, in single-threaded processes until the context ends.

        This process keeps the remaining cores and does the jobs that have not started when it needs them.
        """
        if processes < 1 or not keys:
            yield
            return
        local, threads = threading.local(), torch.get_num_threads()
        workers: list[Worker] = []

        def start_worker() -> None:
            local.worker = Worker(threads=1)
            workers.append(local.worker)

        def run_job(key: tuple[Any, ...]) -> Timed:
            timed: Timed = local.worker.pool.submit(_timed, work, key).result()
            return timed

        drivers = ThreadPoolExecutor(processes, thread_name_prefix="training", initializer=start_worker)
        self._jobs.update({key: drivers.submit(run_job, key) for key in keys})
        torch.set_num_threads(max(1, threads - processes))
        try:
            yield
        finally:
            drivers.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.end()
            self._jobs.clear()
            torch.set_num_threads(threads)


def spare_processes() -> int:
    """The number of processes that may train next to this one: one per other core; none if a GPU does the work."""
    return 0 if torch.cuda.is_available() else (os.cpu_count() or 1) - 1


def _timed(work: Callable[..., Any], key: tuple[Any, ...]) -> Timed:
    before = time.process_time()
    value = work(*key)
    return value, time.process_time() - before
