"""Statistics as named arrays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anisoscope.stats.packing import pack, unpack
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Extremes


def test_every_field_survives_a_round_trip() -> None:
    extremes = replace(Extremes.of(bare_rows(torch.eye(3)), 2), overflowed=True)
    again = unpack(Extremes, pack(extremes))
    assert again.size == 2
    assert again.overflowed is True
    assert torch.equal(again.x, extremes.x)


def test_a_field_with_a_default_may_be_missing_from_an_older_file() -> None:
    arrays = pack(Extremes.of(bare_rows(torch.eye(3)), 2))
    del arrays["overflowed"]
    assert unpack(Extremes, arrays).overflowed is False


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_a_missing_or_unknown_array_is_named(change: str) -> None:
    arrays = pack(Extremes.of(bare_rows(torch.eye(3)), 2))
    if change == "missing":
        del arrays["priority"]
    else:
        arrays["weight"] = torch.ones(1)
    with pytest.raises(KeyError, match="priority" if change == "missing" else "weight"):
        unpack(Extremes, arrays)
