"""The one law of statistics: of(a) + of(b) equals of(a followed by b), for any split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anisoscope.stats.cloud import Cloud, from_arrays, to_arrays
from anisoscope.stats.collector import Collector
from anisoscope.stats.directions import CentredDirections, Directions, UnitSquares
from anisoscope.stats.documents import Documents
from anisoscope.stats.entries import Entries
from anisoscope.stats.moments import Moments
from anisoscope.stats.packing import pack, unpack
from anisoscope.stats.partition import Partition
from anisoscope.stats.row_norms import Norms
from anisoscope.stats.rows import Rows, token_table
from anisoscope.stats.sample import Extremes, Sample
from anisoscope.stats.scratch import Room
from anisoscope.stats.sequence_spectra import SequenceSpectra
from anisoscope.stats.token_steps import TokenSteps
from anisoscope.stats.writes import Writes

CENTRE = Moments.of(
    Rows(torch.randn(50, 5, generator=torch.Generator().manual_seed(1)), token_table(torch.arange(50), torch.zeros(50)))
)
MAKE: dict[str, Callable[[Rows], Any]] = {
    "Moments": Moments.of,
    "precise Moments": partial(Moments.of, precise=True),
    "Directions": Directions.of,
    "UnitSquares": UnitSquares.of,
    "Norms": Norms.of,
    "Entries": Entries.of,
    "Writes": lambda rows: Writes.of(Rows(rows.x, rows.tokens, (rows.x, 2 * rows.x.flip(1) + 1))),
    "TokenSteps": TokenSteps.of,
    "SequenceSpectra": SequenceSpectra.of,
    "Documents": Documents.of,
    "Sample": partial(Sample.of, size=20),
    "Extremes": partial(Extremes.of, size=20),
    "CentredDirections": partial(CentredDirections.of, moments=CENTRE),
    "Partition": partial(Partition.of, moments=CENTRE),
}


def make_rows(n: int, d: int = 5, *, mean: float = 0.0, dtype: torch.dtype = torch.float64, seed: int = 0) -> Rows:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) + mean
    x[torch.rand(n, generator=g) < 0.05] = 0.0
    number = torch.arange(n)
    lengths = torch.randint(1, 9, (n,), generator=g)
    document = torch.repeat_interleave(number, lengths)[:n]
    return Rows(x.to(dtype), token_table(document, number, block=document // 10, token=number % 7))


def assert_same(a: Any, b: Any, tolerance: float) -> None:
    left, right = pack(a), pack(b)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].shape == right[name].shape, name
        scale = right[name].double().abs().max().clamp(min=1.0) if right[name].numel() else 1.0
        torch.testing.assert_close(
            left[name].double() / scale, right[name].double() / scale, rtol=0, atol=tolerance, equal_nan=True
        )


@pytest.mark.parametrize("name", MAKE)
@given(
    n=st.integers(2, 120),
    cuts=st.lists(st.integers(1, 119), max_size=6),
    mean=st.sampled_from([0.0, 3.0, 1e4]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_statistics_of_parts_add_up_to_the_whole(name: str, n: int, cuts: list[int], mean: float, seed: int) -> None:
    rows = make_rows(n, mean=0.0 if name == "Partition" else mean, seed=seed)
    edges = sorted({0, n, *(cut for cut in cuts if cut < n)})
    parts = [MAKE[name](rows.take(slice(a, b))) for a, b in pairwise(edges)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert_same(total, MAKE[name](rows), 1e-9 * max(1.0, mean))


@pytest.mark.parametrize("name", MAKE)
def test_single_rows_add_up_to_the_whole(name: str) -> None:
    rows = make_rows(40)
    total = MAKE[name](rows.take(slice(0, 1)))
    for i in range(1, 40):
        total = total + MAKE[name](rows.take(slice(i, i + 1)))
    assert_same(total, MAKE[name](rows), 1e-9)


@pytest.mark.parametrize("name", MAKE)
def test_a_statistic_survives_packing(name: str) -> None:
    made = MAKE[name](make_rows(30))
    assert_same(unpack(type(made), pack(made)), made, 0.0)


def test_unpacking_names_missing_arrays() -> None:
    arrays = pack(Moments.of(make_rows(10)))
    del arrays["third"]
    with pytest.raises(KeyError, match="third"):
        unpack(Moments, arrays)


@pytest.mark.parametrize("kind", [Moments, Directions, UnitSquares, Norms, CentredDirections, Partition, Writes])
def test_subtracting_a_part_leaves_the_rest(kind: type) -> None:
    rows = make_rows(100, mean=3.0)
    make = MAKE[kind.__name__]
    rest = make(rows).without(make(rows.take(slice(20, 50))))
    others = torch.cat((torch.arange(20), torch.arange(50, 100)))
    assert_same(rest, make(rows.take(others)), 1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_any_float_dtype_is_widened_exactly(dtype: torch.dtype) -> None:
    rows = make_rows(200, dtype=dtype)
    wide = Rows(rows.x.double(), rows.tokens)
    for name in ("Moments", "Directions"):
        assert_same(MAKE[name](rows), MAKE[name](wide), 1e-6)


def collected(rows: Rows, cuts: list[int], names: list[str], **options: Any) -> Cloud:
    collector = Collector(names, **options)
    edges = [0, *cuts, len(rows.tokens)]
    for a, b in pairwise(edges):
        collector.add(rows.take(slice(a, b)))
    return collector.finish()


ALL = ["Moments", "Directions", "UnitSquares", "Norms", "Documents", "Sample", "Extremes"]


@given(cuts=st.lists(st.integers(1, 999), max_size=8, unique=True), blocks=st.sampled_from([2, 4, 16]))
@settings(max_examples=20, deadline=None)
def test_a_collected_cloud_does_not_depend_on_the_batches(cuts: list[int], blocks: int) -> None:
    rows = make_rows(1000, seed=5)
    options = {"sample": 100, "extremes": 30, "blocks": blocks}
    cloud = collected(rows, sorted(cuts), ALL, **options)
    for name in ("Moments", "Directions", "UnitSquares", "Norms", "Documents"):
        assert_same(cloud.get(globals()[name]), MAKE[name](rows), 1e-9)
    assert_same(cloud.get(Sample).rows.tokens, Sample.of(rows, 100).rows.tokens, 1e18)
    torch.testing.assert_close(cloud.get(Sample).x, Sample.of(rows, 100).x)
    torch.testing.assert_close(cloud.get(Extremes).x, Extremes.of(rows, 30).x)
    assert len(cloud.blocks) < 2 * blocks


@pytest.mark.parametrize("blocks", [2, 8])
@pytest.mark.parametrize("peel", [True, False])
def test_a_cloud_without_a_block_equals_the_cloud_of_the_other_rows(blocks: int, peel: bool) -> None:
    rows = make_rows(1000, seed=6)
    rows.x[333] *= 1e4  # one massive row may be in the block that is left out
    cloud = collected(rows, [137, 500, 501], ALL, sample=100, extremes=30, blocks=blocks)
    assert len(cloud.blocks) < 1.5 * blocks
    level = 0
    while set((rows.tokens.block >> level).tolist()) != {block.number for block in cloud.blocks}:
        level += 1
        assert level < 10, "the blocks are not neighbours joined"
    for _ in range(2):  # made, and taken from what was made
        for place, block in enumerate(cloud.blocks):
            own = rows.take(((rows.tokens.block >> level) == block.number).nonzero()[:, 0])
            assert_same(cloud.of_block(place, Moments), Moments.of(own), 1e-9)
    for place, block in enumerate(cloud.blocks):
        others = ((rows.tokens.block >> level) != block.number).nonzero()[:, 0]
        left = cloud.without_block(place, exact_extremes=peel)
        for name in ("Moments", "Directions", "Norms"):
            found, expected = left.get(globals()[name]), MAKE[name](rows.take(others))
            if name == "Moments" and not peel:  # the massive row's fourth power has rounded the others' away
                found, expected = (replace(m, third=m.third * 0, fourth=m.fourth * 0) for m in (found, expected))
            assert_same(found, expected, 1e-9 if peel else 1e-8)  # 1e8 of a massive row were subtracted
        whole = Documents.of(rows.take(others))
        assert left.get(Documents).documents == whole.documents
        assert left.get(Documents).all_unit_square == pytest.approx(whole.all_unit_square)
        assert not torch.isin(
            left.get(Sample).rows.tokens.document, rows.take(~torch.isin(torch.arange(1000), others)).tokens.document
        ).any()


def test_separately_stored_first_tokens_belong_to_the_whole() -> None:
    rows = make_rows(400, seed=8)
    offset = torch.arange(400) % 16
    rows = Rows(rows.x, token_table(rows.tokens.document, rows.tokens.position, offset=offset, block=rows.tokens.block))
    cloud = collected(rows, [100, 250], ALL, extremes=20, sinks=True)
    assert_same(cloud.get(Moments), Moments.of(rows), 1e-9)
    torch.testing.assert_close(cloud.get(Extremes).x, Extremes.of(rows, 20).x)
    first = rows.take((offset == 0).nonzero()[:, 0])
    kept = cloud.stats["first.Extremes"].rows
    assert 0 < len(kept.tokens) < len(first.tokens) == 25
    assert_same(cloud.stats["first.Moments"] + Moments.of(kept), Moments.of(first), 1e-9)
    without = cloud.without_tokens(torch.zeros(0, dtype=torch.int64), first=True)
    assert_same(without.get(Moments), Moments.of(rows.take((offset > 0).nonzero()[:, 0])), 1e-9)
    assert not (without.get(Extremes).rows.tokens.offset == 0).any()


def test_wide_blocks_are_stored_in_a_scratch_folder_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anisoscope.stats.collector.HELD_NUMBERS", 1)
    monkeypatch.setattr("anisoscope.stats.collector.Room", lambda: Room(blocks=0, open=0))
    rows = make_rows(600, seed=9)

    def scratch_folder() -> Path:
        cloud = collected(rows, [100, 333], ALL, extremes=10, blocks=4)
        assert_same(cloud.get(Moments), Moments.of(rows), 1e-9)
        kept = cloud.blocks[0].stats
        if isinstance(kept, dict) or not kept.exists():  # no assert: pytest may hold on to what it compared
            raise AssertionError("blocks stayed in memory")
        return Path(str(kept.parent))

    assert not scratch_folder().exists()  # gone with the cloud


def test_a_cloud_survives_storing() -> None:
    cloud = collected(make_rows(300), [100], ALL)
    again = Cloud(from_arrays(to_arrays(cloud.stats)))
    for name in ("Moments", "Directions", "Norms", "Sample"):
        assert_same(again.get(globals()[name]), cloud.get(globals()[name]), 0.0)


def test_the_keyed_sample_is_uniform_and_the_same_at_every_site() -> None:
    tokens = token_table(torch.arange(100).repeat_interleave(100), torch.arange(100).repeat(100))
    a = Sample.of(Rows(torch.zeros(10000, 1), tokens), size=2000)
    b = Sample.of(Rows(torch.ones(10000, 3), tokens), size=2000)
    assert torch.equal(a.table, b.table)
    by_document = torch.bincount(a.rows.tokens.document, minlength=100).double()
    # hypergeometric: mean 20, variance 20·0.8; the statistic is about chi-square with 99 degrees of freedom
    assert 60 < float(((by_document - 20) ** 2 / 16).sum()) < 150


def test_another_seed_keeps_other_tokens() -> None:
    document, position = torch.arange(1000), torch.zeros(1000)
    kept = [Sample.of(Rows(torch.zeros(1000, 1), token_table(document, position, seed=s)), 100) for s in (0, 1)]
    both = set(kept[0].rows.tokens.document.tolist()) & set(kept[1].rows.tokens.document.tolist())
    assert len(both) < 30


def far_from_origin(n: int, d: int, offset: float) -> Tensor:
    g = torch.Generator().manual_seed(2)
    scale = torch.logspace(0, -3.5, d, dtype=torch.float64)
    q = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q
    return ((torch.randn(n, d, generator=g, dtype=torch.float64) * scale) @ q + offset).float()


@pytest.mark.parametrize("offset", [0.0, 1.0, 30.0])
def test_float32_singular_values_are_within_one_per_cent_down_to_1e_3(offset: float) -> None:
    """A float32 product moves every eigenvalue by up to c·λ1, so σ by (c/2)(σ1/σ)² of itself.

    Measured c/2: at most 2e-9 (kernels of AVX-512, AVX2 and SSE2). The law holds c/2 below 1e-8.
    """
    x = far_from_origin(9000, 300, offset)
    got = Moments.of(Rows(x, token_table(torch.arange(9000), torch.zeros(9000)))).eigenvalues.sqrt()
    want = torch.linalg.svdvals(x.double() - x.double().mean(0))
    size = want / want[0]
    wrong = (got - want).abs() / want  # relative
    assert float((wrong * size.square())[size > 3e-4].max()) < 1e-8
    assert float(wrong[size > 1e-3].max()) < 0.01
    assert int((size > 1e-3).sum()) > 200


def test_precise_singular_values_are_right_down_to_1e_6() -> None:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(5000, 32, generator=g, dtype=torch.float64) * torch.logspace(0, -6, 32, dtype=torch.float64)
    rows = Rows(x.float() + 0.0, token_table(torch.arange(5000), torch.zeros(5000)))
    got = Moments.of(rows, precise=True).eigenvalues.sqrt()
    want = torch.linalg.svdvals(rows.x.double() - rows.x.double().mean(0))
    assert float(((got - want).abs() / want).max()) < 0.01


def test_a_mean_beyond_100_spreads_switches_to_float64() -> None:
    x = far_from_origin(9000, 300, 500.0)
    got = Moments.of(Rows(x, token_table(torch.arange(9000), torch.zeros(9000)))).eigenvalues.sqrt()
    want = torch.linalg.svdvals(x.double() - x.double().mean(0))
    assert float(((got - want).abs() / want).max()) < 1e-6


def test_a_massive_row_does_not_cost_other_rows_precision() -> None:
    x = torch.randn(4096, 300, generator=torch.Generator().manual_seed(0))
    x[100] *= 1e6
    tokens = token_table(torch.arange(4096), torch.zeros(4096))
    collector = Collector(["Moments"])
    collector.add(Rows(x, tokens))
    cloud = collector.finish()
    others = torch.arange(4096) != 100
    got = cloud.stats["Moments"] + Moments.of(cloud.get(Extremes).rows.take(slice(1, None)))
    want = Moments.of(Rows(x[others].double(), tokens.take(others)))
    torch.testing.assert_close(got.scatter, want.scatter, rtol=1e-5, atol=1e-3)


def test_autocast_and_tf32_settings_change_nothing() -> None:
    rows = make_rows(500, dtype=torch.float32)
    plain = Moments.of(rows)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = Moments.of(rows)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(inside.scatter, plain.scatter)
