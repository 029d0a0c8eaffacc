"""LoRA adapters: small trained matrices that are added to the unchanged weights of a base model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.extras import needs
from anisoscope.models.adapter_config import lora_options
from anisoscope.models.weight_files import pickle_refused, stored_tensors
from anisoscope.store.files import parse_errors, read_json

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_FIRST_MATRIX = re.compile(r"\.lora_(embedding_)?A\b")


@dataclass(frozen=True)
class Adapter:
    """An adapter: its folder, its base model, the modules of the base that it changes, and the options for PEFT."""

    folder: Path
    base: str
    revision: str | None
    modules: frozenset[str]
    options: dict[str, Any]


def is_adapter(folder: Path) -> bool:
    return (folder / _CONFIG).is_file()


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter from its folder.

    Raises:
        InputError: if it is a pickle, is not a LoRA, or has entries that a LoRA does not need (see adapter_config.py).
    """
    with parse_errors(folder / _CONFIG, "copy or save it again"):
        config: dict[str, Any] = dict(read_json(folder / _CONFIG))
    kind = str(config.get("peft_type", "?"))
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not base or not isinstance(base, str) or not isinstance(revision, str | None):
        raise InputError(f"{folder / _CONFIG} does not name the base model. Add base_model_name_or_path to it.")
    # Adapters are never loaded from a pickle, because every library that writes them uses safetensors by default.
    if not (folder / _WEIGHTS).is_file():
        raise pickle_refused(f"{folder} (it has no {_WEIGHTS})")
    ranks = {
        name.removeprefix(_PREFIX).partition(".lora_")[0]: tensor.shape[0]
        for name, tensor in stored_tensors(folder / _WEIGHTS).items()
        if _FIRST_MATRIX.search(name) and tensor.shape
    }
    if kind != "LORA" or not ranks:
        raise InputError(
            f"{folder} is a {kind} adapter; only LoRA adapters are supported. Merge it into its base first."
        )
    options = lora_options(config, ranks, str(folder))
    local_base = folder / base
    return Adapter(folder, str(local_base if local_base.is_dir() else base), revision, frozenset(ranks), options)


def missing_modules(adapter: Adapter, model: Any) -> list[str]:
    """List the modules that an adapter changes and a model does not have."""
    present = {name for name, _ in model.named_modules()}
    return sorted(adapter.modules - present)


def apply_adapter(adapter: Adapter, model: Any) -> Any:
    """Apply an adapter without merging it into the weights: y = Wx + s·B(Ax)."""
    with needs("hf", "a LoRA adapter"):
        import peft

    config = peft.LoraConfig(inference_mode=True, **adapter.options)
    return peft.PeftModel.from_pretrained(model, str(adapter.folder), config=config).get_base_model()
