"""LoRA adapters: small trained matrices that are added to the unchanged weights of a base model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anisoscope.errors import InputError
from anisoscope.models.weight_files import pickle_refused, stored_tensors
from anisoscope.store.files import read_json, understood

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."


@dataclass(frozen=True)
class Adapter:
    """An adapter: its folder, its kind (such as LORA), its base model and the modules of the base that it changes."""

    folder: Path
    kind: str
    base: str
    revision: str | None
    modules: frozenset[str]


def is_adapter(folder: Path) -> bool:
    return (folder / _CONFIG).is_file()


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter from its folder.

    Raises:
        InputError: if it is a pickle, or of a kind that changes the input instead of modules.
    """
    with understood(folder / _CONFIG, "copy or save it again"):
        config: dict[str, Any] = dict(read_json(folder / _CONFIG))
    kind = str(config.get("peft_type", "?"))
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not base or not isinstance(base, str) or not isinstance(revision, str | None):
        raise InputError(f"{folder / _CONFIG} does not name the base model. Add base_model_name_or_path to it.")
    # Adapters are never loaded from a pickle, because every library that writes them uses safetensors by default.
    if not (folder / _WEIGHTS).is_file():
        raise pickle_refused(f"{folder} (it has no {_WEIGHTS})")
    names = stored_tensors(folder / _WEIGHTS)
    modules = frozenset(name.removeprefix(_PREFIX).partition(".lora_")[0] for name in names if ".lora_" in name)
    if not modules:
        raise InputError(
            f"{folder} is a {kind} adapter; only LoRA adapters are supported. Merge it into its base first."
        )
    local_base = folder / base
    return Adapter(folder, kind, str(local_base if local_base.is_dir() else base), revision, modules)


def missing_modules(adapter: Adapter, model: Any) -> list[str]:
    """List the modules that an adapter changes and a model does not have."""
    present = {name for name, _ in model.named_modules()}
    return sorted(adapter.modules - present)


def apply_adapter(adapter: Adapter, model: Any) -> Any:
    """Apply an adapter without merging it into the weights: y = Wx + s·B(Ax)."""
    import peft

    return peft.PeftModel.from_pretrained(model, str(adapter.folder)).get_base_model()
