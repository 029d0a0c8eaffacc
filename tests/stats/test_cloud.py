"""Clouds: derived statistics are made once, blocks can be released, and a reference can be attached."""

from __future__ import annotations

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.collect import cloud_of, second_pass_on_sample
from anisoscope.stats.derived import Groups, Peeled
from anisoscope.stats.directions import CentredDirections
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbours import Neighbours
from anisoscope.stats.pairs import Axes, Paired, PairedAxes
from anisoscope.stats.sample import Sample

X = torch.randn(400, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def cloud() -> Cloud:
    return cloud_of(X, ["Moments", "Sample", "Extremes"])


def test_a_derived_statistic_is_made_once(cloud: Cloud) -> None:
    assert cloud.derived(Neighbours) is None
    made = cloud.get(Neighbours)
    assert cloud.get(Neighbours) is made
    assert cloud.derived(Neighbours) is made


def test_only_statistics_that_can_leave_blocks_out_survive_leaving_one_out(cloud: Cloud) -> None:
    for kind in (Neighbours, Groups, Peeled):
        cloud.get(kind)
    part = cloud.without_block(0)
    assert part.derived(Neighbours) is not None
    assert part.derived(Groups) is not None
    assert part.derived(Peeled) is None


@pytest.mark.parametrize("exact", [True, False])
def test_leaving_a_block_out_gives_the_moments_of_the_other_rows(cloud: Cloud, exact: bool) -> None:
    part = cloud.without_block(0, exact_extremes=exact).get(Moments)
    other = X[len(X) - part.n :]
    torch.testing.assert_close(part.mean, other.mean(0), rtol=1e-9, atol=1e-12)


def test_released_blocks_are_loaded_again(cloud: Cloud) -> None:
    before = cloud.of_block(1, Moments)
    assert cloud.of_block(1, Moments) is before
    cloud.release_blocks()
    again = cloud.of_block(1, Moments)
    assert again is not before
    assert torch.equal(again.scatter, before.scatter)


def test_a_second_pass_shares_what_was_derived(cloud: Cloud) -> None:
    wider = second_pass_on_sample(cloud, ["CentredDirections"])
    assert wider.has(CentredDirections)
    assert wider.get(Neighbours) is cloud.get(Neighbours)


def test_a_view_without_tokens_filters_the_neighbours_of_the_whole(cloud: Cloud) -> None:
    whole = cloud.get(Neighbours)
    keys = cloud.get(Sample).table[:3, 0]
    view = cloud.without_tokens(keys, first=False)
    assert view.unfiltered is cloud
    assert len(view.get(Neighbours).x) == len(whole.x) - 3


def test_a_cloud_without_reference_says_how_to_attach_one(cloud: Cloud) -> None:
    with pytest.raises(InputError, match="with_reference"):
        cloud.get(Paired)


def test_a_new_reference_discards_comparisons_with_the_old_one(cloud: Cloud) -> None:
    other = cloud_of(X + 1, ["Moments", "Sample"])
    pair = cloud.with_reference(other)
    axes, pairs = pair.get(Axes), pair.get(PairedAxes)
    again = pair.with_reference(cloud)
    assert again.get(Axes) is axes
    assert again.get(PairedAxes) is not pairs


def test_a_pair_can_be_limited_to_some_statistics(cloud: Cloud) -> None:
    pair = cloud.with_reference(cloud, only={"Sample"})
    assert set(pair.stats) == {"Sample"}
    assert len(pair.get(Paired).now) == len(X)
