"""How much of the training loop's time the tracker takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class OverheadClock:
    """Seconds spent in the tracker since the first probe, against the seconds spent in the rest of the loop."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._last_step = 0.0  # seconds of the last probe and its watch
        self._began: float | None = None

    @contextmanager
    def working(self, *, same_step: bool = False) -> Iterator[None]:
        """Time what runs inside; `same_step` adds it to the step that was timed last."""
        start = perf_counter()
        self._began = start if self._began is None else self._began
        try:
            yield
        finally:
            self.add(perf_counter() - start, same_step=same_step)

    def add(self, seconds: float, *, same_step: bool) -> None:
        self.spent += seconds
        self._last_step = seconds + (self._last_step if same_step else 0.0)

    @property
    def overhead(self) -> float:
        """Seconds spent, as a share of the rest of the loop since the first probe began."""
        rest = self._rest_of_loop()
        return self.spent / rest if rest > 0 else 0.0

    def info(self) -> dict[str, float]:
        """The cost so far, for the run's `run.json`."""
        return {"seconds": round(self.spent, 3), "share of the loop's own time": round(self.overhead, 6)}

    def affords(self, share: float) -> bool:
        """Whether one more probe like the last stays within this share of the rest of the loop."""
        return self._began is None or self.spent + self._last_step <= share * self._rest_of_loop()

    def _rest_of_loop(self) -> float:
        return 0.0 if self._began is None else perf_counter() - self._began - self.spent
