"""`capture` gives the tensors of the latest forward by name, and leaves the model as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anisoscope
from anisoscope import CaptureError, InputError
from tests.captures import captured
from tests.tiny_models import LAYERS, build


def hooks_of(model: nn.Module) -> list[Any]:
    return [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "t5", "home_made"])
def test_the_cache_holds_what_the_hooks_report(name: str) -> None:
    model, batch = build(name)
    expected, output = captured(model, batch, ["embed", "resid", "q.pre"])
    with torch.no_grad(), anisoscope.capture(model, ["embed", "resid", "q.pre"]) as cache:
        again = model(**batch)
    assert list(cache) == [site for site in cache if site in expected]
    assert set(cache) == set(expected)
    assert all(torch.equal(cache[site], expected[site]) for site in expected)
    first, second = (out if isinstance(out, Tensor) else out[0] for out in (output, again))
    assert torch.equal(first, second)
    assert not hooks_of(model)


def test_hidden_states_are_those_that_the_library_returns() -> None:
    model, batch = build("gpt2")
    with torch.no_grad(), anisoscope.capture(model, ["embed", "resid", "pattern"]) as cache:
        output = model(**batch, output_hidden_states=True)
    model.set_attn_implementation("eager")
    reference = model(**batch, output_attentions=True)
    assert torch.equal(cache["embed"], output.hidden_states[0])
    assert torch.equal(cache["resid.0"], output.hidden_states[1])
    for layer, weights in enumerate(reference.attentions):
        real = batch["attention_mask"].bool()[:, None, :, None].expand_as(weights)
        # two softmaxes of float32 logits, each with an error of a few 2^-24 of a weight of at most 1
        assert torch.allclose(cache[f"pattern.{layer}"][real], weights[real], atol=1e-5)


def test_one_head_is_a_part_of_its_layer() -> None:
    model, batch = build("llama")
    with torch.no_grad(), anisoscope.capture(model, ["q.1", "q.2.3"]) as cache:
        model(**batch)
    with torch.no_grad(), anisoscope.capture(model, ["q.2"]) as whole:
        model(**batch)
    assert list(cache) == ["q.1", "q.2.3"]
    assert torch.equal(cache["q.2.3"], whole["q.2"][:, 3])
    with torch.no_grad(), anisoscope.capture(model, ["q.2.9"]) as beyond:
        model(**batch)
    with pytest.raises(CaptureError, match="only 4 heads"):
        beyond["q.2.9"]


def test_the_latest_forward_replaces_the_one_before() -> None:
    model, batch = build("gpt2")
    short = {name: x[:1, :5] for name, x in batch.items()}
    with torch.no_grad(), anisoscope.capture(model, ["resid"]) as cache:
        assert len(cache) == 0
        model(**batch)
        assert cache["resid.0"].shape[:2] == batch["input_ids"].shape
        model(**short)
        assert cache["resid.0"].shape[:2] == (1, 5)
    assert len(cache) == LAYERS


def test_a_model_that_adds_in_place_does_not_change_the_cache() -> None:
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True) for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
                x += 1.0
            return x

    model = Adding().eval()
    outputs: list[Tensor] = []
    model.layers[1].register_forward_hook(lambda module, args, out: outputs.append(out.clone()))
    with torch.no_grad(), anisoscope.capture(model, ["resid.1"]) as cache:
        model(torch.randn(2, 3, 8))
    assert torch.equal(cache["resid.1"], outputs[0])


def test_nothing_about_the_model_changes_and_hooks_go_after_an_error() -> None:
    from transformers.modeling_utils import AttentionInterface

    model, batch = build("llama")
    model.train()
    before = vars(AttentionInterface)["get_interface"]
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), anisoscope.capture(model, ["resid", "q", "pattern"]):
        raise ZeroDivisionError
    assert not hooks_of(model)
    assert vars(AttentionInterface)["get_interface"] is before
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad(), anisoscope.capture(model, ["resid"]):
        model(**batch)
        assert [module.training for module in model.modules()] == modes


def test_by_default_tensors_have_no_graph() -> None:
    model, batch = build("gpt2")
    with anisoscope.capture(model, ["resid", "q", "q.pre"]) as cache:
        model(**batch)
    assert not any(cache[site].requires_grad for site in cache)


@pytest.mark.parametrize("site", ["resid.0", "attn.1", "q.1", "k.1", "q.pre.1"])
def test_with_grad_a_loss_on_a_captured_tensor_reaches_the_weights(site: str) -> None:
    model, batch = build("llama")
    with anisoscope.capture(model, [site], grad=True) as cache:
        model(**batch)
    cache[site].square().sum().backward()
    got = model.get_input_embeddings().weight.grad
    assert got is not None
    assert float(got.abs().sum()) > 0


def test_with_grad_the_stream_is_on_the_path_to_the_loss() -> None:
    model, batch = build("gpt2")
    with anisoscope.capture(model, ["resid.1"], grad=True) as cache:
        logits = model(**batch).logits
    cache["resid.1"].retain_grad()
    logits.square().sum().backward()
    assert cache["resid.1"].grad is not None


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_runs_eagerly_and_gives_the_same(in_place: bool) -> None:
    model, batch = build("home_made")
    expected, _ = captured(model, batch, ["resid"])
    compiled: Any = torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
        compiled = model
    with torch.no_grad():
        compiled(**batch)  # compiled before the capture begins
        with anisoscope.capture(compiled, ["resid"]) as cache:
            compiled(**batch)
    assert all(torch.equal(cache[site], expected[site]) for site in expected)


def test_unknown_names_and_forgotten_calls_are_errors_that_say_what_to_do() -> None:
    model, batch = build("gpt2")
    with pytest.raises(InputError, match="Did you mean"), anisoscope.capture(model, ["resed"]):
        pass
    with pytest.raises(InputError, match="must be a list"), anisoscope.capture(model, "resid"):
        pass
    with pytest.raises(CaptureError, match="No forward was seen"), anisoscope.capture(model, ["resid"]):
        pass
    with torch.no_grad(), anisoscope.capture(model, ["resid.1"]) as cache:
        model(**batch)
    with pytest.raises(KeyError, match=r"resid.1"):
        cache["resid.2"]
    assert "resid.2" not in cache
    assert repr(cache) == "<SiteCache resid.1: (2, 12, 32)>"
