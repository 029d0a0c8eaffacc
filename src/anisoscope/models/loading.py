"""Load weights into the right class of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import InputError
from anisoscope.models.sources import Located

# Weights that a checkpoint lacks are initialised at random. That is acceptable for a pooler; if more than this share
# of the parameters is missing, the class is wrong.
_MAX_RANDOM_SHARE = 0.1


def load_weights(
    source: str, located: Located, config: Any, options: dict[str, Any], *, head: bool
) -> tuple[Any, list[str]]:
    """Load a model with the first class whose parameters the checkpoint fills.

    Args:
        source: the name to use in errors.
        located: the model's files.
        config: its configuration.
        options: keyword arguments of `from_pretrained`.
        head: whether to load the output head too.

    Returns:
        The model, and the names of the weights that were initialised at random.
    """
    problem = ""
    for kind, has_head in _classes(config, head):
        model, loading = _from_pretrained(kind, located, config, options)
        missing = sorted(loading["missing_keys"])
        sizes = dict(model.named_parameters())
        share = sum(sizes[name].numel() for name in missing if name in sizes) / max(1, model.num_parameters())
        if not missing or (not has_head and share <= _MAX_RANDOM_SHARE):
            return model.base_model if has_head and not head else model, missing
        problem = problem or f"{type(model).__name__} needs {missing[0]} and {len(missing) - 1} more"
    raise InputError(
        f"The weights of {source} do not fit its config.json: {problem}. Check that both belong to the same model."
    )


def _classes(config: Any, head: bool) -> list[tuple[Any, bool]]:
    """List the classes to try in order, each with whether it has a head (then no weight may be missing).

    The class named in `architectures` comes first if a head is requested and last otherwise: a checkpoint of a rare
    class (T5EncoderModel) fills no other class. Classes defined by the model's own code are reached by their auto name.
    """
    import transformers as tf

    auto_map = getattr(config, "auto_map", None) or {}
    backbones = [*_mapped_classes(tf.MODEL_MAPPING, config)[:1], *([tf.AutoModel] if "AutoModel" in auto_map else [])]
    # A config may name anything in transformers; only models are accepted.
    named = [kind for name in config.architectures or () if _is_model(kind := getattr(tf, name, None))]
    heads = [kind for kind in named if kind not in backbones]
    heads += [getattr(tf, name) for name in auto_map if name.startswith("AutoModelFor")]
    heads += [kind for mapping in _head_mappings(config) for kind in _mapped_classes(mapping, config)]
    with_head = [(kind, True) for kind in heads] if head or not backbones else []
    return [*with_head, *((kind, False) for kind in (*backbones, *named))]


def _is_model(kind: Any) -> bool:
    import transformers

    return isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)


def _mapped_classes(mapping: Any, config: Any) -> tuple[Any, ...]:
    """The classes that transformers maps a configuration to: usually one, sometimes two."""
    classes = mapping.get(type(config), ())
    return classes if isinstance(classes, tuple) else (classes,)


def _head_mappings(config: Any) -> list[Any]:
    import transformers as tf

    if getattr(config, "is_encoder_decoder", False):
        return [tf.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, tf.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING]
    both = [tf.MODEL_FOR_MASKED_LM_MAPPING, tf.MODEL_FOR_CAUSAL_LM_MAPPING]
    # BERT and similar models have both heads; only those with `is_decoder` are decoders.
    return both[::-1] if getattr(config, "is_decoder", False) else both


def _from_pretrained(kind: Any, located: Located, config: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Load a class from a folder or from one file of tensors; return the model and the loading info."""
    source: Path | None = located.folder
    if located.file is not None and located.file.suffix != ".gguf":
        source, options = None, options | {"state_dict": _tensors(located.file)}
    model, loading = kind.from_pretrained(source, config=config, output_loading_info=True, **options)
    return model, loading


def _tensors(file: Path) -> dict[str, Any]:
    if file.suffix != ".safetensors":
        return dict(torch.load(file, map_location="cpu", weights_only=True))
    from safetensors.torch import load_file

    return dict(load_file(file))
