"""Claims about vocabulary matrices."""

from __future__ import annotations

from anisoscope.studies.claims.machina2024 import isotropic_level


def test_few_rows_seem_anisotropic_and_many_do_not() -> None:
    assert isotropic_level(96, 64).interval[1] < 0.5
    assert isotropic_level(20_000, 64).interval[0] > 0.7
