"""The demo: the instrument looks at clouds whose answers are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from anisoscope.measurement.measure_rows import measure_rows
from anisoscope.records import Record
from anisoscope.synthetic import CLOUDS, cloud

METRICS = ("mean_cosine", "spectral_anisotropy", "isoscore", "effective_rank", "two_nn", "tokens_to_halve")
_DRAWN = 600  # points of each cloud in the picture


@dataclass(frozen=True)
class Demo:
    """Records by cloud, and points for the picture: each cloud on its two strongest axes."""

    metrics: tuple[str, ...]
    records: dict[str, list[Record]]
    points: list[dict[str, float | str]]


def measure_clouds(told: Callable[[int], None]) -> Demo:
    """Measures every built-in cloud; `told` hears of each one done."""
    records: dict[str, list[Record]] = {}
    points: list[dict[str, float | str]] = []
    for name in CLOUDS:
        rows = cloud(name)
        records[name] = measure_rows(rows, METRICS)
        shown = rows[:: max(1, len(rows) // _DRAWN)]
        axes = torch.linalg.svd(rows - rows.mean(0), full_matrices=False).Vh[:2]
        flat = (shown - rows.mean(0)) @ axes.T
        flat = flat / flat.abs().quantile(0.98).clamp(min=1e-12)
        points += [{"cloud": name, "x": x, "y": y} for x, y in flat.clamp(-1.6, 1.6).tolist()]
        told(1)
    return Demo(METRICS, records, points)
