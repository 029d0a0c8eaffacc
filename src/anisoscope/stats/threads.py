"""Many small independent computations at once, one thread each: eigenvalues of a few hundred rows do not share well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from anisoscope.stats.arith import full_precision

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
