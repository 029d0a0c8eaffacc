"""What turns raw data into a model's inputs: its tokenizer, image processor or feature extractor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, first_line
from anisoscope.store.files import impostor

# Where one of these is there, a processor that cannot be opened is damaged, not absent.
_FILES = {
    "text": ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"),
    "image": ("preprocessor_config.json",),
    "audio": ("preprocessor_config.json",),
}


def open_processor(modality: str, folder: Path, gguf: Path | None, trust_remote_code: bool) -> Any | None:
    """The processor of a folder, or of a GGUF file in it, for a modality; None if there is none."""
    import transformers as tf

    # For sound, a processor holds the feature extractor and, where the decoder speaks, its tokenizer.
    kinds: dict[str, tuple[Any, ...]] = {
        "text": (tf.AutoTokenizer,),
        "image": (tf.AutoImageProcessor,),
        "audio": (tf.AutoProcessor, tf.AutoFeatureExtractor),
    }
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    if gguf is not None:
        options["gguf_file"] = gguf.name
    problem: Exception | None = None
    for kind in kinds.get(modality, ()):
        try:
            found = kind.from_pretrained(folder, **options)
        except Exception as error:  # each kind has its own way to say that its files are not there, or damaged
            problem = error
            continue
        if gguf is not None or _usable(found, modality, folder):
            return found
    there = [name for name in _FILES.get(modality, ()) if (folder / name).is_file()]
    if problem is not None and there and gguf is None:
        raise _unopened(folder / there[0], problem)
    return None


def processor_name(processor: Any | None, modality: str) -> str | None:
    """What prepares the inputs, for the record: a class, or what is done where a folder has none."""
    if processor is not None:
        return type(processor).__name__
    return {
        "image": "none: resized to the configured size, values scaled to [-1, 1]",
        "audio": "none: 16 kHz, mono, zero mean and unit variance",
    }.get(modality)


def require_vocabulary(tokenizer: Any, rows: int | None, source: str) -> None:
    """Refuse a tokenizer with more words than the embedding has rows; added tokens, often unused, may go beyond."""
    if tokenizer is not None and rows is not None and tokenizer.vocab_size > rows:
        raise InputError(
            f"the tokenizer of {source} has {tokenizer.vocab_size:,} tokens but the model's embedding has {rows:,} "
            "rows; they do not belong together: put the model's own tokenizer into its folder"
        )


def _unopened(file: Path, problem: Exception) -> InputError:
    if "trust_remote_code" in str(problem):
        remedy = "it needs code of its own: trust_remote_code=True (--trust-remote-code) if you trust its author"
        return InputError(f"cannot open {file}: {remedy}")
    seen = impostor(file) or f"cannot be opened ({first_line(problem)}); copy or save it again"
    return InputError(f"{file}: {seen}")


def _usable(processor: Any, modality: str, folder: Path) -> bool:
    """Whether a processor came from files: without any, transformers makes an empty tokenizer and says nothing."""
    if modality == "audio":
        return hasattr(processor, "feature_extractor") or hasattr(processor, "sampling_rate")
    if modality != "text":
        return True
    names = set(processor.vocab_files_names.values())
    return not names or any((folder / name).is_file() for name in names)
