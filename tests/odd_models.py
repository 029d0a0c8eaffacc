"""Odd models, adapters and archives as data: crafted numbers in the real architectures whose libraries act on them."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests import model_folders as made
from tests.odd_inputs import MODEL, OddInput

_IMAGES = ("--images", "images", "-m", "mean_cosine", "--no-errors")


def cases() -> list[OddInput]:
    """All cases; their names are unique."""
    return [*_architectures(), *_adapters(), *_gguf_files(), *_tokenizers(), *_archives(), *_pipes()]


# --- architectures ------------------------------------------------------------------------------------------------


def _gpt_neo() -> tuple[Any, Any]:
    types = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 2}
    config = made.hf.GPTNeoConfig(**types, vocab_size=320, hidden_size=16, max_position_embeddings=64, bos_token_id=0)
    return made.hf.GPTNeoForCausalLM(config), made.byte_pairs()


def _swin() -> tuple[Any, Any]:
    config = made.hf.SwinConfig(image_size=32, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4)
    return made.hf.SwinModel(config), _image_processor()


def _convnext() -> tuple[Any, Any]:
    config = made.hf.ConvNextConfig(image_size=32, num_stages=2, hidden_sizes=[8, 16], depths=[1, 1])
    return made.hf.ConvNextModel(config), _image_processor()


def _image_processor() -> Any:
    return made.hf.ViTImageProcessorPil(size={"height": 32, "width": 32})


def _albert() -> tuple[Any, Any]:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = made.hf.AlbertConfig(**shape, vocab_size=120, embedding_size=8, max_position_embeddings=48)
    return made.hf.AlbertModel(config), made.word_pieces()


def _qwen2_vl() -> tuple[Any, Any]:
    text: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"intermediate_size": 32, "vocab_size": 320, "num_key_value_heads": 1, "max_position_embeddings": 64}
    text |= {"rope_parameters": {"rope_type": "default", "type": "mrope", "mrope_section": [1, 1, 2]}}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    config = made.hf.Qwen2VLConfig(text_config=text | ids, vision_config=vision)
    return made.hf.Qwen2VLForConditionalGeneration(config), made.byte_pairs()


def _switch() -> tuple[Any, Any]:
    shape = {"vocab_size": 96, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2}
    sparse = {"num_heads": 2, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    config = made.hf.SwitchTransformersConfig(**shape, **sparse, decoder_start_token_id=0)
    return made.hf.SwitchTransformersModel(config), made.sentence_pieces()


def _architectures() -> Iterator[OddInput]:
    modules = "belong to the same model"
    for build, values, expected in (
        (_gpt_neo, {"attention_types": [[["global", "local"], 10**9]]}, "attention_types = 1,000,000,000"),
        (_swin, {"depths": [2, 2_000_000]}, "depths = 2,000,000"),
        (_swin, {"depths": [1000, 1000]}, modules),
        (_swin, {"depths": [1] * 5000, "num_heads": [1] * 5000}, modules),
        (_convnext, {"depths": [10**8, 1]}, "depths = 100,000,000"),
        (_convnext, {"depths": [1000, 1]}, modules),
        (_albert, {"num_hidden_groups": 10**6}, "num_hidden_groups = 1,000,000"),
        (_albert, {"inner_group_num": 10**6}, "inner_group_num = 1,000,000"),
        (_albert, {"num_hidden_groups": 1000, "inner_group_num": 1000}, modules),
        (_qwen2_vl, {"vision_config": {"depth": 10**6}}, "depth = 1,000,000"),
        (_qwen2_vl, {"vision_config": {"depth": 1000}}, modules),
        (_switch, {"num_experts": 10**6}, "num_experts = 1,000,000"),
        (_switch, {"num_experts": 1000}, modules),
    ):
        arguments = _IMAGES if build in (_swin, _convnext) else MODEL
        name = f"architecture: {build.__name__[1:]} {json.dumps(values)[:48]}"
        yield OddInput(name, ("measure", "odd", *arguments), partial(_save, build, values), expected)


def _save(build: Callable[[], tuple[Any, Any]], values: dict[str, Any], folder: Path) -> None:
    torch.manual_seed(0)
    made.save(folder / "odd", *build())
    file = folder / "odd" / "config.json"
    config = json.loads(file.read_text())
    nested = {key: {**config[key], **value} for key, value in values.items() if isinstance(value, dict)}
    file.write_text(json.dumps(config | values | nested))
    (folder / "images").mkdir()
    Image.new("RGB", (32, 32)).save(folder / "images" / "0.png")


# --- adapters and GGUF --------------------------------------------------------------------------------------------


def _adapters() -> Iterator[OddInput]:
    # A crafted pattern is not an error: the modules are those of the stored weights, and no expression is evaluated.
    for values, expected in (
        ({"r": 10**7}, "has rank 10000000"),
        ({"rank_pattern": {"c_attn": 10**7}}, "has rank 10000000"),
        ({"rank_pattern": {"(a+)+$": 2}}, "rank_pattern"),
        ({"target_modules": "^(.*.*)*.*.*.*=$"}, ""),
        ({"init_lora_weights": "pissa_niter_1000000000"}, "which also changes the weights of its base"),
        ({"peft_type": "IA3"}, "only LoRA adapters are supported"),
        ({"megatron_config": {"a": 1}, "megatron_core": "evil"}, "has the entry 'megatron_config'"),
        ({"megatron_core": "evil"}, "has the entry 'megatron_core'"),
        ({"runtime_config": {"ephemeral_gpu_offload": True}}, "has the entry 'runtime_config'"),
        ({"auto_mapping": {"base_model_class": "evil", "parent_library": "evil"}}, ""),
        ({"base_model_name_or_path": "someone/else"}, "someone/else"),
    ):
        make = partial(_adapter, values)
        yield OddInput(f"adapter: {json.dumps(values)[:60]}", ("measure", "odd", *MODEL), make, expected)


def _adapter(values: dict[str, Any], folder: Path) -> None:
    import peft

    (folder / "evil.py").write_text("raise SystemExit('code of the folder ran')")
    base = made.hf.AutoModelForCausalLM.from_pretrained(folder / "model")
    options = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    peft.get_peft_model(base, options).save_pretrained(str(folder / "odd"))
    made.change_json(folder / "odd" / "adapter_config.json", **{"base_model_name_or_path": "model"} | values)


def _gguf_files() -> Iterator[OddInput]:
    for field, value in (
        *(("llama.block_count", count) for count in (20_000, 10**9, 1000)),
        ("llama.embedding_length", 10**9),
        ("llama.feed_forward_length", 10**9),
        ("llama.attention.head_count", 10**9),
        ("llama.context_length", 2**32 - 1),
        ("llama.vocab_size", 2**32 - 1),
    ):
        expected = "block_count" if "block_count" in field else ""
        make = partial(_gguf, field, value)
        yield OddInput(f"gguf: {field} = {value}", ("measure", "odd.gguf", *MODEL), make, expected)


def _gguf(field: str, value: int, folder: Path) -> None:
    made.llama_gguf(folder / "odd.gguf")
    data = bytearray((folder / "odd.gguf").read_bytes())
    start = data.index(field.encode()) + len(field) + 4  # after the name comes the type, in four bytes
    data[start : start + 4] = value.to_bytes(4, "little")
    (folder / "odd.gguf").write_bytes(data)


# --- tokenizers ---------------------------------------------------------------------------------------------------


def _tokenizers() -> Iterator[OddInput]:
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    between = {"type": "Replace", "pattern": {"Regex": ""}, "content": "abcdefgh"}
    before = {"type": "Prepend", "prepend": "x" * 10**6}
    for name, step, count in (("double", double, 12), ("between", between, 12), ("before", before, 12)):
        steps = {"type": "Sequence", "normalizers": [step] * count}
        make = partial(_normalize, steps)
        yield OddInput(f"tokenizer: {name}", ("measure", "model", *MODEL), make, "times longer")


def _normalize(steps: dict[str, Any], folder: Path) -> None:
    made.change_json(folder / "model" / "tokenizer.json", normalizer=steps)


# --- archives and pipes -------------------------------------------------------------------------------------------


def _archives() -> Iterator[OddInput]:
    for rows, width, expected in ((200_000, 1000, ""), (1000, 200_000, "at most"), (0, 1000, "does not fit")):
        make = partial(_zeros, rows, width)
        yield OddInput(f"archive: {rows} x {width} zeros", ("measure", "odd.npz", "-m", "mean_cosine"), make, expected)


def _zeros(rows: int, width: int, folder: Path) -> None:
    """A deflated array of zeros, a thousandth of its size; without rows its header still promises a million."""
    header = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": (rows or 10**6, width)}
    np.lib.format.write_array_header_1_0(header, described)
    with (
        zipfile.ZipFile(folder / "odd.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(rows):
            file.write(bytes(4 * width))


def _pipes() -> Iterator[OddInput]:
    tangent = ("tangent", "model", "--text", "text.txt", "--tokens", "64")
    for name, arguments in (
        ("counts.gguf", (*tangent, "--counts", "counts.gguf")),
        ("v2.npy", ("measure", "v2.npy")),
        ("odd.gguf", ("measure", "odd.gguf", *MODEL)),
        ("text.jsonl", ("measure", "model", "--text", "text.jsonl")),
        ("labels.csv", ("embeddings", "v.npy", "--labels", "labels.csv")),
        ("pairs.csv", ("embeddings", "v.npy", "--queries", "v.npy", "--relevant", "pairs.csv")),
        ("model/config.json", ("measure", "model", *MODEL)),
        ("model/tokenizer.json", ("measure", "model", *MODEL)),
        ("model/model.safetensors", ("measure", "model", *MODEL)),
        ("run/run.json", ("show", "run")),
        ("run/records.jsonl", ("show", "run")),
    ):
        expected = "regular file" if "/" not in name and name != "v2.npy" else ""
        yield OddInput(f"pipe: {name}", arguments, partial(_pipe, name), expected)


def _pipe(name: str, folder: Path) -> None:
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    if name == "run/records.jsonl":
        (folder / "run" / "run.json").write_text("{}")
    os.mkfifo(folder / name)
