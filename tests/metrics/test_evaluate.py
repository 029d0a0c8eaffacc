"""From clouds to records: error bars, notes and reasons."""

from __future__ import annotations

import numpy as np
import pytest

from anisoscope import metrics
from anisoscope.metrics.evaluate import evaluate
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import cloud_of

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((70, 6)) * np.array([3.0, 2.0, 1.0, 1.0, 0.5, 0.2]) + np.array([1.0, 0, 0, 2.0, 0, 0])


def test_error_bars_come_from_documents_and_not_from_rows() -> None:
    random = np.random.default_rng(2)
    document = np.repeat(np.arange(64), 32)
    x = random.standard_normal((64, 8))[document] + 0.2 * random.standard_normal((2048, 8)) + 1.0
    by_document = evaluate(cloud_of(x, {"Directions"}, documents=document), [metrics.drift_norm], site="vectors")
    shuffled = evaluate(cloud_of(random.permutation(x), {"Directions"}), [metrics.drift_norm], site="vectors")
    assert by_document[0].record.error is not None
    assert shuffled[0].record.error is not None
    assert by_document[0].record.error > 3 * shuffled[0].record.error
    assert by_document[0].record.error_kind == "jackknife-16-rows"


def test_too_few_blocks_give_a_note_instead_of_an_error_bar() -> None:
    document = np.repeat(np.arange(3), 20)
    cloud = cloud_of(X[:60], {"Directions", "Moments"}, documents=document)
    (found,) = evaluate(cloud, [metrics.mean_cosine], site="vectors", unit="documents")
    assert found.record.error is None
    assert found.record.note == "no error bar: 3 blocks of documents, 4 are needed"


def test_a_metric_without_a_value_gives_a_record_with_the_reason() -> None:
    (found,) = evaluate(cloud_of(np.ones((30, 3)), {"Moments"}), [metrics.isoscore], site="vectors")
    assert found.record.value is None
    assert found.record.note == "the 30 rows do not vary; give at least two different rows"


def test_a_cloud_can_be_measured_without_any_blocks() -> None:
    cloud = cloud_of(X, {"Moments"})
    assert metrics.isoscore.values(Cloud(cloud.stats))[0].value == pytest.approx(metrics.isoscore(X))
