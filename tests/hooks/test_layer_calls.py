"""Which layer each call of a block is: shared, looped, skipped and checkpointed blocks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from anisoscope.errors import CaptureError
from anisoscope.hooks import find_layout, observe_sites
from anisoscope.hooks.layer_calls import LayerCall, LayerCalls
from anisoscope.records import Site
from tests.captures import captured
from tests.tiny_models import LAYERS, WIDTH, HomeMade, build, text


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


def test_a_looped_stack_is_an_error_without_an_example_and_correct_with_one() -> None:
    model, batch = Looped(), {"input_ids": text()["input_ids"]}
    with pytest.raises(CaptureError, match=r"resid\.0 was met twice.*find_layout\(model, example\)"):
        captured(model, batch, ["resid"], find_layout(model))
    got, output = captured(model, batch, ["resid", "attn", "final"])
    assert list(got) == sorted(got, key=lambda name: Site.parse(name))
    assert len(got) == 2 * 2 * LAYERS + 1
    assert torch.equal(model.norm(got["resid.5"]), output)
    assert torch.equal(model.blocks[0](got["resid.2"]), got["resid.3"])


def test_gradient_checkpointing_reports_each_site_once() -> None:
    model, batch = build("llama")
    model.gradient_checkpointing_enable()
    model.train()
    times: dict[Site, int] = {}
    kinds = ["resid", "q", "attn", "mlp", "in.model.layers.1.mlp"]
    with observe_sites(model, kinds, lambda site, x: times.update({site: times.get(site, 0) + 1})) as seen:
        model(**batch, use_cache=False)["logits"].sum().backward()
    seen.require(["resid.0", "q.0"])
    assert set(times.values()) == {1}
    assert len(times) == 4 * LAYERS + 1


def test_a_width_other_than_the_configured_one_is_an_error() -> None:
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
    with torch.no_grad(), observe_sites(model, ["resid"], lambda site, x: None) as seen:
        model(**batch)
    seen.require(["resid.0", "resid.2"])
    with pytest.raises(CaptureError, match=r"resid\.1: not seen in every forward. Its module was not called"):
        seen.require(["resid.0", "resid.1"])


@pytest.mark.parametrize(("name", "reported"), [("gpt2", [LAYERS - 1]), ("albert", [])])
def test_a_block_called_outside_a_forward_is_reported_only_if_its_layer_is_certain(
    name: str, reported: list[int]
) -> None:
    model, batch = build(name)
    (stack,) = find_layout(model, batch).stacks
    layers: list[int] = []

    def on_output(call: LayerCall, _x: Tensor) -> None:
        layers.append(call.layer)

    with ExitStack() as cleanup, torch.no_grad():
        LayerCalls().hook_blocks(model, stack, cleanup, on_output=on_output)
        model.get_submodule(stack.blocks[-1].path)(torch.zeros(1, 4, WIDTH))
    assert layers == reported


def test_shared_blocks_called_more_often_than_in_the_layout_are_an_error() -> None:
    model, batch = build("albert")
    layout = find_layout(model, batch)
    (stack,) = layout.stacks
    short = replace(layout, stacks=(replace(stack, blocks=stack.blocks[:-1]),))
    with pytest.raises(CaptureError, match="called more than the 2 times expected"):
        captured(model, batch, ["resid"], short)


def test_the_blocks_of_a_wrapped_model_are_found_and_captured() -> None:
    model, batch = build("home_made")
    wrapped = nn.DataParallel(model)
    assert find_layout(wrapped) == find_layout(model)
    got, _ = captured(wrapped, batch, ["resid"], find_layout(wrapped))
    expected, _ = captured(model, batch, ["resid"])
    assert all(torch.equal(got[site], expected[site]) for site in expected)
