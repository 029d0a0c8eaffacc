"""Intrinsic dimensions against slow numpy implementations, known answers and scikit-dimension."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anisoscope import metrics, synthetic
from anisoscope.metrics.dimension import _gride
from anisoscope.metrics.evaluate import evaluate
from anisoscope.stats.collect import cloud_of
from tests.oracles import metrics as slow

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["two_nn", "two_nn_ml", "mle_dimension"])
def test_a_dimension_equals_its_slow_implementation(name: str) -> None:
    x = synthetic.cloud("curved", n=300, d=20)
    assert getattr(metrics, name)(x) == pytest.approx(getattr(slow, name)(x.numpy()), rel=1e-9)


def test_gride_equals_its_slow_implementation_at_every_scale() -> None:
    x = synthetic.cloud("plane", n=300, d=8)
    for k, value in metrics.gride.numbers(x).items():
        assert value == pytest.approx(slow.gride(x.numpy(), k), rel=0.02), k


def test_dimensions_agree_with_scikit_dimension() -> None:
    import skdim

    x = synthetic.cloud("sphere", n=2000, d=5).numpy() @ RANDOM.standard_normal((5, 20))
    theirs = skdim.id.TwoNN(discard_fraction=0.1).fit_transform(x)
    assert metrics.two_nn(x) == pytest.approx(float(theirs), rel=0.02)
    theirs = skdim.id.MLE(K=20).fit_transform(x)
    assert metrics.mle_dimension(x) == pytest.approx(float(theirs), rel=0.08)  # it divides by k − 2


@pytest.mark.parametrize(("n", "d", "true", "tolerance"), [(2000, 5, 5, 0.3), (2000, 64, 37, 1.5)])
def test_the_dimension_of_a_gaussian_agrees_with_other_packages(n: int, d: int, true: float, tolerance: float) -> None:
    assert metrics.two_nn(synthetic.cloud("sphere", n=n, d=d)) == pytest.approx(true, abs=tolerance)


def test_duplicates_and_offsets_do_not_move_the_dimension() -> None:
    x = synthetic.cloud("sphere", n=2000, d=5)
    x = x @ torch.randn(5, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = metrics.two_nn(x)
    copied = x.clone()
    copied[9::10] = copied[8::10]
    assert metrics.two_nn(copied) == pytest.approx(plain, rel=0.06)
    assert metrics.two_nn((x + 1000).float()) == pytest.approx(plain, rel=0.02)
    assert metrics.two_nn_paper(copied) > 1.3 * metrics.two_nn_paper(x)


def test_the_record_counts_duplicates_and_distinct_rows() -> None:
    cloud = cloud_of(synthetic.cloud("duplicates", n=1000), {"Sample"})
    (value,) = metrics.two_nn.values(cloud)
    assert value.n == 900
    assert value.note == "100 duplicate rows removed"


@pytest.mark.parametrize("k", [2, 16])
@pytest.mark.parametrize("far", [1e-9, 1.0, 40.0])
def test_gride_finds_its_root_wherever_it_lies(k: int, far: float) -> None:
    """Ratios of two kinds pull the root to either end of where it can lie; the likelihood is looked at on a grid."""
    log_mu = torch.cat((torch.full((90,), 1e-3), torch.full((10,), far))).double()
    found = _gride(log_mu, k)
    d = torch.logspace(math.log10(found) - 3, math.log10(found) + 3, 6001, dtype=torch.float64)[:, None]
    # ln of d·(μ^d − 1)^(k−1)/μ^((2k−1)d+1), up to what does not depend on d
    each = d.log() + (k - 1) * (-(-d * log_mu).expm1()).log() - k * d * log_mu
    best = float(d[each.sum(1).argmax(), 0])
    assert found == pytest.approx(best, rel=3e-3)


def test_the_n_of_local_dimensions_counts_the_rows_that_are_searched() -> None:
    """Neighbours of 256 rows are searched among all rows: the value depends on that number, not on 256."""
    for n in (600, 1200):
        (found,) = evaluate(
            cloud_of(synthetic.cloud("plane", n=n), metrics.local_pca_dimension.sources),
            [metrics.local_pca_dimension],
            site="vectors",
            errors=False,
        )
        assert found.record.n == n
