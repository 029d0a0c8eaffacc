"""Two runs number by number: differences with their errors, paired by blocks where both saw the same tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anisoscope.errors import InputError, unknown
from anisoscope.records import Record
from anisoscope.report.interval import student
from anisoscope.store import Run, record_key

Key = tuple[Any, ...]
_SAME = ("site", "metric", "tokens", "index", "variant")  # what both records of a difference have in common


@dataclass(frozen=True)
class Difference:
    """One number in two runs: `second − first`, one standard error, and whether blocks were paired."""

    first: Record
    second: Record
    value: float
    error: float | None
    blocks: int | None  # how many blocks the error rests on
    paired: bool

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval of the difference leaves out 0."""
        if self.error is None:
            return False
        factor = 1.96 if self.blocks is None or self.blocks < 2 else student(self.blocks - 1)
        return abs(self.value) > factor * self.error

    def to_json(self) -> dict[str, Any]:
        """The difference as a plain dict: what was measured, both values, the difference and its error."""
        same = {name: value for name, value in self.first.to_json().items() if name in _SAME}
        both = {"first": self.first.value, "second": self.second.value, "steps": [self.first.step, self.second.step]}
        return {**same, **both, "difference": self.value, "error": self.error, "paired": self.paired}


def compare(first: Run, second: Run, metrics: Sequence[str] | None = None) -> list[Difference]:
    """The numbers that two runs share; where they share no step, each run's last step.

    Two runs over the same tokens with the same seed have the same blocks: then the error is that of the difference,
    √((B − 1)/B Σ(δ_b − δ̄)²) with δ_b the difference without block b, and what both have in common cancels. Otherwise
    the errors add as those of independent measurements.
    """
    ours, theirs = _by_key(first, metrics), _by_key(second, metrics)
    kept = first.replicates(), second.replicates()
    alike = _same_tokens(first.info, second.info)
    out = []
    for key in _shared(ours, theirs):
        a, b = ours[key][1], theirs[key][1]
        assert a.value is not None  # a key is there only with a value
        assert b.value is not None
        without = [by_key.get(own_key, ()) for by_key, (own_key, _) in zip(kept, (ours[key], theirs[key]), strict=True)]
        if alike and len(without[0]) == len(without[1]) > 1:
            error: float | None = jackknife([y - x for x, y in zip(*without, strict=True)])
            out.append(Difference(a, b, b.value - a.value, error, len(without[0]), paired=True))
        else:
            known = a.error is not None and b.error is not None
            error = math.hypot(a.error or 0.0, b.error or 0.0) if known else None
            counts = [len(each) for each in without if each]
            out.append(Difference(a, b, b.value - a.value, error, min(counts, default=None), paired=False))
    if not out:
        raise InputError(f"{first.name} and {second.name} share no number; compare runs of the same metrics and sites")
    return out


def jackknife(without: Sequence[float]) -> float:
    """One standard error from values that each leave one block out.

    >>> round(jackknife([1.0, 2.0, 3.0]), 4)
    1.1547
    """
    count = len(without)
    mean = sum(without) / count
    return math.sqrt((count - 1) / count * sum((each - mean) ** 2 for each in without))


def _by_key(run: Run, metrics: Sequence[str] | None) -> dict[Key, tuple[Key, Record]]:
    """The run's numbers by what they measure (without the version: a newer formula is still compared, and shows)."""
    found: dict[Key, tuple[Key, Record]] = {}
    names = set()
    for record in run.records():
        names.add(record.metric)
        if record.value is not None and (metrics is None or record.metric in metrics):
            found[record_key(replace(record, version=1))] = (record_key(record), record)
    for name in metrics or ():
        if name not in names:
            raise unknown(f"metric of {run.name}", name, names)
    return found


def _shared(ours: dict[Key, tuple[Key, Record]], theirs: dict[Key, tuple[Key, Record]]) -> list[Key]:
    """The keys that both have; without a common step the last step of each is taken for the same."""
    both = [key for key in ours if key in theirs]
    if both or not ours or not theirs:
        return both
    last_ours, last_theirs = max(key[0] for key in ours), max(key[0] for key in theirs)
    moved = {(last_ours, *key[1:]): entry for key, entry in theirs.items() if key[0] == last_theirs}
    theirs.clear()
    theirs.update(moved)
    return [key for key in ours if key in theirs]


def _same_tokens(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether blocks of two runs hold the same tokens: the same data, unit and seed, cut by the same tokenizer."""

    def facts(info: Mapping[str, Any]) -> list[Any]:
        model = info.get("model")
        cut = [model.get(name) for name in ("processor", "embedding_rows")] if isinstance(model, Mapping) else []
        return [*(info.get(name) for name in ("data", "unit", "seed")), *cut]

    return "data" in first and facts(first) == facts(second)
