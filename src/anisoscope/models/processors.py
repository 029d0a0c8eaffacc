"""Open what turns raw data into a model's inputs: its tokenizer, image processor or feature extractor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, first_line
from anisoscope.models.library_output import REMOTE_CODE_REMEDY
from anisoscope.store.files import wrong_content

# If one of these files exists, a processor that cannot be opened is damaged, not absent.
_FILES = {
    "text": ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model"),
    "image": ("preprocessor_config.json",),
    "audio": ("preprocessor_config.json",),
}


def open_processor(modality: str, folder: Path, gguf: Path | None, trust_remote_code: bool) -> Any | None:
    """Open the processor of a folder, or of a GGUF file in it; return None if it has none.

    Raises:
        InputError: if its files are damaged.
    """
    import transformers as tf

    # For audio, a processor holds the feature extractor and, if the decoder produces text, its tokenizer.
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
            processor = kind.from_pretrained(folder, **options)
        except Exception as error:  # each kind raises its own errors for missing or damaged files
            problem = error
            continue
        if gguf is not None or _is_usable(processor, modality, folder):
            return processor
    present = [name for name in _FILES.get(modality, ()) if (folder / name).is_file()]
    if problem is not None and present and gguf is None:
        raise _open_error(folder / present[0], problem)
    return None


def processor_name(processor: Any | None, modality: str) -> str | None:
    """Describe what prepares the inputs: a class name, or what is done if the folder has no processor."""
    if processor is not None:
        return type(processor).__name__
    return {
        "image": "none: resized to the configured size, values scaled to [-1, 1]",
        "audio": "none: 16 kHz, mono, zero mean and unit variance",
    }.get(modality)


def require_vocabulary(tokenizer: Any, rows: int | None, source: str) -> None:
    """Refuse a tokenizer with more words than the embedding has rows; added tokens, often unused, may exceed them."""
    if tokenizer is not None and rows is not None and tokenizer.vocab_size > rows:
        raise InputError(
            f"The tokenizer of {source} has {tokenizer.vocab_size:,} tokens but the model's embedding has {rows:,} "
            "rows. Put the tokenizer that the model was trained with into its folder."
        )


def _open_error(file: Path, problem: Exception) -> InputError:
    if "trust_remote_code" in str(problem):
        return InputError(f"Cannot open {file}. {REMOTE_CODE_REMEDY}")
    reason = wrong_content(file) or f"cannot be opened ({first_line(problem)}). Copy or save it again."
    return InputError(f"{file}: {reason}")


def _is_usable(processor: Any, modality: str, folder: Path) -> bool:
    """Whether a processor came from files: without any, transformers silently makes an empty tokenizer."""
    if modality == "audio":
        return hasattr(processor, "feature_extractor") or hasattr(processor, "sampling_rate")
    if modality != "text":
        return True
    names = set(processor.vocab_files_names.values())
    return not names or any((folder / name).is_file() for name in names)
