"""`GeometryMetric`: a `torchmetrics.Metric` of the shape of embeddings, for a MetricCollection or Lightning's `log`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anisoscope.extras import needs
from anisoscope.measurement.geometry import Geometry
from anisoscope.records import Record

with needs("torchmetrics", "GeometryMetric"):
    from torchmetrics import Metric as _Base


class GeometryMetric(_Base):
    """Metrics of embeddings, with the interface of torchmetrics. The statistics of all ranks are added by `compute`.

    `compute` returns a dict of scalar tensors by name: `{"isoscore": …}`; with `errors=True` also `isoscore_error`. A
    metric with several numbers has one entry for each, such as `two_nn_neighbours=all`. A number that has no value for
    these rows is NaN, because loggers expect a number; `geometry.compute()` gives the reason.

    Args:
        metrics: Metrics by name, such as `["isoscore", "mean_cosine"]`.
        errors: Also return one standard error of each.
        sample: Rows kept for metrics that need rows, such as neighbours. Default: 8,192.
        persistent: Whether the collected statistics are part of `state_dict`.
        **options: Options of `torchmetrics.Metric`.

    Raises:
        InputError: A metric does not exist.

    Example:
        >>> metric = GeometryMetric(["mean_cosine"])
        >>> metric.update(torch.eye(2))
        >>> metric.compute()
        {'mean_cosine': tensor(0.)}
    """

    is_differentiable = False
    higher_is_better = None  # isotropy is not quality
    full_state_update = False

    def __init__(
        self,
        metrics: Sequence[str],
        *,
        errors: bool = False,
        sample: int | None = None,
        persistent: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._options: dict[str, Any] = {"metrics": list(metrics), "errors": errors, "sample": sample}
        self._saved_with_model = persistent
        self.geometry = Geometry(**self._options)

    def update(self, rows: Tensor, mask: Tensor | None = None, documents: Tensor | None = None) -> None:
        """Add rows (n, d) or (batch, time, d), as `Geometry.update` does."""
        self.geometry.update(rows, mask=mask, documents=documents)

    def compute(self) -> dict[str, Tensor]:
        """Return the numbers of the rows of all ranks by name."""
        synchronized = self._to_sync and self.sync_on_compute
        return self._numbers(self.geometry.across_ranks() if synchronized else self.geometry)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Add rows and return the numbers of these rows alone."""
        self.update(*args, **kwargs)
        batch = Geometry(**{**self._options, "errors": False})
        batch.update(*args, **kwargs)
        return self._numbers(batch)

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self.geometry.reset()

    def get_extra_state(self) -> dict[str, Any]:
        """Return the collected statistics, if they are part of `state_dict`."""
        return self.geometry.state_dict() if self._saved_with_model else {}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from collected statistics."""
        if state:
            self.geometry.load_state_dict(state)

    def _numbers(self, geometry: Geometry) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for record in geometry.compute().records():
            out[_name(record)] = _scalar(record.value)
            if geometry.errors:
                out[f"{_name(record)}_error"] = _scalar(record.error)
        return out


def _name(record: Record) -> str:
    parts = [f"{key}={value}" for key, value in record.variant.items()]
    return "_".join([record.metric, *parts, *([] if record.index is None else [str(record.index)])])


def _scalar(value: float | None) -> Tensor:
    return torch.tensor(float("nan") if value is None else value)
