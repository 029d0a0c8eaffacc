"""Every metric of the catalogue is held to the facts it declares."""

from __future__ import annotations

import pytest

from anisoscope.metrics import Metric, catalogue
from anisoscope.testing import check_hard, check_invariances, check_known

# Metrics of heads and of norms take other input; they have tests of their own.
METRICS = [m for m in catalogue().values() if not m.requires & {"heads", "norm"}]
every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)


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
