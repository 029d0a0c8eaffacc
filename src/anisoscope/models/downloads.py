"""Download checkpoints ahead of time, identify them by commit, and delete them after use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from anisoscope.errors import InputError
from anisoscope.models.checkpoints import Checkpoint
from anisoscope.models.sources import HUB_SECONDS, hub_library, is_hub_id, locate
from anisoscope.models.weight_files import weight_files, weights_digest
from anisoscope.store.files import user_path

_CHUNK = 1 << 24


def is_remote(source: str) -> bool:
    """Whether a source is a repository on the hub and not a path on this machine."""
    return not user_path(source).exists() and is_hub_id(source)


def contents(checkpoints: Iterable[Checkpoint]) -> list[str | None]:
    """Identify the weights of each checkpoint without loading them.

    Returns:
        For each checkpoint, the digest of its weights if it is on this machine, or its commit on the hub. If the hub
        cannot be reached, the commit in the local cache, else the name of the revision. None for a checkpoint that
        cannot be read.
    """
    commits: dict[str, dict[str, str]] = {}  # one request per repository
    keys: list[str | None] = []
    for checkpoint in checkpoints:
        source, revision = checkpoint.source, checkpoint.revision
        if checkpoint.problem is not None:
            keys.append(None)
        elif not is_remote(source):
            keys.append(weights_digest(user_path(source)))
        else:
            if source not in commits:
                commits[source] = _commits(source)
            known = commits[source].get(revision or "main") or _cached_commit(source, revision)
            keys.append(known or f"revision {revision}")
    return keys


def is_cached(source: str, revision: str | None) -> bool:
    """Whether a revision is in the local cache."""
    return _cached_commit(source, revision) is not None


def fetch(source: str, revision: str | None, *, allow_pickle: bool = False, remote_code: bool = False) -> None:
    """Download a checkpoint and read its weights once, so that the file cache of the system holds them."""
    located = locate(source, revision, allow_pickle=allow_pickle, remote_code=remote_code)
    for file in weight_files(located.file or located.folder, allow_pickle=allow_pickle):
        with file.open("rb", buffering=0) as stream:
            while stream.read(_CHUNK):
                pass


def forget(source: str, revision: str | None) -> None:
    """Delete a revision from the local cache; files shared with other revisions stay."""
    hub = hub_library()

    commit = _cached_commit(source, revision)
    if commit is not None:
        hub.scan_cache_dir(hub.constants.HF_HUB_CACHE).delete_revisions(commit).execute()


def _commits(repository: str) -> dict[str, str]:
    """Return the commits of a repository's branches and tags; empty if the hub cannot be reached."""
    hub = hub_library()

    try:
        hub.HfApi().model_info(repository, timeout=HUB_SECONDS)  # one request that is not retried
        refs = hub.HfApi().list_repo_refs(repository)
    except Exception:  # the hub's client raises its own errors and those of its transport
        return {}
    return {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)}


def _cached_commit(source: str, revision: str | None) -> str | None:
    hub = hub_library()

    for name in ("config.json", "adapter_config.json"):
        try:
            cached = hub.try_to_load_from_cache(source, name, revision=revision)
        except hub.errors.HFValidationError as error:
            raise InputError(f"{source!r} is not a repository on the hub. Use a folder or a hub id.") from error
        if isinstance(cached, str):
            return Path(cached).parent.name
    return None
