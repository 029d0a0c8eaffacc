"""The catalogue of metrics.

To add a metric, write a function in one of the family files. To add a family, write a file and list it in `FAMILIES`.
Other packages add metrics through the entry point group `anisoscope.metrics`: each entry is a `Metric`, or a module
that defines some. Two metrics of one name are an error.

Every metric is an attribute of this module: `anisoscope.metrics.isoscore(rows)`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from anisoscope.errors import InputError, unknown
from anisoscope.metrics import (
    attention,
    branch_writes,
    context,
    dimension,
    drift,
    embedding,
    health,
    isotropy,
    layer_norm,
    local,
    outliers,
    router,
    spectra,
    token_sequences,
)
from anisoscope.metrics.metric import Metric, Undefined, Value, metric

__all__ = ["FAMILIES", "Metric", "Undefined", "Value", "catalogue", "find", "metric"]

FAMILIES: tuple[ModuleType, ...] = (
    isotropy,
    outliers,
    local,
    context,
    spectra,
    dimension,
    embedding,
    attention,
    branch_writes,
    router,
    drift,
    health,
    token_sequences,
    layer_norm,
)


def catalogue() -> dict[str, Metric]:
    """Return all metrics by name: the built-in ones family by family, then those of other packages.

    Raises:
        InputError: Two metrics have the same name.
    """
    metrics: dict[str, Metric] = {}
    plugins = [entry.load() for entry in entry_points(group="anisoscope.metrics")]
    for source in (*FAMILIES, *plugins):
        for each in _metrics_of(source):
            if each.name in metrics:
                both = f"{metrics[each.name].family} and {each.family}"
                raise InputError(f"Two metrics are named {each.name!r}, in {both}. Rename one of them.")
            metrics[each.name] = each
    return metrics


def find(names: Iterable[str]) -> list[Metric]:
    """Return the metrics with these names, in the same order.

    Raises:
        InputError: A name is unknown. The message suggests similar names.

    >>> [metric.name for metric in find(["isoscore", "two_nn"])]
    ['isoscore', 'two_nn']
    """
    metrics = catalogue()
    matches = []
    for name in names:
        if name not in metrics:
            raise unknown("metric", name, metrics)
        matches.append(metrics[name])
    return matches


def __getattr__(name: str) -> Metric:
    """Find a metric without naming the file of its family."""
    for module in FAMILIES:
        value = vars(module).get(name)
        if isinstance(value, Metric):
            return value
    # Only names that could be metrics: Python asks modules for __path__ and the like, which must not load plug-ins.
    if not name.startswith("_"):
        metrics = catalogue()
        if name in metrics:
            return metrics[name]
    # With name and obj, Python itself adds "Did you mean …?".
    raise AttributeError(f"No metric named {name!r}.", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*__all__, *catalogue()})


def _metrics_of(source: Any) -> list[Metric]:
    """Return the metric itself, or those that a module defines; those that it imports do not count."""
    if isinstance(source, Metric):
        return [source]
    return [m for m in vars(source).values() if isinstance(m, Metric) and m.function.__module__ == source.__name__]
