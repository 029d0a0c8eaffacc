"""The fixed held-out tokens, measured at each due step, and their drift since the reference step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any

from torch import nn

from anisoscope.data.token_table import Batch
from anisoscope.errors import AnisoscopeError, CaptureError
from anisoscope.hooks import Layout, expand
from anisoscope.hooks.invisible import side_effect_free
from anisoscope.measurement.engine import Engine
from anisoscope.measurement.request import Request
from anisoscope.measurement.site_statistics import EvaluationOptions, SiteResult
from anisoscope.metrics import Metric, Undefined, find
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import SUMMED_KINDS, Site
from anisoscope.stats.cloud import Cloud, Stats
from anisoscope.stats.derived import Groups
from anisoscope.stats.packing import pack, unpack
from anisoscope.stats.pairs import Axes, PairedAxes
from anisoscope.tracker.finite_rows import FiniteRows
from anisoscope.tracker.write_sizes import WriteSizes

SITES = ("embed", "resid", "pattern", "router", "final")
METRICS = (
    "mean_cosine",
    "spectral_anisotropy",
    "isoscore",
    "effective_rank",
    "drift_norm",
    "two_nn",
    # of training health
    "feature_kurtosis",
    "entry_max",
    "logit_max",
    "write_ratio",
    "write_cosine",
    "router_load",
    "router_entropy",
    "router_margin",
    "dead_experts",
    # of attention
    "attention_entropy",
    "sink_mass",
    "q_drift",
    "k_drift",
    "qk_cosine",
    # against the reference step
    "mean_direction_drift",
    "trajectory",
    "subspace_angle",
    "cka",
    "q_direction_drift",
    "k_direction_drift",
)


class Probe:
    """Held-out tokens, their sites and metrics, and the reference that they are compared with.

    Args:
        model: The bare model, without wrappers.
        layout: Its layout.
        batches: The held-out tokens.
        sites: Names of sites; None for `SITES`, without the pattern if the attention does not show it.
        metrics: Metrics; None for `METRICS`.
        reference: The first probe at or after this step becomes the reference.
        strict: Raise if a metric fails, instead of recording the failure.
        options: Options of the engine: `sample`, `seed` and `rows`.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        batches: Sequence[Batch],
        *,
        sites: Sequence[str] | None,
        metrics: Sequence[str | Metric] | None,
        reference: int,
        strict: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.model = model
        self.layout = layout
        self.batches = batches
        self.reference: dict[str, Cloud] = {}  # by site
        self.reference_step: int | None = None
        self._first_reference_step = reference
        self.sites = [str(site) for site in expand(layout, SITES if sites is None else sites)]
        self._pattern_optional = sites is None
        self.tokens = sum(int(batch.counts.sum()) for batch in batches)
        self.finite = FiniteRows(model, layout)
        self._request = Request.of(**options)
        chosen = _chosen(METRICS if metrics is None else metrics)
        self._writes: WriteSizes | None = None
        if metrics is None:
            known = {"pattern": "heads", "router": "router", "attn": "branch"}
            missing = {need for kind, need in known.items() if not self._has(kind)}
            if "branch" in missing and sites is None and options.get("rows", "tokens") == "tokens":
                self._writes = WriteSizes(model, layout, self.finite)
            chosen = [m for m in chosen if not m.requires & missing]
        self.metrics = chosen if strict else [guarded_metric(m) for m in chosen]

    def _has(self, kind: str) -> bool:
        return any(Site.parse(site).kind == kind for site in self.sites)

    def run(self, *, errors: bool) -> Engine:
        """Run the held-out tokens through the model once, in evaluation mode; the model is left as it was."""
        try:
            return self._run_engine(errors)
        except CaptureError:
            if self._writes is not None:  # a model may hide what its branches write
                self._writes = None
                return self.run(errors=errors)
            if not self._pattern_optional or not self._has("pattern"):
                raise
            self.sites = [site for site in self.sites if "pattern" not in site]
            self.metrics = [m for m in self.metrics if "heads" not in m.requires]
            return self._run_engine(errors)

    def _run_engine(self, errors: bool) -> Engine:
        metrics = [m for m in self.metrics if "reference" not in m.requires]
        blocks = errors or any(Groups in m.needs for m in metrics)
        request = self._request.having(sites=self.sites, metrics=metrics)
        engine = Engine(self.model, self.layout, request, expected=self.tokens, blocks=blocks)
        with side_effect_free(self.model), self.finite.watching(), self._observed_writes():
            self.model.eval()
            if engine.run(self.finite.fed(self.batches)):
                raise KeyboardInterrupt  # `measure` would keep its progress; half a probe is useless
        return engine

    @property
    def described(self) -> list[Metric]:
        """Every metric that records may have."""
        return [*self.metrics, *([] if self._writes is None else self._writes.metrics)]

    def _observed_writes(self) -> AbstractContextManager[None]:
        return nullcontext() if self._writes is None else self._writes.watching()

    def writes(self, run: str, step: int) -> list[MetricResult]:
        """Return how much every branch wrote during the last run, if that is measured."""
        return [] if self._writes is None else self._writes.results(run, step)

    def evaluated(self, engine: Engine, *, run: str, step: int, errors: bool) -> Iterator[SiteResult]:
        """Yield the results of every site, drift from the reference included; the first probe becomes the reference."""
        drift = [m for m in self.metrics if "reference" in m.requires]
        if self.reference_step is None and step >= self._first_reference_step:
            self.reference_step = step
        for result in engine.results(EvaluationOptions(run=run, step=step, errors=errors, sparing=True)):
            tokens = default_policy(result)
            cloud, site = result.clouds[tokens], str(result.site)
            if step == self.reference_step:
                self.reference[site] = Cloud({name: _on_cpu(stat) for name, stat in _compared(cloud).items()})
            heads = result.site.kind in SUMMED_KINDS
            metrics = [m for m in drift if ("heads" in m.requires) == heads and m.sources <= set(cloud.stats)]
            more: list[MetricResult] = []
            if metrics and site in self.reference:
                if any(PairedAxes in m.needs for m in metrics):
                    cloud.get(Axes)  # once, for drift and for bases
                pair = cloud.with_reference(self.reference[site], only=_compared(cloud))
                more = evaluate(pair, metrics, site=site, run=run, step=step, tokens=tokens, errors=False)
            yield replace(result, measured=[*result.measured, *more])


def default_policy(result: SiteResult) -> str:
    """Return the token policy to use if only one is: `no-sink` if the site has it, else `all`."""
    return "no-sink" if "no-sink" in result.clouds else "all"


def guarded_metric(metric: Metric) -> Metric:
    """Return the same metric, except that any failure becomes a record with the reason, so that training continues."""

    @wraps(metric.function)
    def guarded(*statistics: Any) -> Any:
        try:
            value = metric.function(*statistics)
            return list(value) if isinstance(value, Iterable) else value
        except (Undefined, AnisoscopeError):
            raise
        except Exception as error:
            raise Undefined(f"it failed with {type(error).__name__}: {error}", "fix it or leave it out") from error

    return replace(metric, function=guarded)


def _chosen(metrics: Sequence[str | Metric]) -> list[Metric]:
    return [each if isinstance(each, Metric) else find([each])[0] for each in metrics]


def _compared(cloud: Cloud) -> Stats:
    """The statistics of a cloud that are compared over time: its sampled rows, or its heads."""
    return {name: cloud.stats[name] for name in ("Sample", "HeadSums") if name in cloud.stats}


def _on_cpu(statistic: Any) -> Any:
    """A copy on the CPU, which takes no memory of the training device."""
    return unpack(type(statistic), pack(statistic))
