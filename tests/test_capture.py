"""Capture against what models say of themselves: every layer seen, values equal, outputs bit-identical."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anisoscope.capture import Layout, attention_calls, capture, expand, find_layout
from anisoscope.errors import CaptureError, InputError
from anisoscope.records import Site
from anisoscope.stats.head_scores import Attention, Heads, Scores
from tests.oracles import attention as oracle
from tests.tiny_models import CATALOGUE, HEADS, LAYERS, WIDTH, HomeMade, HomeMadeBlock, build, text

EVERY = pytest.mark.parametrize("name", CATALOGUE)
KINDS = ["embed", "resid", "attn", "mlp", "q", "k", "q.pre", "k.pre", "pattern", "final.in", "final"]
PLAIN = [name for name in CATALOGUE if name.startswith(("torch_", "home_"))]
BYPASS = ("gptj", "bloom", "mpt", "canine")  # neither interface nor scaled_dot_product_attention
STAGES = {"segformer": [8, 16], "resnet": [8, 16], "convnext": [8, 16], "efficientnet": [8, 16, 16], "cvt": [8, 16, 24]}
NO_SDPA = ("gemma2", "mamba", *BYPASS, *STAGES)
TWO_SIDED = ("t5", "bart", "whisper")


def captured(
    model: nn.Module, batch: Mapping[str, Any], sites: list[str], layout: Layout | None = None
) -> tuple[dict[str, Any], Any]:
    """Everything at these sites in one forward without gradients, and the model's output."""
    got: dict[str, Any] = {}
    layout = find_layout(model, batch) if layout is None else layout

    def keep(site: Site, x: Any) -> None:
        got[str(site)] = x.clone() if isinstance(x, Tensor) else x  # some models go on to add in place

    with torch.no_grad(), capture(model, sites, keep, layout=layout) as seen:
        output = model(**batch)
    if not {"q", "k"} & set(sites):
        seen.require(expand(layout, sites))
    return got, output


def tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [value for value in (output.values() if isinstance(output, dict) else output) if isinstance(value, Tensor)]


def rows(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x


# --- where the layers are -----------------------------------------------------------------------------------------


@EVERY
def test_structure_alone_finds_every_layer_and_the_example_agrees(name: str) -> None:
    model, batch = build(name)
    for layout in (find_layout(model), find_layout(model, batch)):
        counts = [len(stack.blocks) for stack in layout.stacks]
        assert [stack.name for stack in layout.stacks] == (["enc", "dec"] if name in TWO_SIDED else [""])
        assert counts == ([LAYERS, 2] if name in TWO_SIDED else [len(STAGES.get(name, [0] * LAYERS))])
        assert layout.grid == (name in STAGES)
    widths = [block.width for stack in layout.stacks for block in stack.blocks]
    assert widths == STAGES.get(name, [WIDTH] * sum(counts))


@EVERY
def test_structure_alone_knows_the_configured_widths(name: str) -> None:
    model, _ = build(name)
    widths = [block.width for stack in find_layout(model).stacks for block in stack.blocks]
    expected: list[int] | list[None] = STAGES.get(name, [WIDTH] * len(widths))
    assert widths == ([None] * 3 if name == "efficientnet" else expected)  # which only computes its widths


NO_FINAL_NORM = {
    *("bert", "roberta", "albert", "distilbert", "electra", "bart", "canine", "beit", "wav2vec2", "hubert"),
    *("clip_vision", *STAGES),  # clip's last norm sees only the pooled token
}


@EVERY
def test_a_final_norm_is_one_that_gets_the_last_output(name: str) -> None:
    model, batch = build(name)
    for stack in find_layout(model, batch).stacks:
        assert (stack.final is None) == (name in NO_FINAL_NORM)
    for stack in find_layout(model).stacks:
        unsure = {"clip_vision": "post_layernorm", "wav2vec2_stable": None}
        assert stack.final == unsure[name] if name in unsure else (stack.final is None) == (name in NO_FINAL_NORM)


def test_a_norm_of_a_pooled_token_is_not_taken_for_the_final_one() -> None:
    model, batch = build("clip_vision")
    with torch.no_grad(), capture(model, ["final", "final.in"], lambda site, x: None) as seen:
        model(**batch)
    with pytest.raises(CaptureError, match=r"final: .* The norm does not receive the last block"):
        seen.require(["final"])


def test_a_decoder_layer_of_torch_has_its_own_attention_beside_that_to_the_memory() -> None:
    model = nn.Transformer(8, 2, 1, 2, 8, batch_first=True)
    enc, dec = find_layout(model).stacks
    assert (enc.name, enc.blocks[0].attn, enc.final) == ("enc", "encoder.layers.0.self_attn", "encoder.norm")
    assert (dec.name, dec.blocks[1].attn, dec.final) == ("dec", "decoder.layers.1.self_attn", "decoder.norm")


def test_shared_layers_are_counted_by_their_calls() -> None:
    model, batch = build("albert")
    blocks = find_layout(model).stacks[0].blocks
    assert {block.path for block in blocks} == {"encoder.albert_layer_groups.0"}
    assert len(blocks) == LAYERS
    got, _ = captured(model, batch, ["resid"])
    assert not torch.equal(got["resid.0"], got["resid.1"])


class Looped(HomeMade):
    """The whole stack twice, as looped transformers do."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in [*self.blocks, *self.blocks]:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


def test_a_looped_stack_is_an_error_without_an_example_and_right_with_one() -> None:
    model, batch = Looped(), {"input_ids": text()["input_ids"]}
    with pytest.raises(CaptureError, match=r"resid\.0 was met twice.*find_layout\(model, example\)"):
        captured(model, batch, ["resid"], find_layout(model))
    got, output = captured(model, batch, ["resid", "attn", "final"])
    assert list(got) == sorted(got, key=lambda name: Site.parse(name))
    assert len(got) == 2 * 2 * LAYERS + 1
    assert torch.equal(model.norm(got["resid.5"]), output)
    assert torch.equal(model.blocks[0](got["resid.2"]), got["resid.3"])


class Stages(nn.Module):
    """Stages as attributes with numbers, as in torchvision's residual nets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6))
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.conv1(x)))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


