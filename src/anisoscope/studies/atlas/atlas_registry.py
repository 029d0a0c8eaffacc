"""The registry of the atlas: `atlas_models.toml`, one entry per model, read into frozen values."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, unknown
from anisoscope.studies.atlas.packages import Package

REGISTRY = "atlas_models.toml"
TOKENS = 16_384  # per model and text


@dataclass(frozen=True)
class Archive:
    """A package and the files of it that are used."""

    package: Package
    files: tuple[str, ...]


@dataclass(frozen=True)
class AtlasModel:
    """One model of the atlas, as the registry describes it.

    Attributes:
        name: Its name in the atlas.
        family: Its architecture, such as Llama.
        kind: decoder, encoder, encoder–decoder or convolutional.
        modality: What it reads, in words: "English", "antibodies", "speech".
        precision: How its weights are stored.
        licence: Of the weights.
        archives: The packages it is built from.
        build: The function of `builders` that makes its folder.
        options: Arguments of that function.
        input: The input in its domain, an entry of `inputs`.
        common: Whether it is also measured on the text that is common to all text models.
        check: The known-good check of `checks`, with its arguments.
        tokens: How many tokens are measured, at most.
        window: Tokens per window; None for the default.
        note: A sentence for the page.
        twin: The model whose untrained twin this one shares, because both have the same configuration.
    """

    name: str
    family: str
    kind: str
    modality: str
    precision: str
    licence: str
    archives: tuple[Archive, ...]
    build: str
    options: Mapping[str, Any]
    input: str
    common: bool
    check: Mapping[str, Any]
    tokens: int = TOKENS
    window: int | None = None
    note: str = ""
    twin: str = ""

    @property
    def download(self) -> int:
        """Bytes to download if nothing is in the cache."""
        return sum(archive.package.size for archive in self.archives)


@dataclass(frozen=True)
class AtlasInput:
    """Input of one domain: what it is, and how its file or folder is made."""

    name: str
    describes: str
    kind: str
    archives: tuple[Archive, ...]
    build: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Registry:
    """All models and inputs by name, in the order of the page."""

    models: Mapping[str, AtlasModel]
    inputs: Mapping[str, AtlasInput]

    def choose(self, names: Iterable[str]) -> list[AtlasModel]:
        """Return the models of these names or families, or all if there are none.

        Raises:
            InputError: No model has such a name; the nearest names are suggested.
        """
        chosen: dict[str, AtlasModel] = {}
        for name in names:
            matches = [m for m in self.models.values() if name == m.name]
            matches = matches or [m for m in self.models.values() if name == m.family]
            if not matches:
                raise unknown("model of the atlas", name, self.models)
            chosen.update({model.name: model for model in matches})
        return list(chosen.values()) or list(self.models.values())


@cache
def registry() -> Registry:
    """Return the registry that comes with the library.

    >>> registry().models["stories15M"].kind
    'decoder'
    """
    return read_registry(files(__package__).joinpath(REGISTRY).read_text("utf-8"))


def read_registry(text: str) -> Registry:
    """Read a registry in TOML.

    Raises:
        InputError: An entry lacks a field, or names a package or an input that is not listed.
    """
    values = tomllib.loads(text)
    packages = {name: Package(name=entry.pop("name", name), **entry) for name, entry in values["package"].items()}

    def archives(entry: dict[str, Any]) -> tuple[Archive, ...]:
        listed = entry.pop("archives", {})
        missing = sorted(set(listed) - set(packages))
        if missing:
            raise InputError(f"The registry names packages that it does not list: {', '.join(missing)}.")
        return tuple(Archive(packages[name], tuple(patterns)) for name, patterns in listed.items())

    inputs, models = {}, {}
    for name, entry in values["input"].items():
        kind, build, describes = (entry.pop(field) for field in ("kind", "build", "describes"))
        inputs[name] = AtlasInput(name, describes, kind, archives(entry), build, entry)
    fields = AtlasModel.__dataclass_fields__
    for name, entry in values["model"].items():
        if entry["input"] not in inputs:
            raise InputError(f"The registry lists no input {entry['input']!r}, which {name} needs.")
        files = archives(entry)
        options = {key: entry.pop(key) for key in list(entry) if key not in fields}
        models[name] = AtlasModel(name=name, archives=files, options=options, **{"common": False, **entry})
    return Registry(models, inputs)


def cache_folder() -> Path:
    """Return the folder for downloads, built models and runs: in XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anisoscope" / "atlas"
