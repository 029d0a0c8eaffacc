"""Opening a model: a hub id, a folder, a GGUF file or a LoRA adapter becomes a module with its processor."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import AnisoscopeError, InputError, first_line
from anisoscope.models.adapters import Adapter, apply_adapter, is_adapter, missing_modules, read_adapter
from anisoscope.models.configs import require_plain_config
from anisoscope.models.devices import choose_device, choose_dtype
from anisoscope.models.gguf_files import gguf_quantization
from anisoscope.models.processors import open_processor, processor_name, require_vocabulary
from anisoscope.models.sources import Located, locate
from anisoscope.models.weight_files import PICKLES, stored_dtype, weight_files, weights_digest
from anisoscope.store.files import read_json

# folder, dtype, device -> model, processor, facts: what an entry point of the group `anisoscope.models` names
Opener = Callable[[Path, torch.dtype | None, torch.device], tuple[Any, Any, dict[str, Any]]]

# The input that a model names as its main one tells what it eats.
_MODALITIES = {"input_ids": "text", "pixel_values": "image", "input_values": "audio", "input_features": "audio"}

# The parts of models that pair two encoders (CLIP and its kin); one of them is measured at a time.
_TOWERS = {"image": "vision_model", "audio": "audio_model", "text": "text_model"}

# Weights that a checkpoint lacks are filled at random. A pooler may be; more than this share means the wrong class.
_RANDOM_SHARE = 0.1


@dataclass(frozen=True)
class Opened:
    """A model ready to be measured: in eval mode, its weights as they were trained.

    `modality` is "text", "image", "audio" or "other"; `info` is plain JSON that says what was opened and how.
    """

    model: torch.nn.Module
    processor: Any | None
    modality: str
    info: dict[str, Any]


@dataclass(frozen=True)
class _Wish:
    """What the caller of `open_model` asked for."""

    source: str
    revision: str | None
    dtype: str | torch.dtype | None
    device: torch.device
    device_map: Any
    trust_remote_code: bool
    allow_pickle: bool
    head: bool
    modality: str | None
    tensor_parallel: bool = False


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
    """A model and its processor from a hub id, a folder, a .gguf or .safetensors file, or a LoRA adapter's folder.

    `head` asks for the output head too, where the checkpoint has one (`info["head"]` says); `modality` picks the part
    of a model that pairs two encoders. Weights keep their stored dtype, except that a CPU gets float32 for halves.
    `tensor_parallel` splits every layer over the ranks of `torch.distributed`, by the plan that the model comes with.

    Example: `open_model("smollm2.gguf", head=True).model(**batch.inputs).logits`.
    """
    wish = _Wish(
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
    place = locate(source, revision, allow_pickle=allow_pickle, remote_code=trust_remote_code)
    with _one_line_errors(wish.source), _quiet():
        if place.file is None and is_adapter(place.folder):
            return _open_adapter(wish, place)
        opener = _registered_opener(place.folder)
        if opener is not None:
            return _open_registered(wish, place, opener)
        return _open_plain(wish, place)


def _open_plain(wish: _Wish, place: Located) -> Opened:
    import transformers

    files = weight_files(place.file or place.folder, allow_pickle=wish.allow_pickle)
    gguf = place.file if place.file is not None and place.file.suffix == ".gguf" else None
    options: dict[str, Any] = {"trust_remote_code": wish.trust_remote_code, "local_files_only": True}
    if gguf is not None:
        options["gguf_file"] = gguf.name
    quantization = gguf_quantization(gguf) if gguf is not None else None
    if gguf is None:
        require_plain_config(place.folder, files, trusted=wish.trust_remote_code)
    config = transformers.AutoConfig.from_pretrained(place.folder, **options)
    stored = None if gguf is not None else stored_dtype(files) or getattr(config, "dtype", None)
    if gguf is None and (quantization := _quantization(config)) is not None:
        options["dtype"] = wish.dtype or "auto"
    else:
        options["dtype"] = choose_dtype(wish.dtype, stored, wish.device)
    if wish.tensor_parallel:
        options["tp_plan"] = "auto"
    elif wish.device_map is not None or wish.device.type != "cpu":
        options["device_map"] = wish.device_map or {"": str(wish.device)}
    if place.file is None and not any(file.suffix in PICKLES for file in files):
        options["use_safetensors"] = True  # or a pickle beside files that it cannot use would be opened instead
    whole, random = _load(wish, place, config, options)
    model, modality = _part(whole, wish.modality)
    processor = open_processor(modality, place.folder, gguf, wish.trust_remote_code)
    rows = _embedding_rows(model)
    if modality == "text":
        require_vocabulary(processor, rows, wish.source)
    info = {
        "source": wish.source,
        "revision": wish.revision,
        "commit": place.commit,
        "model_type": config.model_type,
        "head": _has_head(whole),
        "modality": modality,
        "processor": processor_name(processor, modality),
        "stored_dtype": _dtype_name(stored),
        "device": str(wish.device if wish.device_map is None else wish.device_map),
        "digest": weights_digest(place.file or place.folder),
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
    """The opener that an installed package registered for the `model_type` in this folder's config.json."""
    path = folder / "config.json"
    try:
        model_type = read_json(path).get("model_type") if path.is_file() else None
    except (ValueError, AttributeError, OSError):
        return None  # opening it the usual way will report what is wrong
    entries = entry_points(group="anisoscope.models", name=model_type) if isinstance(model_type, str) else ()
    return next((entry.load() for entry in entries), None)