def test_numbered_attributes_and_sequentials_of_blocks_are_stacks() -> None:
    layout = find_layout(Stages(), {"x": torch.randn(1, 3, 6, 6)})
    assert [(block.path, block.width) for block in layout.stacks[0].blocks] == [("layer1", 4), ("layer2", 6)]
    assert layout.grid
    blocks = [HomeMadeBlock(8, 2) for _ in range(2)]
    stack = find_layout(nn.Sequential(nn.Linear(3, 8), *blocks, nn.LayerNorm(8), nn.Linear(8, 2))).stacks[0]
    assert [block.path for block in stack.blocks] == ["1", "2"]
    assert stack.final == "3"
    assert [block.width for block in stack.blocks] == [8, 8]


def test_experts_are_not_layers() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = HomeMadeBlock(8, 2)
            self.experts = nn.ModuleList(HomeMadeBlock(8, 2) for _ in range(16))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Mixture() for _ in range(2))

    assert [block.path for block in find_layout(Model()).stacks[0].blocks] == ["layers.0", "layers.1"]


def test_a_model_without_blocks_says_what_was_expected() -> None:
    with pytest.raises(CaptureError, match="No list of blocks in Linear: expected a ModuleList"):
        find_layout(nn.Linear(2, 2))


def test_finding_the_layout_leaves_training_mode_and_hooks_alone() -> None:
    model, batch = build("gpt2")
    model.train()
    model.get_submodule("transformer.h.1").eval()
    before = [module.training for module in model.modules()]
    find_layout(model, batch)
    assert [module.training for module in model.modules()] == before
    assert not hooks_of(model)


# --- the stream ---------------------------------------------------------------------------------------------------

