"""A catalogue of tiny random models, one of each kind, with a batch for each. Seconds in total, no download.

`build(name)` gives (model in eval mode, keyword arguments of its forward). Text batches are two sequences of which the
second is padded on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

hf: Any = transformers  # its configurations take far more than their signatures say

Example = tuple[Any, dict[str, Any]]  # a module, with whatever attributes its library gives it
Maker = Callable[[str | None], Example]

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH = 3, 32, 4, 99, 12
_SMALL = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = _SMALL | {"num_key_value_heads": 2}
_GPT2 = {
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "vocab_size": VOCABULARY,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_IMAGE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
}
_AUDIO = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "conv_dim": (8, 8),
    "conv_kernel": (8, 4),
    "conv_stride": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": VOCABULARY,
}
_SEQ2SEQ = {
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def build(name: str, attention: str | None = None) -> Example:
    """A model of the catalogue and its batch, always the same weights; `attention` picks its implementation."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, batch = CATALOGUE[name](attention)
    return _stirred(model).eval(), batch


def _stirred(model: Any) -> Any:
    """Weights large enough for sharp attention and norms that do something: initial ones hide mistakes."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                scale = 0.15 if parameter.ndim > 1 else 0.05
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=scale)
    return model


def text(length: int = LENGTH, high: int = VOCABULARY) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(2)
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, length - 4 :] = 0
    ids = torch.randint(3, high, (2, length), generator=draw)
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def image(size: int = 16) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(3))}


def sound(samples: int = 400) -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, samples, generator=torch.Generator().manual_seed(4))}


def _open(auto: Any, config: Any, attention: str | None) -> nn.Module:
    model: nn.Module = auto.from_config(config, **({} if attention is None else {"attn_implementation": attention}))
    return model


def _text_model(config: Callable[..., Any], auto: Any = hf.AutoModelForCausalLM, **options: Any) -> Maker:
    return lambda attention: (_open(auto, config(**options), attention), text())


def _encoder(config: Callable[..., Any], **options: Any) -> Maker:
    return _text_model(config, hf.AutoModel, **options)


def _image_model(config: Callable[..., Any], size: int = 16, **options: Any) -> Maker:
    return lambda attention: (_open(hf.AutoModel, config(**options), attention), image(size))


def _audio_model(config: Callable[..., Any], **options: Any) -> Maker:
    return lambda attention: (_open(hf.AutoModel, config(**_AUDIO, **options), attention), sound())


def _two_sided(config: Any, attention: str | None) -> Example:
    batch: dict[str, Any] = text()
    batch["decoder_input_ids"] = text(7)["input_ids"]
    return _open(hf.AutoModel, config, attention), batch


def _t5(attention: str | None) -> Example:
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_decoder_layers": 2}
    return _two_sided(hf.T5Config(**sizes, num_heads=HEADS, vocab_size=VOCABULARY), attention)


def _bart(attention: str | None) -> Example:
    return _two_sided(hf.BartConfig(**_SEQ2SEQ, max_position_embeddings=64), attention)


def _whisper(attention: str | None) -> Example:
    config = hf.WhisperConfig(
        **_SEQ2SEQ,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=32,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    features = torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(5))
    return _open(hf.AutoModel, config, attention), {
        "input_features": features,
        "decoder_input_ids": text(7)["input_ids"],
    }


def _canine(attention: str | None) -> Example:
    options = _SMALL | {"max_position_embeddings": 256, "num_hash_buckets": 64, "local_transformer_stride": 16}
    options.pop("vocab_size")
    return _open(hf.AutoModel, hf.CanineConfig(**options), attention), text(32, 900)


def _mamba(attention: str | None) -> Example:
    config = hf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=4, use_mambapy=False
    )
    return _open(hf.AutoModelForCausalLM, config, attention), {"input_ids": text()["input_ids"]}


class HomeMadeAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(y.transpose(1, 2).reshape(b, t, d))
        return out


class HomeMadeBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = HomeMadeAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class HomeMade(nn.Module):
    """A small decoder as people write them, with no configuration to ask."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(HomeMadeBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def _home_made(attention: str | None) -> Example:
    return HomeMade(), {"input_ids": text()["input_ids"]}


def _torch_encoder(batch_first: bool) -> Example:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=batch_first)
    x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(6))
    model = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
    return model, {"src": x if batch_first else x.transpose(0, 1)}


_STAGES = {"depths": [1, 2], "hidden_sizes": [8, 16]}

