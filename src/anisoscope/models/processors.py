"""Open what turns raw data into a model's inputs: its tokenizer, image processor or feature extractor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, first_line
from anisoscope.extras import needs
from anisoscope.models.gguf_files import gguf_begins_texts
from anisoscope.models.library_output import REMOTE_CODE_REMEDY
from anisoscope.store.files import parse_errors, read_json, wrong_content

_TOKENIZER_LIMIT = 256 << 20  # bytes; the largest published ones have about 35 MB
_MAX_GROWTH = 64.0

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

    if modality == "image":
        with needs("vision", "opening the processor of images"):
            import PIL  # noqa: F401  # transformers would report a damaged processor
    # For audio, a processor holds the feature extractor and, if the decoder produces text, its tokenizer.
    kinds: dict[str, tuple[Any, ...]] = {
        "text": (tf.AutoTokenizer,),
        "image": (tf.AutoImageProcessor,),
        "audio": (tf.AutoProcessor, tf.AutoFeatureExtractor),
    }
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    if gguf is not None:
        options["gguf_file"] = gguf.name
    require_bounded_normalizer(folder / "tokenizer.json")
    problem: Exception | None = None
    for kind in kinds.get(modality, ()):
        try:
            processor = kind.from_pretrained(folder, **options)
        except Exception as error:  # each kind raises its own errors for missing or damaged files
            problem = error
            continue
        if gguf is not None and processor.bos_token is not None and gguf_begins_texts(gguf):
            processor.add_bos_token = True
        if gguf is not None or _is_usable(processor, modality, folder):
            return processor
    present = [name for name in _FILES.get(modality, ()) if (folder / name).is_file()]
    if problem is not None and present and gguf is None:
        raise _open_error(folder / present[0], problem)
    return None


def require_bounded_normalizer(file: Path) -> None:
    """Refuse a tokenizer.json whose replacements could make a text more than 64 times longer, before it is opened.

    The bound multiplies, over all replacements, the length of the new text by that of the shortest text it replaces.
    What is put before a text counts as if the text were one character.

    Raises:
        InputError: If the tokenizer could fill the memory.
    """
    if not file.is_file():
        return
    with parse_errors(file, "copy or save it again"):
        growth = _growth(read_json(file, _TOKENIZER_LIMIT).get("normalizer"))
    if growth > _MAX_GROWTH:
        times = f"{growth:,.0f}" if growth < 1e9 else "over a billion"
        raise InputError(
            f"{file}: its normalizer could make a text {times} times longer, which no tokenizer needs. Copy it again."
        )


def _growth(step: Any) -> float:
    """By how much a normalizer, or any step inside it, can lengthen a text at most."""
    if isinstance(step, list):
        return math.prod(map(_growth, step))
    if not isinstance(step, dict):
        return 1.0
    if step.get("type") == "Replace":
        pattern, content = step.get("pattern", {}), str(step.get("content", ""))
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        # an expression can match at every position, even between two characters
        return max(1.0, len(content) / len(literal)) if literal else 1.0 + len(content)
    if step.get("type") == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    return math.prod(_growth(inner) for inner in step.values() if isinstance(inner, dict | list))


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
