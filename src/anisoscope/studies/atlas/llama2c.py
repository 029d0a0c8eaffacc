"""Models in the format of llama2.c: one file of float32 weights, one file of token pieces."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import InputError

_HEADER = struct.Struct("<7i")  # width, hidden, layers, heads, key heads, vocabulary, positions


def build_llama2c(files: list[Path], folder: Path, *, weights: list[int], tokenizer: list[int]) -> None:
    """Write a Hugging Face folder from a file that holds weights and tokenizer of llama2.c.

    Args:
        files: One file.
        folder: Where to write.
        weights: First and last byte of the weights.
        tokenizer: First and last byte of the tokenizer.
    """
    import transformers

    data = files[0].read_bytes()
    config, tensors = read_weights(data[weights[0] : weights[1]])
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    model.load_state_dict(tensors)
    model.save_pretrained(folder)
    pieces = read_pieces(data[tokenizer[0] : tokenizer[1]], config["vocab_size"])
    bpe_tokenizer(pieces, config["max_position_embeddings"]).save_pretrained(folder)


def read_weights(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensors of a file of llama2.c, under transformers' names."""
    width, hidden, layers, heads, key_heads, vocabulary, positions = _HEADER.unpack_from(data)
    if min(width, hidden, layers, heads, key_heads, positions) < 1 or width % heads:
        raise InputError("The weights are not in the format of llama2.c. Check the version of the package.")
    tied, vocabulary = vocabulary > 0, abs(vocabulary)
    numbers = np.frombuffer(data, dtype="<f4", offset=_HEADER.size)
    offset = 0

    def take(*shape: int) -> Tensor:
        nonlocal offset
        size = int(np.prod(shape))
        offset += size
        if offset > numbers.size:
            raise InputError("The weights are shorter than their header states. Download the package again.")
        return torch.from_numpy(numbers[offset - size : offset].reshape(shape).copy())

    head = width // heads
    keys = key_heads * head
    embedding = take(vocabulary, width)
    shapes = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
        "mlp.up_proj": (hidden, width),
    }
    stacked = {name: take(layers, *shape) for name, shape in shapes.items()}
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": take(width)}
    take(positions, head)  # the tables of cosines and sines, which transformers computes
    tensors["lm_head.weight"] = embedding if tied else take(vocabulary, width)
    for name, stack in stacked.items():
        for layer, tensor in enumerate(stack):
            if name.endswith(("q_proj", "k_proj")):
                tensor = _split_halves(tensor, head)
            tensors[f"model.layers.{layer}.{name}.weight"] = tensor.contiguous()
    config = {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
    }
    return config, tensors


def _split_halves(weight: Tensor, head: int) -> Tensor:
    """Reorder rows: llama2.c rotates neighbours (0, 1), transformers rotates halves (0, d/2)."""
    rows, width = weight.shape
    return weight.view(rows // head, head // 2, 2, width).transpose(1, 2).reshape(rows, width)


def read_pieces(data: bytes, vocabulary: int) -> list[tuple[str, float]]:
    """Return token pieces and scores; pieces are bytes of UTF-8."""
    pieces, offset = [], 4  # the first number is the length of the longest piece
    for _ in range(vocabulary):
        score, length = struct.unpack_from("<fi", data, offset)
        offset += 8
        pieces.append((data[offset : offset + length].decode("utf-8", "replace"), score))
        offset += length
    return pieces


def bpe_tokenizer(pieces: list[tuple[str, float]], positions: int) -> Any:
    """Return a tokenizer that merges the pair of pieces with the highest score first, as llama2.c does."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    names = [name.replace(" ", "▁") for name, _ in pieces]
    names[:3] = ["<unk>", "<s>", "</s>"]
    vocabulary = {name: index for index, name in enumerate(names)}
    merges = []
    for index, name in enumerate(names):
        if index < 259:  # special tokens and single bytes
            continue
        for cut in range(1, len(name)):
            left, right = name[:cut], name[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-pieces[index][1], vocabulary[left], vocabulary[right], left, right))
    ordered = [(left, right) for *_, left, right in sorted(merges)]
    tokenizer = Tokenizer(models.BPE(vocabulary, ordered, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names[:3]])
    tokenizer.post_processor = _begins_with(tokenizer, "<s>")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=positions,
    )


def _begins_with(tokenizer: Any, token: str) -> Any:
    from tokenizers.processors import TemplateProcessing

    template = {"single": f"{token} $A", "pair": f"{token} $A {token} $B"}
    return TemplateProcessing(**template, special_tokens=[(token, tokenizer.token_to_id(token))])
