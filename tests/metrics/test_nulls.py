"""Null values against simulated isotropic rows."""

from __future__ import annotations

import numpy as np
import pytest

from anisoscope import metrics, synthetic
from anisoscope.metrics.evaluate import evaluate
from anisoscope.metrics.nulls import isotropic
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
