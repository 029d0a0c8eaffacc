"""LoRA and its kin: small trained matrices beside the weights of a base model, which stay as they are."""

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
    """An adapter's folder, its kind (LORA, …), the base model it names, and the modules of the base that it changes."""

    folder: Path
    kind: str
    base: str
    revision: str | None
    modules: frozenset[str]


def is_adapter(folder: Path) -> bool:
    return (folder / _CONFIG).is_file()


def read_adapter(folder: Path) -> Adapter:
    """An adapter from its folder; kinds that change the input instead of modules, and pickles, are refused."""
    with understood(folder / _CONFIG, "copy or save it again"):
        config: dict[str, Any] = dict(read_json(folder / _CONFIG))
    kind = str(config.get("peft_type", "?"))
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not base or not isinstance(base, str) or not isinstance(revision, str | None):
        raise InputError(f"{folder / _CONFIG} does not name its base model; write base_model_name_or_path into it")
    # Adapters are never loaded from a pickle: their safetensors form is the default of every library that writes them.
    if not (folder / _WEIGHTS).is_file():
        raise pickle_refused(f"{folder} (it has no {_WEIGHTS})")
    names = stored_tensors(folder / _WEIGHTS)
    modules = frozenset(name.removeprefix(_PREFIX).partition(".lora_")[0] for name in names if ".lora_" in name)
    if not modules:
        raise InputError(
            f"{folder} is a {kind} adapter; only LoRA adapters can be applied: merge it and give the result"
        )
    beside = folder / base
    return Adapter(folder, kind, str(beside if beside.is_dir() else base), revision, modules)


def missing_modules(adapter: Adapter, model: Any) -> list[str]:
    """The modules that an adapter changes and a model does not have."""
    present = {name for name, _ in model.named_modules()}
    return sorted(adapter.modules - present)


def apply_adapter(adapter: Adapter, model: Any) -> Any:
    """The model with the adapter's matrices beside its weights, not merged into them: y = Wx + s·B(Ax)."""
    import peft

    return peft.PeftModel.from_pretrained(model, str(adapter.folder)).get_base_model()
