"""Compare two runs number by number: differences with errors, paired by blocks if both measured the same tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anisoscope.errors import InputError, unknown
from anisoscope.records import COLUMNS, Record, Replicates
from anisoscope.report.interval import half_width
from anisoscope.report.tables import records_of
from anisoscope.stats.inference import jackknife
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
    blocks: int | None  # number of blocks that the error comes from
    paired: bool

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval of the difference excludes 0."""
        return self.error is not None and abs(self.value) > half_width(self.blocks) * self.error

    def to_json(self) -> dict[str, Any]:
        """The difference as a plain dict: what was measured, both values, the difference and its error."""
        same = {name: value for name, value in self.first.to_json().items() if name in _SAME}
        both = {"first": self.first.value, "second": self.second.value, "steps": [self.first.step, self.second.step]}
        return {**same, **both, "difference": self.value, "error": self.error, "paired": self.paired}


def compare(first: Run, second: Run, metrics: Sequence[str] | None = None) -> list[Difference]:
    """Compare the numbers that two runs share; if they share no step, those of each run's last step.

    Args:
        first: The run that is subtracted.
        second: The other run.
        metrics: Names of metrics; None for all.

    Raises:
        InputError: The runs share no number, or a metric is unknown.
    """
    return differences(first, second, shared(first, second, metrics))


def shared(first: Run, second: Run, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """The numbers that two runs share, one row each; the columns of the second run have the suffix `_2`.

    Different versions of a formula are compared too. `step` is the first run's.
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
    """The rows of `shared` as differences with their errors.

    Two runs over the same tokens with the same seed have the same blocks: then the error is the jackknife of the
    difference (`stats.inference.jackknife`, as in `measure`), and what both have in common cancels. Otherwise the
    errors add as those of independent measurements.
    """
    stored = first.replicates(), second.replicates()
    alike = _same_tokens(first.info, second.info)
    second_part = both[[f"{name}_2" if f"{name}_2" in both else name for name in COLUMNS]].set_axis(COLUMNS, axis=1)
    out = []
    for a, b in zip(records_of(both), records_of(second_part), strict=True):
        assert a.value is not None  # a number is shared only with a value
        assert b.value is not None
        without = [
            by_key.get(record_key(each), Replicates()) if by_key else Replicates()
            for by_key, each in zip(stored, (a, b), strict=True)
        ]
        if alike and len(without[0]) == len(without[1]) > 1:
            out.append(Difference(a, b, b.value - a.value, _paired_error(a, b, *without), len(without[0]), paired=True))
        else:
            both_known = a.error is not None and b.error is not None
            error = math.hypot(a.error or 0.0, b.error or 0.0) if both_known else None
            counts = [len(each) for each in without if each]
            out.append(Difference(a, b, b.value - a.value, error, min(counts, default=None), paired=False))
    return out


def _paired_error(a: Record, b: Record, without_a: Replicates, without_b: Replicates) -> float:
    """The jackknife error of b − a over blocks that both runs share.

    Runs from before block sizes were stored are taken as runs with blocks of equal size. Sizes can differ between
    the runs (a token policy leaves out other tokens in another model), so those of both are added.
    """
    sizes = None
    if without_a.sizes is not None and without_b.sizes is not None:
        sizes = [m + n for m, n in zip(without_a.sizes, without_b.sizes, strict=True)]
    deltas = [y - x for x, y in zip(without_a, without_b, strict=True)]
    return jackknife((b.value or 0.0) - (a.value or 0.0), deltas, sizes)


def _numbers(run: Run, metrics: Sequence[str] | None) -> pd.DataFrame:
    """The numbers of a run; of several versions of a formula the last."""
    table = run.frame()
    names = list(table["metric"].unique())
    for name in metrics or ():
        if name not in names:
            raise unknown(f"metric of {run.name}", name, names)
    chosen = table if metrics is None else table[table["metric"].isin(metrics)]
    return chosen[chosen["value"].notna()].drop_duplicates(list(_KEY), keep="last")


def _merged(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    return ours.merge(theirs, on=list(_KEY), suffixes=("", "_2"))


def _same_tokens(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether blocks of two runs contain the same tokens: the same data, unit, seed and tokenizer."""

    def identity(info: Mapping[str, Any]) -> list[Any]:
        model = info.get("model")
        tokenizer = [model.get(name) for name in ("processor", "embedding_rows")] if isinstance(model, Mapping) else []
        return [*(info.get(name) for name in ("data", "unit", "seed")), *tokenizer]

    return "data" in first and identity(first) == identity(second)
