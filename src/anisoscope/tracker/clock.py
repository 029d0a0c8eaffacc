"""What watching costs: time spent here against the loop's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Clock:
    """Seconds of work since the first, and whether there is time for more."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._last = 0.0  # what the last probe and its watch took
        self._began: float | None = None

    @contextmanager
    def working(self, *, more: bool = False) -> Iterator[None]:
        """Counts what runs inside; `more` of the step that is counted already."""
        start = perf_counter()
        self._began = start if self._began is None else self._began
        try:
            yield
        finally:
            self.add(perf_counter() - start, more=more)

    def add(self, seconds: float, *, more: bool) -> None:
        self.spent += seconds
        self._last = seconds + (self._last if more else 0.0)

    @property
    def overhead(self) -> float:
        """Time spent as a share of the loop's own time since the first probe began."""
        own = self._own()
        return self.spent / own if own > 0 else 0.0

    def affords(self, share: float) -> bool:
        """Whether one more probe like the last stays within this share of the loop's own time."""
        return self._began is None or self.spent + self._last <= share * self._own()

    def _own(self) -> float:
        return 0.0 if self._began is None else perf_counter() - self._began - self.spent
