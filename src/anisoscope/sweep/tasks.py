"""What a sweep consists of: models, their checkpoints, and for each a task that is named by its contents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anisoscope.data.text_sources import text_documents
from anisoscope.errors import InputError
from anisoscope.measurement.document_shares import WHOLE, Share
from anisoscope.measurement.run_output import choose_metrics
from anisoscope.models.checkpoints import Checkpoint, checkpoints, step_of
from anisoscope.models.downloads import is_remote
from anisoscope.store.files import given_path, near_paths

_CHECKPOINT = re.compile(r"(checkpoint|ckpt|step|epoch|iter)s?[-_]?\d+", re.IGNORECASE)
_MODEL_FILES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_CHUNK = 1 << 22

Request = Mapping[str, Any]  # the arguments of `measure` that say what to measure, the same for all tasks


@dataclass(frozen=True)
class Model:
    """A model and its checkpoints, the steps of one run."""

    name: str
    checkpoints: tuple[Checkpoint, ...]


@dataclass(frozen=True)
class Task:
    """One checkpoint, to be measured with one seed on the data or a share of it; `key` names the contents."""

    checkpoint: Checkpoint
    seed: int
    key: str
    share: Share = WHOLE

    @property
    def name(self) -> str:
        """How a person calls it: `step1000`, `step1000, share 2 of 4`."""
        part = f", share {self.share.place + 1} of {self.share.of}" if self.share.of > 1 else ""
        return f"{self.checkpoint.label}{part}"


def models_of(source: str | Path, revisions: str | Iterable[str] | None = None) -> list[Model]:
    """The models that a source names, each with its checkpoints.

    A list file names one a line; lines that are revisions of one repository, or checkpoint folders of one training,
    are one model. Everything else is one model: a hub id with `revisions`, a folder of checkpoints, a single model.
    """
    path = given_path(source)
    if not is_list(path):
        name = path.resolve().name if path.exists() else str(source).replace("/", "--")
        return [Model(name, tuple(checkpoints(source, revisions)))]
    groups: dict[str, list[Checkpoint]] = {}
    for line in checkpoints(path):
        place = Path(line.source)
        if line.revision is not None:
            groups.setdefault(line.source, []).append(line)
        elif not is_remote(line.source) and _CHECKPOINT.search(place.stem):
            groups.setdefault(str(place.parent), []).append(line)
        else:
            groups.setdefault(line.source, []).extend(checkpoints(line.source, revisions))
    names = _names(list(groups))
    return [Model(name, _in_order(found)) for name, found in zip(names, groups.values(), strict=True)]


def is_list(path: Path) -> bool:
    """Whether a path is a list of models rather than a model."""
    return path.is_file() and path.suffix.lower() not in _MODEL_FILES


def content_key(contents: str, checkpoint: Checkpoint, request: Request, data: str, seed: int) -> str:
    """A digest of all that a task's numbers depend on: weights, revision, data, policy, metrics and their versions.

    Shares are not part of it: however the documents are split, the numbers are the same.
    """
    parts = {
        "weights": contents,
        "revision": checkpoint.revision,
        "data": data,
        "policy": policy_of(request),
        "seed": seed,
    }
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def policy_of(request: Request) -> dict[str, Any]:
    """What is asked of every checkpoint, as plain values, the metrics with their versions.

    Where it runs (device, batch size) is left out: it does not change what is measured.
    """
    opening = {name: value for name, value in dict(request.get("opening") or {}).items() if name in ("dtype",)}
    left_out = ("text", "images", "audio", "batch", "opening", "metrics", "seed")
    plain = {name: _plain(value) for name, value in request.items() if name not in left_out}
    known = {"documents", "tokens", "heads"}
    chosen = choose_metrics(request.get("metrics"), known)
    versions = {m.name: m.version for m in chosen if request.get("metrics") is not None or not m.slow}
    return {**plain, "opening": opening, "metrics": versions}


def data_digest(request: Request) -> str:
    """A digest of the data's contents: of every file, or of the name of a dataset that is elsewhere."""
    digest = hashlib.blake2b(digest_size=16)
    for kind in ("text", "images", "audio"):
        source = request.get(kind)
        if source is None:
            continue
        path = _require_readable(kind, source, dict(request.get("reading") or {}))
        if path is None:
            digest.update(str(source).encode())
            continue
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(path)).encode())
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()


def _require_readable(kind: str, source: Any, reading: Mapping[str, Any]) -> Path | None:
    """Where the data lies, or None where it is no file here; what cannot be read is said before the start."""
    if not isinstance(source, str | Path):
        raise InputError(f"workers read the data themselves: give {kind} as a path, got {type(source).__name__}")
    if str(source) == "-":
        raise InputError("a sweep reads its data once a task, so it cannot come from standard input; give a file")
    if kind == "text":
        text_documents(source, **reading)  # opens nothing yet, but knows what is there
    path = given_path(source)
    if kind != "text" and not path.exists():
        raise InputError(f"no {kind} at {path}{near_paths(path)}; give a folder")
    return path if path.exists() else None


def _in_order(found: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """By the step in each name; those of a list were numbered among checkpoints of other models too."""
    steps = [step_of(checkpoint.label) for checkpoint in found]
    if len(found) == 1 and found[0].revision is None and not _CHECKPOINT.search(Path(found[0].source).stem):
        return (replace(found[0], step=0),)
    if any(step is None for step in steps):
        return tuple(replace(checkpoint, step=number) for number, checkpoint in enumerate(found))
    pairs = [replace(checkpoint, step=step or 0) for checkpoint, step in zip(found, steps, strict=True)]
    return tuple(sorted(pairs, key=lambda checkpoint: (checkpoint.step, checkpoint.label)))


def _names(sources: Sequence[str]) -> list[str]:
    """Short names for sources: the last part of each path, with as many parts before it as tell them apart."""
    # Without . and .., which as a run's folder would lead out of where the runs go.
    parts = [[part for part in source.split("/") if part not in ("", ".", "..")] or ["model"] for source in sources]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["--".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, str | int | float | None) else str(value)
