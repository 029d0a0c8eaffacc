"""The kinds of statistics and what they are made from."""

from __future__ import annotations

from anisoscope import metrics
from anisoscope.stats.derived import AcrossDocuments, Groups, Peeled
from anisoscope.stats.moments import Moments
from anisoscope.stats.neighbours import Neighbours
from anisoscope.stats.pairs import PairedHeads
from anisoscope.stats.registry import COLLECTED, SECOND_PASS, SUMS, is_derived, leaves_blocks_out, sources
from anisoscope.stats.sample import Sample


def test_a_collected_statistic_is_its_own_source() -> None:
    assert sources(Moments) == ("Moments",)
    assert not is_derived(Moments)


def test_a_derived_statistic_names_its_sources() -> None:
    assert sources(Peeled) == ("Moments", "Extremes")
    assert sources(AcrossDocuments) == ("Directions", "Documents", "Sample")
    assert sources(PairedHeads) == ("HeadSums",)


def test_only_derived_statistics_leave_blocks_out_by_themselves() -> None:
    assert leaves_blocks_out(Neighbours)
    assert leaves_blocks_out(Groups)
    assert not leaves_blocks_out(Peeled)
    assert not leaves_blocks_out(Sample)  # collected: a cloud leaves its blocks out


def test_every_metric_needs_only_statistics_that_can_be_collected() -> None:
    for metric in metrics.catalogue().values():
        assert metric.sources <= set(COLLECTED), metric.name


def test_groups_of_collected_kinds_are_collected() -> None:
    assert {*SUMS, *SECOND_PASS} <= set(COLLECTED)
