"""Check that a metric, built-in or yours, keeps its declared facts: `check_metric(my_metric)`.

A metric declares its range, its invariances and its known answers. Invariances are checked in both directions: a
declared one must hold on all test clouds, and one that is not declared must fail on some cloud. So a fact can be
neither wrong nor forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from anisoscope.errors import MetricError
from anisoscope.metrics.metric import INVARIANCES, Metric
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import block_numbers, collect
from anisoscope.stats.rows import Rows, token_table
from anisoscope.synthetic import DIM, ROWS, cloud

_SAME = 1e-6  # largest relative difference due to rounding
_OTHER = 1e-4  # smallest relative difference that shows a dependence


def check_metric(metric: Metric) -> None:
    """Run all checks for one metric.

    Raises:
        AssertionError: A declared fact does not hold. The message names the fact and the cloud.
    """
    check_known(metric)
    check_invariances(metric)
    check_hard(metric)


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
