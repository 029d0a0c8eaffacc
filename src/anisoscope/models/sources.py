"""Locate what a user named: a hub id, a folder or a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, first_line
from anisoscope.extras import needs
from anisoscope.models.weight_files import PICKLES, weight_names
from anisoscope.store.files import similar_paths, user_path

# One request, which the client does not retry, decides whether the hub can be reached.
HUB_SECONDS = 10.0

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_SMALL_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken")


@dataclass(frozen=True)
class Located:
    """A model on this machine: its folder, the weights file if one was named, and its commit on the hub."""

    folder: Path
    file: Path | None = None
    commit: str | None = None


def locate(
    source: str | Path, revision: str | None = None, *, allow_pickle: bool = False, remote_code: bool = False
) -> Located:
    """Locate the files of a model; download them to the local cache if the source is a hub id.

    Raises:
        InputError: if the source does not exist or cannot be downloaded.
    """
    path = user_path(source)
    if path.exists() and revision is not None:
        raise InputError(
            f"{path} is on this machine and has no revision {revision!r}. Use the folder of its checkpoint."
        )
    if path.is_file():
        return _located_file(path)
    if path.is_dir():
        return _located_folder(path)
    if path.exists():
        raise InputError(f"{path} is neither a regular file nor a folder. Use one that holds a model.")
    repository, gguf = str(source), None
    if path.suffix == ".gguf":
        repository, _, gguf = repository.rpartition("/")
    if not is_hub_id(repository):
        raise InputError(f"No model at {path}{similar_paths(path)}. Use a folder, a .gguf file or a hub id.")
    return _from_hub(repository, revision, gguf, allow_pickle, remote_code)


def is_hub_id(source: str | Path) -> bool:
    """Whether a name can be a repository on the hub, such as `gpt2` or `org/model`."""
    return bool(_HUB_ID.fullmatch(str(source))) and Path(source).suffix not in (".gguf", ".safetensors", *PICKLES)


def files_in(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """List the files with these suffixes in a folder and its subfolders, sorted by path.

    Raises:
        InputError: if there are none.
    """
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes and path.is_file() and not path.name.startswith(".")
    )
    if not files:
        raise InputError(f"{folder} has no {', '.join(suffixes)} file. Use another folder or a file.")
    return files


def named_files(source: str | Path | Iterable[str | Path], suffixes: Sequence[str]) -> list[Path]:
    """List the files that a user named: a folder (its files with these suffixes), a file, or a list of files.

    Raises:
        InputError: if there are none, or one does not exist.
    """
    names = [source] if isinstance(source, str | Path) else list(source)
    paths = [user_path(name) for name in names]
    if not paths:
        raise InputError("The list of files is empty. Name a folder or some files.")
    if len(paths) == 1 and paths[0].is_dir():
        return files_in(paths[0], suffixes)
    for path in paths:
        if not path.is_file():
            raise InputError(f"No file at {path}{similar_paths(path)}. Use a folder or files.")
    return paths


def hub_library() -> Any:
    """Return huggingface_hub.

    Raises:
        InputError: It is not installed.
    """
    with needs("hf", "a model on the hub"):
        import huggingface_hub
        import huggingface_hub.errors

    return huggingface_hub


def hub_refs(repository: str) -> list[str]:
    """List the branches and tags of a hub repository; without network, those in the local cache."""
    hub = hub_library()

    try:
        hub.HfApi().model_info(repository, timeout=HUB_SECONDS)
        refs = hub.HfApi().list_repo_refs(repository)
    except Exception as error:  # the hub's client raises its own errors and those of its transport
        if cached := cached_refs(repository):
            return cached
        raise _hub_error(repository, None, error) from error
    return [ref.name for ref in (*refs.branches, *refs.tags)]


def cached_refs(repository: str) -> list[str]:
    """List the revisions of a hub repository that are in the local cache."""
    folder = Path(hub_library().constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "refs"
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _located_file(path: Path) -> Located:
    if path.suffix.lower() not in (".gguf", ".safetensors", *PICKLES):
        raise InputError(
            f"{path} is not a model. Use a .gguf or .safetensors file, a folder or a hub id "
            "(to measure a file of vectors, leave out --text)."
        )
    if path.suffix.lower() != ".gguf" and not (path.parent / "config.json").is_file():
        raise InputError(f"The folder of {path} has no config.json. Put the model's configuration there.")
    return Located(path.parent, path)


def _located_folder(folder: Path) -> Located:
    if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
        return Located(folder)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return Located(folder, ggufs[0])
    if ggufs:
        raise InputError(f"{folder} has {len(ggufs)} GGUF files. Name one of {', '.join(p.name for p in ggufs)}.")
    inside = [*folder.glob("*/config.json"), *folder.glob("checkpoints/*/config.json")]
    newest = sorted(inside, key=lambda path: path.stat().st_mtime, reverse=True)
    names = [str(path.parent.relative_to(folder)) for path in newest]
    hint = "Use another folder."
    if names:
        hint = f"Models are in its folders {', '.join(names[:4])}: use one of them, such as {folder / names[0]}"
    raise InputError(f"{folder} is not a model: it has no config.json and no GGUF file. {hint}")


def _from_hub(
    repository: str, revision: str | None, gguf: str | None, allow_pickle: bool, remote_code: bool
) -> Located:
    hub = hub_library()

    try:
        info = hub.HfApi().model_info(repository, revision=revision, timeout=HUB_SECONDS)
    except Exception as error:  # the hub's client raises its own errors and those of its transport
        if (cached := _from_cache(repository, revision, gguf)) is not None:
            return cached
        raise _hub_error(repository, revision, error) from error
    names = [entry.rfilename for entry in info.siblings or ()]
    patterns = _files_to_download(names, repository, gguf, allow_pickle, remote_code)
    try:
        folder = Path(hub.snapshot_download(repository, revision=info.sha, allow_patterns=patterns))
    except Exception as error:
        raise _hub_error(repository, revision, error) from error
    return Located(folder, folder / gguf if gguf else None, info.sha)


def _files_to_download(
    names: Iterable[str], repository: str, gguf: str | None, allow_pickle: bool, remote_code: bool
) -> list[str]:
    """List the files of a repository to download: small files of the top folder and one kind of weights."""
    top = [name for name in names if "/" not in name]
    ggufs = [name for name in top if name.endswith(".gguf")]
    if gguf is not None and gguf not in ggufs:
        raise InputError(f"{repository} has no file {gguf}. Its GGUF files: {', '.join(ggufs) or 'none'}.")
    if gguf is None and ggufs and "config.json" not in top:
        raise InputError(f"{repository} holds GGUF files. Name one, such as {repository}/{ggufs[0]}")
    weights = [gguf] if gguf else weight_names(top, repository, allow_pickle=allow_pickle)
    small = (*_SMALL_SUFFIXES, ".py") if remote_code else _SMALL_SUFFIXES
    return [name for name in top if Path(name).suffix in small] + weights


def _from_cache(repository: str, revision: str | None, gguf: str | None) -> Located | None:
    """Locate a model that was downloaded before, by the one file that every model has."""
    hub = hub_library()

    for name in (gguf,) if gguf else ("config.json", "adapter_config.json"):
        cached = hub.try_to_load_from_cache(repository, name, revision=revision)
        if isinstance(cached, str):
            folder = Path(cached).parent
            return Located(folder, folder / gguf if gguf else None, folder.name)
    return None


def _hub_error(repository: str, revision: str | None, error: Exception) -> InputError:
    """Turn an error of the hub's client into one line."""
    errors = hub_library().errors

    if isinstance(error, errors.GatedRepoError):
        return InputError(f"{repository} is gated. Request access on its page and log in (hf auth login).")
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{repository} has no revision {revision!r}. Check its branches and tags.")
    if isinstance(error, errors.RepositoryNotFoundError):
        local = similar_paths(Path(repository))
        return InputError(f"No model {repository!r} on the hub, and no such folder{local}. Check the name, or log in.")
    if isinstance(error, errors.OfflineModeIsEnabled):
        reason = "offline mode is on (HF_HUB_OFFLINE)"
    else:
        reason = f"the hub cannot be reached ({first_line(error)})"
    name = repository if revision is None else f"{repository} at {revision}"
    return InputError(
        f"{name} is neither a folder{similar_paths(Path(repository))} nor in the local cache, and {reason}. "
        "Check the name and the network, or use a folder."
    )
