"""Files of statistics: stats/<step>/<site>~<tokens>[~<block>].safetensors."""

from __future__ import annotations

import os
import re
import shutil
import string
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from anisoscope.errors import InputError, StoreError
from anisoscope.records import Site
from anisoscope.store.files import file_errors, open_plain, replacing, require_folder, sweep_temporaries

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

Address = tuple[int, str, str, int | None]  # (step, site, tokens, block) of a statistic

_PLAIN = frozenset(string.ascii_lowercase + string.digits + "-_.")
_SUFFIX = ".safetensors"
_NAME_LIMIT = 240  # characters; most file systems allow 255


def statistics_path(stats: Path, step: int, site: str, tokens: str, block: int | None) -> Path:
    """The file of one address; an InputError if the address is not valid."""
    if type(step) is not int:
        raise InputError(f"the step of a statistic must be a whole number, got {step!r}")
    return stats / str(step) / _file_name(site, tokens, block)


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write the arrays to a file, whole or not at all; an older file is replaced."""
    from safetensors.numpy import save_file

    plain = {name: _plain_array(name, array) for name, array in arrays.items()}
    with file_errors("write", path):
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(exist_ok=True)
            require_folder(folder)
        sweep_temporaries(path.parent)
        with replacing(path) as temporary:
            save_file(plain, temporary)


def load_arrays(path: Path, missing: str) -> dict[str, Any]:
    """The arrays of a file; `missing` is the message of the StoreError if there is no such file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    with file_errors("read", path):
        try:
            for folder in (path.parent.parent, path.parent):
                require_folder(folder)
            os.close(open_plain(path, os.O_RDONLY))  # refuses links and pipes
            return dict(load_file(path))
        except FileNotFoundError as error:
            raise StoreError(missing) from error
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise StoreError(f"{path} is not a file of statistics ({error}); measure this step again") from error


def stored_addresses(stats: Path) -> list[Address]:
    """All addresses that have a file, by step, then by site in the order of a forward pass."""
    addresses: list[tuple[int, Site, str, int]] = []
    for step, folder in _step_folders(stats):
        with file_errors("list", folder):
            names = os.listdir(folder)
        addresses += [(step, *parts) for parts in map(_parse_file_name, names) if parts is not None]
    return [(step, str(site), tokens, None if block < 0 else block) for step, site, tokens, block in sorted(addresses)]


def remove_from_step(stats: Path, step: int) -> None:
    """Delete the statistics of this step and of all later ones."""
    for number, folder in _step_folders(stats):
        if number >= step:
            with file_errors("remove", folder):
                shutil.rmtree(folder)


def _encoded(text: str) -> str:
    """Percent-encoding that is safe as a file name everywhere; capitals too, because some disks ignore case.

    >>> _encoded("weight.A/b")
    'weight.%41%2fb'
    """
    return "".join(c if c in _PLAIN else "".join(f"%{byte:02x}" for byte in c.encode()) for c in text)


def _file_name(site: str, tokens: str, block: int | None) -> str:
    if not tokens or not (block is None or (type(block) is int and block >= 0)):
        raise InputError(f"statistics need a token policy and a block number from 0 on, got {tokens!r} and {block!r}")
    parts = [str(Site.parse(site)), tokens] + ([] if block is None else [str(block)])
    try:
        name = "~".join(map(_encoded, parts)) + _SUFFIX
    except UnicodeEncodeError as error:
        raise InputError(f"{site!r} and {tokens!r} cannot be in a file name: {error}") from error
    if len(name) > _NAME_LIMIT:
        raise InputError(f"site {site!r} with tokens {tokens!r} is too long for a file name; shorten it")
    return name


def _parse_file_name(name: str) -> tuple[Site, str, int] | None:
    """(site, tokens, block or -1) of a file that `save_arrays` wrote; None for any other file."""
    parts = name.removesuffix(_SUFFIX).split("~")
    if len(parts) not in (2, 3):
        return None
    with suppress(ValueError, InputError):
        site, tokens = (unquote(part, errors="strict") for part in parts[:2])
        block = int(parts[2]) if len(parts) == 3 else None
        # Only the name that this module would write itself: any other file is not ours.
        if _file_name(site, tokens, block) == name:
            return Site.parse(site), tokens, -1 if block is None else block
    return None


def _step_folders(stats: Path) -> list[tuple[int, Path]]:
    """The folders of steps that have statistics; none if `stats` does not exist."""
    if not os.path.lexists(stats):
        return []
    with file_errors("list", stats):
        require_folder(stats)
        names = [name for name in os.listdir(stats) if re.fullmatch(r"0|-?[1-9][0-9]{0,18}", name)]
        for name in names:
            require_folder(stats / name)
    return [(int(name), stats / name) for name in names]


def _plain_array(name: str, array: Any) -> np.ndarray[Any, Any]:
    """A contiguous array in the machine's byte order, as safetensors needs it."""
    import numpy as np

    if name in ("", "__metadata__"):
        raise InputError(f"an array of a statistic cannot be called {name!r}")
    if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        kind = getattr(array, "dtype", type(array).__name__)
        raise InputError(f"statistics must be numpy arrays of numbers, {name!r} is {kind}; convert it first")
    # asarray, not ascontiguousarray: the latter turns a scalar into an array of one.
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
