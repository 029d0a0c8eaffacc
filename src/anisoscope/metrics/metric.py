"""`Metric`: a pure function of statistics with declared facts, which `anisoscope.testing` checks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from anisoscope.errors import InputError, MetricError
from anisoscope.metrics.nulls import Isotropic
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import BLOCKS, cloud_of
from anisoscope.stats.registry import leaves_blocks_out, sources
from anisoscope.stats.unusable import unusable_rows

INVARIANCES = {
    "rotation": "any rotation or reflection of the space",
    "permutation": "reordering coordinates and flipping their signs",
    "scale": "multiplying all rows by one number",
    "shift": "adding one vector to all rows",
    "row-scale": "multiplying each row by a number of its own",
}
ROW_EFFECTS = {
    "none": "the number of rows does not change its value on average",
    "null": "the number of rows changes its value by no more than its null value",
    "any": "its values from different numbers of rows cannot be compared",
}
_OPPOSITE: Mapping[str, Literal["high", "low"]] = {"high": "low", "low": "high", "zero": "high"}
_SLACK = 1e-9  # rounding allowed beyond a declared range


class Undefined(Exception):
    """Raised by the function of a metric that has no value for these rows. It becomes a MetricError.

    Args:
        reason: Why there is no value, as a clause: "the rows do not vary".
        remedy: What to do, as a clause: "give at least two different rows".
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class Value:
    """One number of a metric.

    Attributes:
        value: The number, or None if there is none; `note` then gives the reason.
        index: Rank, scale, dimension or head, if the metric has a number for each.
        variant: Whatever else distinguishes the numbers of one metric.
        n: Number of rows behind it, if not all rows of the cloud.
        null: The value expected without structure, if the metric computes it itself.
        note: A caveat.
        stretch: Factor for the error bar, for dependence that leaving out blocks misses or counts twice.
        bars: Whether this number has an error bar; a maximum has none.
    """

    value: float | None
    index: int | None = None
    variant: Mapping[str, Any] = field(default_factory=dict)
    n: int | None = None
    null: float | None = None
    note: str | None = None
    stretch: float = 1.0
    bars: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the number among those of its metric."""
        return (self.index, *sorted(self.variant.items()))


@dataclass(frozen=True)
class Series:
    """One number for each index 0, 1, …: cheaper than a `Value` each if only a few of many are recorded."""

    each: Tensor  # (m,)
    n: int | None = None

    def values(self, only: Collection[tuple[Any, ...]] | None) -> list[Value]:
        """Return all numbers, or those with these keys."""
        indices = range(len(self.each)) if only is None else [index for (index,) in only]
        numbers = (self.each if only is None else self.each[indices]).tolist()
        return [Value(value, index=index, n=self.n) for index, value in zip(indices, numbers, strict=True)]


@dataclass(frozen=True, repr=False)
class Metric:
    """A function of statistics with its declared facts.

    Call it with an array of rows (`metric(rows)`, or `metric.numbers(rows)` if it has several numbers), with a cloud
    (`metric.values(cloud)`) or with the statistics that it needs (`metric.of(moments)`). Make one with `@metric`,
    which documents the facts.
    """

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
    requires: frozenset[str]  # what the rows must come with, such as "documents": see `metric`
    slow: bool
    bars: bool  # computed again without each block, for an error bar
    top: int | None  # number of largest numbers that are recorded; None: all
    notable: Literal["high", "low"] | None  # the end of its range that shows anisotropy or another finding
    isotropic: Literal["high", "low", "zero"] | None  # where isotropic rows are; None if it does not measure isotropy
    row_effect: str  # how its value depends on the number of rows, a key of `ROW_EFFECTS`
    headline: Mapping[str, Any]  # the variant that represents it if only one number is shown
    null_rows: float  # independent rows per dimension that its null needs

    def __post_init__(self) -> None:
        # so that help(metrics.isoscore) shows the formula, not the docstring of this class
        object.__setattr__(self, "__doc__", self.text)

    def __repr__(self) -> str:
        return f"<metric {self.name}>"

    @property
    def family(self) -> str:
        """Name of the file that defines it."""
        return self.function.__module__.rsplit(".", 1)[-1]

    @property
    def meaning(self) -> str:
        """First paragraph of its docstring."""
        return " ".join(self.text.split("\n\n")[0].split())

    @property
    def text(self) -> str:
        """Its docstring."""
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def sources(self) -> frozenset[str]:
        """Names of the statistics that must be collected for it."""
        return frozenset(name for kind in self.needs for name in sources(kind))

    def card(self) -> dict[str, Any]:
        """Return what a run stores about the metric, so that reports need neither torch nor the metric itself."""
        return {
            "name": self.name,
            "family": self.family,
            "meaning": self.meaning,
            "text": self.text,
            "low": None if math.isinf(self.low) else self.low,
            "high": None if math.isinf(self.high) else self.high,
            "ignores": sorted(self.keeps),
            "needs": self._need_names,
            "paper": self.paper,
            "version": self.version,
            "notable": self.notable,
            "isotropic": self.isotropic,
            "row_effect": self.row_effect,
            "headline": dict(self.headline),
        }

    def __call__(self, *rows: Any, documents: Any = None, mask: Any = None) -> float:
        """Compute the metric of an array of rows.

        Args:
            *rows: Rows (n, d): a tensor, an array or nested lists. Metrics that compare two clouds take two arrays,
                now and reference, whose rows are the same tokens.
            documents: A document number for each row. Rows of one document must be contiguous.
            mask: Which rows count, (n,): true or 1 for those that do.

        Returns:
            The number.

        Raises:
            MetricError: The metric has no value for these rows.
            InputError: The rows are not a matrix of numbers, or the metric has several numbers: use `numbers`.

        Example:
            >>> from anisoscope import metrics, synthetic
            >>> round(metrics.spectral_anisotropy(synthetic.cloud("line")), 6)
            1.0
        """
        values = self.values(self._cloud(rows, documents, mask))
        if len(values) != 1:
            raise InputError(f"{self.name} has {len(values)} numbers. Use metrics.{self.name}.numbers(rows).")
        if values[0].value is None:
            reason = values[0].note or "it has no value"
            raise MetricError(self.name, reason, f"metrics.{self.name}.numbers(rows) returns None instead")
        return values[0].value

    def numbers(self, *rows: Any, documents: Any = None, mask: Any = None) -> dict[Any, float | None]:
        """Compute all numbers of the metric for an array of rows, by index or variant.

        Takes the same arguments as calling the metric.

        Example:
            >>> from anisoscope import metrics
            >>> metrics.massive_tokens.numbers([[1.0], [1.0], [100.0]])
            {'rule=norm': 1.0, 'rule=entry': 0.0}
        """
        return {_label(value): value.value for value in self.values(self._cloud(rows, documents, mask))}

    def of(self, *statistics: Any) -> Value:
        """Compute the metric of the statistics that it needs, in the order of `needs`.

        Raises:
            MetricError: The metric has no value for these statistics.
            InputError: The statistics are not those of `needs`, or the metric has several numbers: use `values`.

        Example:
            >>> import torch
            >>> from anisoscope import metrics
            >>> from anisoscope.stats.directions import Directions
            >>> from anisoscope.stats.rows import bare_rows
            >>> metrics.drift_norm.of(Directions.of(bare_rows(torch.tensor([[3.0], [5.0]])))).value
            4.0
        """
        if len(statistics) != len(self.needs) or not all(map(isinstance, statistics, self.needs)):
            expected, got = (", ".join(names) for names in (self._need_names, [type(s).__name__ for s in statistics]))
            raise InputError(f"{self.name} takes the statistics ({expected}), not ({got}).")
        with _undefined_named(self.name):
            values = self._checked_values(self.function(*statistics), None)
        if len(values) != 1:
            raise InputError(f"{self.name} has {len(values)} numbers. Use metrics.{self.name}.values(cloud).")
        return values[0]

    def values(self, cloud: Cloud, only: Collection[tuple[Any, ...]] | None = None) -> list[Value]:
        """Compute all numbers of the metric for a cloud.

        Args:
            cloud: The collected statistics; they must hold all `sources`.
            only: Keys of the numbers to return, for metrics that return a `Series`. None returns all.

        Returns:
            The numbers, finite and in the declared range.

        Raises:
            MetricError: The metric has no value for this cloud.
        """
        with _undefined_named(self.name):
            if (bad := unusable_rows(cloud)) is not None:  # these make every sum useless
                raise Undefined(
                    f"{bad} rows hold NaN or Inf (or numbers whose square overflows)",
                    "drop those rows, or rescale them, or pass float64",
                )
            statistics: list[Any] = [cloud.get(kind) for kind in self.needs]
            return self._checked_values(self.function(*statistics), only)

    def _checked_values(self, result: Any, only: Collection[tuple[Any, ...]] | None) -> list[Value]:
        """The numbers that the function returned or yields, finite and in the declared range."""
        if isinstance(result, Series):
            result = result.values(only)
        values = list(result) if isinstance(result, Iterable) else [result]
        return [self._checked(value if isinstance(value, Value) else Value(float(value))) for value in values]

    def _cloud(self, arrays: Sequence[Any], documents: Any, mask: Any) -> Cloud:
        expected = 2 if "reference" in self.requires else 1
        if len(arrays) != expected:
            plural = "two arrays" if expected > 1 else "one array"
            raise InputError(f"{self.name} takes {plural} of rows, not {len(arrays)}.")
        # blocks serve error bars, which are not computed here, and statistics that leave blocks out by themselves
        blocks = BLOCKS if any(map(leaves_blocks_out, self.needs)) else 1
        clouds = [cloud_of(rows, self.sources, documents=documents, mask=mask, blocks=blocks) for rows in arrays]
        return clouds[0].with_reference(clouds[1]) if expected > 1 else clouds[0]

    @property
    def _need_names(self) -> list[str]:
        return [kind.__name__ for kind in self.needs]

    def _checked(self, value: Value) -> Value:
        number = value.value
        if number is None:
            return value
        if not math.isfinite(number):
            raise MetricError(self.name, f"the result is {number}", "these rows are outside of what it can measure")
        slack = _SLACK * max(1.0, abs(number))
        if not self.low - slack <= number <= self.high + slack:
            raise MetricError(
                self.name,
                f"the result {number} lies outside its range [{self.low}, {self.high}]",
                "this is rounding: pass the rows in float64",
            )
        clipped = min(max(float(number), self.low), self.high)
        return value if clipped == number else replace(value, value=clipped)


def metric(
    *needs: type,
    low: float = -math.inf,
    high: float = math.inf,
    keeps: Collection[str] = (),
    paper: str = "",
    knows: Mapping[str, float | tuple[float, float]] | None = None,
    version: int = 1,
    null: Callable[[Isotropic, Value], float | None] | None = None,
    requires: set[str] | None = None,
    slow: bool = False,
    bars: bool = True,
    top: int | None = None,
    notable: Literal["high", "low"] | None = None,
    isotropic: Literal["high", "low", "zero"] | None = None,
    row_effect: str = "any",
    headline: Mapping[str, Any] | None = None,
    null_rows: float = 0.0,
) -> Callable[[Callable[..., Any]], Metric]:
    """Turn a function of statistics into a `Metric`.

    The function takes the statistics `needs` and returns a float, a `Value`, several of them, or a `Series`. It raises
    `Undefined` if there is no value. Its name is the metric's name, and its docstring is shown to users. To try an
    idea, declare nothing but the statistics; `anisoscope.testing.check_metric` demands the facts.

    Args:
        *needs: Types of the statistics that the function takes, in order.
        low: Smallest possible value.
        high: Largest possible value.
        keeps: What leaves the value unchanged, a subset of `INVARIANCES`.
        paper: Key of the paper that defines it, or the name of your package.
        knows: Known answers by name of a cloud in `anisoscope.synthetic`: a number, or (number, tolerance).
        version: Raise it if the formula changes: records of both versions are then stored separately.
        null: Function (isotropic rows, value) -> the value expected without structure.
        requires: What the rows must come with: "documents", "tokens", "heads", "branch", "router", "reference", "norm".
        slow: Leave it out unless it is named.
        bars: Compute it again without each block, for an error bar.
        top: Record only this many of its largest numbers.
        notable: The end of the range that is the finding and that sentences describe; follows from `isotropic`.
        isotropic: Where isotropic rows are: "high", "low" or near "zero"; None if the metric does not measure isotropy.
        row_effect: How the value depends on the number of rows, a key of `ROW_EFFECTS`; `compare` uses it.
        headline: The variant that represents the metric if only one number is shown. None: the first.
        null_rows: Independent rows per dimension that the null needs, if small eigenvalues matter. With fewer, there is
            no null, unless the rows are independent and of similar length.

    Returns:
        A decorator that makes a `Metric` of the function.

    Raises:
        ValueError: `keeps` names an unknown invariance, or `row_effect` is unknown.

    Example:
        >>> from anisoscope.stats.moments import Moments
        >>> @metric(Moments, low=0, high=math.inf, keeps={"rotation", "shift"}, paper="anisoscope")
        ... def total_variance(moments):
        ...     "Sum of the variances of all dimensions."
        ...     return float(moments.trace) / moments.n
        >>> total_variance([[0.0, 1.0], [2.0, 1.0]])
        1.0
    """
    wrong = set(keeps) - set(INVARIANCES)
    if wrong:
        raise ValueError(f"Unknown invariances {sorted(wrong)}. Known: {', '.join(INVARIANCES)}.")
    if row_effect not in ROW_EFFECTS:
        raise ValueError(f"Unknown row_effect {row_effect!r}. Known: {', '.join(ROW_EFFECTS)}.")

    def wrap(function: Callable[..., Any]) -> Metric:
        return Metric(
            name=function.__name__,
            function=function,
            needs=needs,
            low=low,
            high=high,
            keeps=frozenset({*keeps, *(["permutation"] if "rotation" in keeps else [])}),
            knows=knows or {},
            paper=paper,
            version=version,
            null=null,
            requires=frozenset(requires or ()),
            slow=slow,
            bars=bars,
            top=top,
            notable=notable or _OPPOSITE.get(isotropic or ""),
            isotropic=isotropic,
            row_effect=row_effect,
            headline=headline or {},
            null_rows=null_rows,
        )

    return wrap


@contextmanager
def _undefined_named(metric: str) -> Iterator[None]:
    """Report an `Undefined` of a function as an error of its metric."""
    try:
        yield
    except Undefined as why:
        raise MetricError(metric, why.reason, why.remedy) from None


def _label(value: Value) -> int | str | None:
    if not value.variant:
        return value.index
    parts = [f"{key}={entry}" for key, entry in value.variant.items()]
    return ", ".join(parts if value.index is None else [*parts, str(value.index)])
