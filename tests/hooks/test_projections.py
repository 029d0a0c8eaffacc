"""Queries and keys before rotary embedding against those after it."""

from __future__ import annotations

import math

import pytest
import torch

from anisoscope.errors import CaptureError
from anisoscope.hooks import find_layout
from tests.captures import TWO_SIDED, captured
from tests.tiny_models import HEADS, WIDTH, HomeMade, build, text

ROTARY = (
    *("llama", "olmo2", "gpt_neox", "falcon", "falcon_grouped", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"),
    *("phi", "phi3", "mixtral", "modernbert"),
)
UNROTATED = (
    *("gpt2", "opt", "falcon_alibi", "bert", "roberta", "albert", "distilbert", "electra", "t5", "bart", "vit", "deit"),
    *("beit", "clip_vision", "wav2vec2", "hubert", "whisper", "home_made"),
)


@pytest.mark.parametrize("name", [*ROTARY, *UNROTATED])
def test_rotation_keeps_norms_and_does_not_change_the_first_position(name: str) -> None:
    model, batch = build(name)
    got, _ = captured(model, batch, ["q", "k", "q.pre", "k.pre"])
    side = "dec." if name in TWO_SIDED else ""
    for kind in ("q", "k"):
        after, before = got[f"{side}{kind}.1"], got[f"{side}{kind}.pre.1"]
        if name == "falcon_grouped" and kind == "k":  # which copies its keys for every query head
            before = before.repeat_interleave(2, 1)
        if name in ("opt", "whisper") and kind == "q":  # which scale their queries early
            before = before * before.shape[-1] ** -0.5
        assert after.shape == before.shape
        torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1))
        torch.testing.assert_close(after[:, :, 0], before[:, :, 0])
        assert torch.allclose(after, before, atol=1e-6) == (name in UNROTATED)


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_fused_projections_of_models_without_visible_queries_are_split_correctly(name: str) -> None:
    model, batch = build(name, "eager")
    got, _ = captured(model, batch, ["q.pre", "k.pre"])
    with torch.no_grad():
        expected = model(**batch, output_attentions=True)["attentions"][1][0]  # the sequence without padding
    logits = got["q.pre.1"][0] @ got["k.pre.1"][0].mT / math.sqrt(WIDTH // HEADS)
    slopes = torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(HEADS)])
    logits = logits + slopes[:, None, None] * torch.arange(12)
    causal = torch.ones(12, 12, dtype=torch.bool).tril()
    torch.testing.assert_close(logits.masked_fill(~causal, -math.inf).softmax(-1), expected)


@pytest.mark.parametrize("name", ["gptj", "canine"])
def test_separate_projections_of_models_without_visible_queries_are_split_correctly(name: str) -> None:
    model, batch = build(name)
    attention = find_layout(model).stacks[0].blocks[1].attention
    inner = f"{attention}.q_proj" if name == "gptj" else f"{attention}.self.query"
    got, _ = captured(model, batch, ["q.pre", f"in.{inner}"])
    with torch.no_grad():
        flat = model.get_submodule(inner)(got[f"in.{inner}"])
    torch.testing.assert_close(flat.view(*flat.shape[:2], HEADS, -1).transpose(1, 2), got["q.pre.1"])


def test_a_fused_projection_of_unknown_layout_is_an_error_and_not_a_guess() -> None:
    model = HomeMade()
    for block in model.blocks:
        attention = block.get_submodule("attn")
        attention.add_module("qkv", attention._modules.pop("q_proj"))
    with pytest.raises(CaptureError, match=r"the layout of its fused one is not known\. Capture q and k, or attn"):
        captured(model, {"input_ids": text()["input_ids"]}, ["q.pre"], find_layout(model))
