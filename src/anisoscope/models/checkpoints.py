"""The checkpoints of one training run: revisions on the hub, folders, files, or a list of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from anisoscope.errors import InputError, unknown
from anisoscope.models.sources import hub_refs, is_hub_id
from anisoscope.models.weight_files import PICKLES, weights_problem
from anisoscope.store.files import given_path, near_paths

_LIST_LIMIT = 16 << 20  # bytes
_WEIGHTS = (".gguf", ".safetensors", *PICKLES)
_DIGITS = 18  # of a step: what 64 bits hold
_STEPPED = re.compile(r"(checkpoint|ckpt|step|epoch|iter)s?[-_]?\d+", re.IGNORECASE)
_AFTER_STEP = re.compile(r"step[-_]?(\d+)", re.IGNORECASE)
_WHOLE_MODEL = re.compile(r"model(-\d+-of-\d+)?|adapter_model|optimizer")


@dataclass(frozen=True)
class Checkpoint:
    """One state of a model in training: `open_model(source, revision=revision)` opens it.

    `problem` says why it cannot be opened (a shard that is missing, a file that is cut short), or is None.
    """

    source: str
    revision: str | None
    step: int
    label: str
    problem: str | None = None


def checkpoints(source: str | Path, revisions: str | Iterable[str] | None = None) -> list[Checkpoint]:
    """The checkpoints of a source, by step.

    A hub id with revisions ("step*", "step0,step1000", or a list; patterns look at the hub, or at the local cache when
    it cannot be reached); a folder that holds `checkpoint-*` or `step_*` folders, or `step_*.safetensors` files beside
    a config.json; a run of the lab; a list file (a source and perhaps a revision a line, `#` starts a comment); or one
    model, at step 0. The step is the number in the name (behind "step" where that occurs); if a name in a list has
    none, all of the list are numbered in its order.
    """
    path = given_path(source)
    patterns = _patterns(revisions)
    if (path / "run.json").is_file() and (path / "checkpoints").is_dir():  # a training of the lab
        path = path / "checkpoints"
    if path.is_dir():
        return _in_folder(path, patterns)
    if path.is_file() and path.suffix.lower() not in _WEIGHTS:
        return _in_list(path)
    if path.is_file():
        return [Checkpoint(str(path), None, 0, path.name, weights_problem(path))]
    if not is_hub_id(source):
        raise InputError(f"no checkpoints at {path}{near_paths(path)}; give a folder, a list file or a hub id")
    if not patterns:
        return [Checkpoint(str(source), None, 0, str(source))]
    return _numbered([Checkpoint(str(source), name, 0, name) for name in _matching(str(source), patterns)])


def step_of(name: str) -> int | None:
    """The step in a name: the number behind "step" where there is one, else the last number.

    >>> step_of("checkpoint-500"), step_of("stage1-step1000-tokens5B"), step_of("main")
    (500, 1000, None)
    """
    behind = _AFTER_STEP.search(name)
    numbers = [behind[1]] if behind else re.findall(r"\d+", name)
    # A number beyond any training is a date or a digest.
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= _DIGITS else None


def _patterns(revisions: str | Iterable[str] | None) -> list[str]:
    given = revisions.split(",") if isinstance(revisions, str) else list(revisions or ())
    return [pattern.strip() for pattern in given if pattern.strip()]


def _matching(repository: str, patterns: list[str]) -> list[str]:
    """The revisions that patterns name; only patterns with wildcards need the hub's list."""
    if not any(_is_glob(pattern) for pattern in patterns):
        return patterns
    refs = hub_refs(repository)
    names = []
    for pattern in patterns:
        found = [ref for ref in refs if fnmatchcase(ref, pattern)] if _is_glob(pattern) else [pattern]
        if not found:
            raise unknown(f"revision of {repository}", pattern, refs)
        names += found
    return list(dict.fromkeys(names))


def _is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def _in_folder(folder: Path, patterns: list[str]) -> list[Checkpoint]:
    places = [place for place in sorted(folder.iterdir()) if _is_checkpoint(place, folder)]
    if patterns:
        places = [place for place in places if any(fnmatchcase(place.stem, p) or place.name == p for p in patterns)]
    if not places and not patterns and any((folder / f).is_file() for f in ("config.json", "adapter_config.json")):
        return [Checkpoint(str(folder), None, 0, folder.name, weights_problem(folder))]
    if not places:
        what = f"that match {', '.join(patterns)}" if patterns else "such as checkpoint-500 or step_500.safetensors"
        raise InputError(f"{folder} holds no checkpoints {what}; seen: {_names(folder)}")
    return _numbered([Checkpoint(str(place), None, 0, place.stem, _problem(place)) for place in places])


def _is_checkpoint(place: Path, folder: Path) -> bool:
    if place.is_dir():
        return bool(_STEPPED.search(place.name))
    stepped = step_of(place.stem) is not None and not _WHOLE_MODEL.fullmatch(place.stem)
    return stepped and place.suffix == ".safetensors" and (folder / "config.json").is_file()


def _problem(place: Path) -> str | None:
    if place.is_dir() and not any((place / f).is_file() for f in ("config.json", "adapter_config.json")):
        return "it has no config.json"
    return weights_problem(place)


def _in_list(path: Path) -> list[Checkpoint]:
    """The checkpoints of a list file; paths in it are relative to its folder."""
    found = []
    if path.stat().st_size > _LIST_LIMIT:
        raise InputError(f"{path} is too long for a list of checkpoints; give a folder, a list file or a hub id")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no list of checkpoints, nor a model; give a folder or a hub id") from error
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if len(words) > 2:
            raise InputError(
                f"{path}, line {number}: expected a source and perhaps a revision, seen {line.strip()[:80]!r}"
            )
        if words:
            found.append(_listed(path, number, *words))
    if not found:
        raise InputError(f"{path} lists no checkpoints; write one source a line, with its revision behind it")
    return _numbered(found)


def _listed(path: Path, number: int, name: str, revision: str | None = None) -> Checkpoint:
    place = path.parent / given_path(name)
    if place.exists() and revision is None:
        return Checkpoint(str(place), None, 0, place.name, _problem(place))
    if not is_hub_id(name):
        raise InputError(f"{path}, line {number}: no model at {place}{near_paths(place)}")
    return Checkpoint(name, revision, 0, revision or name)


def _numbered(found: list[Checkpoint]) -> list[Checkpoint]:
    steps = [step_of(checkpoint.label) for checkpoint in found]
    if any(step is None for step in steps):
        return [replace(checkpoint, step=number) for number, checkpoint in enumerate(found)]
    pairs = zip(found, steps, strict=True)
    return sorted((replace(checkpoint, step=step or 0) for checkpoint, step in pairs), key=lambda c: (c.step, c.label))


def _names(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:6]) + (" and more" if len(names) > 6 else "") if names else "nothing"
