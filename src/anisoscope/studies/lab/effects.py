"""Effects of switches in a factorial design: main effects and two-way interactions, with intervals over seeds.

All models of one seed share initial weights and the order of the data. So each effect is a contrast that is computed
seed by seed, and its interval is that of the mean of these contrasts: paired by seed, Student's t.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import fmean
from typing import Any

from anisoscope.studies.claims.estimate import FEWEST, Estimate

Changes = Mapping[str, tuple[str, str]]  # for each switch the value that is compared with, and the value


@dataclass(frozen=True)
class CellValue:
    """One number of one training: the value of each switch, the seed, and the number, or None if there is none."""

    switches: Mapping[str, str]
    seed: int
    value: float | None


@dataclass(frozen=True)
class Effect:
    """How a number changes with one switch, or how much the change depends on another switch.

    Attributes:
        changes: One switch for a main effect, two for an interaction, each with the two values that are compared.
        estimate: The mean over seeds, with its standard error; None if no seed has a value in all models.
        reason: Why there is no value or no interval; None if there are both.
    """

    changes: Changes
    estimate: Estimate | None
    reason: str | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval, or None if there are too few seeds."""
        return None if self.estimate is None or self.estimate.n < FEWEST else self.estimate.interval

    def __str__(self) -> str:
        return " × ".join(f"{name}: {first} → {other}" for name, (first, other) in self.changes.items())

    def to_json(self) -> dict[str, Any]:
        """Return the effect as plain JSON."""
        interval, estimate = self.interval, self.estimate
        return {
            "effect": "main" if len(self.changes) == 1 else "interaction",
            "switches": {name: {"from": first, "to": other} for name, (first, other) in self.changes.items()},
            "value": None if estimate is None else estimate.value,
            "error": None if estimate is None else estimate.error,
            "low": None if interval is None else interval[0],
            "high": None if interval is None else interval[1],
            "seeds": 0 if estimate is None else estimate.n,
            "reason": self.reason,
        }


def effects(rows: Iterable[CellValue], values: Mapping[str, Sequence[str]]) -> list[Effect]:
    """Return all main effects and two-way interactions of a full factorial design.

    With y the values of one seed, and the mean taken over the values of all other switches:

        main effect of A from a to b:                    mean(y[A=b] − y[A=a])
        interaction of A from a to b and B from c to d:  mean((y[b, d] − y[a, d]) − (y[b, c] − y[a, c]))

    A seed counts if it has a value in every cell of the design.

    Args:
        rows: The numbers, one per cell and seed.
        values: The values of each switch; the others are compared with the first.

    >>> grid = {("no", "no"): 1.0, ("yes", "no"): 3.0, ("no", "yes"): 1.5, ("yes", "yes"): 4.5}
    >>> rows = [CellValue({"A": a, "B": b}, 0, y) for (a, b), y in grid.items()]
    >>> for effect in effects(rows, {"A": ["no", "yes"], "B": ["no", "yes"]}):
    ...     print(effect, effect.estimate.value)
    A: no → yes 2.5
    B: no → yes 1.0
    A: no → yes × B: no → yes 1.0
    """
    tables, seeds = _complete_tables(rows, values)
    changes: list[dict[str, tuple[str, str]]] = [
        dict(zip(names, chosen, strict=True))
        for count in (1, 2)
        for names in combinations(values, count)
        for chosen in product(*([(values[name][0], other) for other in values[name][1:]] for name in names))
    ]
    return [_effect(change, tables, values, seeds) for change in changes]


_Table = Mapping[tuple[str, ...], float]  # the numbers of one seed by the values of the switches


def _complete_tables(rows: Iterable[CellValue], values: Mapping[str, Sequence[str]]) -> tuple[list[_Table], int]:
    """The numbers of every seed that has all cells, and how many seeds there are."""
    by_seed: dict[int, dict[tuple[str, ...], float]] = {}
    for row in rows:
        table = by_seed.setdefault(row.seed, {})
        if row.value is not None:
            table[tuple(row.switches[name] for name in values)] = row.value
    cells = list(product(*values.values()))
    return [table for table in by_seed.values() if all(cell in table for cell in cells)], len(by_seed)


def _effect(changes: Changes, tables: Sequence[_Table], values: Mapping[str, Sequence[str]], seeds: int) -> Effect:
    if not tables:
        return Effect(changes, None, "no seed has a value in every model")
    estimate = Estimate.over([_contrast(changes, table, values) for table in tables])
    reason = None
    if estimate.n < FEWEST:
        less = f" of {seeds}" if estimate.n < seeds else ""
        reason = f"an interval needs {FEWEST} seeds with a value in every model, not {estimate.n}{less}"
    return Effect(changes, estimate, reason)


def _contrast(changes: Changes, table: _Table, values: Mapping[str, Sequence[str]]) -> float:
    """The effect in the numbers of one seed."""
    rest = product(*([None] if name in changes else listed for name, listed in values.items()))
    return fmean(_difference(changes, table, dict(zip(values, fixed, strict=True))) for fixed in rest)


def _difference(changes: Changes, table: _Table, fixed: Mapping[str, str | None]) -> float:
    """The difference, or the difference of differences, at fixed values of all other switches."""
    total = 0.0
    for ends in product((0, 1), repeat=len(changes)):
        chosen = {name: pair[end] for (name, pair), end in zip(changes.items(), ends, strict=True)}
        sign = -1 if (len(ends) - sum(ends)) % 2 else 1
        total += sign * table[tuple(chosen.get(name) or str(value) for name, value in fixed.items())]
    return total
