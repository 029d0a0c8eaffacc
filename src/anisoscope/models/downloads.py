"""Checkpoints on their way to this machine: fetched ahead, known by their commit, forgotten when measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from anisoscope.errors import InputError
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.sources import HUB_SECONDS, is_hub_id, locate
from anisoscope.models.weight_files import weight_files, weights_digest
from anisoscope.store.files import given_path

_CHUNK = 1 << 24


def is_remote(source: str) -> bool:
    """Whether a source names a repository of the hub and nothing on this machine."""
    return not given_path(source).exists() and is_hub_id(source)


def contents(checkpoints: Iterable[Checkpoint]) -> list[str | None]:
    """What names each checkpoint's weights without loading them: their digest here, the commit on the hub.

    A hub that cannot be reached is asked through the local cache; where that has nothing, the revision stands for
    itself. None for a checkpoint that cannot be read.
    """
    commits: dict[str, dict[str, str]] = {}  # each repository is asked once
    found: list[str | None] = []
    for checkpoint in checkpoints:
        source, revision = checkpoint.source, checkpoint.revision
        if checkpoint.problem is not None:
            found.append(None)
        elif not is_remote(source):
            found.append(weights_digest(given_path(source)))
        else:
            if source not in commits:
                commits[source] = _commits(source)
            known = commits[source].get(revision or "main") or _cached_commit(source, revision)
            found.append(known or f"revision {revision}")
    return found


def is_cached(source: str, revision: str | None) -> bool:
    """Whether a revision was downloaded to this machine before."""
    return _cached_commit(source, revision) is not None


def fetch(source: str, revision: str | None, *, allow_pickle: bool = False, remote_code: bool = False) -> None:
    """Brings a checkpoint to this machine and its weights into the system's cache of files: opening is quick then."""
    place = locate(source, revision, allow_pickle=allow_pickle, remote_code=remote_code)
    for file in weight_files(place.file or place.folder, allow_pickle=allow_pickle):
        with file.open("rb", buffering=0) as stream:
            while stream.read(_CHUNK):
                pass


def forget(source: str, revision: str | None) -> None:
    """Takes a revision out of the local cache of downloads; what other revisions share with it stays."""
    import huggingface_hub as hub

    commit = _cached_commit(source, revision)
    if commit is not None:
        hub.scan_cache_dir(hub.constants.HF_HUB_CACHE).delete_revisions(commit).execute()


def _commits(repository: str) -> dict[str, str]:
    """The commits of a repository's branches and tags; none where the hub cannot be asked."""
    import huggingface_hub as hub

    try:
        hub.HfApi().model_info(repository, timeout=HUB_SECONDS)  # one request that is not repeated
        refs = hub.HfApi().list_repo_refs(repository)
    except Exception:  # the hub's client raises its own errors and those of its transport
        return {}
    return {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)}


def _cached_commit(source: str, revision: str | None) -> str | None:
    import huggingface_hub as hub

    for name in ("config.json", "adapter_config.json"):
        try:
            found = hub.try_to_load_from_cache(source, name, revision=revision)
        except hub.errors.HFValidationError as error:
            raise InputError(f"{source!r} is no repository of the hub; give a folder or an id") from error
        if isinstance(found, str):
            return Path(found).parent.name
    return None
