"""What has moved since the reference, against slow twins and known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from anisoscope import InputError, MetricError, metrics
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.head_sums import HeadSums
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Sample
from tests.oracles import drift as oracle


def cloud(seed: int, n: int = 200, d: int = 20, **made: float) -> Tensor:
    """Rows with a slope of variances, a mean, and something in common with the cloud of seed 0."""
    g = torch.Generator().manual_seed(seed)
    own = torch.randn(n, d, generator=g, dtype=torch.float64) * torch.linspace(3, 0.2, d, dtype=torch.float64)
    shared = cloud(0, n, d) if seed else torch.zeros(n, d, dtype=torch.float64)
    return own + made.get("shared", 0.0) * shared + made.get("mean", 0.0)


@pytest.mark.parametrize(("n", "d"), [(200, 20), (15, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cka_equals_that_of_explicit_kernels(n: int, d: int, dtype: torch.dtype) -> None:
    x, y = cloud(1, n, d, shared=0.7, mean=5.0).to(dtype), cloud(0, n, d, mean=-2.0).to(dtype)
    expected = oracle.cka(x.double().numpy(), y.double().numpy())
    assert metrics.cka(x, y) == pytest.approx(expected, abs=1e-12 if dtype == torch.float64 else 1e-5)


def test_cka_of_unrelated_rows_is_zero_even_with_fewer_rows_than_dimensions() -> None:
    found = [metrics.cka(cloud(seed, 30, 100), cloud(seed + 100, 30, 100)) for seed in range(1, 21)]
    assert abs(float(np.mean(found))) < 3 * float(np.std(found)) / math.sqrt(len(found))
    assert max(map(abs, found)) < 0.3  # the plain one would say 0.7 and more


def test_cka_allows_other_widths_and_angles_do_not() -> None:
    x, wider = cloud(1, d=20), cloud(2, d=30)
    assert -1 <= metrics.cka(x, wider) <= 1
    with pytest.raises(MetricError, match="20 wide now, 30 at the reference"):
        metrics.subspace_angle.numbers(x, wider)


@pytest.mark.parametrize("shared", [0.0, 0.5, 5.0])
def test_angles_equal_those_of_an_svd(shared: float) -> None:
    x, y = cloud(1, shared=shared, mean=3.0), cloud(0)
    found = metrics.subspace_angle.numbers(x, y)
    for k in (1, 8):
        expected = oracle.angles(x.numpy(), y.numpy(), k)
        assert found[f"angle=largest, {k}"] == pytest.approx(expected[-1], abs=1e-6)
        average = math.acos(math.sqrt((np.cos(expected) ** 2).mean()))
        assert found[f"angle=average, {k}"] == pytest.approx(average, abs=1e-6)


AXIS_1, AXIS_2 = "axis=1, of=mean", "axis=2, of=mean"


@pytest.mark.parametrize(("n", "d"), [(200, 20), (15, 40)])
@pytest.mark.parametrize("mean", [0.1, 3.0])
def test_the_trajectory_is_that_of_explicit_projections(n: int, d: int, mean: float) -> None:
    x, y = cloud(1, n, d, shared=0.5, mean=1.0), cloud(0, n, d, mean=mean)
    found, expected = metrics.trajectory.numbers(x, y), oracle.trajectory(x.numpy(), y.numpy())
    assert found[AXIS_1] == pytest.approx(expected[0], abs=1e-9)
    assert abs(found[AXIS_2] or 0.0) == pytest.approx(abs(expected[1]), abs=1e-9)


def test_the_trajectory_starts_on_the_first_axis_and_a_row_length_is_its_unit() -> None:
    y = cloud(0, mean=3.0)
    unit = float(y.square().sum(1).mean().sqrt())
    start = metrics.trajectory.numbers(y, y)
    assert start[AXIS_1] == pytest.approx(float(y.mean(0).norm()) / unit)
    assert start[AXIS_2] == pytest.approx(0.0, abs=1e-12)
    along = unit * y.mean(0) / y.mean(0).norm()
    assert metrics.trajectory.numbers(y + along, y)[AXIS_1] == pytest.approx((start[AXIS_1] or 0.0) + 1)


def test_axes_of_the_trajectory_do_not_depend_on_the_rows_now() -> None:
    """Moving the mean by a fixed vector moves both coordinates by fixed amounts, whatever the rows are."""
    y, move = cloud(0, mean=3.0), torch.linspace(-1, 2, 20, dtype=torch.float64)
    moved = []
    for x in (y, cloud(1), cloud(2, mean=-5.0)):
        before, after = metrics.trajectory.numbers(x, y), metrics.trajectory.numbers(x + move, y)
        moved.append([(after[axis] or 0.0) - (before[axis] or 0.0) for axis in (AXIS_1, AXIS_2)])
    assert np.ptp(np.array(moved), axis=0).max() < 1e-9


def test_a_reference_without_a_mean_has_no_trajectory() -> None:
    y = torch.tensor([[1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
    with pytest.raises(MetricError, match="mean at the reference is zero"):
        metrics.trajectory.numbers(y, y)
    line = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    with pytest.raises(MetricError, match="vary along their mean only"):
        metrics.trajectory.numbers(line, line)


def test_a_rotation_by_a_known_angle_is_found() -> None:
    x = torch.diag(torch.tensor([3.0, 1.0, 0.5, 0.1], dtype=torch.float64))
    x = torch.cat((x, -x))  # the first axis carries most
    turn = torch.eye(4, dtype=torch.float64)
    turn[0, 0] = turn[3, 3] = math.cos(0.3)
    turn[0, 3], turn[3, 0] = math.sin(0.3), -math.sin(0.3)
    assert metrics.subspace_angle.numbers(x @ turn, x)["angle=largest, 1"] == pytest.approx(0.3, abs=1e-7)


def test_mean_direction_has_known_answers() -> None:
    x = cloud(1)
    x -= x.mean(0)
    a, b = torch.zeros(20, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    a[0], b[1] = 2.0, 7.0
    assert metrics.mean_direction_drift(x + a, x + 3 * a) == pytest.approx(1)
    assert metrics.mean_direction_drift(x + a, x - a) == pytest.approx(-1)
    assert metrics.mean_direction_drift(x + a, x + b) == pytest.approx(0, abs=1e-12)


def test_neighbour_overlap_equals_that_of_all_distances_and_its_null_is_chance() -> None:
    x, y = cloud(1, 80, shared=1.0), cloud(0, 80)
    expected = oracle.neighbour_overlap(x.numpy(), y.numpy(), 10)
    assert metrics.neighbour_overlap(x, y) == pytest.approx(expected)
    unrelated = metrics.neighbour_overlap(torch.randn(400, 9, dtype=torch.float64), cloud(2, 400, 9))
    assert unrelated == pytest.approx(10 / 399, abs=0.01)


def test_rows_are_paired_by_token_if_some_were_left_out() -> None:
    x = cloud(1, 60)
    whole = Sample.of(bare_rows(x))
    some = torch.randperm(60, generator=torch.Generator().manual_seed(3))[:40]
    part = Sample.of(bare_rows(x).take(some))
    pair = Cloud({"Sample": part}).with_reference(Cloud({"Sample": whole}))
    (found,) = metrics.cka.values(pair)
    assert found.value == pytest.approx(1, abs=1e-12)
    assert found.n == 40


def heads(q: list[list[float]], k: list[list[float]]) -> Cloud:
    n, zero = torch.tensor(10.0), torch.zeros(2, 3, 3)
    q_sum, k_sum = torch.tensor(q, dtype=torch.float64), torch.tensor(k, dtype=torch.float64)
    return Cloud({"HeadSums": HeadSums(n, q_sum, zero, k_sum, torch.ones(2), zero)})


def test_every_head_has_its_own_drift() -> None:
    then = heads([[1, 0, 0], [0, 2, 0]], [[0, 0, 1], [1, 0, 0]])
    now = heads([[5, 0, 0], [0, -1, 0]], [[0, 1, 0], [0, 0, 0]])
    pair = now.with_reference(then)
    assert [v.value for v in metrics.q_direction_drift.values(pair)] == [1, -1]
    turned, gone = metrics.k_direction_drift.values(pair)
    assert turned.value == 0
    assert gone.value is None
    assert "no direction" in (gone.note or "")


def test_the_wrong_number_of_arrays_is_refused() -> None:
    with pytest.raises(InputError, match="cka takes two arrays of rows, not 1"):
        metrics.cka(cloud(1))
    with pytest.raises(InputError, match="isoscore takes one array of rows, not 2"):
        metrics.isoscore(cloud(1), cloud(2))
