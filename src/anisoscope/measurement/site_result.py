"""The result of one site."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anisoscope.metrics.evaluate import MetricResult
from anisoscope.records import Site
from anisoscope.stats.cloud import Cloud


@dataclass(frozen=True)
class SiteResult:
    """One site's clouds by token policy, their metrics, and the tokens that were massive here for the first time."""

    site: Site
    clouds: dict[str, Cloud]
    measured: list[MetricResult]
    removed: list[dict[str, Any]] = field(default_factory=list)
