"""Whether a run folder already holds the answer, or another request: known from run.json, before anything is loaded.

Nothing here imports torch, so that a measurement that is complete is shown again at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError
from anisoscope.measurement.request import Request, differences
from anisoscope.store.run import Run

FILES = "model_files"  # the key of run.json that holds what `file_stamps` returned


def finished_run(source: str | Path, request: Request) -> Run | None:
    """Return the run in `--out` if it is complete, of the same request and of unchanged model files.

    Args:
        source: The model, as the user named it.
        request: What to measure.

    Returns:
        The run, open for reading. None if something must be loaded to know more, or measured.

    Raises:
        StoreError: The folder holds a run of another request; the message names what differs.
    """
    out = request.output.out
    if out is None or request.output.overwrite or not (Path(out) / "run.json").is_file():
        return None
    run = Run.open(out)
    info = run.info
    before = info.get("settings")
    if info.get("kind") != "model" or not isinstance(before, dict) or not isinstance(before.get("model"), list):
        return None
    now = {"model": [str(source), request.model.revision], "data": request.data_name(), **request.settings()}
    different = differences({**before, "model": before["model"][:2]}, now)
    if different:
        raise another_request(out, different)
    if not info.get("complete") or any(Path(out).glob("partial*")):  # killed before all of them were deleted
        return None
    stamps = file_stamps(source)
    return run if stamps is not None and info.get(FILES) == stamps else None


def file_stamps(source: str | Path) -> list[list[Any]] | None:
    """Return name, size and time of change of the files of a model on this machine; None for a name on a hub."""
    path = Path(source)
    if not (path.is_file() or path.is_dir()):
        return None
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    stats = [(file.name, file.stat()) for file in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def another_request(out: str | Path, different: list[str]) -> StoreError:
    """The error for a folder that holds a run of another request, with the settings that differ."""
    only_metrics = bool(different) and all(text.startswith("metrics ") for text in different)
    more = f" To add a metric to this run, use `anisoscope recompute {out} --metrics NAME`." if only_metrics else ""
    return StoreError(
        f"{out} holds a run of another request (different: {'; '.join(different) or 'all of it'}). "
        f"Choose another folder, or overwrite it (--overwrite).{more}"
    )
