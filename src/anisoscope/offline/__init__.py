"""The offline drivers: what is there is measured once, without a training loop."""

from anisoscope.offline.cost import estimate_cost
from anisoscope.offline.models import measure
from anisoscope.offline.stored import recompute
from anisoscope.offline.vectors import measure_rows, transform_rows

__all__ = ["estimate_cost", "measure", "measure_rows", "recompute", "transform_rows"]
