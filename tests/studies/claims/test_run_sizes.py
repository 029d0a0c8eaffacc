"""Sizes of the runs of claims."""

from __future__ import annotations

from anisoscope.studies.claims.run_sizes import SIZES


def test_measured_steps_are_early_and_late_and_include_the_ends() -> None:
    for size in SIZES.values():
        assert size.measured_steps[0] == 0
        assert size.measured_steps[-1] == size.steps
        assert size.frozen in size.measured_steps
        assert size.early
        assert size.late
        assert max(size.early) == size.frozen < min(size.late)
        assert size.seeds >= 3
    assert SIZES["small"].seeds == 5
