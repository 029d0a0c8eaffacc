"""The catalogue of metrics. To add one: a function in one of these files; to add a family: a file and its name here.

Other packages add theirs through the entry point group `anisoscope.metrics` (an entry is a Metric, or a module of
them). A name that is taken raises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from anisoscope.errors import InputError, unknown
from anisoscope.metrics import attention, context, dimension, drift, isotropy, local, outliers, spectrum
from anisoscope.metrics import layer_norm as norms
from anisoscope.metrics.metric import Metric, Undefined, Value, metric

__all__ = ["FAMILIES", "Metric", "Undefined", "Value", "catalogue", "find", "metric"]

FAMILIES: tuple[ModuleType, ...] = (isotropy, outliers, local, context, spectrum, dimension, attention, drift, norms)


def catalogue() -> dict[str, Metric]:
    """All metrics by name: ours family by family, then those of other packages."""
    found: dict[str, Metric] = {}
    plugins = [entry.load() for entry in entry_points(group="anisoscope.metrics")]
    for source in (*FAMILIES, *plugins):
        for each in _metrics_of(source):
            if each.name in found:
                raise InputError(f"two metrics are called {each.name!r} ({found[each.name].family}, {each.family})")
            found[each.name] = each
    return found


def find(names: Iterable[str]) -> list[Metric]:
    """The metrics of these names; one that does not exist raises with its nearest neighbours."""
    known = catalogue()
    for name in names:
        if name not in known:
            raise unknown("metric", name, known)
    return [known[name] for name in names]


def __getattr__(name: str) -> Metric:
    """`anisoscope.metrics.isoscore`, without naming the family's file."""
    for module in FAMILIES:
        found = vars(module).get(name)
        if isinstance(found, Metric):
            return found
    # with name and object Python itself adds "Did you mean …?"
    raise AttributeError(f"no metric is called {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    metrics = [name for module in FAMILIES for name, value in vars(module).items() if isinstance(value, Metric)]
    return sorted({*globals(), *metrics})


def _metrics_of(source: Any) -> list[Metric]:
    """The metrics defined in a module (those it imports from elsewhere do not count), or the one given."""
    if isinstance(source, Metric):
        return [source]
    return [m for m in vars(source).values() if isinstance(m, Metric) and m.function.__module__ == source.__name__]
