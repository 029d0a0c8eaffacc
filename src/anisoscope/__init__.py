"""anisoscope: the shape of a transformer's representations, layer by layer, while it trains and after.

The public names, each imported when first used, so that a report renders where torch is not installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.data.vectors import open_vectors
    from anisoscope.embedding_quality.check import embeddings
    from anisoscope.errors import AnisoscopeError, CaptureError, InputError, MetricError, StoreError
    from anisoscope.hooks.site_cache import capture
    from anisoscope.measurement.compare_models import similarity
    from anisoscope.measurement.find_sinks import sinks
    from anisoscope.measurement.geometry import Geometry
    from anisoscope.measurement.measure_model import measure
    from anisoscope.measurement.measure_rows import measure_rows
    from anisoscope.measurement.recompute import recompute
    from anisoscope.measurement.sink_profile import Sinks
    from anisoscope.metrics.metric import Metric, Undefined, Value, metric
    from anisoscope.models.open import open_model
    from anisoscope.records import Record, Site
    from anisoscope.remedies import Remedy, fit_remedy
    from anisoscope.report.views import compare, concat
    from anisoscope.report.views import write_report as report  # at run time the package, which can be called
    from anisoscope.store.run import Run
    from anisoscope.tangent import Tangent
    from anisoscope.tangent.tangent_test import fit_frames, tangent_test
    from anisoscope.tracker import Tracker

__version__ = "0.1.0"

_HOME = {
    "AnisoscopeError": "errors",
    "CaptureError": "errors",
    "Geometry": "measurement.geometry",
    "InputError": "errors",
    "Metric": "metrics.metric",
    "MetricError": "errors",
    "Record": "records",
    "Remedy": "remedies",
    "Run": "store.run",
    "Sinks": "measurement.sink_profile",
    "Site": "records",
    "StoreError": "errors",
    "Tangent": "tangent",
    "Tracker": "tracker",
    "Undefined": "metrics.metric",
    "Value": "metrics.metric",
    "capture": "hooks.site_cache",
    "compare": "report.views",
    "concat": "report.views",
    "embeddings": "embedding_quality.check",
    "fit_frames": "tangent.tangent_test",
    "fit_remedy": "remedies",
    "measure": "measurement.measure_model",
    "measure_rows": "measurement.measure_rows",
    "metric": "metrics.metric",
    "open_model": "models.open",
    "open_vectors": "data.vectors",
    "recompute": "measurement.recompute",
    "similarity": "measurement.compare_models",
    "sinks": "measurement.find_sinks",
    "tangent_test": "tangent.tangent_test",
}

_MODULES = ("alerts", "integrations", "metrics", "report", "schedule", "synthetic", "testing")

__all__ = [
    "AnisoscopeError",
    "CaptureError",
    "Geometry",
    "InputError",
    "Metric",
    "MetricError",
    "Record",
    "Remedy",
    "Run",
    "Sinks",
    "Site",
    "StoreError",
    "Tangent",
    "Tracker",
    "Undefined",
    "Value",
    "capture",
    "compare",
    "concat",
    "embeddings",
    "fit_frames",
    "fit_remedy",
    "measure",
    "measure_rows",
    "metric",
    "open_model",
    "open_vectors",
    "recompute",
    "report",
    "similarity",
    "sinks",
    "tangent_test",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"anisoscope.{name}")
    if name not in _HOME:
        # with name and object Python itself adds "Did you mean …?"
        raise AttributeError(f"module 'anisoscope' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return getattr(import_module(f"anisoscope.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
