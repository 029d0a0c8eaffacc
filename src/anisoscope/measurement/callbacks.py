"""Whom a measurement informs while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anisoscope.measurement.engine import OnProgress
from anisoscope.measurement.site_result import SiteResult

OnStatus = Callable[[str], None]  # called with what is being done
OnSite = Callable[[SiteResult], None]  # called with every site's clouds and numbers before they are released
OnNote = Callable[[str], None]  # called with a sentence for the user
OnEvaluated = Callable[[int, int], None]  # called with the number of sites that are evaluated, and of all sites


@dataclass(frozen=True)
class Callbacks:
    """Whom to inform while a measurement runs."""

    progress: OnProgress | None = None
    status: OnStatus = lambda _: None
    site: OnSite = lambda _: None
    evaluated: OnEvaluated = lambda _done, _total: None
    note: OnNote = lambda _: None