def _open_registered(wish: _Wish, place: Located, opener: Opener) -> Opened:
    model, processor, info = opener(place.folder, choose_dtype(wish.dtype, torch.float32, wish.device), wish.device)
    about = {"source": wish.source, "revision": None, "device": str(wish.device), **info}
    return Opened(model, processor, str(info["modality"]), about)


def _module_info(model: Any) -> dict[str, Any]:
    """What the module itself says."""
    return {
        "architecture": type(model).__name__,
        "dtype": _dtype_name(next((p.dtype for p in model.parameters() if p.is_floating_point()), None)),
        "attention": getattr(model.config, "_attn_implementation", None),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _open_adapter(wish: _Wish, place: Located) -> Opened:
    """The base model with the adapter applied; its backbone alone unless the head was asked for."""
    adapter = read_adapter(place.folder)
    base = _open_base(wish, adapter)
    whole: Any = apply_adapter(adapter, base.model)
    model = whole if wish.head else whole.base_model
    processor = open_processor(base.modality, place.folder, None, wish.trust_remote_code) or base.processor
    info = base.info | {
        "source": wish.source,
        "revision": wish.revision,
        "commit": place.commit,
        "head": base.info["head"] and wish.head,
        "adapter": {"kind": adapter.kind, "base": adapter.base, "digest": weights_digest(place.folder)},
        "libraries": base.info["libraries"] | {"peft": version("peft")},
    }
    return Opened(model.eval(), processor, base.modality, info | _module_info(model))


def _open_base(wish: _Wish, adapter: Adapter) -> Opened:
    """The base model that has the modules which an adapter changes: it was trained on one with or without a head."""
    missing: list[list[str]] = []
    for head in (True, False):
        try:
            place = locate(
                adapter.base, adapter.revision, allow_pickle=wish.allow_pickle, remote_code=wish.trust_remote_code
            )
            base = _open_plain(replace(wish, source=adapter.base, revision=adapter.revision, head=head), place)
        except AnisoscopeError as error:
            raise InputError(f"the base model of the adapter {wish.source}: {error}") from error
        missing.append(missing_modules(adapter, base.model))
        if not missing[-1]:
            return base
    nearest = min(missing, key=len)
    raise InputError(
        f"the adapter {wish.source} changes {nearest[0]} and {len(nearest) - 1} more modules that {adapter.base} "
        "does not have; write the base it was trained on into its adapter_config.json"
    )


def _load(wish: _Wish, place: Located, config: Any, options: dict[str, Any]) -> tuple[Any, list[str]]:
    """The model of the first class that the checkpoint's weights fill, and the names of weights filled at random."""
    problem = ""
    for kind, head in _classes(config, wish.head):
        model, loading = _from_pretrained(kind, place, config, options)
        missing = sorted(loading["missing_keys"])
        sizes = dict(model.named_parameters())
        share = sum(sizes[name].numel() for name in missing if name in sizes) / max(1, model.num_parameters())
        if not missing or (not head and share <= _RANDOM_SHARE):
            return model.base_model if head and not wish.head else model, missing
        problem = problem or f"{type(model).__name__} needs {missing[0]} and {len(missing) - 1} more"
    raise InputError(f"the weights of {wish.source} do not fit its config.json: {problem}; check that both are its own")


def _classes(config: Any, head: bool) -> list[tuple[Any, bool]]:
    """The classes to try in turn, each with whether it stands for a head: then nothing may be missing.

    The class that `architectures` names comes first where it is asked for, and last where a backbone is: a checkpoint
    of an odd class (T5EncoderModel) fills nothing else. Classes of the model's own code are reached by their auto name.
    """
    import transformers as tf

    own = getattr(config, "auto_map", None) or {}
    backbones = [*_known(tf.MODEL_MAPPING, config)[:1], *([tf.AutoModel] if "AutoModel" in own else [])]
    # A config may name anything that transformers has: only its models are taken.
    named = [kind for name in config.architectures or () if _is_model(kind := getattr(tf, name, None))]
    heads = [kind for kind in named if kind not in backbones]
    heads += [getattr(tf, name) for name in own if name.startswith("AutoModelFor")]
    heads += [kind for mapping in _head_mappings(config) for kind in _known(mapping, config)]
    with_head = [(kind, True) for kind in heads] if head or not backbones else []
    return [*with_head, *((kind, False) for kind in (*backbones, *named))]


def _is_model(kind: Any) -> bool:
    import transformers

    return isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)


