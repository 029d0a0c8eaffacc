"""How much attention and feed-forward branches write at a due step: a few sums per layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from anisoscope.hooks import Layout, observe_sites
from anisoscope.hooks.branches import Branch
from anisoscope.metrics import find
from anisoscope.metrics.evaluate import MetricResult, evaluate
from anisoscope.records import Site
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.writes import Writes
from anisoscope.tracker.finite_rows import FiniteRows

METRICS = ("write_ratio", "write_cosine")
_KINDS = ("attn", "mlp")


class WriteSizes:
    """Sums what every branch writes, without the other statistics of its rows, which cost far more.

    Args:
        model: The bare model.
        layout: Its layout.
        counted: Knows which tokens of the batch count.
    """

    def __init__(self, model: nn.Module, layout: Layout, counted: FiniteRows) -> None:
        self.metrics = find(METRICS)
        self._model = model
        self._layout = layout
        self._counted = counted
        self._sites = [str(site) for site in layout.sites() if site.kind in _KINDS]
        self._sums: dict[Site, Writes] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sum during the forwards inside the `with`."""
        self._sums.clear()
        if not self._sites:
            yield
            return
        with observe_sites(self._model, self._sites, self._add, layout=self._layout, branches=True):
            yield

    def results(self, run: str, step: int) -> list[MetricResult]:
        """Return the results of every branch that was seen, and forget the sums."""
        sums, self._sums = self._sums, {}
        return [
            result
            for site, writes in sorted(sums.items())
            for result in evaluate(
                Cloud({"Writes": writes}), self.metrics, site=str(site), run=run, step=step, errors=False
            )
        ]

    def _add(self, site: Site, x: Any) -> None:
        if not isinstance(x, Branch) or x.stream is None:
            return
        counts, n = self._counted.counted(site.stack, x.rows)
        written, stream = (torch.where(counts[..., None], each, 0.0).flatten(0, 1) for each in (x.written, x.stream))
        rows = bare_rows(written)  # rows of zeros add nothing, and unlike a choice of rows do not wait for the device
        writes = replace(Writes.of(replace(rows, write=(written, stream))), n=n)
        self._sums[site] = writes if site not in self._sums else self._sums[site] + writes