# What `output_hidden_states` lists; its last entry is after the final norm where the library ties it to the output.
NORMED = ["embed", "resid.0", "resid.1", "final"]
UNNORMED = ["embed", "resid.0", "resid.1", "resid.2"]
LISTED = {
    **dict.fromkeys(NO_FINAL_NORM | {"vit", "deit", "wav2vec2_stable"}, UNNORMED),
    "mamba": ["resid.0", "resid.1", "resid.2", "final"],
    "canine": ["", "", *UNNORMED, "", ""],  # the character layers before and after the deep stack
    "segformer": ["resid.0", "resid.1"],
    "resnet": UNNORMED[:3],
    "convnext": UNNORMED[:3],
    "cvt": UNNORMED[1:],
}


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in (*PLAIN, *TWO_SIDED)])
def test_the_stream_equals_output_hidden_states(name: str) -> None:
    model, batch = build(name)
    with torch.no_grad():
        listed = model(**batch, output_hidden_states=True)["hidden_states"]
    got, _ = captured(model, batch, ["embed", "resid", "final"])
    expected = LISTED.get(name, NORMED)
    assert len(listed) == len(expected)
    for site, states in zip(expected, listed, strict=True):
        if site:
            assert torch.equal(got[site], rows(states)), site


@pytest.mark.parametrize("name", TWO_SIDED)
def test_both_stacks_equal_their_hidden_states(name: str) -> None:
    model, batch = build(name)
    with torch.no_grad():
        output = model(**batch, output_hidden_states=True)
    got, _ = captured(model, batch, ["embed", "resid", "final"])
    for side, listed in (("enc", output["encoder_hidden_states"]), ("dec", output["decoder_hidden_states"])):
        last = f"resid.{len(listed) - 2}" if name == "bart" else "final"
        names = ["embed", *(f"resid.{i}" for i in range(len(listed) - 2)), last]
        for site, states in zip(names, listed, strict=True):
            assert torch.equal(got[f"{side}.{site}"], states), site


@pytest.mark.parametrize("name", PLAIN)
def test_plain_torch_models_are_seen_block_by_block(name: str) -> None:
    model, batch = build(name)
    got, _ = captured(model, batch, ["embed", "resid", "final"])
    stack = find_layout(model, batch).stacks[0]
    order = (0, 1, 2) if stack.batch_first else (1, 0, 2)
    with torch.no_grad():
        for i, block in enumerate(stack.blocks):
            before = got[f"resid.{i - 1}"] if i else got["embed"]
            after = model.get_submodule(block.path)(before.permute(order)).permute(order)
            torch.testing.assert_close(after, got[f"resid.{i}"])
    assert got["resid.0"].shape == (2, 12, WIDTH)


@EVERY
def test_the_final_norm_takes_the_last_residual(name: str) -> None:
    model, batch = build(name)
    layout = find_layout(model, batch)
    got, _ = captured(model, batch, ["resid", "final", "final.in"])
    for stack in layout.stacks:
        if stack.final is not None:
            prefix = f"{stack.name}." if stack.name else ""
            last = got[f"{prefix}resid.{len(stack.blocks) - 1}"]
            assert torch.equal(got[f"{prefix}final.in"], last)
            with torch.no_grad():
                torch.testing.assert_close(model.get_submodule(stack.final)(last), got[f"{prefix}final"])


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, way) for name in CATALOGUE for way in ("sdpa", "eager") if way == "eager" or name not in NO_SDPA],
)
def test_outputs_with_capture_are_bit_identical(name: str, attention: str) -> None:
    model, batch = build(name, attention)
    with torch.no_grad():
        before = tensors(model(**batch))
    _, output = captured(model, batch, KINDS)
    assert before
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(output), strict=True))


# --- sublayers ----------------------------------------------------------------------------------------------------

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
def test_a_post_norm_block_normalises_those_sums(name: str) -> None:
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


def test_hybrid_stacks_have_attention_where_it_is() -> None:
    model, batch = build("jamba")
    layout = find_layout(model)
    assert [str(site) for site in expand(layout, ["attn", "q"])] == ["q.1", "attn.1"]
    assert [str(site) for site in expand(layout, ["mlp"])] == ["mlp.0", "mlp.1", "mlp.2"]
    got, _ = captured(model, batch, ["resid", "attn", "mlp"])
    torch.testing.assert_close(got["resid.0"] + got["attn.1"] + got["mlp.1"], got["resid.1"])


# --- queries and keys ---------------------------------------------------------------------------------------------

