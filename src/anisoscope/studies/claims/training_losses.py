"""The losses of all lab trainings in a folder, next to what counts of neighbours reach."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from anisoscope.store.run import Run
from anisoscope.studies.claims.run_sizes import Size, cells
from anisoscope.studies.claims.subjects import Lab


def losses_of(folder: Path, size: Size) -> list[dict[str, Any]]:
    """Return one row per kind of training that is complete: seeds, steps, losses and margins over counts.

    Args:
        folder: The folder `lab` of a run of claims.
        size: Its size.
    """
    lab = Lab(folder, size, size.seeds, lambda _: None)
    rows = []
    for cell in cells(size):
        seeds = [seed for seed in lab.seeds_of(cell) if _complete(folder / f"{cell}-seed-{seed}", lab.steps_of(cell))]
        if seeds:
            losses = [lab.loss(cell, seed) for seed in seeds]
            margins = [lab.margin(cell, seed) for seed in seeds]
            baselines = lab.trained(cell, seeds[0]).baselines
            rows.append(
                {
                    "cell": cell,
                    "steps": lab.steps_of(cell),
                    "losses": [round(loss, 4) for loss in losses],
                    "counts": round(fmean(a + b for a, b in zip(losses, margins, strict=True)), 4),
                    "frequencies": round(baselines["unigram"], 4),
                    "change_at_end": round(max(lab.change_at_end(cell, seed) for seed in seeds), 4),
                }
            )
    return rows


def _complete(folder: Path, steps: int) -> bool:
    return (folder / "run.json").is_file() and Run.open(folder).info.get("ended", {}).get("step") == steps
