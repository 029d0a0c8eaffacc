"""The fixed held-out tokens, measured again and again, and what has moved since the reference step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from torch import nn

from anisoscope.capture import Layout, expand
from anisoscope.capture.invisible import side_effect_free
from anisoscope.data.token_table import Batch
from anisoscope.errors import AnisoscopeError, CaptureError
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.request import Request
from anisoscope.measurement.site_evaluation import EvaluationOptions
from anisoscope.measurement.site_result import SiteResult
from anisoscope.metrics import Metric, Undefined, find
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.stats.cloud import Cloud, Stats
from anisoscope.stats.derived import Groups
from anisoscope.stats.packing import pack, unpack
from anisoscope.stats.pairs import Axes, PairedAxes

SITES = ("embed", "resid", "pattern", "final")
METRICS = (
    *("mean_cosine", "spectral_anisotropy", "isoscore", "effective_rank", "drift_norm", "two_nn"),
    *("attention_entropy", "sink_mass", "q_drift", "k_drift", "qk_cosine"),
    *("mean_direction_drift", "subspace_angle", "cka", "q_direction_drift", "k_direction_drift"),
)


class Probe:
    """Held-out tokens, the sites and metrics they are measured at and by, and the reference they are compared with."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        batches: Sequence[Batch],
        *,
        sites: Sequence[str] | None,
        metrics: Sequence[str | Metric] | None,
        reference: int,
        sample: int,
        seed: int,
        strict: bool,
    ) -> None:
        self.model = model
        self.layout = layout
        self.batches = batches
        self.reference: dict[str, Cloud] = {}  # by site
        self.reference_step: int | None = None
        self._reference_from = reference
        self.sites = [str(site) for site in expand(layout, SITES if sites is None else sites)]
        self._lenient = sites is None  # attention that shows no pattern is then left out instead of refused
        self.tokens = sum(int(batch.counts.sum()) for batch in batches)
        self._request = Request.of(sample=sample, seed=seed)
        chosen = _chosen(METRICS if metrics is None else metrics)
        if metrics is None and not self._heads:
            chosen = [m for m in chosen if "heads" not in m.requires]
        self.metrics = chosen if strict else [guarded(m) for m in chosen]

    @property
    def _heads(self) -> bool:
        return any("pattern" in site for site in self.sites)

    def run(self, *, errors: bool) -> Engine:
        """One pass over the held-out tokens: no gradients, evaluation mode, nothing left behind."""
        try:
            return self._survey(errors)
        except CaptureError:
            if not self._lenient or not self._heads:
                raise
            self.sites = [site for site in self.sites if "pattern" not in site]
            self.metrics = [m for m in self.metrics if "heads" not in m.requires]
            return self._survey(errors)

    def _survey(self, errors: bool) -> Engine:
        metrics = [m for m in self.metrics if "reference" not in m.requires]
        blocks = errors or any(Groups in m.needs for m in metrics)
        request = self._request.having(sites=self.sites, metrics=metrics)
        survey = Engine(self.model, self.layout, request, expected=self.tokens, blocks=blocks)
        with side_effect_free(self.model):
            self.model.eval()
            if survey.run(self.batches):
                raise KeyboardInterrupt  # the survey of a file keeps what it has; a probe is whole or nothing
        return survey

    def evaluated(self, survey: Engine, *, run: str, step: int, errors: bool) -> Iterator[SiteResult]:
        """Every site's numbers, those of what has moved included; the first probe becomes the reference."""
        moved = [m for m in self.metrics if "reference" in m.requires]
        if self.reference_step is None and step >= self._reference_from:
            self.reference_step = step
        for done in survey.results(EvaluationOptions(run=run, step=step, errors=errors, sparing=True)):
            tokens = default_policy(done)
            cloud, site = done.clouds[tokens], str(done.site)
            if step == self.reference_step:
                self.reference[site] = Cloud({name: _on_cpu(stat) for name, stat in _compared(cloud).items()})
            heads = done.site.kind == "pattern"
            metrics = [m for m in moved if ("heads" in m.requires) == heads and m.sources <= set(cloud.stats)]
            more: list[MetricResult] = []
            if metrics and site in self.reference:
                if any(PairedAxes in m.needs for m in metrics):
                    cloud.get(Axes)  # once, for the drift and for the bases
                pair = cloud.with_reference(self.reference[site], only=_compared(cloud))
                more = evaluate(pair, metrics, site=site, run=run, step=step, tokens=tokens, errors=False)
            yield replace(done, measured=[*done.measured, *more])


def default_policy(done: SiteResult) -> str:
    """The tokens to look at where one policy must do: without sinks, where there are any."""
    return "no-sink" if "no-sink" in done.clouds else "all"


def guarded(metric: Metric) -> Metric:
    """The same metric, but any failure becomes a record that gives the reason: training goes on."""

    @wraps(metric.function)
    def careful(*statistics: Any) -> Any:
        try:
            found = metric.function(*statistics)
            return list(found) if isinstance(found, Iterable) else found
        except (Undefined, AnisoscopeError):
            raise
        except Exception as error:
            raise Undefined(f"it failed with {type(error).__name__}: {error}", "mend it or leave it out") from error

    return replace(metric, function=careful)


def _chosen(metrics: Sequence[str | Metric]) -> list[Metric]:
    return [each if isinstance(each, Metric) else find([each])[0] for each in metrics]


def _compared(cloud: Cloud) -> Stats:
    """What of a cloud is compared over time: its sampled rows, or its heads."""
    return {name: cloud.stats[name] for name in ("Sample", "HeadSums") if name in cloud.stats}


def _on_cpu(statistic: Any) -> Any:
    """A copy where the past waits, out of the way of training."""
    return unpack(type(statistic), pack(statistic))