CATALOGUE: dict[str, Maker] = {
    "gpt2": _text_model(hf.GPT2Config, **_GPT2),
    "gptj": _text_model(hf.GPTJConfig, **_GPT2, rotary_dim=4),
    "llama": _text_model(hf.LlamaConfig, **_GROUPED),
    "olmo2": _text_model(hf.Olmo2Config, **_GROUPED),
    "gpt_neox": _text_model(hf.GPTNeoXConfig, **_SMALL),
    "opt": _text_model(
        hf.OPTConfig,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        ffn_dim=48,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        word_embed_proj_dim=WIDTH,
        pad_token_id=0,
    ),
    "bloom": _text_model(hf.BloomConfig, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY),
    "mpt": _text_model(
        hf.MptConfig, d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS, vocab_size=VOCABULARY, expansion_ratio=2
    ),
    "falcon": _text_model(hf.FalconConfig, **_SMALL),
    "falcon_alibi": _text_model(hf.FalconConfig, **_SMALL, alibi=True, multi_query=False),
    "falcon_grouped": _text_model(hf.FalconConfig, **_SMALL, new_decoder_architecture=True, num_kv_heads=2),
    "mistral": _text_model(hf.MistralConfig, **_GROUPED, sliding_window=5),
    "qwen2": _text_model(hf.Qwen2Config, **_GROUPED),
    "qwen3": _text_model(hf.Qwen3Config, **_GROUPED, head_dim=8),
    "gemma2": _text_model(
        hf.Gemma2Config, **_GROUPED, head_dim=8, query_pre_attn_scalar=8, sliding_window=5, attn_logit_softcapping=2.0
    ),
    "gemma3": _text_model(hf.Gemma3TextConfig, **_GROUPED, head_dim=8, query_pre_attn_scalar=8, sliding_window=5),
    "phi": _text_model(hf.PhiConfig, **_SMALL),
    "phi3": _text_model(hf.Phi3Config, **_GROUPED),
    "mixtral": _text_model(hf.MixtralConfig, **_GROUPED, num_local_experts=3),
    "bert": _encoder(hf.BertConfig, **_SMALL),
    "roberta": _encoder(hf.RobertaConfig, **_SMALL),
    "albert": _encoder(hf.AlbertConfig, **_SMALL, embedding_size=16),
    "distilbert": _encoder(
        hf.DistilBertConfig, dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=48, vocab_size=VOCABULARY
    ),
    "modernbert": _encoder(
        hf.ModernBertConfig, **_SMALL, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2
    ),
    "electra": _encoder(hf.ElectraConfig, **_SMALL, embedding_size=16),
    "t5": _t5,
    "bart": _bart,
    "canine": _canine,
    "vit": _image_model(hf.ViTConfig, **_IMAGE),
    "deit": _image_model(hf.DeiTConfig, **_IMAGE),
    "beit": _image_model(hf.BeitConfig, **_IMAGE, use_relative_position_bias=True),
    "clip_vision": _image_model(hf.CLIPVisionConfig, **_IMAGE),
    "segformer": _image_model(
        hf.SegformerConfig,
        size=64,
        num_encoder_blocks=2,
        depths=[2, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        num_attention_heads=[1, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
    ),
    "resnet": _image_model(hf.ResNetConfig, 64, embedding_size=8, **_STAGES, layer_type="basic"),
    "convnext": _image_model(hf.ConvNextConfig, 64, **_STAGES, num_stages=2),
    "efficientnet": _image_model(
        hf.EfficientNetConfig,
        32,
        image_size=32,
        kernel_sizes=[3, 3],
        in_channels=[32, 8],
        out_channels=[8, 16],
        depthwise_padding=[],
        strides=[1, 2],
        num_block_repeats=[1, 2],
        expand_ratios=[1, 2],
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
    ),
    "cvt": _image_model(
        hf.CvtConfig, 64, embed_dim=[8, 16, 24], num_heads=[1, 2, 2], depth=[1, 2, 3], drop_path_rate=[0.0, 0.0, 0.0]
    ),
    "wav2vec2": _audio_model(hf.Wav2Vec2Config),
    "wav2vec2_stable": _audio_model(hf.Wav2Vec2Config, do_stable_layer_norm=True, feat_extract_norm="layer"),
    "hubert": _audio_model(hf.HubertConfig),
    "whisper": _whisper,
    "mamba": _mamba,
    "jamba": _text_model(
        hf.JambaConfig,
        **_GROUPED,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
    ),
    "torch_encoder": lambda _: _torch_encoder(batch_first=True),
    "torch_encoder_sequence_first": lambda _: _torch_encoder(batch_first=False),
    "home_made": _home_made,
}
