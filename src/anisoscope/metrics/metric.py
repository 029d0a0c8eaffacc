"""What a metric is: a pure function of statistics, with declared facts that the tests hold it to."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from anisoscope.errors import InputError, MetricError
from anisoscope.metrics.nulls import Isotropic
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import cloud_of
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.registry import sources
from anisoscope.stats.sample import Sample

INVARIANCES = {
    "rotation": "any rotation or reflection of the space",
    "permutation": "reordering coordinates and flipping their signs",
    "scale": "multiplying all rows by one number",
    "shift": "adding one vector to all rows",
    "row-scale": "multiplying each row by a number of its own",
}
_SLACK = 1e-9  # rounding allowed beyond a declared range


class Undefined(Exception):
    """Raised inside a metric that has no value for these rows; becomes a MetricError that names the metric."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class Value:
    """One number of a metric: which (index, variant), from how many rows, its null level and its caveat.

    `stretch` multiplies the error bar: for dependence that leaving blocks out does not see, or sees twice.
    """

    value: float | None
    index: int | None = None
    variant: Mapping[str, Any] = field(default_factory=dict)
    n: int | None = None
    null: float | None = None
    note: str | None = None
    stretch: float = 1.0

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.index, *sorted(self.variant.items()))


@dataclass(frozen=True)
class Series:
    """A number for each index 0, 1, …: what a metric returns that has more numbers than anyone will look at."""

    each: Tensor  # (m,)
    n: int | None = None

    def values(self, only: Collection[tuple[Any, ...]] | None) -> list[Value]:
        """All of them, or those of these keys."""
        if only is None:
            return [Value(value, index=place, n=self.n) for place, value in enumerate(self.each.tolist())]
        places = [place for (place,) in only]
        return [Value(value, index=at, n=self.n) for at, value in zip(places, self.each[places].tolist(), strict=True)]


