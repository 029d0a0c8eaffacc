"""Null values against simulated isotropic rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anisoscope import metrics, synthetic
from anisoscope.metrics.evaluate import evaluate
from anisoscope.metrics.nulls import isotropic
from anisoscope.records import Record
from anisoscope.stats.collect import cloud_of
from tests.oracles import metrics as slow


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_the_null_of_isoscore_is_that_of_an_isotropic_sample_of_the_same_size(n: int) -> None:
    x = synthetic.cloud("sphere", n=n, d=256)
    (found,) = evaluate(cloud_of(x, {"Moments"}), [metrics.isoscore], site="vectors", errors=False)
    assert found.record.value == pytest.approx({64: 0.19, 256: 0.50, 1024: 0.80}[n], abs=0.015)
    assert found.record.null == pytest.approx(found.record.value, abs=0.015)


def test_the_null_of_dependent_tokens_equals_that_of_separately_rotated_documents() -> None:
    random = np.random.default_rng(1)
    document = np.repeat(np.arange(40), 20)
    topic = random.standard_normal((40, 32))[document]
    x = random.standard_normal((800, 32)) + 1.5 * topic
    cloud = cloud_of(x, {"Moments", "Documents", "Sample"}, documents=document)
    ratio, share = slow.null_of_rotated_documents(x, document, draws=30)
    null = isotropic(cloud)
    assert null.participation_ratio == pytest.approx(ratio, rel=0.02)
    assert null.top_share == pytest.approx(share, rel=0.12)
    independent = isotropic(cloud_of(x, {"Moments"}))
    assert independent.participation_ratio > 1.3 * ratio


def test_null_spectra_match_simulated_isotropic_rows() -> None:
    x = synthetic.cloud("sphere", n=600, d=64, seed=3)
    null = isotropic(cloud_of(x, {"Moments"}))
    values = np.linalg.svd(x.numpy() - x.numpy().mean(0), compute_uv=False) ** 2
    assert null.eigenvalues.numpy() == pytest.approx(values / values.sum(), rel=0.08)


def documents_of(count: int, length: int, dim: int, *, topic: float, spread: float, seed: int = 0) -> tuple[Any, Any]:
    """Rows of documents with a topic each and lengths of lognormal spread."""
    random = np.random.default_rng(seed)
    document = np.repeat(np.arange(count), length)
    x = random.standard_normal((len(document), dim)) + topic * random.standard_normal((count, dim))[document]
    return x * np.exp(spread * random.standard_normal((len(x), 1))), document


def tail_records(x: Any, document: Any) -> list[Record]:
    names = [metrics.effective_rank, metrics.rankme, metrics.participation_ratio, metrics.isoscore]
    sources = frozenset.union(*(metric.sources for metric in names)) | {"Documents", "Sample"}
    cloud = cloud_of(x, sources, documents=document)
    return [found.record for found in evaluate(cloud, names, site="vectors", errors=False)]


@pytest.mark.parametrize(("count", "length", "topic", "spread"), [(16, 64, 1.0, 0.0), (16, 64, 0.0, 1.0)])
def test_few_documents_have_no_null_of_the_effective_rank(count: int, length: int, topic: float, spread: float) -> None:
    """These rows fill all dimensions although they are worth few independent rows: the value exceeded its null."""
    found = tail_records(*documents_of(count, length, 64, topic=topic, spread=spread))
    for record in found:
        if record.metric in ("effective_rank", "rankme"):
            assert record.null is None
            assert "no null value: 1,024 rows count as" in (record.note or "")
        else:
            assert record.null is not None


@pytest.mark.parametrize(
    ("count", "length", "topic", "spread"),
    [(160, 32, 1.0, 0.0), (256, 64, 0.0, 0.8), (256, 16, 1.0, 0.3), (300, 1, 0, 0)],
)
def test_nulls_that_are_given_agree_with_separately_rotated_documents(
    count: int, length: int, topic: float, spread: float
) -> None:
    """The rows have no structure beyond their documents, so every value is near its null and does not exceed it."""
    found = tail_records(*documents_of(count, length, 64, topic=topic, spread=spread))
    for record in found:
        assert record.value is not None
        assert record.null is not None, (record.metric, record.note)
        assert record.value == pytest.approx(record.null, rel=0.03)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [12, 40, 160, 640])
def test_an_effective_rank_never_exceeds_its_null(count: int, seed: int) -> None:
    x, document = documents_of(count, 16, 48, topic=0.7, spread=0.7, seed=seed)
    x = x * np.arange(1, 49) ** -0.5
    for record in tail_records(x, document):
        assert record.value is not None
        assert record.null is None or record.value <= 1.02 * record.null
