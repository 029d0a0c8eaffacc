"""The blocked search against brute force over all pairs, on clouds chosen to make it fail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats import knn, knn_blocks, knn_exact, knn_space
from anisoscope.stats.knn import Nearest, nearest, nearest_to, unique_rows
from tests.oracles.neighbours import first_occurrences, nearest_distances, pair_distances


def gaussian(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def sinks() -> Tensor:
    x = gaussian(300, 24)
    x[:5] *= 1000
    return x


def near_duplicates(apart: float) -> Tensor:
    x = gaussian(150, 24).double()
    return torch.cat([x, x + apart * gaussian(150, 24, seed=1)])


def tight_clusters(spread: float) -> Tensor:
    centres = 100 * gaussian(6, 24).double()
    return centres.repeat(50, 1) + spread * gaussian(300, 24, seed=1)


def curve(d: int) -> Tensor:
    """300 points of a one-dimensional curve: neighbours are far nearer than the norms."""
    t = torch.linspace(0, 6, 300, dtype=torch.float64)[:, None]
    return torch.sin(t * gaussian(1, d).double() + gaussian(1, d, seed=1))


CLOUDS: dict[str, Callable[[], Tensor]] = {
    "gaussian": lambda: gaussian(300, 24),
    "bfloat16": lambda: gaussian(300, 24).bfloat16(),
    "float16": lambda: gaussian(300, 24).half(),
    "float64": lambda: gaussian(300, 24).double(),
    "mean 1000 times the spread": lambda: gaussian(300, 24) + 1000,
    "mean a billion times the spread": lambda: gaussian(300, 24).double() + 1e9,
    "sinks": sinks,
    "every third row a sink": lambda: gaussian(300, 24) * torch.tensor([1000.0, 1.0, 1.0]).repeat(100)[:, None],
    "near-duplicates": lambda: near_duplicates(1e-6).float(),
    "nearer duplicates": lambda: near_duplicates(1e-12),
    "clusters too tight for float32": lambda: tight_clusters(1e-3),
    "clusters too tight for float64": lambda: tight_clusters(1e-9),
    "curve": lambda: curve(50),
    "exact copies": lambda: gaussian(30, 24).repeat(10, 1),
    "all rows alike": lambda: torch.ones(40, 3),
    "all zero": lambda: torch.zeros(40, 3),
    "all distances alike": lambda: torch.eye(200),
    "lattice": lambda: gaussian(300, 6).round(),
    "one dimension": lambda: gaussian(300, 1),
    "whole numbers": lambda: torch.arange(300.0)[:, None],
    "density over 16 decades": lambda: gaussian(300, 5) * torch.logspace(-8, 8, 300)[:, None],
    "density over 120 decades": lambda: gaussian(300, 5) * torch.logspace(-60, 60, 300, dtype=torch.float64)[:, None],
    "squares overflow": lambda: gaussian(300, 24).double() * 1e200,
    "squares vanish": lambda: gaussian(300, 24).double() * 1e-200,
    "squares overflow in bfloat16": lambda: gaussian(300, 24).bfloat16() * 1e37,
    "three rows": lambda: gaussian(3, 7),
    "one row over a block": lambda: gaussian(65, 7),
    "transposed": lambda: gaussian(24, 300).T,
}


@pytest.fixture(params=["sparse", "dense"])
def search(request: pytest.FixtureRequest) -> Callable[..., Nearest]:
    """The search as it runs on the CPU, and as it runs on other devices."""

    def run(x: Tensor, k: int, group: Tensor | None = None) -> Nearest:
        return knn._nearest(x, k, group, dense=request.param == "dense")

    return run


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 rows, so that small clouds have many."""
    monkeypatch.setattr(knn_space, "BLOCK", 64)


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Try principal components on small clouds; collects the widths of the rows that were searched."""
    monkeypatch.setattr(knn, "_SHORT_FROM", 20)
    monkeypatch.setattr(knn, "_SHORT_ROWS", 100)
    monkeypatch.setattr(knn, "_COMPONENTS", 8)
    widths: list[int] = []

    def spy(cloud: knn_space.SearchSpace, e: knn_space.Embedding, keep: int, *, dense: bool) -> knn_blocks.Candidates:
        widths.append(e.width)
        return knn_blocks.search_all(cloud, e, keep, dense=dense)

    monkeypatch.setattr(knn, "search_all", spy)
    return widths


def assert_exact(found: Nearest, x: Tensor, k: int, group: Tensor | None = None) -> None:
    """Distances are those of brute force, and lead to as many different rows that may be met."""
    exact = x.double().numpy()
    truth = nearest_distances(exact, k, None if group is None else group.numpy())
    np.testing.assert_allclose(found.distance.numpy(), truth, rtol=1e-12, atol=0)
    index, there = found.index.numpy(), np.isfinite(truth)
    np.testing.assert_array_equal(index >= 0, there)
    unit = max(float(np.abs(exact).max()), 1e-300)
    reached = pair_distances(exact[index], exact[:, None], unit)
    np.testing.assert_allclose(reached[there], truth[there], rtol=1e-12, atol=0)
    for i, row in enumerate(index):
        met = row[row >= 0]
        assert len(set(met.tolist())) == len(met)
        assert i not in met
        assert group is None or bool((group[torch.from_numpy(met)] != group[i]).all())


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", CLOUDS)
def test_the_nearest_rows_equal_those_of_brute_force(name: str, search: Callable[..., Nearest]) -> None:
    x = CLOUDS[name]()
    assert_exact(search(x, 2), x, 2)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("k", [1, 7, 20, 64])
def test_any_number_of_neighbours_is_exact(k: int, search: Callable[..., Nearest]) -> None:
    x = sinks()
    assert_exact(search(x, k), x, k)


@pytest.mark.parametrize("name", CLOUDS)
def test_a_search_on_principal_components_is_exact(name: str, short_rows: list[int]) -> None:
    x = CLOUDS[name]()
    assert_exact(nearest(x, 2), x, 2)
    assert short_rows


def test_low_dimensional_data_are_searched_on_principal_components(short_rows: list[int]) -> None:
    x = gaussian(300, 5) @ gaussian(5, 40, seed=1) + 3
    assert_exact(nearest(x, 2), x, 2)
    assert short_rows == [9]


def test_full_dimensional_data_are_searched_on_whole_rows(short_rows: list[int]) -> None:
    x = gaussian(300, 40)
    assert_exact(nearest(x, 2), x, 2)
    assert short_rows == [40]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "group",
    [
        torch.arange(300) // 7,
        torch.arange(300) * 7919 % 40,
        torch.arange(300) - 100,
        (torch.arange(300) > 2).long(),
        torch.zeros(300, dtype=torch.int64),
    ],
    ids=["in order", "mixed", "one row each", "two, one of three rows", "only one"],
)
def test_rows_of_the_same_group_are_never_neighbours(group: Tensor, search: Callable[..., Nearest]) -> None:
    x = sinks()
    assert_exact(search(x, 5, group), x, 5, group)


def test_a_row_with_too_few_rows_in_other_groups_gets_inf_and_minus_one() -> None:
    found = nearest(torch.tensor([[0.0], [1.0], [3.0], [7.0]]), 2, group=torch.tensor([5, 5, 5, 9]))
    assert found.distance.tolist() == [[7, torch.inf], [6, torch.inf], [4, torch.inf], [4, 6]]
    assert found.index.tolist() == [[3, -1], [3, -1], [3, -1], [2, 1]]


def test_results_are_float64_and_int64_on_the_cpu_for_any_input() -> None:
    found = nearest(gaussian(20, 4).bfloat16().requires_grad_(), 3)
    assert (found.distance.dtype, found.index.dtype) == (torch.float64, torch.int64)
    assert found.distance.shape == found.index.shape == (20, 3)
    assert found.distance.device.type == found.index.device.type == "cpu"
    assert not found.distance.requires_grad


def test_a_cloud_of_several_full_blocks_is_exact() -> None:
    x = gaussian(4300, 6)
    x[0] *= 1000
    found = nearest(x, 2)
    probe = torch.arange(0, 4300, 61)
    truth = torch.cdist(x[probe].double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    truth[torch.arange(len(probe)), probe] = torch.inf
    torch.testing.assert_close(found.distance[probe], truth.sort(dim=1).values[:, :2], rtol=1e-12, atol=0)


def test_rows_that_no_precision_certifies_are_brute_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[int] = []

    def spy(cloud: knn_space.SearchSpace, row: Tensor, k: int) -> tuple[Tensor, Tensor]:
        forced.append(len(row))
        return knn_exact.brute_force(cloud, row, k)

    monkeypatch.setattr(knn, "brute_force", spy)
    monkeypatch.setattr(knn, "certified", lambda found, norm, radius, width: torch.zeros_like(radius).bool())
    x = gaussian(100, 8)
    assert_exact(nearest(x, 2), x, 2)
    assert forced == [100]


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 40),
    d=st.integers(1, 12),
    k=st.integers(1, 6),
    shift=st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    decades=st.floats(0, 12),
    digits=st.integers(0, 6),
    groups=st.integers(1, 50),
    seed=st.integers(0, 2**20),
)
def test_random_clouds_are_searched_exactly(
    n: int, d: int, k: int, shift: float, decades: float, digits: int, groups: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(n, d)).round(digits) * 10 ** draw.uniform(-decades, 0, size=(n, 1)) + shift
    x = torch.from_numpy(rows).to([torch.float32, torch.float64][seed % 2])
    group = torch.from_numpy(draw.integers(0, groups, size=n))
    k = min(k, n - 1)
    assert_exact(nearest(x, k), x, k)
    assert_exact(nearest(x, k, group=group), x, k, group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 24, 700])
def test_rounding_stays_within_the_bound_of_the_certificate(d: int, dtype: torch.dtype) -> None:
    """The bound is asked the other way round: at which threshold does it just refuse a pair?"""
    x = (gaussian(64, d) * torch.logspace(-3, 3, 64)[:, None]).double()
    x += torch.rand(64, d, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 1e-9
    place = torch.arange(64)
    cloud = knn_space.SearchSpace(x, torch.zeros(d, dtype=torch.float64), place, place + 1)
    e = knn_space.embed(cloud, dtype=dtype)
    block = torch.empty(64, 64, dtype=dtype)
    knn_blocks._half_distances(e.y, e.half, e.y, e.half, block)
    difference = x[:, None].numpy().astype(np.longdouble) - x.numpy()
    truth = torch.from_numpy((0.5 * (difference**2).sum(-1)).astype(np.float64))
    error = (block.double() - truth).abs()
    norm = torch.from_numpy(np.linalg.norm(x.numpy(), axis=1))
    pair = norm[:, None] + norm
    unit = torch.finfo(dtype).eps / 2
    assert bool((error <= 0.5 * (d + 5) * unit * pair.square()).all())
    # a row found at distance r, with everything else behind r by twice that error, is certified; by nothing, it is not
    near = knn_blocks.Candidates(torch.tensor([[0.5, 0.5 + 8 * (d + 8) * unit]], dtype=dtype), torch.tensor([[1, 2]]))
    tied = knn_blocks.Candidates(torch.tensor([[0.5, 0.5]], dtype=dtype), torch.tensor([[1, 2]]))
    one = torch.ones(1, dtype=torch.float64)
    assert bool(knn_exact.certified(near, one, one, d))
    assert dtype == torch.float64 or not bool(knn_exact.certified(tied, one, one, d))


@pytest.mark.parametrize("through", ["the process", "the backend"])
def test_a_lower_precision_setting_is_overridden_and_restored(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.backends.cuda.matmul
    seen: list[tuple[str, bool]] = []

    def spy(cloud: knn_space.SearchSpace, e: knn_space.Embedding, keep: int, *, dense: bool) -> knn_blocks.Candidates:
        seen.append((cuda.fp32_precision, torch.is_autocast_enabled("cpu")))
        return knn_blocks.search_all(cloud, e, keep, dense=dense)

    monkeypatch.setattr(knn, "search_all", spy)
    x, before = sinks(), torch.get_float32_matmul_precision()
    try:
        if through == "the process":
            torch.set_float32_matmul_precision("high")
        else:
            cuda.fp32_precision = "tf32"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = nearest(x, 2)
            assert torch.is_autocast_enabled("cpu")
        assert cuda.fp32_precision == "tf32"
        assert through == "the backend" or torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == [("ieee", False)]
    assert_exact(found, x, 2)


@pytest.mark.parametrize("name", ["gaussian", "mean a billion times the spread", "sinks", "exact copies", "bfloat16"])
def test_ordinary_clouds_are_certified_at_the_first_try(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []
    search_again = knn._search_again

    def spy(
        cloud: knn_space.SearchSpace, row: Tensor, k: int, dtype: torch.dtype, *, dense: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        again.append(len(row))
        return search_again(cloud, row, k, dtype, dense=dense)

    monkeypatch.setattr(knn, "_search_again", spy)
    nearest(CLOUDS[name](), 2)
    assert sum(again) <= 10  # in float32 a handful of sinks cannot tell small rows apart


def test_coordinates_in_a_basis_and_a_residual_norm_bound_distances_from_below() -> None:
    x = gaussian(100, 30).double() + 5
    place = torch.arange(100)
    cloud = knn_space.SearchSpace(x, knn_space.robust_centre(x), place, place + 1)
    short = knn_space.embed(cloud, knn_space.principal_basis(cloud, 6), torch.float64).y[:100]
    assert short.shape == (100, 7)
    assert bool((torch.cdist(short, short) <= torch.cdist(x, x) + 1e-5).all())
    torch.testing.assert_close(short.norm(dim=1), (x - cloud.centre).norm(dim=1), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("x", "k", "group", "message"),
    [
        (torch.zeros(3, 2), 3, None, "3 neighbours need at least 4 rows, not 3"),
        (torch.zeros(3, 2), 0, None, "at least 1, not 0"),
        (torch.zeros(3), 1, None, r"\(n, d\) array"),
        (torch.zeros(3, 0), 1, None, "d >= 1"),
        (torch.zeros(3, 2, dtype=torch.int64), 1, None, "torch.int64"),
        (torch.tensor([[0.0], [torch.nan], [torch.inf]]), 1, None, "2 of 3 rows hold NaN or Inf"),
        (torch.zeros(3, 2), 1, torch.zeros(2), "one integer for each of the 3 rows"),
    ],
)
def test_input_without_neighbours_is_refused_with_a_reason(
    x: Tensor, k: int, group: Tensor | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        nearest(x, k, group=group)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_unique_rows_are_the_first_occurrences(dtype: torch.dtype) -> None:
    x = gaussian(200, 3).round().to(dtype)  # round leaves -0.0 beside 0.0
    index, removed = unique_rows(x)
    assert index.tolist() == first_occurrences(x.double().numpy())
    assert removed == 200 - len(index) > 0


def test_unique_rows_distinguish_rows_whose_keys_collide() -> None:
    x = gaussian(60, 2).round()
    fresh = knn._first_occurrences(x, torch.zeros(60, dtype=torch.int64))
    assert fresh.nonzero().squeeze(1).tolist() == first_occurrences(x.double().numpy())


def test_keys_differ_if_small_integer_rows_differ() -> None:
    x = torch.cartesian_prod(*[torch.arange(-4.0, 5.0, dtype=torch.float64)] * 4)
    assert len(torch.unique(knn.row_keys(x))) == len(x) == 9**4


def test_no_rows_have_no_unique_rows() -> None:
    index, removed = unique_rows(torch.zeros(0, 4))
    assert (index.tolist(), removed) == ([], 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 7])
def test_rows_nearest_to_queries_are_those_of_brute_force(dtype: torch.dtype, k: int) -> None:
    queries, x = gaussian(60, 9).to(dtype), gaussian(500, 9, seed=1).to(dtype)
    found = nearest_to(queries, x, k)
    truth = torch.cdist(queries.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.allclose(found.distance, truth.topk(k, largest=False).values, rtol=1e-9)
    assert torch.allclose(truth.gather(1, found.index), found.distance, rtol=1e-9)


def test_queries_find_copies_of_themselves_and_ties_have_true_distances() -> None:
    x = gaussian(300, 6).sign()
    found = nearest_to(x[:40], x, 9)
    truth = torch.cdist(x[:40].double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.equal(found.distance, truth.topk(9, largest=False).values)
    assert all(len(set(row)) == 9 for row in found.index.tolist())


def test_queries_of_another_width_are_refused() -> None:
    with pytest.raises(InputError, match="same model"):
        nearest_to(gaussian(3, 4), gaussian(9, 5), 1)
