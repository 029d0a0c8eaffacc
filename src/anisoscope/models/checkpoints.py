"""List the checkpoints of a training run: revisions on the hub, folders, files, or a list file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from anisoscope.errors import InputError, unknown
from anisoscope.models.sources import hub_refs, is_hub_id
from anisoscope.models.weight_files import PICKLES, weights_problem
from anisoscope.store.files import similar_paths, user_path

_LIST_LIMIT = 16 << 20  # bytes
_WEIGHTS = (".gguf", ".safetensors", *PICKLES)
_DIGITS = 18  # of a step: what 64 bits hold
_STEPPED = re.compile(r"(checkpoint|ckpt|step|epoch|iter)s?[-_]?\d+", re.IGNORECASE)
_AFTER_STEP = re.compile(r"step[-_]?(\d+)", re.IGNORECASE)
_WHOLE_MODEL = re.compile(r"model(-\d+-of-\d+)?|adapter_model|optimizer")


@dataclass(frozen=True)
class Checkpoint:
    """One state of a model in training; `open_model(source, revision=revision)` opens it.

    `problem` explains why it cannot be opened (a missing shard, a truncated file); None if it can.
    """

    source: str
    revision: str | None
    step: int
    label: str
    problem: str | None = None


def checkpoints(source: str | Path, revisions: str | Iterable[str] | None = None) -> list[Checkpoint]:
    """List the checkpoints of a source, ordered by step.

    The step is the number in the name (the one after "step" if that word occurs). If a name in a list has no number,
    the whole list is numbered in its order.

    Args:
        source: one of
            - a hub id;
            - a folder with `checkpoint-*` or `step_*` folders, or with `step_*.safetensors` files and a config.json;
            - a training run of the lab;
            - a list file: a source and optionally a revision per line, `#` starts a comment;
            - a single model, which gets step 0.
        revisions: which revisions of a hub id: "step*", "step0,step1000", or a list. Patterns are matched with the
            revisions on the hub, or in the local cache if the hub cannot be reached.

    Raises:
        InputError: if there are no checkpoints.
    """
    path = user_path(source)
    patterns = _patterns(revisions)
    if (path / "run.json").is_file() and (path / "checkpoints").is_dir():  # a training run of the lab
        path = path / "checkpoints"
    if path.is_dir():
        return _in_folder(path, patterns)
    if path.is_file() and path.suffix.lower() not in _WEIGHTS:
        return _in_list(path)
    if path.is_file():
        return [Checkpoint(str(path), None, 0, path.name, weights_problem(path))]
    if not is_hub_id(source):
        raise InputError(f"No checkpoints at {path}{similar_paths(path)}. Use a folder, a list file or a hub id.")
    if not patterns:
        return [Checkpoint(str(source), None, 0, str(source))]
    return _numbered([Checkpoint(str(source), name, 0, name) for name in _matching(str(source), patterns)])


def step_of(name: str) -> int | None:
    """Return the step in a name: the number after "step" if there is one, else the last number.

    >>> step_of("checkpoint-500"), step_of("stage1-step1000-tokens5B"), step_of("main")
    (500, 1000, None)
    """
    match = _AFTER_STEP.search(name)
    numbers = [match[1]] if match else re.findall(r"\d+", name)
    # A longer number is a date or a digest.
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= _DIGITS else None


def _patterns(revisions: str | Iterable[str] | None) -> list[str]:
    patterns = revisions.split(",") if isinstance(revisions, str) else list(revisions or ())
    return [pattern.strip() for pattern in patterns if pattern.strip()]


def _matching(repository: str, patterns: list[str]) -> list[str]:
    """List the revisions that match; only patterns with wildcards need the hub's list."""
    if not any(_is_glob(pattern) for pattern in patterns):
        return patterns
    refs = hub_refs(repository)
    names = []
    for pattern in patterns:
        matches = [ref for ref in refs if fnmatchcase(ref, pattern)] if _is_glob(pattern) else [pattern]
        if not matches:
            raise unknown(f"revision of {repository}", pattern, refs)
        names += matches
    return list(dict.fromkeys(names))


def _is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def _in_folder(folder: Path, patterns: list[str]) -> list[Checkpoint]:
    paths = [path for path in sorted(folder.iterdir()) if _is_checkpoint(path, folder)]
    if patterns:
        paths = [path for path in paths if any(fnmatchcase(path.stem, p) or path.name == p for p in patterns)]
    if not paths and not patterns and any((folder / f).is_file() for f in ("config.json", "adapter_config.json")):
        return [Checkpoint(str(folder), None, 0, folder.name, weights_problem(folder))]
    if not paths:
        what = f"that match {', '.join(patterns)}" if patterns else "such as checkpoint-500 or step_500.safetensors"
        raise InputError(f"{folder} holds no checkpoints {what}. It holds {_names(folder)}.")
    return _numbered([Checkpoint(str(path), None, 0, path.stem, _problem(path)) for path in paths])


def _is_checkpoint(path: Path, folder: Path) -> bool:
    if path.is_dir():
        return bool(_STEPPED.search(path.name))
    stepped = step_of(path.stem) is not None and not _WHOLE_MODEL.fullmatch(path.stem)
    return stepped and path.suffix == ".safetensors" and (folder / "config.json").is_file()


def _problem(path: Path) -> str | None:
    if path.is_dir() and not any((path / f).is_file() for f in ("config.json", "adapter_config.json")):
        return "it has no config.json"
    return weights_problem(path)


def _in_list(path: Path) -> list[Checkpoint]:
    """Read a list file; paths in it are relative to its folder."""
    listed = []
    if path.stat().st_size > _LIST_LIMIT:
        raise InputError(f"{path} is too long for a list of checkpoints. Use a folder, a shorter list or a hub id.")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is neither a list of checkpoints nor a model. Use a folder, a list file or a hub id."
        ) from error
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if len(words) > 2:
            raise InputError(
                f"{path}, line {number} is {line.strip()[:80]!r}. Write a source and optionally a revision."
            )
        if words:
            listed.append(_listed(path, number, *words))
    if not listed:
        raise InputError(f"{path} lists no checkpoints. Write one source per line, optionally followed by a revision.")
    return _numbered(listed)


def _listed(path: Path, number: int, name: str, revision: str | None = None) -> Checkpoint:
    local = path.parent / user_path(name)
    if local.exists() and revision is None:
        return Checkpoint(str(local), None, 0, local.name, _problem(local))
    if not is_hub_id(name):
        raise InputError(f"{path}, line {number}: no model at {local}{similar_paths(local)}. Check the path.")
    return Checkpoint(name, revision, 0, revision or name)


def _numbered(unnumbered: list[Checkpoint]) -> list[Checkpoint]:
    """Set the steps and sort by them."""
    steps = [step_of(checkpoint.label) for checkpoint in unnumbered]
    if any(step is None for step in steps):
        return [replace(checkpoint, step=number) for number, checkpoint in enumerate(unnumbered)]
    pairs = zip(unnumbered, steps, strict=True)
    return sorted((replace(checkpoint, step=step or 0) for checkpoint, step in pairs), key=lambda c: (c.step, c.label))


def _names(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:6]) + (" and more" if len(names) > 6 else "") if names else "nothing"