ROTARY = (
    *("llama", "olmo2", "gpt_neox", "falcon", "falcon_grouped", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"),
    *("phi", "phi3", "mixtral", "modernbert"),
)
UNROTATED = (
    *("gpt2", "opt", "falcon_alibi", "bert", "roberta", "albert", "distilbert", "electra", "t5", "bart", "vit", "deit"),
    *("beit", "clip_vision", "wav2vec2", "hubert", "whisper", "home_made"),
)


@pytest.mark.parametrize("name", [*ROTARY, *UNROTATED])
def test_rotation_keeps_norms_and_leaves_the_first_position_as_it_was(name: str) -> None:
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
def test_fused_projections_of_models_that_show_no_queries_split_right(name: str) -> None:
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
def test_separate_projections_of_models_that_show_no_queries_split_right(name: str) -> None:
    model, batch = build(name)
    attention = find_layout(model).stacks[0].blocks[1].attention
    inner = f"{attention}.q_proj" if name == "gptj" else f"{attention}.self.query"
    got, _ = captured(model, batch, ["q.pre", f"in.{inner}"])
    with torch.no_grad():
        flat = model.get_submodule(inner)(got[f"in.{inner}"])
    torch.testing.assert_close(flat.view(*flat.shape[:2], HEADS, -1).transpose(1, 2), got["q.pre.1"])


@pytest.mark.parametrize("name", BYPASS)
def test_models_that_show_no_queries_say_what_to_take_instead(name: str) -> None:
    model, batch = build(name)
    with torch.no_grad(), capture(model, ["q", "k", "pattern"], lambda site, x: None) as seen:
        model(**batch)
    with pytest.raises(CaptureError, match=r"q\.0, .*Capture q\.pre"):
        seen.require(expand(find_layout(model), ["q"]))
    seen.require(["pattern.0", "pattern.2"])


def test_a_fused_projection_of_unknown_layout_is_an_error_and_not_a_guess() -> None:
    model = HomeMade()
    for block in model.blocks:
        attention = block.get_submodule("attn")
        attention.add_module("qkv", attention._modules.pop("q_proj"))
    with pytest.raises(CaptureError, match=r"the layout of its fused one is not known\. Capture q and k, or attn"):
        captured(model, {"input_ids": text()["input_ids"]}, ["q.pre"], find_layout(model))


# --- patterns -----------------------------------------------------------------------------------------------------

PATTERNS = [
    (name, attention)
    for name in (
        *("gpt2", "llama", "gpt_neox", "opt", "mistral", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "mixtral"),
        *("falcon", "falcon_alibi", "gptj", "bloom", "mpt", "canine", "bert", "albert", "distilbert", "modernbert"),
        *("t5", "bart", "vit", "beit", "clip_vision", "wav2vec2", "whisper", "jamba"),
    )
    for attention in ("sdpa", "eager")
    # In this version of transformers Falcon's eager path adds its biases twice, so the two ways differ.
    if attention == "eager" or name not in ("falcon_alibi", *NO_SDPA)
]


def eager_probabilities(name: str, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    model, _ = build(name, "eager")
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    if name in TWO_SIDED:
        listed = {"enc.": output["encoder_attentions"], "dec.": output["decoder_attentions"]}
    else:
        deep = output["attentions"][1:-1] if name == "canine" else output["attentions"]
        listed = {"": deep}
    layers = [1] if name == "jamba" else range(LAYERS)
    return {f"{side}pattern.{i}": p for side, all_p in listed.items() for i, p in zip(layers, all_p, strict=False)}


def real_queries(name: str, batch: Mapping[str, Any], p: Tensor, side: str) -> Tensor:
    if "attention_mask" in batch and side != "dec" and name != "canine":
        mask: Tensor = batch["attention_mask"]
        return mask.bool()
    return torch.ones(p.shape[0], p.shape[2], dtype=torch.bool)


def assert_attention(a: Attention, p: Tensor, counts: Tensor) -> None:
    with torch.no_grad():
        logits = p.double().log()
    visible = (p > 0).numpy()
    expected = oracle.sums(logits.nan_to_num(neginf=0.0).numpy(), visible, counts.numpy())
    assert a.rows.tolist() == expected["rows"].tolist()
    for field in ("entropy", "sink", "largest", "logit_std"):
        mean = torch.as_tensor(expected[field]) / a.rows
        torch.testing.assert_close(getattr(a, field) / a.rows, mean, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "attention"), PATTERNS)
def test_patterns_equal_eager_probabilities(name: str, attention: str) -> None:
    model, batch = build(name, attention)
    got, _ = captured(model, batch, ["pattern"])
    expected = eager_probabilities(name, batch)
    assert sorted(got) == sorted(expected)
    for site, p in expected.items():
        counts = real_queries(name, batch, p, Site.parse(site).stack)
        assert_attention(Attention.of(got[site], counts), p, counts)
        only_logits = name in BYPASS or (name.startswith("falcon") and attention == "eager")
        assert isinstance(got[site], Scores if only_logits else Heads)
        assert Attention.of_probabilities(p, counts).rows.tolist() == Attention.of(got[site], counts).rows.tolist()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_patterns_of_batches_padded_on_the_left_start_at_their_first_real_token(name: str, attention: str) -> None:
    model, batch = build(name, attention)
    left = {key: value.flip(1) for key, value in batch.items()}
    left["position_ids"] = (left["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    got, _ = captured(model, left, ["pattern"])
    counts = left["attention_mask"].bool()
    for site, p in eager_probabilities(name, left).items():
        p = torch.where(counts[:, None, :, None], p, 0.0)  # rows of padding hold anything
        assert_attention(Attention.of(got[site], counts), p, counts)


def test_patterns_without_padding_rely_on_causality_alone() -> None:
    model, batch = build("llama", "sdpa")
    batch = {"input_ids": batch["input_ids"]}
    got, _ = captured(model, batch, ["pattern"])
    assert got["pattern.0"].mask is None
    assert got["pattern.0"].causal
    assert got["pattern.0"].k.shape[1] == 2
    counts = torch.ones(2, 12, dtype=torch.bool)
    for site, p in eager_probabilities("llama", batch).items():
        assert_attention(Attention.of(got[site], counts), p, counts)


# --- the rules of a capture ---------------------------------------------------------------------------------------


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


class Stop(BaseException):
    """Like a KeyboardInterrupt: not an Exception."""


@pytest.mark.parametrize("error", [ValueError, Stop])
def test_errors_in_the_sink_propagate_and_leave_nothing_behind(error: type[BaseException]) -> None:
    from transformers.modeling_utils import AttentionInterface

    model, batch = build("llama")
    before = vars(AttentionInterface)["get_interface"]
    implementation = model.config._attn_implementation

    def sink(site: Site, x: Any) -> None:
        raise error

    with pytest.raises(error), capture(model, ["resid", "q", "pattern"], sink):
        model(**batch)
    assert not hooks_of(model)
    assert vars(AttentionInterface)["get_interface"] is before
    assert model.config._attn_implementation == implementation
    got, _ = captured(model, batch, ["resid"])
    assert len(got) == LAYERS


def test_captures_that_end_in_any_order_restore_the_interface() -> None:
    from transformers.modeling_utils import AttentionInterface

    before = vars(AttentionInterface)["get_interface"]
    (model, batch), (other, _) = build("llama"), build("qwen2")
    first, second = (attention_calls._wrapped_attention_interface(_Idle()) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with torch.no_grad(), capture(other, ["q"], lambda site, x: None) as seen:
        other(**batch)
        model(**batch)
    seen.require(["q.0"])
    second.__exit__(None, None, None)
    assert vars(AttentionInterface)["get_interface"] is before


def test_another_model_in_another_thread_is_not_mistaken_for_the_one_captured() -> None:
    (model, batch), (other, _) = build("llama"), build("qwen2")

    def run_other() -> None:
        with torch.no_grad():
            other(**batch)

    def sink(site: Site, x: Any) -> None:
        thread = Thread(target=run_other)
        thread.start()
        thread.join()

    with torch.no_grad(), capture(model, ["q"], sink) as seen:
        model(**batch)
    assert seen.counts == {Site("q", layer): 1 for layer in range(LAYERS)}


class _Idle:
    """An observer for whom no attention ever runs."""

    def is_attending(self) -> bool:
        return False

    def on_heads(self, heads: Heads, unknown_pattern: str | None) -> None:
        raise AssertionError

    def on_scores(self, scores: Scores) -> None:
        raise AssertionError


def test_tensors_are_the_models_own_detached() -> None:
    model, batch = build("gpt2")
    outputs = []
    model.get_submodule("transformer.h.1").register_forward_hook(lambda m, a, out: outputs.append(out))

    def sink(site: Site, x: Tensor) -> None:
        assert not x.requires_grad
        assert x.data_ptr() == outputs[-1].data_ptr()

    with capture(model, ["resid.1"], sink) as seen:
        model(**batch)["logits"].sum().backward()
    seen.require(["resid.1"])


@pytest.mark.parametrize("kinds", [["resid"], ["resid", "q"]])
def test_a_compiled_model_is_seen(kinds: list[str]) -> None:
    model, batch = build("home_made")
    compiled: Any = torch.compile(model, backend="eager")
    with torch.no_grad():
        before = compiled(**batch)
    got: dict[str, Tensor] = {}

    def sink(site: Site, x: Tensor) -> None:
        assert not torch.compiler.is_compiling()
        got[str(site)] = x

    with torch.no_grad(), capture(compiled, kinds, sink) as seen:
        after = compiled(**batch)
    seen.require([f"{kind}.{layer}" for kind in kinds for layer in range(LAYERS)])
    assert torch.equal(before, after)
    expected, _ = captured(model, batch, kinds)
    assert all(torch.equal(got[site], expected[site]) for site in expected)


def test_adapters_count_as_the_projections_they_wrap() -> None:
    import peft

    model, batch = build("llama")
    config = peft.LoraConfig(target_modules=["q_proj", "o_proj", "down_proj"], r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    got, _ = captured(adapted, batch, ["embed", "resid", "attn", "mlp", "q", "q.pre"])
    torch.testing.assert_close(got["embed"] + got["attn.0"] + got["mlp.0"], got["resid.0"])
    torch.testing.assert_close(got["q.pre.1"][:, :, 0], got["q.1"][:, :, 0])


def test_an_offloaded_model_is_seen() -> None:
    import accelerate

    model, batch = build("llama")
    expected, output = captured(model, batch, ["resid", "q", "final"])
    offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    got, again = captured(offloaded, batch, ["resid", "q", "final"])
    assert torch.equal(output["logits"], again["logits"])
    assert list(got) == list(expected)
    assert all(torch.equal(got[site], expected[site]) for site in expected)


def test_gradient_checkpointing_shows_each_site_once() -> None:
    model, batch = build("llama")
    model.gradient_checkpointing_enable()
    model.train()
    times: dict[Site, int] = {}
    kinds = ["resid", "q", "attn", "mlp", "in.model.layers.1.mlp"]
    with capture(model, kinds, lambda site, x: times.update({site: times.get(site, 0) + 1})) as seen:
        model(**batch, use_cache=False)["logits"].sum().backward()
    seen.require(["resid.0", "q.0"])
    assert set(times.values()) == {1}
    assert len(times) == 4 * LAYERS + 1


def test_every_step_of_generation_is_a_forward() -> None:
    model, batch = build("gpt2")
    lengths: list[int] = []
    with torch.no_grad(), capture(model, ["resid.1", "pattern.1"], lambda site, x: lengths.append(0)) as seen:
        model.generate(**{k: v[:1] for k, v in batch.items()}, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert seen.forwards == 4
    assert len(lengths) == 8
    seen.require(["resid.1", "pattern.1"])


def test_a_forward_that_fails_does_not_disturb_the_next() -> None:
    model, batch = build("home_made")
    with torch.no_grad(), capture(model, ["resid", "attn"], lambda site, x: None) as seen:
        with pytest.raises(RuntimeError):
            model(input_ids=torch.zeros(2, 3))
        model(**batch)
    assert seen.counts[Site("resid", 0)] == 1


def test_only_the_model_given_counts() -> None:
    model, batch = build("gpt2")
    with torch.no_grad(), capture(model, ["resid"], lambda site, x: None) as seen:
        model.transformer(**batch)
    with pytest.raises(CaptureError, match=r"No forward was seen\. Inside the `with`, call the model"):
        seen.require(["resid.0"])


def test_a_width_that_is_not_the_configured_one_is_an_error() -> None:
    model, batch = build("gpt2")
    model.config.n_embd = 48
    with pytest.raises(CaptureError, match=r"resid\.0 is 32 wide, but the layout expects 48"):
        captured(model, batch, ["resid"], find_layout(model))


class Skipping(HomeMade):
    """Leaves out its middle block, as layer dropout does."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in (self.blocks[0], self.blocks[2]):
            x = block(x)
        out: Tensor = self.norm(x)
        return out


def test_a_skipped_layer_is_named_and_does_not_shift_the_others() -> None:
    model, batch = Skipping(), {"input_ids": text()["input_ids"]}
    with torch.no_grad(), capture(model, ["resid"], lambda site, x: None) as seen:
        model(**batch)
    seen.require(["resid.0", "resid.2"])
    with pytest.raises(CaptureError, match=r"resid\.1: not seen in every forward. Its module was not called"):
        seen.require(["resid.0", "resid.1"])


@pytest.mark.parametrize(
    ("name", "site", "message"),
    [
        ("gpt2", "rezid", "(?i)rezid.*did you mean .?resid"),
        ("gpt2", "resid.7", "(?i)did you mean .?resid"),
        ("gpt2", "enc.resid", "(?i)no site"),
        ("bert", Site("final"), "no final norm after its last block. Use the last resid"),
        ("mamba", "q.0", "state-space layers have no attention"),
        ("torch_encoder", "q.0", "nn.MultiheadAttention and linear attention do not show"),
        (
            "gpt2",
            "in.transformer.h.0.mpl",
            "(?i)no module .*transformer.h.0.mpl.*did you mean .?transformer.h.0.mlp",
        ),
        ("gpt2", "weight.lm_head", "(?i)no site of this model"),
    ],
)
def test_unknown_sites_are_errors_with_near_names(name: str, site: str | Site, message: str) -> None:
    model, _ = build(name)
    with pytest.raises((InputError, CaptureError), match=message), capture(model, [site], lambda site, x: None):
        pass


def test_kinds_expand_to_what_there_is() -> None:
    model, _ = build("bert")
    layout = find_layout(model)
    assert expand(layout, ["final"]) == []
    assert [str(site) for site in expand(layout, ["resid", "embed", "q.1", "q.1.3"])] == [
        *("embed", "resid.0", "q.1", "q.1.3", "resid.1", "resid.2")
    ]
    two, _ = build("t5")
    assert [str(site) for site in expand(find_layout(two), ["dec.resid"])] == ["dec.resid.0", "dec.resid.1"]
    with pytest.raises(CaptureError, match="BertModel has none of the sites final"):
        captured(model, {}, ["final"], layout)


def test_heads_sites_are_captured_layer_wide() -> None:
    model, batch = build("gpt2")
    seen_sites = []
    with torch.no_grad(), capture(model, ["q.1.0", "q.1.3"], lambda site, x: seen_sites.append(str(site))) as seen:
        model(**batch)
    assert seen_sites == ["q.1"]
    seen.require(["q.1.0", "q.1.3"])


def test_token_ids_are_no_vectors() -> None:
    model, batch = build("gpt2")
    with torch.no_grad(), capture(model, ["in.transformer.wte"], lambda site, x: None) as seen:
        model(**batch)
    with pytest.raises(CaptureError, match="holds no float tensor"):
        seen.require(["in.transformer.wte"])


def test_nested_tensors_are_refused_with_the_remedy() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    batch = {"src": torch.randn(2, 3, 8), "src_key_padding_mask": padding}
    with pytest.warns(UserWarning, match="nested"), pytest.raises(CaptureError, match="enable_nested_tensor=False"):
        captured(model, batch, ["resid"], find_layout(model))


def test_a_plain_model_needs_no_transformers() -> None:
    code = """
import sys
sys.modules["transformers"] = None
import torch
from torch import nn
from anisoscope.capture import capture
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2, enable_nested_tensor=False)
with capture(model, ["resid", "attn"], lambda site, x: None) as seen:
    model(torch.zeros(1, 3, 8))
seen.require(["resid.0", "resid.1", "attn.1"])
"""
    subprocess.run([sys.executable, "-c", code], check=True)
