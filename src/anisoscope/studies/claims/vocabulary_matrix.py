"""Vocabulary matrices: the metrics of one matrix, and the isotropy and cosine of an output matrix."""

from __future__ import annotations

from torch import Tensor

from anisoscope.measurement.measure_weights import INPUT, OUTPUT
from anisoscope.metrics import find
from anisoscope.metrics.evaluate import evaluate
from anisoscope.stats.collect import cloud_of
from anisoscope.studies.claims.measurements import WEIGHTS
from anisoscope.studies.claims.run_view import RunView


def matrix_view(matrix: Tensor) -> RunView:
    """Measure a vocabulary matrix (tokens, d), under the site that `measure` gives to an output matrix."""
    metrics = find(WEIGHTS.metrics)
    cloud = cloud_of(matrix, set().union(*(metric.sources for metric in metrics)) | {"Moments", "Directions"})
    return RunView.of(each.record for each in evaluate(cloud, metrics, site=OUTPUT, errors=False))


def isotropy(view: RunView) -> float:
    """I(W) as published: rows as they are, eigenvectors with the sign of the mean."""
    return _of_output(view, "partition_isotropy", rows="raw", signs="mean")


def isotropy_rescaled(view: RunView) -> float:
    """I(W) of rows of unit mean square, both signs, without the rows that were never trained."""
    return _of_output(view, "partition_isotropy", rows="unit-rms", signs="both")


def matrix_cosine(view: RunView) -> float:
    """Mean cosine of the rows of the output matrix."""
    return _of_output(view, "mean_cosine")


def _of_output(view: RunView, metric: str, **variant: str) -> float:
    """The value of the output matrix, or of the tied matrix; of trained rows if rows are rescaled."""
    matches = view.find(metric, **variant)
    matches = [e for e in matches if e.variant.get("matrix", "raw") in ("raw", "trained")]
    name = OUTPUT if any(str(e.site) == OUTPUT for e in matches) else INPUT
    values = {e.variant.get("matrix", "raw"): e.value for e in matches if str(e.site) == name}
    rescaled = variant.get("rows") == "unit-rms"
    return values.get("trained", values["raw"]) if rescaled else values["raw"]
