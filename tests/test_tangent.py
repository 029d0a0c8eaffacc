"""Proxies, energies and nulls of the tangent test, against slow twins and known answers."""

from __future__ import annotations

import doctest
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.inference import false_discovery
from anisoscope.tangent import PROXIES, Tangent, energy, factorise, fit_bases, haar, orthonormal
from anisoscope.tangent.anisotropy import SHRINKAGE, isoscore_star, removal_controls, removal_gains, split
from anisoscope.tangent.basis import Basis
from anisoscope.tangent.concepts import read_concepts
from anisoscope.tangent.coordinates import coordinates
from anisoscope.tangent.covariance import matched_covariance, next_band, transfer_slope, variance_matched
from anisoscope.tangent.frequency import (
    frequency_distance,
    frequency_strata,
    pearson,
    token_counts,
    type_balanced,
)
from anisoscope.tangent.gradient_records import NULLS
from anisoscope.tangent.gradients import Gradients
from anisoscope.tangent.null import GRADIENTS
from anisoscope.tangent.patches import captured_by_patch, fit_patches, local_test
from anisoscope.tangent.permutation import permutation_p
from anisoscope.tangent.random_subspaces import normal_control, orientation
from anisoscope.tangent.semi_nmf import _SLOW, ROUNDS
from anisoscope.tangent.site_bases import SiteBases, fit_site_bases
from anisoscope.tangent.weight_gradients import WeightGradients, error_shuffle
from tests.oracles import tangent as oracle


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cloud(seed: int, n: int = 400, d: int = 20, power: float = 0.8) -> Tensor:
    """Rows with a falling spectrum, a random orientation and a mean."""
    scale = torch.arange(1, d + 1, dtype=torch.float64) ** -power
    axes = torch.linalg.qr(normal(seed + 1000, d, d))[0]
    return (normal(seed, n, d) * scale) @ axes.T + 0.3 * axes[:, 0]


def overlap(a: Tensor, b: Any) -> float:
    """tr P_A P_B / r: 1 for the same subspace."""
    return float((a.T @ torch.as_tensor(np.asarray(b))).square().sum() / a.shape[1])


# --- proxies ------------------------------------------------------------------------------------------------------


def test_pca_spans_the_leading_principal_axes() -> None:
    x = cloud(0)
    for basis in fit_bases(x, ["pca"], [2, 5]):
        assert overlap(basis.q, oracle.principal_subspace(x.numpy(), basis.rank)) == pytest.approx(1, abs=1e-9)
    assert overlap(PROXIES["pca"](x, 5).q, oracle.principal_subspace(x.numpy(), 5)) == pytest.approx(1, abs=1e-9)


def test_svd_keeps_the_mean_that_pca_takes_out() -> None:
    x = cloud(1) + 5 * torch.eye(20, dtype=torch.float64)[3]
    assert float(PROXIES["svd"](x, 1).q[3].abs()) > 0.99
    assert float(PROXIES["pca"](x, 1).q[3].abs()) < 0.9
    assert float(PROXIES["mean"](x).q[3].abs()) > 0.99


def test_a_smaller_rank_is_the_beginning_of_a_larger_one() -> None:
    small, large = fit_bases(cloud(2), ["pca"], [3, 6])
    assert torch.equal(small.q, large.q[:, :3])
    assert (small.rank, small.effective) == (3, 3)


