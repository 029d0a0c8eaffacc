"""What turns raw data into a model's inputs: its tokenizer, image processor or feature extractor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope.errors import InputError


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
    for kind in kinds.get(modality, ()):
        found = _opened(kind, folder, options)
        if found is not None and (gguf is not None or _usable(found, modality, folder)):
            return found
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


def _opened(kind: Any, folder: Path, options: dict[str, Any]) -> Any | None:
    try:
        return kind.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        # Each kind of processor has its own way to say that its files are not there.
        return None


def _usable(processor: Any, modality: str, folder: Path) -> bool:
    """Whether a processor came from files: without any, transformers makes an empty tokenizer and says nothing."""
    if modality == "audio":
        return hasattr(processor, "feature_extractor") or hasattr(processor, "sampling_rate")
    if modality != "text":
        return True
    names = set(processor.vocab_files_names.values())
    return not names or any((folder / name).is_file() for name in names)
