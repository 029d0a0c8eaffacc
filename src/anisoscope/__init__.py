"""anisoscope: the shape of a transformer's representations, layer by layer, while it trains and after.

The public names, each imported when first used, so that a report renders where torch is not installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.errors import AnisoscopeError, CaptureError, InputError, MetricError, StoreError
    from anisoscope.metrics.metric import Metric, Undefined, Value, metric
    from anisoscope.models.opening import open_model
    from anisoscope.models.vectors import open_vectors
    from anisoscope.offline import measure, measure_rows, recompute
    from anisoscope.offline.tangent import fit_frames, tangent_test
    from anisoscope.records import Record, Site
    from anisoscope.store import Run
    from anisoscope.tangent import Tangent
    from anisoscope.tracker import Tracker

__version__ = "0.1.0"

_HOME = {
    "AnisoscopeError": "errors",
    "CaptureError": "errors",
    "InputError": "errors",
    "Metric": "metrics.metric",
    "MetricError": "errors",
    "Record": "records",
    "Run": "store",
    "Site": "records",
    "StoreError": "errors",
    "Tangent": "tangent",
    "Tracker": "tracker",
    "Undefined": "metrics.metric",
    "Value": "metrics.metric",
    "fit_frames": "offline.tangent",
    "measure": "offline",
    "measure_rows": "offline",
    "metric": "metrics.metric",
    "open_model": "models.opening",
    "open_vectors": "models.vectors",
    "recompute": "offline",
    "tangent_test": "offline.tangent",
}

_ROOMS = ("alerts", "integrations", "metrics", "schedule", "synthetic", "testing")

__all__ = [
    "AnisoscopeError",
    "CaptureError",
    "InputError",
    "Metric",
    "MetricError",
    "Record",
    "Run",
    "Site",
    "StoreError",
    "Tangent",
    "Tracker",
    "Undefined",
    "Value",
    "fit_frames",
    "measure",
    "measure_rows",
    "metric",
    "open_model",
    "open_vectors",
    "recompute",
    "tangent_test",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"anisoscope.{name}")
    if name not in _HOME:
        # with name and object Python itself adds "Did you mean …?"
        raise AttributeError(f"module 'anisoscope' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return getattr(import_module(f"anisoscope.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *_ROOMS])
