"""Captured tensors against what models report themselves: values equal, outputs bit-identical."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anisoscope.errors import CaptureError
from anisoscope.hooks import find_layout, observe_sites
from anisoscope.records import Site
from tests.captures import BYPASS, EVERY, KINDS, STAGES, TWO_SIDED, captured
from tests.tiny_models import CATALOGUE, LAYERS, WIDTH, build

PLAIN = [name for name in CATALOGUE if name.startswith(("torch_", "home_"))]
NO_SDPA = ("gemma2", "mamba", *BYPASS, *STAGES)


def tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [value for value in (output.values() if isinstance(output, dict) else output) if isinstance(value, Tensor)]


def rows(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x


NO_FINAL_NORM = {
    *("bert", "roberta", "albert", "distilbert", "electra", "bart", "canine", "beit", "wav2vec2", "hubert"),
    *("clip_vision", *STAGES),  # clip's last norm sees only the pooled token
}


def test_a_norm_of_a_pooled_token_is_not_taken_for_the_final_one() -> None:
    model, batch = build("clip_vision")
    with torch.no_grad(), observe_sites(model, ["final", "final.in"], lambda site, x: None) as seen:
        model(**batch)
    with pytest.raises(CaptureError, match=r"final: .* The norm does not receive the last block"):
        seen.require(["final"])


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
def test_plain_torch_models_are_captured_block_by_block(name: str) -> None:
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

    with pytest.raises(error), observe_sites(model, ["resid", "q", "pattern"], sink):
        model(**batch)
    assert not hooks_of(model)
    assert vars(AttentionInterface)["get_interface"] is before
    assert model.config._attn_implementation == implementation
    got, _ = captured(model, batch, ["resid"])
    assert len(got) == LAYERS


def test_tensors_are_detached_but_not_copied() -> None:
    model, batch = build("gpt2")
    outputs = []
    model.get_submodule("transformer.h.1").register_forward_hook(lambda m, a, out: outputs.append(out))

    def sink(site: Site, x: Tensor) -> None:
        assert not x.requires_grad
        assert x.data_ptr() == outputs[-1].data_ptr()

    with observe_sites(model, ["resid.1"], sink) as seen:
        model(**batch)["logits"].sum().backward()
    seen.require(["resid.1"])


@pytest.mark.parametrize("kinds", [["resid"], ["resid", "q"]])
def test_a_compiled_model_is_captured(kinds: list[str]) -> None:
    model, batch = build("home_made")
    compiled: Any = torch.compile(model, backend="eager")
    with torch.no_grad():
        before = compiled(**batch)
    got: dict[str, Tensor] = {}

    def sink(site: Site, x: Tensor) -> None:
        assert not torch.compiler.is_compiling()
        got[str(site)] = x

    with torch.no_grad(), observe_sites(compiled, kinds, sink) as seen:
        after = compiled(**batch)
    seen.require([f"{kind}.{layer}" for kind in kinds for layer in range(LAYERS)])
    assert torch.equal(before, after)
    expected, _ = captured(model, batch, kinds)
    assert all(torch.equal(got[site], expected[site]) for site in expected)


def test_an_offloaded_model_is_captured() -> None:
    import accelerate

    model, batch = build("llama")
    expected, output = captured(model, batch, ["resid", "q", "final"])
    offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    got, again = captured(offloaded, batch, ["resid", "q", "final"])
    assert torch.equal(output["logits"], again["logits"])
    assert list(got) == list(expected)
    assert all(torch.equal(got[site], expected[site]) for site in expected)


def test_every_step_of_generation_is_a_forward() -> None:
    model, batch = build("gpt2")
    lengths: list[int] = []
    with torch.no_grad(), observe_sites(model, ["resid.1", "pattern.1"], lambda site, x: lengths.append(0)) as seen:
        model.generate(**{k: v[:1] for k, v in batch.items()}, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert seen.forwards == 4
    assert len(lengths) == 8
    seen.require(["resid.1", "pattern.1"])


def test_a_forward_that_fails_does_not_disturb_the_next() -> None:
    model, batch = build("home_made")
    with torch.no_grad(), observe_sites(model, ["resid", "attn"], lambda site, x: None) as seen:
        with pytest.raises(RuntimeError):
            model(input_ids=torch.zeros(2, 3))
        model(**batch)
    assert seen.counts[Site("resid", 0)] == 1


def test_only_forwards_of_the_captured_model_count() -> None:
    model, batch = build("gpt2")
    with torch.no_grad(), observe_sites(model, ["resid"], lambda site, x: None) as seen:
        model.transformer(**batch)
    with pytest.raises(CaptureError, match=r"No forward was seen\. Inside the `with`, call the model"):
        seen.require(["resid.0"])


def test_heads_sites_are_captured_layer_wide() -> None:
    model, batch = build("gpt2")
    names = []
    with (
        torch.no_grad(),
        observe_sites(model, ["q.1.0", "q.1.3"], lambda site, x: names.append(str(site))) as seen,
    ):
        model(**batch)
    assert names == ["q.1"]
    seen.require(["q.1.0", "q.1.3"])


def test_token_ids_are_not_vectors() -> None:
    model, batch = build("gpt2")
    with torch.no_grad(), observe_sites(model, ["in.transformer.wte"], lambda site, x: None) as seen:
        model(**batch)
    with pytest.raises(CaptureError, match="holds no float tensor"):
        seen.require(["in.transformer.wte"])


def test_a_plain_model_needs_no_transformers() -> None:
    code = """
import sys
sys.modules["transformers"] = None
import torch
from torch import nn
from anisoscope.hooks import observe_sites
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2, enable_nested_tensor=False)
with observe_sites(model, ["resid", "attn"], lambda site, x: None) as seen:
    model(torch.zeros(1, 3, 8))
seen.require(["resid.0", "resid.1", "attn.1"])
"""
    subprocess.run([sys.executable, "-c", code], check=True)
