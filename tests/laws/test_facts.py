"""Every metric of the catalogue is held to the facts it declares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import anisoscope.testing
from anisoscope.metrics import Metric, catalogue
from anisoscope.stats.cloud import Cloud
from anisoscope.testing import (
    check_hard,
    check_invariances,
    check_known,
    check_notable,
    check_row_effect,
    cloud_with_tokens,
    witnesses,
)

# Metrics of heads, branches, routers and norms take other input; they have tests of their own.
METRICS = [m for m in catalogue().values() if not m.requires & {"heads", "branch", "router", "norm"}]
# They vary so much from cloud to cloud that a few draws do not show it: see tests/metrics/test_health.py.
NOISY = {"entry_max", "tail_alpha"}
COLLECT = anisoscope.testing._collected
every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)


@pytest.fixture(scope="module", autouse=True)
def _clouds_are_collected_once() -> Iterator[None]:
    """Share clouds between the metrics that need the same statistics: collecting is most of the time of these tests."""
    clouds: dict[tuple[object, ...], Cloud] = {}

    def collected(x: Tensor, metric: Metric) -> Cloud:
        key = (x.dtype, x.shape, x.contiguous().view(torch.uint8).numpy().tobytes(), metric.sources)
        if key not in clouds:
            clouds[key] = COLLECT(x, metric)
        return clouds[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anisoscope.testing, "_collected", collected)
        yield


@every_metric
def test_a_metric_gives_its_known_answers(metric: Metric) -> None:
    check_known(metric)


@every_metric
def test_a_metric_has_exactly_its_declared_invariances(metric: Metric) -> None:
    check_invariances(metric)


@every_metric
def test_a_metric_gives_a_number_or_a_reason_on_hard_clouds(metric: Metric) -> None:
    check_hard(metric)


@every_metric
def test_a_metric_has_a_docstring(metric: Metric) -> None:
    assert metric.meaning.endswith((".", ":")) or metric.meaning, metric.name
    assert metric.paper
    assert metric.low < metric.high


@every_metric
def test_rows_with_a_dominant_direction_are_at_the_notable_end(metric: Metric) -> None:
    check_notable(metric)


@every_metric
def test_the_number_of_rows_changes_a_metric_as_declared(metric: Metric) -> None:
    changes = check_row_effect(metric)
    # metrics of words, documents and references: these clouds cannot show how they depend on the number of rows
    if changes and metric.row_effect != "none" and not metric.requires and metric.name not in NOISY:
        assert any(change.clear for change in changes)


@every_metric
def test_a_metric_of_several_variants_names_the_one_that_represents_it(metric: Metric) -> None:
    _, x = next(witnesses())
    variants = [dict(value.variant) for value in metric.values(cloud_with_tokens(x, metric))]
    distinct = [variant for i, variant in enumerate(variants) if variant not in variants[:i]]
    assert dict(metric.headline) in (distinct if len(distinct) > 1 else [{}])
