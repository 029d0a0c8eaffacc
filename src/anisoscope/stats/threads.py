"""Many small independent computations at once, one thread each: each is too small to be shared by threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import torch

from anisoscope.stats.arithmetic import full_precision

A = TypeVar("A")
B = TypeVar("B")


def in_threads(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Apply `work` to every item, with as many threads as torch uses, and return the results in order.

    >>> in_threads(lambda x: x * x, [1, 2, 3])
    [1, 4, 9]
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return [work(item) for item in items]
    try:
        # precision is a setting of the process: it is set once here, because threads that set and restore it would race
        with (
            full_precision(torch.device("cpu")),
            ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool,
        ):
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(threads)


class _OneThreadEach:
    """While any thread is inside, OpenBLAS (of numpy and scipy) uses only the calling thread.

    OpenBLAS threads wait by spinning, which on a busy machine costs twenty times the work they share. The limit is a
    setting of the process: the first thread to enter sets it, the last to leave restores it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit = _openblas().limit(limits=1)
            self._inside += 1

    def __exit__(self, *why: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


one_thread_each = _OneThreadEach()


@cache
def _openblas() -> Any:
    import scipy.linalg  # noqa: F401  the controller only sees libraries that are loaded
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")
