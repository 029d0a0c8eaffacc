"""Many small independent computations at once, one thread each: eigenvalues of a few hundred rows do not share well."""

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
    """`work` of every item, in order, by as many threads as torch has.

    >>> in_threads(lambda x: x * x, [1, 2, 3])
    [1, 4, 9]
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return [work(item) for item in items]
    try:
        # precision is one setting for all threads: set here, so that threads that set and restore it cannot cross
        with (
            full_precision(torch.device("cpu")),
            ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool,
        ):
            return list(pool.map(work, items))
    finally:
        torch.set_num_threads(threads)


class _OneThreadEach:
    """While any thread is inside, OpenBLAS (numpy's and scipy's) works in the calling thread alone.

    Its own threads wait by spinning, which on a busy machine cost twenty times the work they share. The setting is the
    process's: the first to enter makes it, the last to leave takes it back.
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
    import scipy.linalg  # noqa: F401  its OpenBLAS must be there to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")
