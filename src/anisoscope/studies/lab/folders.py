"""Checkpoints of the lab, opened like any other model."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from anisoscope.errors import InputError
from anisoscope.models.weight_files import stored_tensors, weights_digest
from anisoscope.store.files import parse_errors, read_json
from anisoscope.studies.lab.transformer import MODEL_TYPE, Config, Transformer

_CONTEXT = 1 << 20  # tokens per window: rotary positions take memory that the weights file does not show


def open_lab_folder(
    folder: Path, dtype: torch.dtype | None, device: torch.device
) -> tuple[Transformer, Any, dict[str, Any]]:
    """Open a checkpoint of the lab: model, tokenizer and facts about both.

    `open_model` finds this function by the entry point `anisoscope.models` of the lab's model type.

    Raises:
        InputError: The checkpoint is damaged.
    """
    model = load_lab_model(folder, dtype, device)
    return model, lab_tokenizer(folder), lab_info(model, folder)


def load_lab_model(folder: Path, dtype: torch.dtype | None, device: torch.device) -> Transformer:
    """Load the model of a checkpoint of the lab, in eval mode."""
    with parse_errors(folder / "config.json", "copy the checkpoint again"):
        config = Config.from_json(read_json(folder / "config.json"))
    _require_fitting(folder, config)
    model = Transformer(config)
    with parse_errors(folder / "model.safetensors", "copy the checkpoint again"):
        missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    absent = [name for name in missing if not (config.tied and name == "head.weight")]  # which is the embedding
    if absent or unexpected:
        raise InputError(
            f"The weights in {folder} do not fit its config.json: {', '.join([*absent, *unexpected][:3])}. "
            "Copy the checkpoint again."
        )
    return model.to(device, dtype).eval()


def _require_fitting(folder: Path, config: Config) -> None:
    """Refuse a configuration larger than its weights, before memory is allocated for it."""
    stored = sum(math.prod(tensor.shape) for tensor in stored_tensors(folder / "model.safetensors").values())
    learned = config.context * config.width if config.positions == "learned" else 0
    needed = (config.vocabulary or 0) * config.width + learned + 2 * config.layers * config.width * config.mlp_width
    if needed > stored or config.context > _CONTEXT:
        raise InputError(
            f"{folder / 'config.json'} describes a model of at least {needed:,} weights with windows of "
            f"{config.context:,}, but model.safetensors has {stored:,}. Copy the checkpoint again."
        )


def lab_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a checkpoint of the lab."""
    import transformers

    with parse_errors(folder / "tokenizer.json", "copy the checkpoint again"):
        return transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def lab_info(model: Transformer, folder: Path) -> dict[str, Any]:
    """Return the facts about a model of the lab that `open_model` reports."""
    values = read_json(folder / "config.json")
    return {
        "commit": None,
        "model_type": MODEL_TYPE,
        "lab": values,
        "head": True,
        "modality": "text",
        "processor": "PreTrainedTokenizerFast",
        "stored_dtype": "float32",
        "digest": weights_digest(folder),
        "random_weights": [],
        "quantization": None,
        "adapter": None,
        "embedding_rows": model.config.vocabulary,
        "max_positions": model.config.context,
        "decoder_start": None,
        "libraries": {name: version(name) for name in ("torch", "transformers")},
        "architecture": type(model).__name__,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "attention": model.config.attention,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
