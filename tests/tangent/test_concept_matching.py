"""Which concepts of two fits are the same."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from anisoscope.tangent.concept_matching import match_concepts, merge_copies
from anisoscope.tangent.semi_nmf import SemiNMF, factorise


def drawn(k: int, d: int, seed: int) -> Tensor:
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_assignment_has_the_largest_sum_of_cosines_of_all_orders() -> None:
    later, earlier = drawn(5, 4, 0), drawn(5, 4, 1)
    cosine = torch.nn.functional.normalize(later, dim=1) @ torch.nn.functional.normalize(earlier, dim=1).T
    best = max(sum(float(cosine[i, j]) for i, j in enumerate(order)) for order in permutations(range(5)))
    assert match_concepts(later, earlier).mean == pytest.approx(best / 5)


def test_order_and_length_do_not_matter() -> None:
    earlier = drawn(6, 20, 2)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    later = earlier[order] * torch.tensor([0.1, 1, 2, 3, 40, 500])[:, None]
    matches = match_concepts(later, earlier)
    assert matches.earlier == dict(enumerate(order.tolist()))
    assert matches.mean == pytest.approx(1)


def test_turning_or_reflecting_both_fits_changes_nothing() -> None:
    later, earlier = drawn(4, 8, 3), drawn(5, 8, 4)
    later[1] = earlier[4] + 0.2 * later[1]
    turn = torch.linalg.qr(drawn(8, 8, 5))[0]
    plain = match_concepts(later, earlier)
    for changed in (turn, -turn):
        matches = match_concepts(later @ changed, earlier @ changed)
        assert matches.earlier == plain.earlier == {1: 4}
        assert [matches.mean, matches.level] == pytest.approx([plain.mean, plain.level])


def test_the_opposite_direction_is_another_concept() -> None:
    assert match_concepts(torch.eye(3), -torch.eye(3)).earlier == {}


def test_a_shared_mean_does_not_make_concepts_equal() -> None:
    mean = 10 * torch.ones(40, dtype=torch.float64)
    later, earlier = drawn(4, 40, 6) + mean, drawn(4, 40, 7) + mean
    matches = match_concepts(later, earlier)
    assert matches.mean > 0.95
    assert matches.earlier == {}
    assert match_concepts(earlier[[1, 0, 3, 2]], earlier).earlier == {0: 1, 1: 0, 2: 3, 3: 2}


def test_no_concepts_have_no_matches() -> None:
    assert match_concepts(torch.zeros(0, 3), torch.eye(3)).earlier == {}


def test_directions_do_not_depend_on_which_of_equal_factorisations_was_found() -> None:
    # Concepts outside of the cone of the rows explain them equally well; the rows that use them stay the same.
    rows = torch.eye(3).repeat_interleave(20, 0) * (1 + torch.rand(60, 1, generator=torch.Generator().manual_seed(0)))
    wide = torch.eye(3) - 0.2
    loadings = torch.linalg.solve(wide.T, rows.T).T
    assert float(loadings.min()) >= 0
    assert torch.allclose(loadings @ wide, rows, atol=1e-5)
    tight = merge_copies(rows, SemiNMF(rows, torch.eye(3), (0.0,), 3.0))
    other = merge_copies(rows, SemiNMF(loadings, wide, (0.0,), 3.0))
    assert match_concepts(other.directions, tight.directions).mean > 0.999


def test_a_concept_that_was_split_is_merged() -> None:
    draw = torch.Generator().manual_seed(0)
    kind = torch.arange(300) % 2
    x = torch.eye(2, 12)[kind] * (1 + torch.rand(300, 1, generator=draw)) + 0.02 * torch.randn(300, 12, generator=draw)
    merged = merge_copies(x, factorise(x, 6))
    assert len(merged.directions) == 2
    assert match_concepts(merged.directions, torch.eye(2, 12)).mean > 0.99
    assert float(merged.shares.sum()) == pytest.approx(1)
    assert merged.loadings.shape == (300, 2)