@dataclass(frozen=True)
class Metric:
    """A function of statistics with its facts. Call it on an array of rows, or on the statistics themselves."""

    name: str
    function: Callable[..., Any]
    needs: tuple[type, ...]
    low: float
    high: float
    keeps: frozenset[str]
    knows: Mapping[str, float | tuple[float, float]]
    paper: str
    version: int
    null: Callable[[Isotropic, Value], float | None] | None
    requires: frozenset[str]  # "documents", "tokens": what the rows must come with
    slow: bool
    bars: bool  # whether it is computed again without each block
    top: int | None  # how many of its largest numbers are recorded

    @property
    def family(self) -> str:
        return self.function.__module__.rsplit(".", 1)[-1]

    @property
    def meaning(self) -> str:
        """The first sentence of its docstring."""
        return " ".join(self.text.split("\n\n")[0].split())

    @property
    def text(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def sources(self) -> frozenset[str]:
        """Names of the statistics that must be collected for it."""
        return frozenset(name for kind in self.needs for name in sources(kind))

    def card(self) -> dict[str, Any]:
        """What a run keeps of a metric, so that it renders where this package's metrics are not installed."""
        return {
            "name": self.name,
            "family": self.family,
            "meaning": self.meaning,
            "text": self.text,
            "low": None if math.isinf(self.low) else self.low,
            "high": None if math.isinf(self.high) else self.high,
            "ignores": sorted(self.keeps),
            "needs": [kind.__name__ for kind in self.needs],
            "paper": self.paper,
            "version": self.version,
        }

    def __call__(self, *given: Any, documents: Any = None) -> Any:
        """The value: of an array of rows (a float, or {index or variant: float}), or of the statistics it needs.

        A metric of what has moved takes two arrays, now and then, whose rows are the same tokens.
        """
        if given and all(isinstance(stat, kind) for stat, kind in zip(given, self.needs, strict=False)):
            return self.function(*given)
        wanted = 2 if "reference" in self.requires else 1
        if len(given) != wanted:
            raise InputError(f"{self.name} takes {wanted} arrays of rows, got {len(given)}")
        clouds = [cloud_of(rows, self.sources, documents=documents) for rows in given]
        values = self.values(clouds[0].with_reference(clouds[1]) if wanted > 1 else clouds[0])
        if len(values) == 1 and values[0].index is None:
            return values[0].value
        return {_label(value): value.value for value in values}

    def values(self, cloud: Cloud, only: Collection[tuple[Any, ...]] | None = None) -> list[Value]:
        """All its numbers for a cloud, checked: finite, inside the declared range, or a MetricError that says why.

        Of a series, `only` the numbers of these keys.
        """
        try:
            _check_rows(cloud)
            found = self.function(*(cloud.get(kind) for kind in self.needs))
            if isinstance(found, Series):
                found = found.values(only)
            values = list(found) if isinstance(found, Iterable) else [found]
        except Undefined as why:
            raise MetricError(self.name, why.reason, why.remedy) from None
        return [self._checked(value if isinstance(value, Value) else Value(float(value))) for value in values]

    def _checked(self, value: Value) -> Value:
        number = value.value
        if number is None:
            return value
        if not math.isfinite(number):
            raise MetricError(self.name, f"the result is {number}", "these rows are outside what it can measure")
        slack = _SLACK * max(1.0, abs(number))
        if not self.low - slack <= number <= self.high + slack:
            raise MetricError(
                self.name,
                f"the result {number} lies outside its range [{self.low}, {self.high}]",
                "rounding has spoilt it: pass the rows in float64",
            )
        clipped = min(max(float(number), self.low), self.high)
        return value if clipped == number else replace(value, value=clipped)


def metric(
    *needs: type,
    low: float,
    high: float,
    keeps: set[str],
    paper: str,
    knows: Mapping[str, float | tuple[float, float]] | None = None,
    version: int = 1,
    null: Callable[[Isotropic, Value], float | None] | None = None,
    requires: set[str] | None = None,
    slow: bool = False,
    bars: bool = True,
    top: int | None = None,
) -> Callable[[Callable[..., Any]], Metric]:
    """Makes a function of statistics a metric; see CONTRIBUTING.md for the facts it declares.

    `knows` maps clouds of `anisoscope.synthetic` to the answer, or to (answer, tolerance).
    """
    odd = keeps - set(INVARIANCES)
    if odd:
        raise ValueError(f"unknown invariances {sorted(odd)}; known: {', '.join(INVARIANCES)}")

    def wrap(function: Callable[..., Any]) -> Metric:
        return Metric(
            name=function.__name__,
            function=function,
            needs=needs,
            low=low,
            high=high,
            keeps=frozenset(keeps | ({"permutation"} if "rotation" in keeps else set())),
            knows=knows or {},
            paper=paper,
            version=version,
            null=null,
            requires=frozenset(requires or ()),
            slow=slow,
            bars=bars,
            top=top,
        )

    return wrap


def _check_rows(cloud: Cloud) -> None:
    """NaN and Inf poison every sum: say so once, with the count, instead of failing in each metric."""
    bad = 0
    if cloud.has(Directions):
        bad = int(cloud.get(Directions).bad)
    elif cloud.has(Moments) and not bool(cloud.get(Moments).fourth.isfinite()):
        bad = -1
    elif cloud.has(Sample):
        bad = int((~cloud.get(Sample).x.isfinite()).any(1).sum())
    if bad:
        how_many = f"{bad} rows hold" if bad > 0 else "some rows hold"
        raise Undefined(
            f"{how_many} NaN or Inf (or numbers whose square overflows)",
            "drop those rows, or rescale them, or pass float64",
        )


def _label(value: Value) -> Any:
    if not value.variant:
        return value.index
    parts = [f"{key}={entry}" for key, entry in value.variant.items()]
    return ", ".join(parts if value.index is None else [*parts, str(value.index)])
