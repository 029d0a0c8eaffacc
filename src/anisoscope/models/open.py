"""Open a model from a hub id, a folder, a GGUF file or a LoRA adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.extras import needs
from anisoscope.models.adapters import Adapter, apply_adapter, is_adapter, missing_modules, read_adapter
from anisoscope.models.configs import require_safe_config
from anisoscope.models.construction import bounded_construction
from anisoscope.models.devices import choose_device, choose_dtype
from anisoscope.models.gguf_files import gguf_quantization, read_once, tensors_in_gguf
from anisoscope.models.library_output import one_line_errors, quiet
from anisoscope.models.loading import load_weights
from anisoscope.models.processors import open_processor, processor_name, require_vocabulary
from anisoscope.models.sources import Located, locate
from anisoscope.models.weight_files import PICKLES, stored_dtype, weight_files, weights_digest
from anisoscope.store.files import read_json

# What an entry point of the group `anisoscope.models` refers to: (folder, dtype, device) -> (model, processor, info).
# `info` needs "modality" and may set any other key of `Opened.info`.
Opener = Callable[[Path, torch.dtype | None, torch.device], tuple[Any, Any, dict[str, Any]]]

# The modality of a model by the name of its main input.
_MODALITIES = {"input_ids": "text", "pixel_values": "image", "input_values": "audio", "input_features": "audio"}

# The parts of models that pair two encoders (such as CLIP); one of them is measured at a time.
_TOWERS = {"image": "vision_model", "audio": "audio_model", "text": "text_model"}


@dataclass(frozen=True)
class Opened:
    """A model ready to be measured: in eval mode, with its weights as trained.

    Attributes:
        model: the module.
        processor: its tokenizer, image processor or feature extractor; None if it has none.
        modality: "text", "image", "audio" or "other".
        info: what was opened and how, as plain JSON.
    """

    model: torch.nn.Module
    processor: Any | None
    modality: str
    info: dict[str, Any]


@dataclass(frozen=True)
class OpenOptions:
    """The arguments of `open_model`."""

    source: str
    revision: str | None
    dtype: str | torch.dtype | None
    device: torch.device
    device_map: Any
    trust_remote_code: bool
    allow_pickle: bool
    head: bool
    modality: str | None
    tensor_parallel: bool


def open_model(
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    head: bool = False,
    modality: str | None = None,
    tensor_parallel: bool = False,
) -> Opened:
    """Open a model and its processor.

    Args:
        source: a hub id, a folder, a .gguf or .safetensors file, or the folder of a LoRA adapter.
        revision: branch, tag or commit on the hub.
        dtype: dtype of the weights. The default is the stored one, but float32 on a CPU if they are stored in half
            precision.
        device: where to put the model. The default is the first GPU, or the CPU.
        device_map: as in transformers, to spread a model over several devices.
        trust_remote_code: run code that comes with the model.
        allow_pickle: open weights that are pickles, which can run any code.
        head: load the output head too if the checkpoint has one; `info["head"]` records whether it has.
        modality: which part of a model that pairs two encoders: "text", "image" or "audio".
        tensor_parallel: split every layer over the ranks of `torch.distributed`.

    Returns:
        The model in eval mode, its processor, its modality, and what was opened and how (`info`).

    Raises:
        InputError: if the model cannot be found, is damaged, or is unsafe to open.

    Example: `open_model("smollm2.gguf", head=True).model(**batch.inputs).logits`.
    """
    options = OpenOptions(
        source=str(source),
        revision=revision,
        dtype=dtype,
        device=choose_device(device),
        device_map=device_map,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        head=head,
        modality=modality,
        tensor_parallel=tensor_parallel,
    )
    located = locate(source, revision, allow_pickle=allow_pickle, remote_code=trust_remote_code)
    with one_line_errors(options.source), quiet(), read_once(located.file):
        if located.file is None and is_adapter(located.folder):
            return _open_adapter(options, located)
        opener = _registered_opener(located.folder)
        if opener is not None:
            return _open_registered(options, located, opener)
        return _open_with_transformers(options, located)


def opened_module(model: torch.nn.Module, processor: Any | None = None) -> Opened:
    """Return a module that was made elsewhere in the form of an opened model; the module itself is not changed.

    Args:
        model: any torch module. Without `main_input_name`, as models of transformers have, it is taken to read text.
        processor: its tokenizer, image processor or feature extractor.
    """
    modality = _MODALITIES.get(getattr(model, "main_input_name", "input_ids"), "other")
    config = getattr(model, "config", None)
    info = {
        "source": type(model).__name__,
        "modality": modality,
        "processor": None if processor is None else processor_name(processor, modality),
        "embedding_rows": _embedding_rows(model) if hasattr(model, "get_input_embeddings") else _largest_table(model),
        "max_positions": _max_positions(model, processor) if hasattr(config, "get_text_config") else None,
        "decoder_start": _decoder_start(config),
    }
    return Opened(model, processor, modality, info | _module_info(model))


def _open_with_transformers(options: OpenOptions, located: Located) -> Opened:
    with needs("hf", f"opening {options.source}"):
        import transformers

    files = weight_files(located.file or located.folder, allow_pickle=options.allow_pickle)
    gguf = located.file if located.file is not None and located.file.suffix == ".gguf" else None
    keywords: dict[str, Any] = {"trust_remote_code": options.trust_remote_code, "local_files_only": True}
    if gguf is not None:
        keywords["gguf_file"] = gguf.name
    quantization = gguf_quantization(gguf) if gguf is not None else None
    if gguf is None:
        tensors = require_safe_config(located.folder, files, trusted=options.trust_remote_code)
    else:
        tensors = tensors_in_gguf(gguf)
    config = transformers.AutoConfig.from_pretrained(located.folder, **keywords)
    if not isinstance(config.get_text_config(), transformers.PreTrainedConfig):
        raise InputError(
            f"The config.json of {options.source} nests a configuration that {config.model_type} does not have. "
            "Copy it again."
        )
    stored = None if gguf is not None else stored_dtype(files) or getattr(config, "dtype", None)
    if gguf is None and (quantization := _quantization(config)) is not None:
        keywords["dtype"] = options.dtype or "auto"
    else:
        keywords["dtype"] = choose_dtype(options.dtype, stored, options.device)
    if options.tensor_parallel:
        keywords["tp_plan"] = "auto"
    elif options.device_map is not None or options.device.type != "cpu":
        keywords["device_map"] = options.device_map or {"": str(options.device)}
    if located.file is None and not any(file.suffix in PICKLES for file in files):
        keywords["use_safetensors"] = True  # otherwise transformers would fall back to a pickle in the same folder
    with bounded_construction(options.source, tensors, files):
        whole, random = load_weights(options.source, located, config, keywords, head=options.head)
    model, modality = _part(whole, options.modality)
    processor = open_processor(modality, located.folder, gguf, options.trust_remote_code)
    rows = _embedding_rows(model)
    if modality == "text":
        require_vocabulary(processor, rows, options.source)
    info = {
        "source": options.source,
        "revision": options.revision,
        "commit": located.commit,
        "model_type": config.model_type,
        "head": _has_head(whole),
        "modality": modality,
        "processor": processor_name(processor, modality),
        "stored_dtype": _dtype_name(stored),
        "device": str(options.device if options.device_map is None else options.device_map),
        "digest": weights_digest(located.file or located.folder),
        "random_weights": random,
        "quantization": quantization,
        "adapter": None,
        "embedding_rows": rows,
        "max_positions": _max_positions(model, processor if modality == "text" else None),
        "decoder_start": _decoder_start(config),
        "libraries": {name: version(name) for name in ("torch", "transformers", *(["gguf"] if gguf else []))},
    }
    return Opened(model.eval(), processor, modality, info | _module_info(model))


def _registered_opener(folder: Path) -> Opener | None:
    """Return the function that a package registered for the `model_type` in this folder's config.json."""
    path = folder / "config.json"
    try:
        model_type = read_json(path).get("model_type") if path.is_file() else None
    except (ValueError, AttributeError, OSError):
        return None  # transformers will report what is wrong with it
    entries = entry_points(group="anisoscope.models", name=model_type) if isinstance(model_type, str) else ()
    # A package that is on the path twice has the same entry twice; two different ones are a conflict.
    values = sorted({entry.value for entry in entries})
    if len(values) > 1:
        raise InputError(
            f"Several installed packages open models of type {model_type!r}: {', '.join(values)}. "
            "Uninstall all but one of them."
        )
    return next((entry.load() for entry in entries), None)


