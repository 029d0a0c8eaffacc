"""What a sweep consists of: models, their checkpoints, and one task per checkpoint, identified by its contents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anisoscope.data.text_sources import text_documents
from anisoscope.errors import InputError
from anisoscope.measurement.request import Request
from anisoscope.measurement.run_output import choose_metrics
from anisoscope.models.checkpoints import Checkpoint, checkpoints, step_of
from anisoscope.models.downloads import is_remote
from anisoscope.store.files import similar_paths, user_path

_CHECKPOINT = re.compile(r"(checkpoint|ckpt|step|epoch|iter)s?[-_]?\d+", re.IGNORECASE)
_MODEL_FILES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Model:
    """A model and its checkpoints, the steps of one run."""

    name: str
    checkpoints: tuple[Checkpoint, ...]


@dataclass(frozen=True)
class Task:
    """One checkpoint to be measured with one seed; `key` identifies its contents."""

    checkpoint: Checkpoint
    seed: int
    key: str


def models_of(source: str | Path, revisions: str | Iterable[str] | None = None) -> list[Model]:
    """Return the models that a source names, each with its checkpoints.

    A list file names one model per line; lines that are revisions of one repository, or checkpoint folders of one
    training, are one model. Everything else is one model: a hub id with `revisions`, a folder of checkpoints, a single
    model.
    """
    path = user_path(source)
    if not is_list(path):
        name = path.resolve().name if path.exists() else str(source).replace("/", "--")
        return [Model(name, tuple(checkpoints(source, revisions)))]
    groups: dict[str, list[Checkpoint]] = {}
    for line in checkpoints(path):
        source_path = Path(line.source)
        if line.revision is not None:
            groups.setdefault(line.source, []).append(line)
        elif not is_remote(line.source) and _CHECKPOINT.search(source_path.stem):
            groups.setdefault(str(source_path.parent), []).append(line)
        else:
            groups.setdefault(line.source, []).extend(checkpoints(line.source, revisions))
    names = _names(list(groups))
    return [Model(name, _in_order(lines)) for name, lines in zip(names, groups.values(), strict=True)]


def is_list(path: Path) -> bool:
    """Whether a path is a list of models rather than a model."""
    return path.is_file() and path.suffix.lower() not in _MODEL_FILES


def content_key(contents: str, checkpoint: Checkpoint, request: Request, data: str, seed: int) -> str:
    """Return a digest of everything that a task's numbers depend on: weights, revision, data, settings, seed."""
    parts = {
        "weights": contents,
        "revision": checkpoint.revision,
        "data": data,
        "settings": settings_of(request),
        "seed": seed,
    }
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def settings_of(request: Request) -> dict[str, Any]:
    """Return the settings of a request that all checkpoints share, the metrics with their versions.

    Revision and seed belong to a task. The batch size is left out: every step is measured whole.
    """
    names = request.statistics.metrics
    chosen = choose_metrics(names, {"documents", "tokens", "heads"})
    versions = {m.name: m.version for m in chosen if names is not None or not m.slow}
    shared = {name: x for name, x in request.settings().items() if name not in ("revision", "seed", "batch")}
    return {**shared, "metrics": versions}


def data_digest(request: Request) -> str:
    """Return a digest of the data: of the contents of every file, or of the name of a remote dataset."""
    digest = hashlib.blake2b(digest_size=16)
    for kind in ("text", "images", "audio"):
        source = getattr(request.data, kind)
        if source is None:
            continue
        path = _require_readable(kind, source, request)
        if path is None:
            digest.update(str(source).encode())
            continue
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(path)).encode())
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()


def _require_readable(kind: str, source: Any, request: Request) -> Path | None:
    """The path of the data, or None if it is not a file; data that cannot be read is refused before the start."""
    if not isinstance(source, str | Path):
        raise InputError(f"workers read the data themselves: give {kind} as a path, got {type(source).__name__}")
    if str(source) == "-":
        raise InputError("a sweep reads its data once per task, so it cannot come from standard input; give a file")
    if kind == "text":
        text_documents(source, field=request.data.field, mark=request.data.document_mark)  # opens nothing yet
    path = user_path(source)
    if kind != "text" and not path.exists():
        raise InputError(f"no {kind} at {path}{similar_paths(path)}; give a folder")
    return path if path.exists() else None


def _in_order(series: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Sort by the step in each name; checkpoints of a list were numbered together with those of other models."""
    steps = [step_of(checkpoint.label) for checkpoint in series]
    if len(series) == 1 and series[0].revision is None and not _CHECKPOINT.search(Path(series[0].source).stem):
        return (replace(series[0], step=0),)
    if any(step is None for step in steps):
        return tuple(replace(checkpoint, step=number) for number, checkpoint in enumerate(series))
    pairs = [replace(checkpoint, step=step or 0) for checkpoint, step in zip(series, steps, strict=True)]
    return tuple(sorted(pairs, key=lambda checkpoint: (checkpoint.step, checkpoint.label)))


def _names(sources: Sequence[str]) -> list[str]:
    """Short names for sources: the last part of each path, with as many parts before it as make them different."""
    # Without . and .., which as a run's folder would lead out of where the runs go.
    parts = [[part for part in source.split("/") if part not in ("", ".", "..")] or ["model"] for source in sources]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["--".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names
