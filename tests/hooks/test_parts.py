"""The parts of a block: its attention and feed-forward layer add up to the stream."""

from __future__ import annotations

import pytest
import torch

from anisoscope.hooks import expand, find_layout
from tests.captures import TWO_SIDED, captured
from tests.tiny_models import LAYERS, build

ADDING = (
    *(
        "gpt2",
        "gptj",
        "llama",
        "gpt_neox",
        "opt",
        "bloom",
        "mpt",
        "falcon",
        "falcon_alibi",
        "falcon_grouped",
        "mistral",
    ),
    *("qwen2", "qwen3", "phi", "phi3", "mixtral", "modernbert", "vit", "deit", "clip_vision", "wav2vec2_stable"),
    *("t5", "whisper", "home_made"),
)


# Encoders that normalise after each sum: the norms after attention and after the feed-forward layer.
NORMING = {
    **dict.fromkeys(("bert", "roberta", "electra", "canine"), ("attention.output.LayerNorm", "output.LayerNorm")),
    "albert": ("albert_layers.0.attention.LayerNorm", "albert_layers.0.full_layer_layer_norm"),
    "distilbert": ("sa_layer_norm", "output_layer_norm"),
    "bart": ("self_attn_layer_norm", "final_layer_norm"),
    "wav2vec2": ("layer_norm", "final_layer_norm"),
    "hubert": ("layer_norm", "final_layer_norm"),
    "torch_encoder": ("norm1", "norm2"),
    "torch_encoder_sequence_first": ("norm1", "norm2"),
    "olmo2": ("", ""),
}


@pytest.mark.parametrize("name", ADDING)
def test_a_block_adds_its_attention_and_its_mlp_to_the_stream(name: str) -> None:
    model, batch = build(name)
    got, _ = captured(model, batch, ["embed", "resid", "attn", "mlp"])
    side = "enc." if name in TWO_SIDED else ""
    before = got[side + "embed"]
    for i in range(LAYERS):
        after = got[f"{side}resid.{i}"]
        torch.testing.assert_close(before + got[f"{side}attn.{i}"] + got[f"{side}mlp.{i}"], after)
        before = after


@pytest.mark.parametrize("name", NORMING)
def test_a_post_norm_block_normalises_the_sums_with_its_attention_and_mlp(name: str) -> None:
    model, batch = build(name)
    layout = find_layout(model, batch)
    got, _ = captured(model, batch, ["embed", "resid", "attn", "mlp"])
    side = "enc." if name in TWO_SIDED else ""
    block = model.get_submodule(layout.stacks[0].blocks[1].path)
    x, attn, mlp = got[f"{side}resid.0"], got[f"{side}attn.1"], got[f"{side}mlp.1"]
    with torch.no_grad():
        if name == "olmo2":
            y = x + block.get_submodule("post_attention_layernorm")(attn)
            y = y + block.get_submodule("post_feedforward_layernorm")(mlp)
        else:
            first, second = (block.get_submodule(path) for path in NORMING[name])
            y = second(first(x + attn) + mlp)
    torch.testing.assert_close(y, got[f"{side}resid.1"])


def test_hybrid_stacks_have_attention_only_in_attention_layers() -> None:
    model, batch = build("jamba")
    layout = find_layout(model)
    assert [str(site) for site in expand(layout, ["attn", "q"])] == ["q.1", "attn.1"]
    assert [str(site) for site in expand(layout, ["mlp"])] == ["mlp.0", "mlp.1", "mlp.2"]
    got, _ = captured(model, batch, ["resid", "attn", "mlp"])
    torch.testing.assert_close(got["resid.0"] + got["attn.1"] + got["mlp.1"], got["resid.1"])


def test_adapters_count_as_the_projections_they_wrap() -> None:
    import peft

    model, batch = build("llama")
    config = peft.LoraConfig(target_modules=["q_proj", "o_proj", "down_proj"], r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    got, _ = captured(adapted, batch, ["embed", "resid", "attn", "mlp", "q", "q.pre"])
    torch.testing.assert_close(got["embed"] + got["attn.0"] + got["mlp.0"], got["resid.0"])
    torch.testing.assert_close(got["q.pre.1"][:, :, 0], got["q.1"][:, :, 0])
