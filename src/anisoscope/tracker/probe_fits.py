"""What is fitted on the held-out rows of each residual site at a due step: the bases of gradients, and concepts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from anisoscope.measurement.site_statistics import SiteResult
from anisoscope.metrics.evaluate import MetricResult
from anisoscope.records import Record
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.sample import Sample
from anisoscope.tracker.concept_history import KEPT, ConceptHistory
from anisoscope.tracker.journal import Journal
from anisoscope.tracker.probe import default_policy
from anisoscope.tracker.step_gradients import Bases


@dataclass(frozen=True)
class ProbeFits:
    """Bases and concepts of every residual site.

    Attributes:
        bases: The bases that gradients are compared with.
        concepts: The concepts over training.
        needs_bases: Whether gradients are measured.
        strict: Raise if the concepts of a site fail, instead of recording the failure.
    """

    bases: Bases
    concepts: ConceptHistory
    needs_bases: bool
    strict: bool

    def fit(self, journal: Journal, result: SiteResult, step: int) -> list[MetricResult]:
        """Fit what is wanted on one site and return the records; frozen bases are stored for a restart."""
        if result.site.kind != "resid":
            return []
        tokens, site = default_policy(result), str(result.site)
        cloud = result.clouds[tokens]
        if self.needs_bases and self.bases.fit(result.site, cloud, step):
            journal.keep_clouds({site: Cloud({"Sample": cloud.get(Sample)})}, step, "frozen")
        if not self.concepts.count:
            return []
        make = partial(Record, run=journal.run.name, step=step, tokens=tokens)
        try:
            records = self.concepts.update(site, cloud.get(Sample), make, step)
        except Exception as error:
            if self.strict:
                raise
            records = [make(site, "concept_share", None, note=f"{type(error).__name__}: {error}")]
        return [MetricResult(record) for record in records]

    def keep(self, journal: Journal) -> None:
        """Store the concepts for a restart."""
        for site, state in self.concepts.sites.items():
            journal.keep_arrays(self.concepts.arrays(site), site, state.step, KEPT)