def _open_registered(options: OpenOptions, located: Located, opener: Opener) -> Opened:
    dtype = choose_dtype(options.dtype, torch.float32, options.device)
    model, processor, info = opener(located.folder, dtype, options.device)
    if info.get("modality") not in ("text", "image", "audio", "other"):
        raise InputError(
            f"The opener of {options.source} returned no modality. "
            "Its info needs 'modality': 'text', 'image', 'audio' or 'other'."
        )
    defaults: dict[str, Any] = {
        "source": options.source,
        "revision": options.revision,
        "commit": located.commit,
        "model_type": None,
        "head": False,
        "processor": processor_name(processor, info["modality"]),
        "stored_dtype": None,
        "device": str(options.device),
        "digest": None,
        "random_weights": [],
        "quantization": None,
        "adapter": None,
        "embedding_rows": None,
        "max_positions": None,
        "decoder_start": None,
        "libraries": {"torch": version("torch")},
    }
    return Opened(model.eval(), processor, info["modality"], defaults | _module_info(model) | info)


def _module_info(model: Any) -> dict[str, Any]:
    """Facts that are read from the module."""
    return {
        "architecture": type(model).__name__,
        "dtype": _dtype_name(next((p.dtype for p in model.parameters() if p.is_floating_point()), None)),
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _open_adapter(options: OpenOptions, located: Located) -> Opened:
    """Open the base model with the adapter applied; only its backbone unless the head was requested."""
    adapter = read_adapter(located.folder)
    base = _open_base(options, adapter)
    whole: Any = apply_adapter(adapter, base.model)
    model = whole if options.head else whole.base_model
    processor = open_processor(base.modality, located.folder, None, options.trust_remote_code) or base.processor
    info = base.info | {
        "source": options.source,
        "revision": options.revision,
        "commit": located.commit,
        "head": base.info["head"] and options.head,
        "adapter": {"kind": "LORA", "base": adapter.base, "digest": weights_digest(located.folder)},
        "libraries": base.info["libraries"] | {"peft": version("peft")},
    }
    return Opened(model.eval(), processor, base.modality, info | _module_info(model))


def _open_base(options: OpenOptions, adapter: Adapter) -> Opened:
    """Open the base model, with or without head, so that it has all modules that the adapter changes."""
    missing: list[list[str]] = []
    for head in (True, False):
        try:
            located = locate(
                adapter.base, adapter.revision, allow_pickle=options.allow_pickle, remote_code=options.trust_remote_code
            )
            base_options = replace(options, source=adapter.base, revision=adapter.revision, head=head)
            base = _open_with_transformers(base_options, located)
        except AnisoscopeError as error:
            raise InputError(f"The base model of the adapter {options.source} cannot be opened: {error}") from error
        missing.append(missing_modules(adapter, base.model))
        if not missing[-1]:
            return base
    nearest = min(missing, key=len)
    raise InputError(
        f"The adapter {options.source} changes {nearest[0]} and {len(nearest) - 1} more modules that {adapter.base} "
        "does not have. Write the base model it was trained on into its adapter_config.json."
    )


def _has_head(model: Any) -> bool:
    """Whether a model is more than a backbone: it has an output embedding, or contains its backbone."""
    return model.base_model is not model or model.get_output_embeddings() is not None


def _part(model: Any, requested: str | None) -> tuple[Any, str]:
    """Return the module to measure and its modality: one part of a model that pairs two encoders, else the model."""
    towers = {kind: getattr(model, name) for kind, name in _TOWERS.items() if hasattr(model, name)}
    if "text" in towers and len(towers) > 1:
        kind = requested or next(iter(towers))
        if kind not in towers:
            raise InputError(f"{type(model).__name__} has no part for {kind}, only for {' and '.join(towers)}.")
        return towers[kind], kind
    return model, _MODALITIES.get(model.main_input_name, "other")


def _embedding_rows(model: Any) -> int | None:
    """Number of rows of the input embedding; None if tokens are hashed or there are none."""
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return embedding.num_embeddings if isinstance(embedding, torch.nn.Embedding) else None


def _largest_table(model: torch.nn.Module) -> int | None:
    """Number of rows of the largest embedding of a plain module; None if it has none."""
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return max(tables, default=None)


def _max_positions(model: Any, tokenizer: Any) -> int | None:
    """Longest window that a text model takes; None if there is no limit."""
    config = model.config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    for name, module in model.named_modules():
        # Positions that start after the padding id (RoBERTa) leave fewer positions than the table has rows.
        if "position" in name and isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    # Tokenizers represent "no limit" by a number of thirty digits.
    return min((limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**9), default=None)


def _decoder_start(config: Any) -> int | None:
    if not getattr(config, "is_encoder_decoder", False):
        return None
    start = getattr(config, "decoder_start_token_id", None)
    return start if start is not None else getattr(config, "bos_token_id", None)


def _quantization(config: Any) -> str | None:
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
    return str(getattr(method, "value", method))


def _dtype_name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")
