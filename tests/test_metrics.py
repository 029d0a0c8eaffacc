"""Metrics against slow numpy twins, worked answers and other people's packages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anisoscope import metrics, synthetic
from anisoscope.errors import InputError, MetricError
from anisoscope.metrics.evaluate import evaluate
from anisoscope.metrics.nulls import isotropic
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import block_numbers, cloud_of
from anisoscope.stats.inference import jackknife
from anisoscope.stats.neighbours import TwoNeighbours
from tests.oracles import metrics as slow

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((70, 6)) * np.array([3.0, 2.0, 1.0, 1.0, 0.5, 0.2]) + np.array([1.0, 0, 0, 2.0, 0, 0])
SHARED = (
    "mean_cosine",
    "mean_cosine_centred",
    "drift_norm",
    "relative_drift",
    "spectral_anisotropy",
    "spectral_anisotropy_uncentred",
    "singular_anisotropy",
    "participation_ratio",
    "isoscore",
    "isoscore_star",
    "top_coordinate",
    "stable_rank",
)


@pytest.mark.parametrize("name", SHARED)
def test_a_metric_equals_its_slow_twin(name: str) -> None:
    assert getattr(metrics, name)(X) == pytest.approx(getattr(slow, name)(X), rel=1e-9)


def test_isoscore_is_the_published_packages_score() -> None:
    from IsoScore import IsoScore

    assert metrics.isoscore(X) == pytest.approx(float(IsoScore.IsoScore(X)), rel=1e-5)  # it computes in float32


def test_singular_values_10_2_1_give_the_worked_answers() -> None:
    x = np.diag([10.0, 2.0, 1.0])
    assert metrics.singular_anisotropy(x) == pytest.approx(10 / 13)
    assert metrics.spectral_anisotropy_uncentred(x) == pytest.approx(100 / 105)


def test_contributions_of_dimensions_are_right_and_sum_to_the_cosine() -> None:
    found = metrics.cosine_contribution.numbers(X)
    assert list(found.values()) == pytest.approx(slow.cosine_contribution(X))
    assert sum(value or 0.0 for value in found.values()) == pytest.approx(metrics.mean_cosine(X))


def test_partition_isotropy_equals_its_slow_twin() -> None:
    assert metrics.partition_isotropy.numbers(X / 3) == pytest.approx(slow.partition_isotropy(X / 3), rel=1e-9)


@pytest.mark.parametrize("shift", [0.25, 0.5, 1.0, 2.5])
def test_partition_isotropy_of_a_shifted_cloud_falls_exponentially_with_the_shift(shift: float) -> None:
    g = torch.Generator().manual_seed(0)
    w = 0.05 * torch.randn(20000, 32, generator=g, dtype=torch.float64)
    w[:, 0] += shift
    found = metrics.partition_isotropy.numbers(w)
    assert found["rows=raw, signs=mean"] == pytest.approx(math.exp(-shift), abs=0.01)
    assert found["rows=raw, signs=both"] == pytest.approx(math.exp(-2 * shift), abs=0.01)


def test_a_large_mean_alone_looks_anisotropic_only_uncentred() -> None:
    x = synthetic.cloud("sphere", n=2000, d=200)
    x[:, 0] += 30.0
    assert metrics.spectral_anisotropy_uncentred(x) > 0.8
    assert metrics.spectral_anisotropy(x) < 0.01


def test_effective_ranks_equal_their_slow_twins() -> None:
    assert metrics.effective_rank.numbers(X)["of=singular values"] == pytest.approx(slow.effective_rank(X))
    assert metrics.rankme(X) == pytest.approx(slow.effective_rank(X, centre=False))


def test_the_unbiased_participation_ratio_equals_its_slow_twin_and_has_no_bias() -> None:
    blocks = block_numbers(len(X)).numpy()
    assert metrics.participation_ratio_unbiased(X) == pytest.approx(slow.participation_ratio_unbiased(X, blocks))
    sphere = synthetic.cloud("sphere", n=400, d=128)
    assert metrics.participation_ratio(sphere) < 100
    assert metrics.participation_ratio_unbiased(sphere) == pytest.approx(128, rel=0.06)


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_the_null_beside_isoscore_is_what_an_isotropic_sample_of_that_size_gives(n: int) -> None:
    x = synthetic.cloud("sphere", n=n, d=256)
    (found,) = evaluate(cloud_of(x, {"Moments"}), [metrics.isoscore], site="vectors", errors=False)
    assert found.record.value == pytest.approx({64: 0.19, 256: 0.50, 1024: 0.80}[n], abs=0.015)
    assert found.record.null == pytest.approx(found.record.value, abs=0.015)


def test_the_null_of_dependent_tokens_is_that_of_documents_rotated_one_by_one() -> None:
    random = np.random.default_rng(1)
    document = np.repeat(np.arange(40), 20)
    topic = random.standard_normal((40, 32))[document]
    x = random.standard_normal((800, 32)) + 1.5 * topic
    cloud = cloud_of(x, {"Moments", "Documents", "Sample"}, documents=document)
    ratio, share = slow.null_of_rotated_documents(x, document, draws=30)
    null = isotropic(cloud)
    assert null.participation_ratio == pytest.approx(ratio, rel=0.02)
    assert null.top_share == pytest.approx(share, rel=0.12)
    independent = isotropic(cloud_of(x, {"Moments"}))
    assert independent.participation_ratio > 1.3 * ratio


def test_null_spectra_match_simulated_isotropic_rows() -> None:
    x = synthetic.cloud("sphere", n=600, d=64, seed=3)
    null = isotropic(cloud_of(x, {"Moments"}))
    values = np.linalg.svd(x.numpy() - x.numpy().mean(0), compute_uv=False) ** 2
    assert null.eigenvalues.numpy() == pytest.approx(values / values.sum(), rel=0.08)


def test_cosine_across_documents_equals_its_slow_twin() -> None:
    document = np.repeat(np.arange(14), 5)
    found = metrics.mean_cosine_across_documents(X, documents=document)
    assert found == pytest.approx(slow.mean_cosine_across_documents(X, document))


def test_the_removal_curve_removes_the_largest_rows_exactly() -> None:
    x = X.copy()
    x[[5, 30, 31]] *= np.array([[300.0], [200.0], [100.0]])
    found = metrics.removal_curve.numbers(x)
    for removed, value in found.items():
        assert value == pytest.approx(slow.removal_curve(x, removed), rel=1e-9), removed
    assert (found[0] or 0.0) > 0.7
    assert (found[4] or 1.0) < 0.65


@pytest.mark.parametrize("massive", [1e3, 1e6, 1e9])
def test_one_massive_row_needs_one_removal_whatever_its_size(massive: float) -> None:
    x = synthetic.cloud("sphere", n=3000, d=24)
    x[77] *= massive
    assert metrics.tokens_to_halve(x) == pytest.approx(1 / 3000)


def test_unequal_lengths_in_random_directions_are_no_false_alarm() -> None:
    x = synthetic.cloud("sphere", n=4000, d=64)
    x = x * torch.exp(torch.randn(4000, 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64))
    assert metrics.tokens_to_halve.numbers(x) == {None: None}
    with pytest.raises(MetricError, match="halve"):
        metrics.tokens_to_halve(x)


def test_a_smooth_anisotropic_cloud_is_not_halved_by_few_rows() -> None:
    x = synthetic.cloud("power law", n=4000, d=64)
    assert metrics.tokens_to_halve.numbers(x) == {None: None}
    with pytest.raises(MetricError, match="halve"):
        metrics.tokens_to_halve(x)


def test_tyler_ignores_massive_rows_and_keeps_a_true_share() -> None:
    x = synthetic.cloud("sphere", n=3000, d=16)
    x[:, 0] *= math.sqrt(15 * 9)
    assert metrics.tyler_share(x) == pytest.approx(0.9, abs=0.01)
    y = synthetic.cloud("sphere", n=3000, d=16)
    y[9] *= 1e5
    assert metrics.tyler_share(y) < 0.08 < 0.9 < metrics.spectral_anisotropy(y)


def test_tyler_equals_its_slow_twin() -> None:
    x = RANDOM.standard_normal((60, 4)) * np.array([2.0, 1.0, 1.0, 0.5])
    centre = x.mean(0)
    for _ in range(200):
        weight = 1 / np.linalg.norm(x - centre, axis=1)
        centre = (weight @ x) / weight.sum()
    assert metrics.tyler_share(x) == pytest.approx(slow.tyler_share(x, centre), rel=1e-4)


@pytest.mark.parametrize("name", ["two_nn", "two_nn_ml", "mle_dimension"])
def test_a_dimension_equals_its_slow_twin(name: str) -> None:
    x = synthetic.cloud("curved", n=300, d=20)
    assert getattr(metrics, name)(x) == pytest.approx(getattr(slow, name)(x.numpy()), rel=1e-9)


def test_gride_equals_its_slow_twin_at_every_scale() -> None:
    x = synthetic.cloud("plane", n=300, d=8)
    for k, value in metrics.gride.numbers(x).items():
        assert value == pytest.approx(slow.gride(x.numpy(), k), rel=0.02), k


def test_dimensions_agree_with_scikit_dimension() -> None:
    import skdim

    x = synthetic.cloud("sphere", n=2000, d=5).numpy() @ RANDOM.standard_normal((5, 20))
    theirs = skdim.id.TwoNN(discard_fraction=0.1).fit_transform(x)
    assert metrics.two_nn(x) == pytest.approx(float(theirs), rel=0.02)
    theirs = skdim.id.MLE(K=20).fit_transform(x)
    assert metrics.mle_dimension(x) == pytest.approx(float(theirs), rel=0.08)  # it divides by k − 2


@pytest.mark.parametrize(("n", "d", "true", "tolerance"), [(2000, 5, 5, 0.3), (2000, 64, 37, 1.5)])
def test_dimension_of_a_gaussian_reads_what_peers_read(n: int, d: int, true: float, tolerance: float) -> None:
    assert metrics.two_nn(synthetic.cloud("sphere", n=n, d=d)) == pytest.approx(true, abs=tolerance)


def test_duplicates_and_offsets_do_not_move_the_dimension() -> None:
    x = synthetic.cloud("sphere", n=2000, d=5)
    x = x @ torch.randn(5, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = metrics.two_nn(x)
    copied = x.clone()
    copied[9::10] = copied[8::10]
    assert metrics.two_nn(copied) == pytest.approx(plain, rel=0.06)
    assert metrics.two_nn((x + 1000).float()) == pytest.approx(plain, rel=0.02)
    assert metrics.two_nn_paper(copied) > 1.3 * metrics.two_nn_paper(x)


def test_the_record_counts_duplicates_and_distinct_rows() -> None:
    cloud = cloud_of(synthetic.cloud("duplicates", n=1000), {"Sample"})
    (value,) = metrics.two_nn.values(cloud)
    assert value.n == 900
    assert value.note == "100 duplicate rows removed"


def test_neighbours_in_other_documents_are_found_where_the_own_document_is_near() -> None:
    random = np.random.default_rng(5)
    document = np.repeat(np.arange(100), 40)
    x = random.standard_normal((100, 10))[document] + 0.05 * random.standard_normal((4000, 10))
    values = {v.variant["neighbours"]: v for v in metrics.two_nn.values(cloud_of(x, {"Sample"}, documents=document))}
    assert values["other documents"].note == "100% of rows have their nearest neighbour in their own document"
    other = [np.sort(np.linalg.norm(x[document != document[i]] - x[i], axis=1))[:2] for i in range(0, 4000, 400)]
    cloud = cloud_of(x, {"Sample"}, documents=document)
    metrics.two_nn.values(cloud)
    neighbours = cloud.get(TwoNeighbours).found
    rows = {tuple(row.tolist()): place for place, row in enumerate(neighbours.x)}
    for i, expected in zip(range(0, 4000, 400), other, strict=True):
        assert neighbours.other[rows[tuple(x[i].tolist())]].numpy() == pytest.approx(expected)


def test_words_that_ignore_their_context_are_self_similar() -> None:
    from anisoscope.stats.collect import collect
    from anisoscope.stats.rows import Rows, token_table

    g = torch.Generator().manual_seed(0)
    token = torch.arange(600) % 20
    static = torch.randn(20, 64, generator=g)[token]
    number_ = torch.arange(600)
    table = token_table(number_ // 30, number_ % 30, token=token)
    cloud = collect(lambda: [Rows(static, table)], {"Sample", "Moments"})
    (same,) = metrics.self_similarity.values(cloud)
    (explained,) = metrics.max_explainable_variance.values(cloud)
    assert same.value == pytest.approx(1.0, abs=0.06)
    assert explained.value is not None
    assert explained.value > 0.8
    loose = collect(lambda: [Rows(torch.randn(600, 64, generator=g), table)], {"Sample", "Moments"})
    (none,) = metrics.self_similarity.values(loose)
    assert none.value == pytest.approx(0.0, abs=0.02)


def test_rows_that_share_their_document_are_similar_to_it() -> None:
    g = torch.Generator().manual_seed(0)
    document = torch.arange(600) // 30
    topic = torch.randn(20, 64, generator=g)[document] + 0.3 * torch.randn(600, 64, generator=g)
    assert metrics.intra_sentence_similarity(topic, documents=document) > 0.8
    assert abs(metrics.intra_sentence_similarity(torch.randn(600, 64, generator=g), documents=document)) < 0.05


def test_clusters_that_are_round_are_locally_isotropic_beyond_the_null() -> None:
    g = torch.Generator().manual_seed(0)
    centres = 100 * torch.randn(16, 12, generator=g)[torch.arange(2000) % 16]
    centres[:, 3:] = 0.0
    (found,) = metrics.local_isotropy.values(cloud_of(centres + torch.randn(2000, 12, generator=g), {"Sample"}))
    assert found.value is not None
    assert found.null is not None
    assert found.value > 0.9 > found.null + 0.2


def test_error_bars_come_from_documents_and_not_from_rows() -> None:
    random = np.random.default_rng(2)
    document = np.repeat(np.arange(64), 32)
    x = random.standard_normal((64, 8))[document] + 0.2 * random.standard_normal((2048, 8)) + 1.0
    by_document = evaluate(cloud_of(x, {"Directions"}, documents=document), [metrics.drift_norm], site="vectors")
    shuffled = evaluate(cloud_of(random.permutation(x), {"Directions"}), [metrics.drift_norm], site="vectors")
    assert by_document[0].record.error is not None
    assert shuffled[0].record.error is not None
    assert by_document[0].record.error > 3 * shuffled[0].record.error
    assert by_document[0].record.error_kind == "jackknife-16-rows"


def test_the_jackknife_of_a_mean_is_its_standard_error_for_any_block_sizes() -> None:
    blocks = [RANDOM.standard_normal(size) for size in (10, 10, 10, 10, 10)]
    x = np.concatenate(blocks)
    replicates = [np.concatenate(blocks[:i] + blocks[i + 1 :]).mean() for i in range(5)]
    means = [b.mean() for b in blocks]
    assert jackknife(x.mean(), replicates, [10] * 5) == pytest.approx(np.std(means, ddof=1) / math.sqrt(5))


def test_too_few_blocks_say_so_instead_of_inventing_an_error() -> None:
    document = np.repeat(np.arange(3), 20)
    cloud = cloud_of(X[:60], {"Directions", "Moments"}, documents=document)
    (found,) = evaluate(cloud, [metrics.mean_cosine], site="vectors", unit="documents")
    assert found.record.error is None
    assert found.record.note == "no error bar: 3 blocks of documents, 4 are needed"


def test_a_metric_that_fails_becomes_a_record_with_the_reason() -> None:
    (found,) = evaluate(cloud_of(np.ones((30, 3)), {"Moments"}), [metrics.isoscore], site="vectors")
    assert found.record.value is None
    assert found.record.note == "the 30 rows do not vary; give at least two different rows"


def test_a_metric_called_alone_on_bad_rows_names_itself_the_reason_and_the_remedy() -> None:
    with pytest.raises(MetricError, match=r"mean_cosine: 1 rows hold NaN or Inf .*\. Drop those rows, .*\.$"):
        metrics.mean_cosine([[1.0, math.nan], [0.0, 1.0]])
    with pytest.raises(InputError, match="matrix"):
        metrics.mean_cosine([1.0, 2.0])


def test_an_unknown_metric_suggests_its_neighbours() -> None:
    with pytest.raises(InputError, match="did you mean isoscore"):
        metrics.find(["isoscor"])


def test_a_cloud_can_be_measured_without_any_blocks() -> None:
    cloud = cloud_of(X, {"Moments"})
    assert metrics.isoscore.values(Cloud(cloud.stats))[0].value == pytest.approx(metrics.isoscore(X))
