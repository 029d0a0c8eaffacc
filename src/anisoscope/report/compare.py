"""Two runs number by number: differences with their errors, paired by blocks where both saw the same tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anisoscope.errors import InputError, unknown
from anisoscope.records import COLUMNS, Record
from anisoscope.report.interval import student
from anisoscope.report.tidy import records_of
from anisoscope.store.run import Run, record_key

_SAME = ("site", "metric", "tokens", "index", "variant")  # what both records of a difference have in common
_KEY = ("step", *_SAME)


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
    """The numbers that two runs share; where they share no step, each run's last step."""
    return differences(first, second, shared(first, second, metrics))


def shared(first: Run, second: Run, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """The numbers that two runs share, a row each, the columns of the second run with the suffix `_2`.

    A newer version of a formula is still compared, and shows. `step` is the first run's.
    """
    ours, theirs = _numbers(first, metrics), _numbers(second, metrics)
    both = _merged(ours, theirs)
    if not len(both) and len(ours) and len(theirs):
        last = [table[table["step"] == table["step"].max()] for table in (ours, theirs)]
        both = _merged(last[0], last[1].assign(step=last[0]["step"].iloc[0]))
        both["step_2"] = int(last[1]["step"].iloc[0])
    if not len(both):
        raise InputError(f"{first.name} and {second.name} share no number; compare runs of the same metrics and sites")
    return both


def differences(first: Run, second: Run, both: pd.DataFrame) -> list[Difference]:
    """What `shared` found, as differences with their errors.

    Two runs over the same tokens with the same seed have the same blocks: then the error is that of the difference,
    √((B − 1)/B Σ(δ_b − δ̄)²) with δ_b the difference without block b, and what both have in common cancels. Otherwise
    the errors add as those of independent measurements.
    """
    kept = first.replicates(), second.replicates()
    alike = _same_tokens(first.info, second.info)
    second_part = both[[f"{name}_2" if f"{name}_2" in both else name for name in COLUMNS]].set_axis(COLUMNS, axis=1)
    out = []
    for a, b in zip(records_of(both), records_of(second_part), strict=True):
        assert a.value is not None  # a number is shared only with a value
        assert b.value is not None
        without = [
            by_key.get(record_key(each), ()) if by_key else () for by_key, each in zip(kept, (a, b), strict=True)
        ]
        if alike and len(without[0]) == len(without[1]) > 1:
            error: float | None = jackknife([y - x for x, y in zip(*without, strict=True)])
            out.append(Difference(a, b, b.value - a.value, error, len(without[0]), paired=True))
        else:
            both_known = a.error is not None and b.error is not None
            error = math.hypot(a.error or 0.0, b.error or 0.0) if both_known else None
            counts = [len(each) for each in without if each]
            out.append(Difference(a, b, b.value - a.value, error, min(counts, default=None), paired=False))
    return out


def jackknife(without: Sequence[float]) -> float:
    """One standard error from values that each leave one block out.

    >>> round(jackknife([1.0, 2.0, 3.0]), 4)
    1.1547
    """
    count = len(without)
    mean = sum(without) / count
    return math.sqrt((count - 1) / count * sum((each - mean) ** 2 for each in without))


def _numbers(run: Run, metrics: Sequence[str] | None) -> pd.DataFrame:
    """The numbers of a run, the last where several versions of a formula gave one."""
    table = run.frame()
    names = list(table["metric"].unique())
    for name in metrics or ():
        if name not in names:
            raise unknown(f"metric of {run.name}", name, names)
    asked = table if metrics is None else table[table["metric"].isin(metrics)]
    return asked[asked["value"].notna()].drop_duplicates(list(_KEY), keep="last")


def _merged(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    return ours.merge(theirs, on=list(_KEY), suffixes=("", "_2"))


def _same_tokens(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether blocks of two runs hold the same tokens: the same data, unit and seed, cut by the same tokenizer."""

    def facts(info: Mapping[str, Any]) -> list[Any]:
        model = info.get("model")
        cut = [model.get(name) for name in ("processor", "embedding_rows")] if isinstance(model, Mapping) else []
        return [*(info.get(name) for name in ("data", "unit", "seed")), *cut]

    return "data" in first and facts(first) == facts(second)
