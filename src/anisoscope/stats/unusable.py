"""Rows that no statistic can use."""

from __future__ import annotations

from anisoscope.stats.cloud import Cloud
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.sample import Sample


def unusable_rows(cloud: Cloud) -> str | None:
    """How many rows hold NaN, Inf or numbers whose square overflows: a number, or "some"; None if there are none."""
    bad = 0
    if cloud.has(Directions):
        bad = int(cloud.get(Directions).bad)
    elif cloud.has(Moments) and not bool(cloud.get(Moments).fourth.isfinite()):
        return "some"
    elif cloud.has(Sample):
        bad = int((~cloud.get(Sample).x.isfinite()).any(1).sum())
    return str(bad) if bad else None
