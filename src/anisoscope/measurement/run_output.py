"""How a measurement is written into its run: which metrics, what the run reports of itself, records and statistics."""

from __future__ import annotations

import platform
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope import __version__
from anisoscope.errors import InputError, MetricError, StoreError
from anisoscope.measurement.finished_run import another_request
from anisoscope.measurement.request import differences
from anisoscope.metrics import Metric, catalogue, find
from anisoscope.stats.cloud import Cloud, Stats, to_arrays
from anisoscope.stats.registry import COLLECTED, SUMS
from anisoscope.stats.scratch import bytes_of
from anisoscope.store.run import Run

KEPT = 8 << 20  # bytes of statistics that a run keeps unless all of them are requested
_RUN_FILES = (
    "run.json",
    "records.jsonl",
    "replicates.jsonl",
    "stats",
    "lock",
    "report.html",
    "partial*",
    "scratch-*",
    "rank-*-of-*",
)


def choose_metrics(names: Sequence[str | Metric] | None, known: set[str]) -> list[Metric]:
    """Return the metrics named, or all that rows with these facts (`documents`, `tokens`, `heads`) can have.

    Raises:
        InputError: A metric does not exist.
        MetricError: A metric needs facts that the rows come without.
    """
    if names is None:
        return [m for m in catalogue().values() if m.requires <= known]
    if isinstance(names, str):
        raise InputError(f"metrics must be a list of names, such as [{names!r}], not a text")
    for name in names:
        if callable(name) and not isinstance(name, Metric):
            raise InputError(
                f"{getattr(name, '__name__', name)} is a function; make it a metric with @anisoscope.metric"
            )
    texts = [name for name in names if not isinstance(name, Metric)]
    by_name = iter(find(texts) if texts else ())  # at once: finding metrics of other packages takes time
    chosen = [name if isinstance(name, Metric) else next(by_name) for name in names]
    for metric in chosen:
        missing = sorted(metric.requires - known)
        if missing:
            reason = f"the rows come without {' and '.join(missing)}"
            raise MetricError(metric.name, reason, "supply them, or leave this metric out")
    return chosen


def run_info(facts: dict[str, Any], metrics: Iterable[Metric]) -> dict[str, Any]:
    """Return what a run reports of itself: these facts, the versions, and the cards of its metrics."""
    versions = {"anisoscope": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        **facts,
        "versions": {**versions, "python": platform.python_version()},
        "metrics": {metric.name: metric.card() for metric in metrics},
    }


def open_run(
    out: str | Path | None,
    info: dict[str, Any],
    *,
    command: str | None = None,
    overwrite: bool = False,
    resumable: bool = True,
    parts: Sequence[str] = (),
) -> Run:
    """Create a run, or resume one of the same request.

    Args:
        out: Its folder. None: a temporary one that is deleted with the returned object.
        info: What the run reports of itself. Its `settings` decide whether an existing run is of the same request.
        command: The command line that created it.
        overwrite: Replace a run in that folder.
        resumable: Whether an existing run of the same request can be resumed.
        parts: What the run's folder holds besides, by name or pattern; overwritten with it.

    Raises:
        StoreError: The folder holds a run of another request; the message names what differs.
    """
    if out is None:
        folder = tempfile.mkdtemp(prefix="anisoscope-run-")
        run = Run.create(Path(folder) / "run", info, command=command)
        weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
        return run
    if overwrite:
        discard_run(out, *parts)
    require_usable(out, info.get("settings"), resumable=resumable)
    return Run.create(out, info, command=command, resume=(Path(out) / "run.json").is_file())


def require_usable(
    out: str | Path | None, settings: Any, *, overwrite: bool = False, resumable: bool = True, later: Sequence[str] = ()
) -> None:
    """Refuse a folder that `open_run` would refuse; call it before anything slow.

    Args:
        out: The folder of the run, or None.
        settings: The settings of this request.
        overwrite: A run in the folder will be replaced.
        resumable: Whether an existing run of the same request can be resumed.
        later: Settings that are not known yet.

    Raises:
        StoreError: The folder holds a run of another request, or one that cannot be resumed.
    """
    if out is None or overwrite or not (Path(out) / "run.json").is_file():
        return
    if not resumable:
        raise StoreError(f"{out} holds a run already. Choose another folder, or overwrite it (--overwrite)")
    require_same_settings(out, settings, later)


def require_same_settings(out: str | Path, settings: Any, later: Sequence[str] = ()) -> None:
    """Refuse to resume a run of another request, and name what differs; settings in `later` are not compared."""
    before: Any = Run.open(out).info.get("settings")
    if before == settings:
        return
    known = isinstance(before, dict) and isinstance(settings, dict)
    if known:
        before, settings = ({name: x for name, x in each.items() if name not in later} for each in (before, settings))
        if before == settings:
            return
    raise another_request(out, differences(before, settings) if known else [])


def discard_run(out: str | Path, *parts: str) -> None:
    """Delete the run in a folder, with `parts` of it by name or pattern.

    Raises:
        StoreError: The folder holds no run, or files that are not part of it. Nothing is deleted then.
    """
    folder = Path(out)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / "run.json").is_file():
        raise StoreError(f"{folder} holds no run, so nothing is overwritten. Choose another folder")
    Run.open(folder)  # a run.json of another program is not ours to delete
    known = {path for pattern in (*_RUN_FILES, *parts) for path in folder.glob(pattern)}
    foreign = sorted(path.name for path in folder.iterdir() if path not in known)
    if foreign:
        raise StoreError(
            f"{folder} holds {foreign[0]}, which is not part of the run. Move it, or choose another folder"
        )
    shutil.rmtree(folder)


def save_cloud(run: Run, cloud: Cloud, *, site: str, step: int = 0, tokens: str = "all", blocks: bool = False) -> None:
    """Keep a cloud's pooled statistics, and with `blocks` those of each block."""
    run.save_statistics(step, site, tokens, _numpy(to_arrays(cloud.stats)))
    for block in cloud.blocks if blocks else ():
        run.save_statistics(step, site, tokens, _numpy(to_arrays(block.load())), block=block.number)


def _numpy(arrays: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors as numpy arrays; bfloat16, which numpy lacks, is widened."""
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in arrays.items()}


def small_statistics(cloud: Cloud, limit: int) -> Stats:
    """Return the statistics of a cloud that fit into `limit` bytes: all of them, or as many as possible.

    Rows of largest norm and first tokens of windows are stored separately from the sums. If not everything fits, the
    sums that remain include these rows, so that a metric of them has the same value.
    """
    if _size(cloud.stats) <= limit:
        return cloud.stats
    kinds = [name for name in cloud.stats if name != "Extremes" and not name.startswith("first.")]
    whole: Stats = {name: cloud.get(COLLECTED[name]) if name in SUMS else cloud.stats[name] for name in kinds}
    kept: Stats = {}
    for name in sorted(whole, key=lambda name: _size({name: whole[name]})):
        if _size({**kept, name: whole[name]}) > limit:
            break
        kept[name] = whole[name]
    return kept


def _size(stats: Stats) -> int:
    return bytes_of(to_arrays(stats).values())
