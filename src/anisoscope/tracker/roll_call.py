"""What all ranks must agree on before a collective, with a bounded wait: a rank that is missing never causes a hang."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d

from anisoscope.distributed import Ranks

_PAUSE = 0.001  # seconds between two looks at the store; doubles up to _LONGEST_PAUSE
_LONGEST_PAUSE = 0.02


@dataclass(frozen=True)
class Agreement:
    """The decision of a roll call: rank 0's message, or why the step is skipped on all ranks."""

    message: str = ""
    skipped: str | None = None


class RollCall:
    """Decides, for all ranks alike, whether every rank has arrived at the same place.

    Ranks meet in the key-value store of the job, not in a collective, so waiting ends after `wait` seconds. The first
    decision that is stored holds for all: rank 0 decides "go" when everyone is there, and whoever waits too long
    decides "skip". A rank that arrives later reads that decision and skips too.

    Args:
        ranks: The processes of the job.
        wait: Seconds that a rank waits for others.
    """

    def __init__(self, ranks: Ranks, wait: float) -> None:
        self._ranks = ranks
        self._wait = wait
        self._store: Any = None
        self._done: list[str] = []  # keys of finished calls, the last two of which are kept
        if ranks.world > 1:
            store = distributed_c10d.PrefixStore("anisoscope", distributed_c10d._get_default_store())
            number = store.add(f"trackers/{ranks.rank}", 1)  # the same on every rank: they create trackers in one order
            self._store = distributed_c10d.PrefixStore(f"tracker-{number}", store)

    def __call__(self, name: str, message: str = "") -> Agreement:
        """Wait until all ranks have called this with the same name.

        Args:
            name: What they meet for, such as "watch 200".
            message: What rank 0 tells the others.

        Returns:
            The same on every rank: rank 0's message, or the reason to skip.
        """
        if self._store is None:
            return Agreement(message)
        self._store.set(f"last/{self._ranks.rank}", name)
        self._store.add(f"{name}/arrived", 1)
        if self._ranks.is_first:
            missing = self._missing(name)
            self._decide(name, f"skip{missing}" if missing else f"go{message}")
            self._forget(name)
        else:
            self._wait_for_decision(name)
        decision = self._store.get(f"{name}/decision").decode()
        if decision.startswith("skip"):
            return Agreement(skipped=decision.removeprefix("skip"))
        return Agreement(decision.removeprefix("go"))

    def _missing(self, name: str) -> str | None:
        """Wait for the others; return which of them did not arrive in time."""
        deadline, pause = time.monotonic() + self._wait, _PAUSE
        while self._store.add(f"{name}/arrived", 0) < self._ranks.world:
            if self._store.check([f"{name}/decision"]) or time.monotonic() > deadline:
                absent = [rank for rank in range(self._ranks.world) if not self._is_at(rank, name)]
                listed = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
                return f"rank {listed} did not arrive at {name} within {self._wait:g} s"
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None

    def _is_at(self, rank: int, name: str) -> bool:
        key = f"last/{rank}"
        return bool(self._store.check([key])) and self._store.get(key).decode() == name

    def _wait_for_decision(self, name: str) -> None:
        """Wait for rank 0, longer than it waits itself; then decide in its place."""
        try:
            self._store.wait([f"{name}/decision"], timedelta(seconds=2 * self._wait))
        except RuntimeError:  # the store's errors derive from it
            self._decide(name, f"skiprank 0 did not decide on {name} within {2 * self._wait:g} s")

    def _decide(self, name: str, decision: str) -> None:
        """Store a decision unless there is one already."""
        self._store.compare_set(f"{name}/decision", "", decision)

    def _forget(self, name: str) -> None:
        """Delete the keys of old calls, so that a long training does not fill the store."""
        self._done.append(name)
        for old in self._done[:-2]:
            self._store.delete_key(f"{old}/arrived")
            self._store.delete_key(f"{old}/decision")
        del self._done[:-2]
