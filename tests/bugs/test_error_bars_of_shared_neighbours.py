"""Rows that are each other's neighbours say the same twice; error bars over blocks counted them as independent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anisoscope import metrics
from anisoscope.metrics.evaluate import evaluate
from anisoscope.stats.collect import cloud_of


def test_twins_in_different_blocks_count_once() -> None:
    random = np.random.default_rng(0)
    place = random.random((512, 2)) * 100
    away = random.standard_normal((512, 2))
    twin = place + 1e-3 * random.gamma(2.0, 1.0, (512, 1)) * away / np.linalg.norm(away, axis=1, keepdims=True)
    cloud = cloud_of(np.concatenate((place, twin)), {"Sample"})  # a row's twin is eight blocks further
    (value,) = metrics.two_nn_ml.values(cloud)
    assert value.stretch == pytest.approx(math.sqrt(2), rel=0.15)
    (alone,) = metrics.two_nn_ml.values(cloud_of(random.permutation(np.repeat(place, 1, 0)), {"Sample"}))
    assert 1 <= alone.stretch < 1.4


def test_the_error_bar_is_stretched_and_so_are_the_replicates() -> None:
    x = np.random.default_rng(1).random((600, 2))
    cloud = cloud_of(x, {"Sample", "Moments"})
    (value,) = metrics.two_nn_ml.values(cloud)
    assert value.stretch > 1.05
    (measured,) = evaluate(cloud, [metrics.two_nn_ml], site="vectors")
    plain = [metrics.two_nn_ml.values(cloud.without_block(place))[0].value for place in range(len(cloud.blocks))]
    wide = np.array(measured.replicates) - value.value
    assert wide == pytest.approx(value.stretch * (np.array(plain) - value.value))


def test_error_bars_of_pairs_of_blocks_are_not_too_long_without_structure() -> None:
    found = []
    for seed in range(60):
        x = np.random.default_rng(seed).standard_normal((320, 8))
        cloud = cloud_of(x, {"Moments"})
        (measured,) = evaluate(cloud, [metrics.participation_ratio_unbiased], site="vectors")
        found.append((measured.record.value, measured.record.error))
    values, bars = np.array(found).T
    assert 0.75 < math.sqrt((bars**2).mean()) / values.std(ddof=1) < 1.4  # the plain jackknife gives 1.6
