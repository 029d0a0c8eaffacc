"""Isotropy metrics against slow numpy implementations, worked answers and other packages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anisoscope import metrics, synthetic
from anisoscope.stats.collect import block_numbers
from tests.oracles import metrics as slow

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((70, 6)) * np.array([3.0, 2.0, 1.0, 1.0, 0.5, 0.2]) + np.array([1.0, 0, 0, 2.0, 0, 0])
SHARED = (
    "mean_cosine",
    "mean_cosine_centred",
    "drift_norm",
    "relative_drift",
    "spectral_anisotropy",
    "spectral_anisotropy_uncentred",
    "singular_anisotropy",
    "participation_ratio",
    "isoscore",
    "isoscore_star",
    "top_coordinate",
    "stable_rank",
)


@pytest.mark.parametrize("name", SHARED)
def test_a_metric_equals_its_slow_implementation(name: str) -> None:
    assert getattr(metrics, name)(X) == pytest.approx(getattr(slow, name)(X), rel=1e-9)


def test_isoscore_equals_that_of_the_published_package() -> None:
    from IsoScore import IsoScore

    assert metrics.isoscore(X) == pytest.approx(float(IsoScore.IsoScore(X)), rel=1e-5)  # it computes in float32


def test_singular_values_10_2_1_give_the_worked_answers() -> None:
    x = np.diag([10.0, 2.0, 1.0])
    assert metrics.singular_anisotropy(x) == pytest.approx(10 / 13)
    assert metrics.spectral_anisotropy_uncentred(x) == pytest.approx(100 / 105)


def test_contributions_of_dimensions_add_up_to_the_mean_cosine() -> None:
    found = metrics.cosine_contribution.numbers(X)
    assert list(found.values()) == pytest.approx(slow.cosine_contribution(X))
    assert sum(value or 0.0 for value in found.values()) == pytest.approx(metrics.mean_cosine(X))


def test_partition_isotropy_equals_its_slow_implementation() -> None:
    assert metrics.partition_isotropy.numbers(X / 3) == pytest.approx(slow.partition_isotropy(X / 3), rel=1e-9)


@pytest.mark.parametrize("shift", [0.25, 0.5, 1.0, 2.5])
def test_partition_isotropy_of_a_shifted_cloud_falls_exponentially_with_the_shift(shift: float) -> None:
    g = torch.Generator().manual_seed(0)
    w = 0.05 * torch.randn(20000, 32, generator=g, dtype=torch.float64)
    w[:, 0] += shift
    found = metrics.partition_isotropy.numbers(w)
    assert found["rows=raw, signs=mean"] == pytest.approx(math.exp(-shift), abs=0.01)
    assert found["rows=raw, signs=both"] == pytest.approx(math.exp(-2 * shift), abs=0.01)


def test_a_large_mean_raises_only_the_uncentred_anisotropy() -> None:
    x = synthetic.cloud("sphere", n=2000, d=200)
    x[:, 0] += 30.0
    assert metrics.spectral_anisotropy_uncentred(x) > 0.8
    assert metrics.spectral_anisotropy(x) < 0.01


def test_the_unbiased_participation_ratio_equals_its_slow_implementation_and_has_no_bias() -> None:
    blocks = block_numbers(len(X)).numpy()
    assert metrics.participation_ratio_unbiased(X) == pytest.approx(slow.participation_ratio_unbiased(X, blocks))
    sphere = synthetic.cloud("sphere", n=400, d=128)
    assert metrics.participation_ratio(sphere) < 100
    assert metrics.participation_ratio_unbiased(sphere) == pytest.approx(128, rel=0.06)


def test_cosine_across_documents_equals_its_slow_implementation() -> None:
    document = np.repeat(np.arange(14), 5)
    found = metrics.mean_cosine_across_documents(X, documents=document)
    assert found == pytest.approx(slow.mean_cosine_across_documents(X, document))
