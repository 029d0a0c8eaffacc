"""The null of privileged coordinates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from anisoscope.tangent import orthonormal
from anisoscope.tangent.coordinates import coordinates
from anisoscope.tangent.random_subspaces import orientation
from anisoscope.tangent.site_bases import fit_site_bases
from tests.oracles import tangent as oracle
from tests.tangent_rows import cloud, falling, normal


def test_coordinate_null_has_the_mean_of_all_signed_permutations() -> None:
    second, basis = falling(4, 0.7), orthonormal(normal(43, 4, 2), "mine")
    fitted = replace(fit_site_bases(cloud(44, 100, 4), ["pca"], [2]), coordinates=torch.tensor([1.0, 1.5, 5.0, 6.0]))
    group = np.array([0, 0, 1, 1])
    every = [
        np.trace(basis.q.numpy().T @ m.T @ second.numpy() @ m @ basis.q.numpy()) / float(second.trace())
        for m in oracle.signed_permutations(4, group)
    ]
    levels = [coordinates(second, [basis], fitted, seed)[0].level or 0.0 for seed in range(20)]
    assert np.mean(levels) == pytest.approx(np.mean(every), abs=4 * np.std(every) / np.sqrt(20 * 99))


def test_a_shared_outlier_dimension_is_not_significant_under_the_coordinate_null() -> None:
    """Activations and gradients share one large coordinate and nothing else: Haar calls it, the coordinate null not."""
    d = 40
    loud = torch.ones(d, dtype=torch.float64).index_fill(0, torch.tensor([7]), 30.0)
    fitted = fit_site_bases(normal(45, 500, d) * loud, ["pca"], [2], clusters=0)
    second = (g := normal(46, 500, d) * loud.sqrt()).T @ g
    assert orientation(second, fitted.bases, fitted)[0].p < 0.01  # type: ignore[operator]
    assert coordinates(second, fitted.bases, fitted)[0].p > 0.2  # type: ignore[operator]
