"""Token frequency: strata and the distance of centroids."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.tangent.frequency import (
    frequency_distance,
    frequency_strata,
    pearson,
    token_counts,
    type_balanced,
)
from tests.tangent_rows import keys, normal


def zipfian(seed: int, n: int = 3000, types: int = 60) -> Tensor:
    share = torch.arange(1, types + 1).double() ** -1.0
    return torch.multinomial(share, n, replacement=True, generator=torch.Generator().manual_seed(seed))


def test_strata_are_of_equal_size_and_in_order_of_frequency() -> None:
    token = zipfian(70)
    count = token_counts(token)
    marks = frequency_strata(token, count, keys(71, 3000))
    assert len(set(marks.sum(0).tolist())) == 1
    means = [float(count[marks[:, s]].mean()) for s in range(3)]
    assert means == sorted(means)
    assert bool((marks.sum(1) <= 1).all())
    assert all(len(set(token[marks[:, 0]].tolist()) & set(token[marks[:, s]].tolist())) == 0 for s in (1, 2))


def test_a_table_of_counts_replaces_counting() -> None:
    assert token_counts(torch.tensor([5, 7]), {5: 100, 9: 1}).tolist() == [100, 0]
    with pytest.raises(InputError, match="None of the tokens"):
        token_counts(torch.tensor([5]), {6: 1})


def test_a_balanced_fit_holds_at_most_five_tokens_of_each_type() -> None:
    token = zipfian(72)
    kept = type_balanced(token, keys(73, 3000), 5)
    assert int(torch.bincount(token[kept]).max()) == 5
    assert len(token[kept].unique()) == len(token.unique())


def test_pearson_agrees_with_scipy() -> None:
    from scipy.stats import pearsonr

    a, b = normal(74, 50), normal(75, 50).round(decimals=1)
    assert pearson(a, b) == pytest.approx(pearsonr(a, b).statistic)


def test_the_published_frequency_correlation_is_partly_mechanical_and_the_control_is_not() -> None:
    """Rows that know nothing of frequency: the published form is far below zero, the split-half form is not."""
    published, control, calls = [], [], 0
    for seed in range(30):
        token = zipfian(100 + seed)
        x = normal(200 + seed, 3000, 12)
        block = torch.arange(3000) // 375
        result = frequency_distance(x, token, token_counts(token), keys(300 + seed, 3000), block, seed=seed)
        assert result is not None
        published.append(result.pearson)
        control.append(result.split_half)
        calls += result.p <= 0.05
    assert np.mean(published) < -0.5
    assert abs(np.mean(control)) < 4 * np.std(control) / np.sqrt(30)
    assert calls <= 5


def test_the_control_does_not_mistake_a_wide_spread_for_a_distance() -> None:
    """Rare types scatter more, about one common centre: two halves of a type share no noise, so nothing is left."""
    control = []
    for seed in range(30):
        token = zipfian(400 + seed)
        spread = (400 / torch.bincount(token, minlength=60).clamp(min=1)).sqrt()
        x = normal(500 + seed, 3000, 12) * spread[token][:, None]
        result = frequency_distance(x, token, token_counts(token), keys(600 + seed, 3000), torch.arange(3000) // 375)
        assert result is not None
        control.append(result.split_half)
    assert abs(np.mean(control)) < 4 * np.std(control) / np.sqrt(30)


def test_frequent_types_near_the_centre_are_found_by_both_forms() -> None:
    token = zipfian(76)
    count = token_counts(token)
    centre = normal(77, 60, 12) * (400 / torch.bincount(token, minlength=60).clamp(min=1)).sqrt()[:, None]
    x = centre[token] + 0.3 * normal(78, 3000, 12)
    result = frequency_distance(x, token, count, keys(79, 3000), torch.arange(3000) // 375)
    assert result is not None
    assert result.pearson < -0.4
    assert result.spearman < -0.4
    assert result.split_half < -0.3
    assert result.p <= 0.01
    assert result.pearson_error is not None
    assert result.pearson_error < 0.2


def test_too_few_types_have_no_correlation() -> None:
    token = torch.arange(20) % 4
    assert (
        frequency_distance(normal(80, 20, 3), token, token_counts(token), keys(81, 20), torch.zeros(20).long()) is None
    )