def _known(mapping: Any, config: Any) -> tuple[Any, ...]:
    """The classes that transformers maps a configuration to: one, a few have two."""
    classes = mapping.get(type(config), ())
    return classes if isinstance(classes, tuple) else (classes,)


def _head_mappings(config: Any) -> list[Any]:
    import transformers as tf

    if getattr(config, "is_encoder_decoder", False):
        return [tf.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, tf.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING]
    both = [tf.MODEL_FOR_MASKED_LM_MAPPING, tf.MODEL_FOR_CAUSAL_LM_MAPPING]
    # BERT and its kin have both heads; only those that say so are decoders.
    return both[::-1] if getattr(config, "is_decoder", False) else both


def _from_pretrained(kind: Any, place: Located, config: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model of a class and the loader's account of it: from a folder, or from one file of tensors."""
    source: Path | None = place.folder
    if place.file is not None and place.file.suffix != ".gguf":
        source, options = None, options | {"state_dict": _tensors(place.file)}
    model, loading = kind.from_pretrained(source, config=config, output_loading_info=True, **options)
    return model, loading


def _tensors(file: Path) -> dict[str, Any]:
    if file.suffix != ".safetensors":
        return dict(torch.load(file, map_location="cpu", weights_only=True))
    from safetensors.torch import load_file

    return dict(load_file(file))


def _has_head(model: Any) -> bool:
    """Whether a model is more than a backbone: it has an output embedding, or keeps its backbone as a part."""
    return model.base_model is not model or model.get_output_embeddings() is not None


def _part(model: Any, asked: str | None) -> tuple[Any, str]:
    """The module to measure and its modality: one tower of a model that pairs two encoders, else the whole model."""
    towers = {kind: getattr(model, name) for kind, name in _TOWERS.items() if hasattr(model, name)}
    if "text" in towers and len(towers) > 1:
        kind = asked or next(iter(towers))
        if kind not in towers:
            raise InputError(f"{type(model).__name__} has no part for {kind}; it has {' and '.join(towers)}")
        return towers[kind], kind
    return model, _MODALITIES.get(model.main_input_name, "other")


def _embedding_rows(model: Any) -> int | None:
    """The rows of the input embedding; None where tokens are hashed or there are none."""
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return embedding.num_embeddings if isinstance(embedding, torch.nn.Embedding) else None


def _max_positions(model: Any, tokenizer: Any) -> int | None:
    """The longest window that a text model takes, or None where nothing bounds it."""
    config = model.config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    for name, module in model.named_modules():
        # Positions that start after the padding id (RoBERTa) leave fewer places than the table has rows.
        if "position" in name and isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    # Tokenizers write "no limit" as a number of thirty digits.
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Neither warnings nor progress bars of the libraries: the standard output may be carrying JSON."""
    import transformers

    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _one_line_errors(source: str) -> Iterator[None]:
    """Whatever a library raises while it opens a model, as one line that says what to do."""
    try:
        yield
    except AnisoscopeError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out_of_memory(source) from error
    except Exception as error:  # configurations and weights that are damaged or crafted raise dozens of kinds
        text = str(error)
        if "allocate memory" in text or "not enough memory" in text:
            raise _out_of_memory(source) from error
        if "trust_remote_code" in text:
            remedy = "it needs code of its own: trust_remote_code=True (--trust-remote-code) if you trust its author"
            raise InputError(f"cannot open {source}: {remedy}") from error
        if "ignore_mismatched_sizes" in text:
            told = "have other sizes than its config.json says; check that both are its own"
            raise InputError(f"the weights of {source} {told}") from error
        raise InputError(f"cannot open {source}: {first_line(error)}; check or save its files again") from error


def _out_of_memory(source: str) -> InputError:
    return InputError(
        f"not enough memory to open {source}; use a smaller dtype (dtype='bfloat16' on a GPU), "
        "spread it with device_map='auto', or a larger machine"
    )
