"""The demo on synthetic rows: metrics of built-in clouds whose true values are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from anisoscope.measurement.measure_rows import measure_rows
from anisoscope.records import Record
from anisoscope.synthetic import CLOUDS, cloud

METRICS = ("mean_cosine", "spectral_anisotropy", "isoscore", "effective_rank", "two_nn", "tokens_to_halve")
_POINTS = 600  # points per cloud in the picture


@dataclass(frozen=True)
class CloudDemo:
    """Records by cloud, and points for the picture: each cloud on its two strongest axes."""

    metrics: tuple[str, ...]
    records: dict[str, list[Record]]
    points: list[dict[str, float | str]]


def measure_clouds(on_progress: Callable[[int], None]) -> CloudDemo:
    """Measure every built-in cloud; `on_progress` is called with 1 after each of them."""
    records: dict[str, list[Record]] = {}
    points: list[dict[str, float | str]] = []
    for name in CLOUDS:
        rows = cloud(name)  # (n, d)
        records[name] = measure_rows(rows, METRICS).records()
        shown = rows[:: max(1, len(rows) // _POINTS)]
        axes = torch.linalg.svd(rows - rows.mean(0), full_matrices=False).Vh[:2]  # (2, d)
        flat = (shown - rows.mean(0)) @ axes.T
        flat = flat / flat.abs().quantile(0.98).clamp(min=1e-12)
        points += [{"cloud": name, "x": x, "y": y} for x, y in flat.clamp(-1.6, 1.6).tolist()]
        on_progress(1)
    return CloudDemo(METRICS, records, points)
