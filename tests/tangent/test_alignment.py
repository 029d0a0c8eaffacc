"""The maker of gradient records that the tracker and the tangent test share."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from anisoscope.records import Record
from anisoscope.tangent.alignment import drawn_ratio, energy_records, excess_records, expected_ratio
from anisoscope.tangent.basis import Basis, orthonormal
from anisoscope.tangent.null import NullLevel

make = partial(Record, "grad.resid.0")


def quarter() -> Basis:
    return orthonormal(torch.eye(8)[:, :2], "mine")


def test_the_energy_is_recorded_next_to_chance_and_as_enrichment() -> None:
    energy, enrichment = energy_records(make, quarter(), 0.5, 0.1)
    assert (energy.value, energy.null, energy.error) == (0.5, 0.25, 0.1)
    assert (enrichment.value, enrichment.null, enrichment.error) == (2.0, 1.0, 0.4)


def test_a_basis_with_fewer_directions_than_its_rank_has_a_note() -> None:
    thin = orthonormal(torch.ones(8, 3), "mine")
    assert [record.note for record in energy_records(make, thin, 0.5)] == ["only 1 directions of 3"] * 2


def test_a_null_without_a_level_is_recorded_with_its_reason() -> None:
    (record,) = excess_records(make, 0.5, NullLevel(None, note="nothing to compare with"))
    assert (record.metric, record.value, record.note) == ("gradient_excess", None, "nothing to compare with")


def test_only_a_null_with_a_p_value_has_a_record_of_it() -> None:
    assert [r.metric for r in excess_records(make, 0.5, NullLevel(0.2))] == ["gradient_excess"]
    assert [r.value for r in excess_records(make, 0.5, NullLevel(0.25, p=0.01))] == [0.25, 0.01]


def test_both_ratios_agree_if_the_draws_have_their_expectation() -> None:
    expected = (1 - 0.5) * 2 / (8 - 2)
    (drawn,) = drawn_ratio(make, 0.5, expected)
    (closed,) = expected_ratio(make, 0.5, quarter())
    assert drawn.value == pytest.approx(closed.value)
    assert drawn.value == pytest.approx(3.0)


def test_there_is_no_ratio_without_normal_energy() -> None:
    assert drawn_ratio(make, 1.0, 0.0) == []
    assert expected_ratio(make, 1.0, quarter()) == []
