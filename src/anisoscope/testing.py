"""Check that a metric, built-in or yours, keeps its declared facts: `check_metric(my_metric)`.

A metric declares its range, its invariances, its known answers, which end of its range is the finding, and how it
depends on the number of rows. Invariances are checked in both directions: a declared one must hold on all test clouds,
and one that is not declared must fail on some cloud. So a fact can be neither wrong nor forgotten.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import MetricError
from anisoscope.metrics.evaluate import evaluate
from anisoscope.metrics.metric import INVARIANCES, Metric
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import block_numbers, collect
from anisoscope.stats.rows import Rows, token_table
from anisoscope.synthetic import DIM, ROWS, cloud

_SAME = 1e-6  # largest relative difference due to rounding
_OTHER = 1e-4  # smallest relative difference that shows a dependence
_SIZES = (512, 128)  # numbers of rows that a metric is compared at
_DRAWS = 6  # clouds of each size
_SEEN = 4.0  # standard errors that show a difference
_FAR = 6.0  # standard errors by which means of equal populations do not differ


def check_metric(metric: Metric) -> None:
    """Run all checks for one metric.

    Raises:
        AssertionError: A declared fact does not hold, or the paper is missing. The message names the fact and the
            cloud.
    """
    assert metric.paper, f"{metric.name} declares no paper. Name it, or your package if you define the metric."
    check_known(metric)
    check_invariances(metric)
    check_hard(metric)
    check_notable(metric)
    check_row_effect(metric)


def check_known(metric: Metric) -> None:
    """Check the known answers on synthetic clouds, for all numbers of the metric."""
    for name, answer in metric.knows.items():
        wanted, tolerance = answer if isinstance(answer, tuple) else (answer, 1e-9)
        for value in metric.values(cloud_with_tokens(cloud(name, n=ROWS, d=DIM), metric)):
            got = value.value
            assert got is not None, f"{metric.name} of {name}: no value ({value.note}), declared {wanted}"
            assert abs(got - wanted) <= tolerance, f"{metric.name} of {name}: {got}, declared {wanted} ± {tolerance}"


def check_invariances(metric: Metric) -> None:
    """Check that declared invariances hold, and that others do not hold on some cloud."""
    for law in INVARIANCES:
        moved = [(name, _difference(metric, x, _change(law, x))) for name, x in witnesses()]
        if law in metric.keeps:
            for name, difference in moved:
                assert difference <= _SAME, (
                    f"{metric.name} declares invariance under {law}, but on {name} it changes by {difference}"
                )
        else:
            most = max(difference for _, difference in moved)
            assert most > _OTHER, f"{metric.name} does not declare invariance under {law}, but changes by only {most}"


def check_hard(metric: Metric) -> None:
    """Check that difficult clouds give finite numbers, or a MetricError with a reason and a remedy."""
    for name, x in hard_clouds():
        try:
            values = metric.values(cloud_with_tokens(x, metric))
        except MetricError as error:
            assert error.metric == metric.name, f"{metric.name} of {name}: the error names {error.metric}"
            assert error.reason, f"{metric.name} of {name}: an error without a reason"
            assert error.remedy, f"{metric.name} of {name}: an error without a remedy"
            continue
        for value in values:
            assert value.value is not None or value.note, f"{metric.name} of {name}: no value and no note"


def check_notable(metric: Metric) -> None:
    """Check that rows with a dominant direction are at the declared end of the range, and isotropic rows are not.

    Metrics that compare with a reference are not checked: for them the finding is a change, not a shape.
    """
    if metric.notable is None or metric.requires:
        return
    g = torch.Generator().manual_seed(2)
    isotropic = torch.randn(_SIZES[0], DIM, generator=g, dtype=torch.float64)
    round_value, narrow_value = (_mean(metric, x) for x in (isotropic, dominated(isotropic, g)))
    if round_value is None or narrow_value is None:
        return  # no value without a finding, as with `tokens_to_halve`
    holds = narrow_value > round_value if metric.notable == "high" else narrow_value < round_value
    assert holds, (
        f"{metric.name} declares that {metric.notable} values are the finding, but isotropic rows give {round_value} "
        f"and rows with a dominant direction {narrow_value}"
    )


def dominated(isotropic: Tensor, g: torch.Generator) -> Tensor:
    """Return the rows with decaying spreads and one long, skewed coordinate: far from isotropic in every respect."""
    spread = 1 / torch.arange(1, isotropic.shape[1] + 1, dtype=torch.float64)
    rows = isotropic * spread
    rows[:, 0] = 30 * torch.empty(len(rows), dtype=torch.float64).exponential_(generator=g)
    return rows


def check_row_effect(metric: Metric) -> list[RowChange]:
    """Check that the number of rows changes the values no more than declared, and return the changes."""
    changes = list(row_changes(metric))
    for change in changes:
        limit = {"none": 0.0, "null": change.of_null}.get(metric.row_effect, math.inf)
        assert abs(change.of_value) <= limit + _FAR * change.error + _SAME, (
            f"{metric.name} declares row_effect={metric.row_effect!r}, but on {change.cloud} its mean differs by "
            f"{change.of_value} ± {change.error} between {_SIZES[0]} and {_SIZES[1]} rows, its null by {change.of_null}"
        )
    return changes


@dataclass(frozen=True)
class RowChange:
    """How much one number changes on average if a cloud is drawn with fewer rows."""

    cloud: str
    of_value: float
    of_null: float  # what the change of the null allows; 0 if there is no null
    error: float  # one standard error of the change

    @property
    def clear(self) -> bool:
        """Whether the change is not explained by chance."""
        return abs(self.of_value) > _SEEN * self.error + _SAME


def row_changes(metric: Metric) -> Iterator[RowChange]:
    """Yield the change of each number between two numbers of rows, on clouds that fill their space in several ways."""
    draws: dict[str, Callable[[int, torch.Generator], Tensor]] = {
        "a sphere": lambda n, g: torch.randn(n, DIM, generator=g, dtype=torch.float64),
        "a weak spike and a mean": lambda n, g: (
            torch.randn(n, DIM, generator=g, dtype=torch.float64) * (1 + 0.5 * torch.eye(DIM, dtype=torch.float64)[0])
            + 0.1
        ),
        "a dominant direction": lambda n, g: dominated(torch.randn(n, DIM, generator=g, dtype=torch.float64), g),
    }
    for name, draw in draws.items():
        large, small = ([_numbers(metric, draw(n, _generator(n + i))) for i in range(_DRAWS)] for n in _SIZES)
        for key in large[0]:
            if all(key in numbers for numbers in (*large, *small)):
                low = metric.notable == "low"
                yield _row_change(name, [each[key] for each in large], [each[key] for each in small], low=low)


def _row_change(
    cloud: str, large: list[tuple[float, float]], small: list[tuple[float, float]], *, low: bool
) -> RowChange:
    values, nulls = ([[pair[i] for pair in pairs] for pairs in (large, small)] for i in (0, 1))
    error = math.hypot(*(statistics.stdev(each) / math.sqrt(_DRAWS) for each in values))
    of_value, of_null = (statistics.fmean(b) - statistics.fmean(a) for a, b in (values, nulls))
    means = [statistics.fmean(each) for each in (*values, *nulls)]
    if low and 0 < means[0] < means[2] and 0 < means[1] < means[3]:  # as `compare` allows for different n
        of_null *= means[0] * means[1] / (means[2] * means[3])
    return RowChange(cloud, of_value, abs(of_null), error)


def _numbers(metric: Metric, x: Tensor) -> dict[Any, tuple[float, float]]:
    """Return value and null (0 if there is none) of each number that has a value."""
    records = [each.record for each in evaluate(cloud_with_tokens(x, metric), [metric], site="vectors", errors=False)]
    return {
        (record.index, *sorted(record.variant.items())): (record.value, record.null or 0.0)
        for record in records
        if record.value is not None
    }


def _mean(metric: Metric, x: Tensor) -> float | None:
    numbers = [value for value, _ in _numbers(metric, x).values()]
    return statistics.fmean(numbers) if numbers else None


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def witnesses() -> Iterator[tuple[str, Tensor]]:
    """Yield clouds that reveal dependences: a smooth one away from the origin, and one with a massive entry."""
    g = torch.Generator().manual_seed(7)
    scale = torch.tensor([4.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.2, 0.1], dtype=torch.float64)
    yield "a smooth cloud", torch.randn(400, 10, generator=g, dtype=torch.float64) * scale + 2.0
    spiked = torch.randn(400, 10, generator=g, dtype=torch.float64)
    spiked[17, 2] = 1000.0
    yield "a cloud with one massive entry", spiked


def hard_clouds() -> Iterator[tuple[str, Tensor]]:
    """Yield clouds that break careless code: constant, tiny, huge, NaN, fewer rows than dimensions."""
    g = torch.Generator().manual_seed(3)

    def gaussian(n: int, d: int) -> Tensor:
        return torch.randn(n, d, generator=g, dtype=torch.float64)

    yield "constant rows", torch.full((50, 4), 3.3, dtype=torch.float64)
    yield "one row", gaussian(1, 4)
    yield "two rows", gaussian(2, 4)
    yield "three equal rows", gaussian(1, 4).expand(3, 4)
    yield "pairs of equal rows", gaussian(30, 4).repeat_interleave(2, 0)
    yield "fewer rows than dimensions", gaussian(20, 50)
    yield "one dimension", gaussian(100, 1)
    yield "some zero rows", torch.cat((gaussian(90, 4), torch.zeros(10, 4, dtype=torch.float64)))
    yield "all zero", torch.zeros(40, 4, dtype=torch.float64)
    yield "a grid", torch.cartesian_prod(*[torch.arange(4.0, dtype=torch.float64)] * 3)
    for name, bad in (("NaN", float("nan")), ("Inf", float("inf"))):
        corrupt = gaussian(60, 4)
        corrupt[7, 1] = bad
        yield f"one {name}", corrupt
    yield "float16 with Inf from overflow", (gaussian(60, 4) * 1e5).half()
    yield "float32 whose squares overflow", (gaussian(60, 4) * 1e25).float()
    yield "bfloat16", gaussian(60, 4).bfloat16()
    yield "tiny float32", (gaussian(60, 4) * 1e-12).float()
    yield "a mean of a million spreads", (gaussian(60, 4) + 1e6)
    yield "a row of a billion lengths", torch.cat((gaussian(60, 4), gaussian(1, 4) * 1e9))


def cloud_with_tokens(x: Tensor, metric: Metric) -> Cloud:
    """Collect the statistics that a metric needs, from rows in documents of ten tokens with seven words.

    A metric that compares two clouds gets a fixed reference with the same number of rows.
    """
    cloud = _collected(x, metric)
    if "reference" not in metric.requires:
        return cloud
    g = torch.Generator().manual_seed(5)
    return cloud.with_reference(_collected(torch.randn(x.shape, generator=g, dtype=torch.float64) + 1.0, metric))


def _collected(x: Tensor, metric: Metric) -> Cloud:
    number = torch.arange(len(x))
    document = number // 10
    table = token_table(
        document, number % 10, offset=1 + number % 10, token=number % 7, block=block_numbers(len(x), document)
    )
    return collect(lambda: [Rows(x, table)], metric.sources | {"Moments"})


def _change(law: str, x: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(11)
    d = x.shape[1]
    changes: dict[str, Callable[[], Tensor]] = {
        "rotation": lambda: x @ torch.linalg.qr(torch.randn(d, d, generator=g, dtype=x.dtype)).Q,
        "permutation": lambda: x[:, torch.randperm(d, generator=g)] * torch.sign(torch.randn(d, generator=g)),
        "scale": lambda: x * 0.05,
        "shift": lambda: x + torch.tensor([0.0, 0.0, -4000.0, *[7.0] * (d - 3)], dtype=x.dtype),
        "row-scale": lambda: x / x.norm(dim=1, keepdim=True) * (1 + torch.rand(len(x), 1, generator=g)),
    }
    return changes[law]()


def _difference(metric: Metric, before: Tensor, after: Tensor) -> float:
    """Return the largest relative difference between the numbers; one that appears or disappears counts as 1."""
    numbers = [
        {value.key: value.value for value in metric.values(cloud_with_tokens(x, metric))} for x in (before, after)
    ]
    if set(numbers[0]) != set(numbers[1]):
        return 1.0
    most = 0.0
    for key, a in numbers[0].items():
        b = numbers[1][key]
        if (a is None) != (b is None):
            most = max(most, 1.0)
        elif a is not None and b is not None:
            most = max(most, abs(a - b) / max(abs(a), abs(b), 1e-3))
    return most
