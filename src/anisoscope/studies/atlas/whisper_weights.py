"""Whisper in its first format: one file of half-precision weights, under names that transformers changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# In this order; what is left keeps its name.
_NAMES = (
    (r"\bblocks\b", "layers"),
    (r"\bcross_attn\.query\b", "encoder_attn.q_proj"),
    (r"\bcross_attn\.key\b", "encoder_attn.k_proj"),
    (r"\bcross_attn\.value\b", "encoder_attn.v_proj"),
    (r"\bcross_attn\.out\b", "encoder_attn.out_proj"),
    (r"\bcross_attn_ln\b", "encoder_attn_layer_norm"),
    (r"\battn\.query\b", "self_attn.q_proj"),
    (r"\battn\.key\b", "self_attn.k_proj"),
    (r"\battn\.value\b", "self_attn.v_proj"),
    (r"\battn\.out\b", "self_attn.out_proj"),
    (r"\battn_ln\b", "self_attn_layer_norm"),
    (r"\bmlp\.0\b", "fc1"),
    (r"\bmlp\.2\b", "fc2"),
    (r"\bmlp_ln\b", "final_layer_norm"),
    (r"\bln_post\b", "layer_norm"),
    (r"^decoder\.ln\.", "decoder.layer_norm."),
    (r"\btoken_embedding\b", "embed_tokens"),
    (r"\bpositional_embedding\b", "embed_positions.weight"),
)


def build_whisper(files: list[Path], folder: Path, *, start: int, end: int) -> None:
    """Write a Hugging Face folder from a .pt file of whisper, and copy its list of tokens.

    Args:
        files: The .pt file, and the list of tokens.
        folder: Where to write.
        start: The token that begins a transcript.
        end: The token that ends it.
    """
    import transformers

    stored: dict[str, Any] = torch.load(files[0], map_location="cpu", weights_only=True)
    sizes = stored["dims"]
    config = transformers.WhisperConfig(
        vocab_size=sizes["n_vocab"],
        num_mel_bins=sizes["n_mels"],
        d_model=sizes["n_audio_state"],
        encoder_layers=sizes["n_audio_layer"],
        encoder_attention_heads=sizes["n_audio_head"],
        encoder_ffn_dim=4 * sizes["n_audio_state"],
        decoder_layers=sizes["n_text_layer"],
        decoder_attention_heads=sizes["n_text_head"],
        decoder_ffn_dim=4 * sizes["n_text_state"],
        max_source_positions=sizes["n_audio_ctx"],
        max_target_positions=sizes["n_text_ctx"],
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    model.model.load_state_dict(renamed(stored["model_state_dict"]))
    model.save_pretrained(folder)
    for file in files[1:]:
        shutil.copyfile(file, folder / file.name)
    transformers.WhisperFeatureExtractor(feature_size=sizes["n_mels"]).save_pretrained(folder)


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of whisper in float32 under the names of transformers.

    >>> list(renamed({"encoder.blocks.0.attn.query.weight": torch.ones(1)}))
    ['encoder.layers.0.self_attn.q_proj.weight']
    """
    result = {}
    for name, tensor in tensors.items():
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        result[name] = tensor.float()
    return result