def test_a_function_of_yours_is_a_proxy() -> None:
    def first_coordinates(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
        return orthonormal(torch.eye(x.shape[1])[:, :rank], "first", rank)

    (basis,) = fit_bases(cloud(3), [first_coordinates], [4])
    assert (basis.proxy, basis.effective) == ("first", 4)
    assert Tangent(proxies=[first_coordinates]).proxies == [first_coordinates]


def test_a_proxy_that_is_not_orthonormal_is_refused() -> None:
    def skewed(x: Tensor, rank: int, *, seed: int = 0, start: Basis | None = None) -> Basis:
        return Basis(torch.ones(x.shape[1], rank, dtype=torch.float64), "skewed", rank, rank)

    with pytest.raises(InputError, match="not orthonormal"):
        fit_bases(cloud(4), [skewed], [2])


def test_directions_that_rows_do_not_have_are_not_invented() -> None:
    thin = torch.zeros(50, 6, dtype=torch.float64)
    thin[:, :2] = normal(5, 50, 2)
    assert orthonormal(thin.T[:, :4], "rows").effective == 2
    assert [b.effective for b in fit_bases(thin, ["pca"], [1, 4])] == [1, 2]
    assert PROXIES["svd"](thin, 4).effective == 2


def test_unknown_proxies_and_odd_ranks_are_refused() -> None:
    with pytest.raises(InputError, match=r"(?i)did you mean '?pca"):
        Tangent(proxies=["pcaa"])
    with pytest.raises(InputError, match="not all positive"):
        Tangent(ranks=(0,))
    with pytest.raises(InputError, match="no normal space"):
        fit_site_bases(cloud(6), ["pca"], [20])


def test_bases_freeze_after_the_first_share_of_all_steps() -> None:
    assert Tangent(total_steps=1000).frozen_from == 300
    assert Tangent().frozen_from is None


# --- semi-NMF -----------------------------------------------------------------------------------------------------


def parts(seed: int, n: int = 600, d: int = 40, k: int = 5) -> tuple[Tensor, Tensor]:
    """Rows that are sparse non-negative mixtures of k concepts."""
    draw = torch.Generator().manual_seed(seed)
    loadings = torch.rand(n, k, generator=draw) * (torch.rand(n, k, generator=draw) < 0.4)
    concepts = torch.randn(k, d, generator=draw)
    return loadings @ concepts + 0.01 * torch.randn(n, d, generator=draw), concepts


def test_semi_nmf_loadings_are_non_negative_and_the_objective_never_rises() -> None:
    x = cloud(7, n=500, d=30).float()
    for compress in (True, False):
        found = factorise(x, 6, compress=compress)
        assert float(found.loadings.min()) >= 0
        assert all(b <= a for a, b in zip(found.trace, found.trace[1:], strict=False))
        left = x - found.loadings @ found.concepts
        assert float(left.norm() / x.norm()) == pytest.approx(found.error, rel=1e-3)


def test_semi_nmf_finds_the_parts_that_rows_are_made_of() -> None:
    x, concepts = parts(8)
    found = factorise(x, 5, rounds=60)
    assert found.error < 0.05
    assert overlap(orthonormal(found.concepts.T, "found").q, orthonormal(concepts.T, "true").q) > 0.99
    assert 3 < found.effective_rank <= 5


def test_semi_nmf_lies_between_the_svds_that_bound_it() -> None:
    x = cloud(9, n=500, d=30).float()
    values = torch.linalg.svdvals(x).square()
    found = factorise(x, 6, rounds=200)
    assert float(values[6:].sum() / values.sum()) <= found.trace[-1]
    assert found.trace[-1] <= 1.1 * float(values[5:].sum() / values.sum())


def test_semi_nmf_reaches_at_least_what_multiplicative_updates_do() -> None:
    x, _ = parts(11, n=300)
    falling_rows = cloud(12, n=300, d=30).float()
    for rows, rank in ((x, 5), (falling_rows, 6)):
        slow = oracle.semi_nmf_error(rows.double().numpy(), rank, 300)
        assert factorise(rows, rank, rounds=100).error <= 1.01 * slow


def test_semi_nmf_is_the_same_for_the_same_seed_and_goes_on_from_where_it_was() -> None:
    x, _ = parts(10)
    one, two = factorise(x, 5, seed=3), factorise(x, 5, seed=3)
    assert torch.equal(one.concepts, two.concepts)
    again = factorise(x, 5, start=one.concepts)
    assert again.trace[0] < 1.2 * one.trace[-1]
    # either stops when a round gains less than _SLOW of what is left: ROUNDS · _SLOW bounds what it leaves behind
    assert again.trace[-1] <= (1 + ROUNDS * _SLOW) * one.trace[-1]


def test_semi_nmf_refuses_what_it_cannot_factorise() -> None:
    with pytest.raises(InputError, match="expected 1 to 4"):
        factorise(torch.zeros(4, 9), 5)
    with pytest.raises(InputError, match="NaN"):
        factorise(torch.full((9, 4), torch.nan), 2)


def test_concepts_are_read_by_the_tokens_that_load_on_them() -> None:
    concepts = torch.eye(3, 8)
    token = torch.tensor([0, 1, 2]).repeat(20)
    x = concepts[token] * (1 + torch.arange(60) / 100)[:, None]
    read = read_concepts(x, concepts, token, lambda row, around: [int(token[row])], lambda ids: f"<{ids[0]}>")
    assert {(concept.number, concept.tokens[0]) for concept in read} == {(0, "<0>"), (1, "<1>"), (2, "<2>")}
    assert all(set(concept.contexts) == {f"<{concept.number}>"} for concept in read)
    assert sum(concept.share for concept in read) == pytest.approx(1)


# --- energies -----------------------------------------------------------------------------------------------------


def made(seed: int = 20, n: int = 240, d: int = 16, **options: Any) -> tuple[SiteBases, Tensor, Tensor, Tensor]:
    """A frame, gradients, activations and blocks."""
    x, g = cloud(seed, 2 * n, d), cloud(seed + 50, n, d, power=0.4)
    frame = fit_site_bases(x[:n], **{"proxies": ["pca", "semi_nmf"], "ranks": [2, 4], "clusters": 3, **options})
    return frame, g, x[n:], torch.arange(n) * 8 // n


def test_energy_is_the_share_of_squared_length_inside() -> None:
    frame, g, _, _ = made()
    for basis in frame.bases:
        assert energy(g.T @ g, basis) == pytest.approx(oracle.energy(g.numpy(), basis.q.numpy()), rel=1e-9)
    with pytest.raises(InputError, match="all zero"):
        energy(torch.zeros(16, 16), frame.bases[0])


def test_gradients_of_two_halves_add_to_the_whole() -> None:
    frame, g, h, block = made()
    strata = (torch.arange(240)[:, None] % 2 == torch.arange(2)).float()
    whole = Gradients.of(frame, g, h, block, strata=strata)
    half = [Gradients.of(frame, g[s], h[s], block[s], strata=strata[s]) for s in (slice(0, 100), slice(100, 240))]
    for field in fields(Gradients):
        one, two = getattr(whole, field.name), getattr(half[0] + half[1], field.name)
        assert torch.allclose(one.double(), two.double(), rtol=1e-5, atol=1e-6), field.name


def test_energies_and_their_jackknife_are_those_of_the_rows() -> None:
    frame, g, h, block = made()
    found = Gradients.of(frame, g, h, block).energies(frame.bases)
    unit = g / g.norm(dim=1, keepdim=True)
    for i, basis in enumerate(frame.bases):
        for kind, rows in enumerate((g.numpy(), unit.numpy())):
            assert float(found.value[kind, i]) == pytest.approx(oracle.energy(rows, basis.q.numpy()), rel=1e-5)
            without = oracle.energy_without(rows, basis.q.numpy(), block.numpy())
            assert found.without[kind, :, i].tolist() == pytest.approx(without, rel=1e-5)
            spread = np.sqrt(7 / 8 * np.square(np.array(without) - np.mean(without)).sum())
            assert found.error(kind, i) == pytest.approx(spread, rel=1e-3)


def test_energy_error_bars_cover_the_truth() -> None:
    """Gradients of one document share a direction: over 100 repetitions t-intervals hold the true energy."""
    d, documents, hits = 12, 32, 0
    basis = Basis(torch.eye(d, dtype=torch.float64)[:, :3], "mine", 3, 3)
    frame = fit_site_bases(cloud(30, 200, d), ["pca"], [3], clusters=0)
    for seed in range(100):
        own = normal(seed, documents, d).repeat_interleave(4, 0)
        g = own + 0.5 * normal(seed + 500, 4 * documents, d)
        found = Gradients.of(frame, g, g, torch.arange(4 * documents) // 16).energies([basis])
        error = found.error(0, 0)
        assert error is not None
        hits += abs(float(found.value[0, 0]) - 0.25) < 2.365 * error
    assert 87 <= hits <= 100


def test_the_variance_along_axes_is_that_of_the_test_tokens() -> None:
    frame, g, h, block = made()
    found = Gradients.of(frame, g, h, block).variance
    assert torch.allclose(found, (h @ frame.axes).var(0), rtol=1e-4)


def test_a_weights_gradient_is_the_sum_over_tokens() -> None:
    x, delta, block = normal(31, 40, 6), normal(32, 40, 5), torch.arange(40) // 5
    basis = orthonormal(normal(33, 6, 2), "mine")
    exact = oracle.weight_gradient(x.numpy(), delta.numpy())
    found = WeightGradients.weight_in(x, delta, block)
    assert torch.allclose(found.parts.sum(0).double(), torch.tensor(exact), atol=1e-4)
    energies = found.energies([basis])
    assert float(energies.value[0, 0]) == pytest.approx(oracle.energy(exact, basis.q.numpy()), rel=1e-4)
    left = oracle.weight_gradient(x[5:].numpy(), delta[5:].numpy())
    assert float(energies.without[0, 0, 0]) == pytest.approx(oracle.energy(left, basis.q.numpy()), rel=1e-4)
    out = WeightGradients.weight_out(x, delta, block)
    assert torch.allclose(out.parts.sum(0), found.parts.sum(0).T, atol=1e-5)


def test_an_embeddings_gradient_sums_over_a_types_occurrences() -> None:
    g, token = normal(34, 30, 4), torch.arange(30) % 7
    found = WeightGradients.embedding(g, token, torch.arange(30) // 15)
    for t in range(7):
        assert torch.allclose(found.parts.sum(0)[t].double(), g[token == t].sum(0), atol=1e-5)


# --- nulls --------------------------------------------------------------------------------------------------------


def falling(d: int, power: float = 1.0) -> Tensor:
    axes = torch.linalg.qr(normal(40, d, d))[0]
    return (axes * torch.arange(1, d + 1, dtype=torch.float64) ** -power) @ axes.T


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_the_law_has_the_moments_and_the_tail_of_random_subspaces(rank: int) -> None:
    second, draw = falling(12), np.random.default_rng(rank)
    root = np.linalg.cholesky(second.numpy())
    drawn = np.array([oracle.energy(root.T, oracle.random_subspace(12, rank, draw)) for _ in range(4000)])
    law = haar(second, rank)
    assert law.mean == pytest.approx(rank / 12)
    assert drawn.mean() == pytest.approx(law.mean, abs=4 * np.sqrt(law.variance / 4000))
    assert drawn.var() == pytest.approx(law.variance, rel=0.1)
    third = np.mean((drawn - law.mean) ** 3) / law.variance**1.5
    assert third == pytest.approx(law.skew, abs=0.25)
    for tail in (0.2, 0.05, 0.01):
        assert 0.7 * tail <= law.p_value(float(np.quantile(drawn, 1 - tail))) <= 2.5 * tail


def test_on_one_line_the_beta_law_is_exact() -> None:
    from scipy.stats import beta

    law = haar(torch.diag(torch.tensor([1.0] + [0.0] * 9)), 2)
    assert (law.alpha, law.beta) == pytest.approx((1.0, 4.0))
    for at in (0.1, 0.5, 0.9):
        assert law.p_value(at) == pytest.approx(beta(1, 4).sf(at), rel=1e-6)


def test_isotropic_gradients_have_nothing_to_find() -> None:
    law = haar(torch.eye(9), 3)
    assert law.p_value(1 / 3) == 1.0
    with pytest.raises(InputError, match="nothing to vary"):
        haar(torch.eye(9), 9)


def test_the_normal_control_is_a_transform_of_the_energy() -> None:
    second, basis = falling(30), orthonormal(normal(41, 30, 3), "mine")
    levels = [normal_control(second, [basis], None, seed)[0].level or 0.0 for seed in range(200)]  # type: ignore[arg-type]
    expected = (1 - energy(second, basis)) * 3 / 27
    assert np.mean(levels) == pytest.approx(expected, rel=0.02)


def test_the_published_control_calls_far_too_often_where_the_rank_is_large() -> None:
    """Random bases know nothing of the gradients, yet the published p of 1/21 comes up in a twelfth to half of them."""
    second = falling(24, 0.8)
    rates = []
    for rank in (2, 12):
        bases = [orthonormal(normal(3000 + seed, 24, rank), "mine") for seed in range(300)]
        found = [normal_control(second, [b], None, seed)[0].p or 1.0 for seed, b in enumerate(bases)]  # type: ignore[arg-type]
        rates.append(np.mean(np.array(found) <= 0.05))
    assert rates[0] > 0.05
    assert rates[1] > 0.35


def test_no_normal_control_where_no_room_is_left() -> None:
    (level,) = normal_control(falling(6), [orthonormal(normal(42, 6, 4), "mine")], None, 0)  # type: ignore[arg-type]
    assert level.level is None
    assert "no 4 dimensions" in (level.note or "")


def test_coordinate_null_has_the_mean_of_all_signed_permutations() -> None:
    second, basis = falling(4, 0.7), orthonormal(normal(43, 4, 2), "mine")
    frame = replace(fit_site_bases(cloud(44, 100, 4), ["pca"], [2]), coordinates=torch.tensor([1.0, 1.5, 5.0, 6.0]))
    group = np.array([0, 0, 1, 1])
    every = [
        np.trace(basis.q.numpy().T @ m.T @ second.numpy() @ m @ basis.q.numpy()) / float(second.trace())
        for m in oracle.signed_permutations(4, group)
    ]
    levels = [coordinates(second, [basis], frame, seed)[0].level or 0.0 for seed in range(20)]
    assert np.mean(levels) == pytest.approx(np.mean(every), abs=4 * np.std(every) / np.sqrt(20 * 99))


def test_an_outlier_dimension_does_not_get_past_the_coordinate_null() -> None:
    """Activations and gradients share one large coordinate and nothing else: Haar calls it, the coordinate null not."""
    d = 40
    loud = torch.ones(d, dtype=torch.float64).index_fill(0, torch.tensor([7]), 30.0)
    frame = fit_site_bases(normal(45, 500, d) * loud, ["pca"], [2], clusters=0)
    second = (g := normal(46, 500, d) * loud.sqrt()).T @ g
    assert orientation(second, frame.bases, frame)[0].p < 0.01  # type: ignore[operator]
    assert coordinates(second, frame.bases, frame)[0].p > 0.2  # type: ignore[operator]


def test_the_transfer_slope_is_the_power_of_the_variance() -> None:
    variance = torch.arange(1, 60, dtype=torch.float64) ** -1.5
    for power in (0.0, 0.5, 1.0):
        noisy = variance**power * torch.exp(0.1 * normal(47, 59))
        found = transfer_slope(noisy, variance)
        assert found.beta == pytest.approx(power, abs=0.05)
        assert (found.p <= 0.002) == (power > 0)


def test_variance_matched_subspaces_are_those_of_the_leading_axes() -> None:
    """A basis inside the top 12 axes: the level is the energy of random subspaces of as many axes, drawn for real."""
    frame = fit_site_bases(cloud(48, 2000, 30, power=0.3), ["pca"], [3], clusters=0)
    second, draw = falling(30), np.random.default_rng(0)
    basis = Basis(frame.axes[:, :12] @ torch.linalg.qr(normal(49, 12, 3))[0], "mine", 3, 3)
    (level,) = variance_matched(second, [basis], frame)
    m = int((level.note or "").split()[1])
    root = np.linalg.cholesky(second.numpy())
    top = frame.axes[:, :m].numpy()
    drawn = [oracle.energy(root.T, top @ oracle.random_subspace(m, 3, draw)) for _ in range(2000)]
    assert level.level == pytest.approx(np.mean(drawn), rel=0.02)
    captured = float((frame.axes.T @ basis.q).square().sum(1) @ frame.variance)
    assert 3 / m * float(frame.variance[:m].sum()) == pytest.approx(captured, rel=0.1)
    (own,) = variance_matched(second, frame.bases, frame)
    assert own.p is None


def test_references_are_what_they_are_called() -> None:
    frame = fit_site_bases(cloud(50, 400, 16), ["pca"], [3], clusters=0)
    band = next_band(frame, frame.bases[0])
    assert band is not None
    assert torch.equal(band.q, frame.axes[:, 3:6])
    assert next_band(frame, frame.bases[0].first(3)) is not None
    (level,) = matched_covariance(falling(16), frame.bases, frame)
    assert level.p is None
    assert 0 < (level.level or 0.0) < 1


def test_the_energy_matrix_of_patches_is_that_of_the_rows() -> None:
    frame, g, h, block = made()
    patches = frame.patches
    assert patches is not None
    sums = Gradients.of(frame, g, h, block)
    own = patches.assign(h.float()).numpy()
    unit = g / g.norm(dim=1, keepdim=True)
    for at, rank in enumerate(frame.ranks):
        bases = [patches.bases[k][:, :rank].double().numpy() for k in range(len(patches.centres))]
        for kind, rows in enumerate((g, unit)):
            matrix = oracle.energy_matrix(rows.numpy(), own, bases)
            found = sums.local[kind, ..., at].sum(0) / sums.local_size[kind].sum(0)[:, None]
            assert torch.allclose(found, torch.tensor(matrix), rtol=1e-4)


def test_the_energy_of_a_stratum_is_that_of_its_tokens() -> None:
    frame, g, h, block = made()
    strata = (torch.arange(240)[:, None] % 3 == torch.arange(2)).float()
    sums = Gradients.of(frame, g, h, block, strata=strata)
    unit = g / g.norm(dim=1, keepdim=True)
    for s in range(2):
        for kind, rows in enumerate((g, unit)):
            found = sums.strata[kind, :, s].sum(0) / sums.strata_size[kind, :, s].sum()
            exact = [oracle.energy(rows[s::3].numpy(), basis.q.numpy()) for basis in frame.bases]
            assert found.tolist() == pytest.approx(exact, rel=1e-4)


def test_the_local_test_finds_a_diagonal_and_no_rows_or_columns() -> None:
    k = 8
    size = torch.full((k,), 50.0)
    uneven = torch.rand(k, 1, generator=torch.Generator().manual_seed(1)) + torch.arange(k) / 4
    noise = 0.05 * normal(51, k, k)
    assert local_test(uneven + noise, size).p > 0.05
    found = local_test(uneven + noise + torch.eye(k), size)
    assert found.p <= 0.002
    assert found.excess == pytest.approx(1 / 50, rel=0.2)
    assert found.own - found.level == pytest.approx(found.excess * (k - 1) / k, rel=1e-6)


def test_patches_need_rows_to_be_fitted_on() -> None:
    assert fit_patches(cloud(52, 20, 8), 6) is None
    patches = fit_patches(torch.cat([cloud(53, 60, 8), cloud(54, 60, 8) + 10]), 2, clusters=2)
    assert patches is not None
    assert patches.assign(cloud(53, 60, 8).float()).unique().numel() == 1
    captured = captured_by_patch(normal(55, 5, 8).float(), patches, [1, 2])
    assert captured.shape == (5, 2, 2)
    assert bool((captured[..., 1] >= captured[..., 0]).all())


def test_shuffled_errors_keep_the_tautology_and_lose_the_pairing() -> None:
    """Noise errors: a large energy by construction, and no p below chance. Errors that know the input: found."""
    x = cloud(56, 600, 24, power=1.0) * 3
    basis = PROXIES["svd"](x[:300], 4)
    noise = normal(57, 300, 10)
    energies = WeightGradients.weight_in(x[300:], noise, torch.arange(300) // 40).energies([basis])
    (level,) = error_shuffle(x[300:], noise, [basis], seed=9)
    assert float(energies.value[0, 0]) > 0.8 > 4 * 4 / 24
    assert level.level == pytest.approx(float(energies.value[0, 0]), abs=0.1)
    assert (level.p or 0.0) > 0.05
    knows = x[300:] @ basis.q @ normal(58, 4, 10)
    assert (error_shuffle(x[300:], knows, [basis], seed=9)[0].p or 1.0) <= 0.02


def test_the_shuffle_is_that_of_explicit_weight_gradients() -> None:
    x, delta = normal(59, 12, 5), normal(60, 12, 3)
    basis, draw = orthonormal(normal(61, 5, 2), "mine"), np.random.default_rng(1)
    exact = [
        oracle.energy(oracle.weight_gradient(x.numpy(), delta.numpy()[draw.permutation(12)]), basis.q.numpy())
        for _ in range(2000)
    ]
    (level,) = error_shuffle(x, delta, [basis], draws=2000)
    assert level.level == pytest.approx(np.mean(exact), abs=4 * np.std(exact) / np.sqrt(1000))


# --- anisotropy ---------------------------------------------------------------------------------------------------


def test_removal_gains_are_those_of_explicit_projections() -> None:
    c = falling(14, 1.3)
    bases = [orthonormal(normal(seed, 14, r), "mine") for seed, r in ((62, 2), (63, 5))]
    before = oracle.isoscore_star(c.numpy(), SHRINKAGE)
    assert isoscore_star(c) == pytest.approx(before, rel=1e-9)
    gains = removal_gains(c, bases)
    for i, basis in enumerate(bases):
        for at, reduced in enumerate((False, True)):
            after = oracle.isoscore_star(c.numpy(), SHRINKAGE, basis.q.numpy(), reduced=reduced)
            assert float(gains[i, at]) == pytest.approx(after - before, rel=1e-8)


def test_removing_from_a_sphere_reaches_the_ambient_ceiling() -> None:
    basis = orthonormal(normal(64, 10, 3), "mine")
    ambient, reduced = removal_gains(torch.eye(10), [basis])[0].tolist()
    assert ambient == pytest.approx((10 - 3 - 1) / 9 - 1)
    assert reduced == pytest.approx(0, abs=1e-12)


def test_the_split_of_the_squared_covariance_is_exact() -> None:
    c, basis = falling(14, 1.3), orthonormal(normal(65, 14, 4), "mine")
    p = (basis.q @ basis.q.T).numpy()
    n, m = np.eye(14) - p, c.numpy()
    whole = np.square(m).sum()
    found = split(c, basis)
    assert found.tangent == pytest.approx(np.square(p @ m @ p).sum() / whole)
    assert found.mixed == pytest.approx(2 * np.square(p @ m @ n).sum() / whole)
    assert found.normal == pytest.approx(np.square(n @ m @ n).sum() / whole)


@pytest.mark.parametrize("where", ["leading", "random", "last"])
def test_controls_of_equal_energy_have_equal_energy(where: str) -> None:
    c = falling(30, 1.0)
    axes = torch.linalg.eigh(c)[1]
    start = {"leading": axes[:, -4:], "random": torch.zeros(30, 4), "last": axes[:, :4]}[where]
    basis = orthonormal(start + 0.2 * normal(66, 30, 4), "mine")
    (controls,) = removal_controls(c, [basis])
    assert controls["equal_energy"].energy == pytest.approx(energy(c, basis), rel=1e-3)
    expected = (1 - energy(c, basis)) * 4 / 26
    assert controls["normal_control"].energy == pytest.approx(expected, rel=0.5)


def test_a_control_takes_out_what_an_explicit_subspace_does() -> None:
    """Many random normal subspaces taken out one by one agree with the closed traces."""
    c, basis = falling(30, 1.0), orthonormal(normal(67, 30, 3), "mine")
    closed = [removal_controls(c, [basis], seed=s)[0]["normal_control"].ambient for s in range(40)]
    gains = []
    for seed in range(200):
        z = normal(2000 + seed, 30, 3)
        gains.append(float(removal_gains(c, [orthonormal(z - basis.q @ (basis.q.T @ z), "normal")])[0, 0]))
    assert np.mean(closed) == pytest.approx(np.mean(gains), abs=4 * np.std(gains) / np.sqrt(100))


# --- many tests ---------------------------------------------------------------------------------------------------


def test_q_values_are_those_of_the_step_up_rule() -> None:
    for seed in range(5):
        p = torch.rand(9, generator=torch.Generator().manual_seed(seed)).pow(3).tolist()
        assert false_discovery(p) == pytest.approx(oracle.benjamini_hochberg(p))
    assert false_discovery([]) == []


def test_a_permutation_p_is_never_zero() -> None:
    assert permutation_p(9.0, torch.zeros(99)) == 0.01
    assert permutation_p(0.0, torch.zeros(99)) == 1.0


# --- frequency ----------------------------------------------------------------------------------------------------


def zipfian(seed: int, n: int = 3000, types: int = 60) -> Tensor:
    share = torch.arange(1, types + 1).double() ** -1.0
    return torch.multinomial(share, n, replacement=True, generator=torch.Generator().manual_seed(seed))


def keys(seed: int, n: int) -> Tensor:
    return torch.randint(1 << 62, (n,), generator=torch.Generator().manual_seed(seed))


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


def test_a_balanced_fit_holds_every_type_at_most_so_often() -> None:
    token = zipfian(72)
    kept = type_balanced(token, keys(73, 3000), 5)
    assert int(torch.bincount(token[kept]).max()) == 5
    assert len(token[kept].unique()) == len(token.unique())


def test_correlations_are_those_of_scipy() -> None:
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
        found = frequency_distance(x, token, token_counts(token), keys(300 + seed, 3000), block, seed=seed)
        assert found is not None
        published.append(found.pearson)
        control.append(found.split_half)
        calls += found.p <= 0.05
    assert np.mean(published) < -0.5
    assert abs(np.mean(control)) < 4 * np.std(control) / np.sqrt(30)
    assert calls <= 5


def test_the_control_does_not_take_a_wide_spread_for_a_distance() -> None:
    """Rare types scatter more, about one common centre: two halves of a type share no noise, so nothing is left."""
    control = []
    for seed in range(30):
        token = zipfian(400 + seed)
        spread = (400 / torch.bincount(token, minlength=60).clamp(min=1)).sqrt()
        x = normal(500 + seed, 3000, 12) * spread[token][:, None]
        found = frequency_distance(x, token, token_counts(token), keys(600 + seed, 3000), torch.arange(3000) // 375)
        assert found is not None
        control.append(found.split_half)
    assert abs(np.mean(control)) < 4 * np.std(control) / np.sqrt(30)


def test_frequent_types_near_the_centre_are_found_by_both_forms() -> None:
    token = zipfian(76)
    count = token_counts(token)
    centre = normal(77, 60, 12) * (400 / torch.bincount(token, minlength=60).clamp(min=1)).sqrt()[:, None]
    x = centre[token] + 0.3 * normal(78, 3000, 12)
    found = frequency_distance(x, token, count, keys(79, 3000), torch.arange(3000) // 375)
    assert found is not None
    assert found.pearson < -0.4
    assert found.spearman < -0.4
    assert found.split_half < -0.3
    assert found.p <= 0.01
    assert found.pearson_error is not None
    assert found.pearson_error < 0.2


def test_too_few_types_have_no_correlation() -> None:
    token = torch.arange(20) % 4
    assert (
        frequency_distance(normal(80, 20, 3), token, token_counts(token), keys(81, 20), torch.zeros(20).long()) is None
    )


# --- the code's own words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("null", [transfer_slope, local_test])
def test_examples_of_nulls_are_true(null: Any) -> None:
    names = vars(import_module(null.function.__module__))
    (example,) = doctest.DocTestFinder().find(null.function, null.name, globs=names)
    assert doctest.DocTestRunner().run(example).failed == 0


def test_the_page_names_every_null_with_the_gradients_it_applies_to() -> None:
    page = (Path(__file__).parent.parent / "docs" / "tangent.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.endswith(("yes |", "no |"))]
    for null in NULLS.values():
        (row,) = [line for line in rows if f"`{null.name}`" in line]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        applies = set(GRADIENTS) if cells[2] == "all" else {kind.strip() for kind in cells[2].split(",")}
        assert applies == null.gradients, null.name
        assert (cells[3] == "yes") == null.decides, null.name
