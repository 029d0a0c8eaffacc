from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from anisoscope.stats.inference import bell, false_discovery, jackknife, spearman, spearman_p, t_quantile


def pseudo_value_error(rows: list[np.ndarray]) -> float:
    """Oracle: the delete-m_j jackknife of a mean, written with pseudo-values of explicitly deleted rows."""
    everything = np.concatenate(rows)
    whole, n, blocks = everything.mean(), len(everything), len(rows)
    h = np.array([n / len(block) for block in rows])
    without = np.array([np.concatenate(rows[:j] + rows[j + 1 :]).mean() for j in range(blocks)])
    pseudo = h * whole - (h - 1) * without
    estimate = (pseudo / h).sum()  # Σ m_j/n · pseudo-value
    return math.sqrt(((pseudo - estimate) ** 2 / (h - 1)).mean())


@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [1, 2, 3, 9], [40, 1, 7, 7, 13]])
def test_the_jackknife_agrees_with_pseudo_values_of_deleted_rows(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=m) + j for j, m in enumerate(sizes)]
    everything = np.concatenate(rows)
    without = [float(np.concatenate(rows[:j] + rows[j + 1 :]).mean()) for j in range(len(rows))]
    error = jackknife(float(everything.mean()), without, sizes)
    assert error == pytest.approx(pseudo_value_error(rows), rel=1e-10)


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    x = np.random.default_rng(1).normal(size=20)
    without = [float(np.delete(x, j).mean()) for j in range(len(x))]
    expected = x.std(ddof=1) / math.sqrt(len(x))
    assert jackknife(float(x.mean()), without, [1] * len(x)) == pytest.approx(expected, rel=1e-10)


def test_blocks_without_sizes_count_as_equal() -> None:
    without = [0.3, 0.1, 0.45, 0.2]
    assert jackknife(0.25, without) == pytest.approx(jackknife(0.25, without, [7] * 4), rel=1e-10)


def test_larger_blocks_weigh_more_in_the_jackknife() -> None:
    without = [2.0, 1.0, 1.0, 1.0]
    assert jackknife(1.0, without, [1, 9, 9, 9]) != pytest.approx(jackknife(1.0, without), rel=0.1)


def test_the_jackknife_refuses_a_single_block() -> None:
    with pytest.raises(ValueError, match="two blocks"):
        jackknife(1.0, [1.0], [3])


def test_the_jackknife_refuses_sizes_of_another_length() -> None:
    with pytest.raises(ValueError, match="zip"):
        jackknife(1.0, [1.0, 2.0], [3, 4, 5])


@pytest.mark.parametrize("degrees", [1, 2, 3, 15, 1000])
def test_t_quantiles_invert_the_distribution(degrees: int) -> None:
    assert stats.t.cdf(t_quantile(0.975, degrees), degrees) == pytest.approx(0.975, abs=1e-9)


def test_t_quantiles_tend_to_the_normal_distribution() -> None:
    assert t_quantile(0.975, math.inf) == pytest.approx(stats.norm.ppf(0.975), abs=1e-9)


def test_spearman_shares_tied_ranks() -> None:
    a, b = [1.0, 2.0, 2.0, 4.0, 9.0], [0.1, 0.4, 0.2, 0.2, 0.9]
    ranks = [np.array([1, 2.5, 2.5, 4, 5]), np.array([1, 4, 2.5, 2.5, 5])]
    assert spearman(a, b) == pytest.approx(np.corrcoef(ranks)[0, 1], rel=1e-12)


def test_spearman_of_something_constant_is_zero() -> None:
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0
    assert spearman([1, 2, 3], [4, 4, 4]) == 0.0
    assert spearman([1], [2]) == 0.0
    assert spearman_p([1, 1, 1], [1, 2, 3]) == 1.0


def test_the_p_value_of_spearman_agrees_with_scipy() -> None:
    rng = np.random.default_rng(2)
    a = rng.normal(size=12)
    b = a + rng.normal(size=12)
    assert spearman_p(a, b) == pytest.approx(stats.spearmanr(a, b).pvalue, rel=1e-9)
    assert spearman_p([1, 2], [1, 2]) == 1.0
    assert spearman_p([1, 2, 3], [1, 2, 3]) == 0.0


def test_q_values_follow_their_definition() -> None:
    p = np.random.default_rng(3).uniform(size=30).tolist()
    order = sorted(p)
    for value, q in zip(p, false_discovery(p), strict=True):
        i = order.index(value)
        assert q == pytest.approx(min(min(order[j] * len(p) / (j + 1) for j in range(i, len(p))), 1.0), rel=1e-12)
    assert false_discovery([]) == []


def test_a_bell_compares_the_middle_third_with_the_higher_end() -> None:
    assert bell([0.0, 1.0, 0.5]) == pytest.approx(0.5)
    assert bell([1.0] * 12) == pytest.approx(0.0)
    assert bell([0.2, 0.4, *[1.0] * 8, 0.1, 0.1]) == pytest.approx(0.7)


def test_inference_does_not_load_torch_or_scipy_stats() -> None:
    code = "import sys, anisoscope.stats.inference; print({'torch', 'scipy.stats'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


RANDOM = np.random.default_rng(0)


def test_the_jackknife_of_a_mean_is_its_standard_error_for_any_block_sizes() -> None:
    blocks = [RANDOM.standard_normal(size) for size in (10, 10, 10, 10, 10)]
    x = np.concatenate(blocks)
    replicates = [np.concatenate(blocks[:i] + blocks[i + 1 :]).mean() for i in range(5)]
    means = [b.mean() for b in blocks]
    assert jackknife(x.mean(), replicates, [10] * 5) == pytest.approx(np.std(means, ddof=1) / math.sqrt(5))


def test_a_block_that_holds_nearly_all_rows_has_an_error_too() -> None:
    error = jackknife(1.0, [1.5, 1.25, 1.0], [2**62, 1, 1])
    assert math.isfinite(error)
    assert error > 0
