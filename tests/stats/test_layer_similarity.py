"""Similarity of layers: known answers, and the definitions computed the slow way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.inference import jackknife
from anisoscope.stats.layer_similarity import MEASURES, layer_similarity
from tests.oracles import drift, similarity

K = 10


def normal(m: int, d: int, seed: int) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def related(m: int = 90) -> tuple[list[Tensor], list[Tensor]]:
    """Two layers of one model and three of another, of different widths, the first pair related."""
    a = [normal(m, 5, 0) + 2, normal(m, 9, 1)]
    b = [a[0] @ normal(5, 7, 2) + normal(m, 7, 3), normal(m, 120, 4), 3 * a[1]]
    return a, b


def test_every_pair_agrees_with_the_definitions() -> None:
    a, b = related()
    tables = layer_similarity(a, b)
    slow = {
        "cka": drift.cka,
        "overlap": lambda x, y: drift.neighbour_overlap(x, y, K),
        "a_to_b": similarity.imbalance,
        "b_to_a": lambda x, y: similarity.imbalance(y, x),
    }
    assert set(slow) == set(MEASURES)
    for name, measure in slow.items():
        expected = [[measure(x.numpy(), y.numpy()) for y in b] for x in a]
        assert tables[name].value.shape == (2, 3)
        # float64 sums of 90² products of size one: errors far below 1e-10
        assert tables[name].value.numpy() == pytest.approx(np.array(expected), abs=1e-10), name


def test_replicates_of_cka_are_those_of_the_remaining_rows() -> None:
    a, b = related()
    sizes = [20, 50, 5, 15]
    without = layer_similarity(a, b, sizes)["cka"].without
    end = 0
    for block, size in enumerate(sizes):
        keep = np.r_[0:end, end + size : 90]
        end += size
        expected = [[drift.cka(x.numpy()[keep], y.numpy()[keep]) for y in b] for x in a]
        assert without[block].numpy() == pytest.approx(np.array(expected), abs=1e-10)


def test_replicates_of_neighbours_leave_out_rows_as_queries() -> None:
    a, b = related()
    sizes = [30, 60]
    for name in ("overlap", "a_to_b", "b_to_a"):
        table = layer_similarity(a, b, sizes)[name]
        # means without a block, weighted by the rows that they keep, give the mean of all rows
        pooled = (60 * table.without[0] + 30 * table.without[1]) / 90
        assert pooled.numpy() == pytest.approx(table.value.numpy(), abs=1e-12)
        assert not torch.allclose(table.without[0], table.without[1])


def test_blocks_and_strips_do_not_change_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = related()
    whole = layer_similarity(a, b)
    monkeypatch.setattr("anisoscope.stats.layer_similarity._ELEMENTS", 7 * 90 * 5)
    seen: list[int] = []
    strips = layer_similarity(a, b, [40, 50], seen.append)
    assert sum(seen) == 90
    assert max(seen) == 7
    for name in MEASURES:
        assert strips[name].value.numpy() == pytest.approx(whole[name].value.numpy(), abs=1e-12)


def test_rotated_scaled_and_shifted_rows_are_the_same() -> None:
    x = normal(200, 12, 0)
    rotation = torch.linalg.qr(normal(12, 12, 1)).Q
    tables = layer_similarity([x], [x, 5 * x @ rotation - 3])
    assert tables["cka"].value.numpy() == pytest.approx(np.ones((1, 2)), abs=1e-12)
    assert tables["overlap"].value.tolist() == [[1.0, 1.0]]
    for name in ("a_to_b", "b_to_a"):
        assert tables[name].value.numpy() == pytest.approx(np.full((1, 2), 2 / 200), abs=1e-15)


def test_unrelated_rows_give_the_null_values_also_in_many_dimensions() -> None:
    m, sizes = 400, [20] * 20
    tables = layer_similarity([normal(m, 8, 0), normal(m, 900, 1)], [normal(m, 30, 2), normal(m, 700, 3)], sizes)
    nulls = {"cka": 0.0, "overlap": K / (m - 1), "a_to_b": 1.0, "b_to_a": 1.0}
    for name, null in nulls.items():
        for i in range(2):
            for j in range(2):
                value = float(tables[name].value[i, j])
                error = jackknife(value, tables[name].without[:, i, j].tolist(), sizes)
                assert abs(value - null) < 5 * error, (name, i, j)
                assert error < 0.1


def test_a_massive_row_does_not_hide_the_others() -> None:
    a, b = normal(100, 6, 0), normal(100, 6, 1)
    a[7] *= 1e6
    expected = drift.cka(a.numpy(), b.numpy())
    # kernels of size 1e12 in float64 leave relative errors of 1e-16·100
    assert float(layer_similarity([a], [b])["cka"].value) == pytest.approx(expected, abs=1e-8)


def test_layers_without_a_value_are_gaps_and_do_not_affect_others() -> None:
    x = normal(60, 4, 0)
    types = normal(5, 4, 1)[torch.arange(60) % 5]  # every row has eleven copies
    tables = layer_similarity([x, torch.full((60, 3), 0.1)], [x, types], [30, 30])
    assert tables["cka"].value.isnan().tolist() == [[False, False], [True, True]]
    assert tables["overlap"].value.isnan().tolist() == [[False, True], [True, True]]
    assert tables["cka"].without.isnan().tolist() == [[[False, False], [True, True]]] * 2
    assert float(tables["overlap"].value[0, 0]) == 1.0


def test_few_rows_have_cka_but_no_neighbours() -> None:
    tables = layer_similarity([normal(8, 3, 0)], [normal(8, 4, 1)])
    assert not tables["cka"].value.isnan().any()
    assert all(tables[name].value.isnan().all() for name in MEASURES[1:])


def test_different_or_too_few_rows_are_refused() -> None:
    with pytest.raises(InputError, match="different numbers of rows: 30, 31"):
        layer_similarity([normal(30, 3, 0)], [normal(31, 3, 0)])
    with pytest.raises(InputError, match="Only 3 rows"):
        layer_similarity([normal(3, 3, 0)], [normal(3, 3, 0)])
