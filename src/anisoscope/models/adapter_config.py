"""Check the configuration of a LoRA adapter, and pass only plain numbers and module names on to PEFT.

PEFT acts on more fields than a LoRA needs: it imports the module that `megatron_core` names, reads `target_modules` and
the keys of `rank_pattern` as regular expressions, and runs decompositions that `init_lora_weights` chooses. The fields
here are the only ones that reach it. The modules and ranks come from the stored weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from anisoscope.errors import InputError

_NAME = re.compile(r"\^?[\w.]{1,256}")
_MAX_NAMES = 4096
# These start at values that do not depend on the base model, and the stored weights replace them. The others (such as
# PiSSA) also change the weights of the base, so the stored matrices alone do not describe the adapted model.
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal")


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not _is_flag(value) and math.isfinite(value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_NAMES and all(map(_is_name, value))


def _are_numbers_by_name(value: Any) -> bool:
    return isinstance(value, dict) and _are_names(list(value)) and all(map(_is_number, value.values()))


def _are_token_ids(value: Any) -> bool:
    lists = list(value.values()) if isinstance(value, dict) and _are_names(list(value)) else [value]
    return all(isinstance(ids, list) and all(type(index) is int and index >= 0 for index in ids) for ids in lists)


# Passed on to PEFT, if they have the right form.
_PASSED: dict[str, Callable[[Any], bool]] = {
    "r": lambda value: type(value) is int and value > 0,
    "lora_alpha": _is_number,
    "lora_dropout": lambda value: _is_number(value) and 0 <= value < 1,
    "fan_in_fan_out": _is_flag,
    "bias": lambda value: value in ("none", "all", "lora_only"),
    "use_rslora": _is_flag,
    "use_dora": _is_flag,
    "lora_bias": _is_flag,
    "ensure_weight_tying": _is_flag,
    "modules_to_save": _are_names,
    "rank_pattern": _are_numbers_by_name,
    "alpha_pattern": _are_numbers_by_name,
    "trainable_token_indices": _are_token_ids,
}
# Read elsewhere, or known from the stored weights: never passed on, whatever their value.
_UNUSED = {
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "peft_type",
    "peft_version",
    "revision",
    "target_modules",
    "task_type",
}
# Written by PEFT into every adapter, although nothing uses them there.
_ORDINARY = {"megatron_core": "megatron.core", "qalora_group_size": 16}


def lora_options(values: Mapping[str, Any], ranks: Mapping[str, int], name: str) -> dict[str, Any]:
    """Turn the configuration of an adapter into the options of `peft.LoraConfig`.

    Args:
        values: the entries of adapter_config.json.
        ranks: for each module that the stored weights change, the rank of its matrices.
        name: the adapter, for messages.

    Raises:
        InputError: if an entry has an unexpected form, is unknown and not empty, or contradicts the stored weights.

    >>> lora_options({"r": 2, "lora_alpha": 4, "megatron_core": "megatron.core"}, {"h.0.mlp": 2}, "mine")
    {'r': 2, 'lora_alpha': 4, 'target_modules': ['h.0.mlp'], 'init_lora_weights': False}
    """
    options = {}
    for key, value in values.items():
        if key in _UNUSED or value is None or value is False or value in ({}, [], "") or _ORDINARY.get(key) == value:
            continue
        if key == "init_lora_weights":
            if value not in _PLAIN_STARTS:
                raise InputError(
                    f"The adapter {name} starts from {value!r}, which also changes the weights of its base. "
                    "Convert it to a plain LoRA, or merge it into its base and save the whole model."
                )
        elif key not in _PASSED:
            raise InputError(f"The adapter {name} has the entry {key!r}, which a plain LoRA does not. Remove it.")
        elif not _PASSED[key](value):
            raise InputError(f"The adapter {name} has {key} = {_short(value)}, which no LoRA has. Save it again.")
        else:
            options[key] = value
    _require_ranks(options, ranks, name)
    return {**options, "target_modules": sorted(ranks), "init_lora_weights": False}


def _require_ranks(options: Mapping[str, Any], ranks: Mapping[str, int], name: str) -> None:
    """Refuse ranks that the stored matrices do not have: PEFT would allocate matrices of that size."""
    stored = set(ranks.values())
    for rank in [options.get("r", 8), *options.get("rank_pattern", {}).values()]:
        if rank not in stored:
            raise InputError(
                f"The adapter {name} has rank {_short(rank)}, but its stored matrices have "
                f"{', '.join(map(str, sorted(stored)))}. Copy or save it again."
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
