"""Where jobs run: in this process, in a pool of processes, or on a Ray cluster. All give the same answers.

An engine takes jobs one at a time from `pull` (None: no more for now) when it has room, and yields outcomes as they
come, so that the driver holds no more than what is in flight. A worker that dies costs its own job only.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Any

from anisoscope.errors import InputError
from anisoscope.extras import needs
from anisoscope.sweep.jobs import Answer, Job, work

Pull = Callable[[], Job | None]
Engine = Callable[[Pull], Iterator["Outcome"]]


@dataclass(frozen=True)
class Outcome:
    """A job and its answer; if the worker died, the answer is an error."""

    job: Job
    answer: Answer


def in_process(pull: Pull) -> Iterator[Outcome]:
    """Run one job after another in this process."""
    while (job := pull()) is not None:
        yield Outcome(job, work(job))


def in_pool(pull: Pull, *, workers: int, threads: int | None = None) -> Iterator[Outcome]:
    """Run as many jobs at a time as available are worker processes, which share the cores of this machine evenly.

    `threads` gives each worker so many cores instead.
    """
    threads = threads or max(1, (os.cpu_count() or 1) // workers)
    idle = [Worker(threads) for _ in range(workers)]
    running: dict[Future[Answer], tuple[Job, Worker]] = {}
    try:
        while True:
            while idle and (job := pull()) is not None:
                worker = idle.pop()
                try:
                    future = worker.pool.submit(work, job)
                except BrokenProcessPool:  # it died while idle
                    worker = Worker(threads)
                    future = worker.pool.submit(work, job)
                running[future] = job, worker
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, worker = running.pop(future)
                try:
                    answer = future.result()
                except BrokenProcessPool:
                    answer = Answer(error="its worker process died (killed, or out of memory)")
                    worker = Worker(threads)
                idle.append(worker)
                yield Outcome(job, answer)
    finally:
        for worker in [*idle, *(worker for _, worker in running.values())]:
            worker.end()


def on_ray(pull: Pull, *, address: str | None = None, cpus: float = 1, gpus: float = 0) -> Iterator[Outcome]:
    """Run as many jobs at a time as the cluster has room for, each with its share of CPUs and GPUs.

    `address` is that of a running cluster ("auto": the one of this machine); without it Ray is started here.
    """
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        try:
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            ray.init(address=address, include_dashboard=False if address is None else None, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"no Ray cluster at {address!r} ({error}); start one with `ray start --head`") from error
    remote = ray.remote(work).options(num_cpus=cpus, num_gpus=gpus, max_retries=0)
    running: dict[Any, Job] = {}
    try:
        while True:
            room = 2 * _slots(ray, cpus, gpus)  # so that no worker waits for this process
            while len(running) < room and (job := pull()) is not None:
                running[remote.remote(job)] = job
            if not running:
                return
            for reference in ray.wait(list(running), num_returns=1)[0]:
                job = running.pop(reference)
                yield Outcome(job, _answer(ray, reference))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()


def engine(
    name: str, *, workers: int | None = None, address: str | None = None, cpus: float = 1, gpus: float = 0
) -> Engine:
    """Return the engine of this name: "process", "pool" or "ray"."""
    if name == "process":
        return in_process
    if name == "pool":
        return partial(in_pool, workers=workers or os.cpu_count() or 1)
    if name == "ray":
        _ray()  # fail before anything is read
        return partial(on_ray, address=address, cpus=cpus, gpus=gpus)
    raise InputError(f"no engine is called {name!r}; choose process, pool or ray")


class Worker:
    """A pool of one process: if it dies, its job is known."""

    def __init__(self, threads: int) -> None:
        self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin, initargs=(threads,))
        self._pid = self.pool.submit(os.getpid)

    def end(self) -> None:
        """End the process at once; its job is done again when the sweep is resumed."""
        if self._pid.done() and self._pid.exception() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid.result(), signal.SIGTERM)
        self.pool.shutdown(wait=False, cancel_futures=True)


def _begin(threads: int) -> None:
    """Prepare a new worker: its share of the cores, no reaction to Ctrl-C, and it ends with the driver."""
    import torch

    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _answer(ray: Any, reference: Any) -> Answer:
    try:
        answer: Answer = ray.get(reference)
    except ray.exceptions.RayError as error:  # the worker or its machine died, or the answer was lost
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Answer(error=f"its Ray worker died ({type(error).__name__}: {reason})")
    return answer


def _slots(ray: Any, cpus: float, gpus: float) -> int:
    """How many jobs the cluster has room for."""
    available = ray.cluster_resources()
    wanted = {"CPU": cpus, "GPU": gpus}
    slots = [int(available.get(name, 0) / amount) for name, amount in wanted.items() if amount]
    if slots and min(slots) < 1:
        lacking = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items() if amount)
        raise InputError(f"no machine of the Ray cluster has {lacking} per task; it has {_described(available)}")
    return min(slots, default=1)


def _described(available: dict[str, float]) -> str:
    return ", ".join(f"{available.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


def _ray() -> Any:
    with needs("ray", "the ray engine"):
        return importlib.import_module("ray")
