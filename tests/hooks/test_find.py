"""Finding the layers of a model: from its structure, and from an example forward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from anisoscope.errors import CaptureError
from anisoscope.hooks import find_layout
from tests.captures import EVERY, STAGES, TWO_SIDED
from tests.tiny_models import LAYERS, WIDTH, HomeMadeBlock, build


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
def test_a_final_norm_is_one_that_receives_the_last_output(name: str) -> None:
    model, batch = build(name)
    for stack in find_layout(model, batch).stacks:
        assert (stack.final is None) == (name in NO_FINAL_NORM)
    for stack in find_layout(model).stacks:
        unsure = {"clip_vision": "post_layernorm", "wav2vec2_stable": None}
        assert stack.final == unsure[name] if name in unsure else (stack.final is None) == (name in NO_FINAL_NORM)


def test_a_decoder_layer_of_torch_has_self_attention_and_cross_attention() -> None:
    model = nn.Transformer(8, 2, 1, 2, 8, batch_first=True)
    enc, dec = find_layout(model).stacks
    assert (enc.name, enc.blocks[0].attn, enc.final) == ("enc", "encoder.layers.0.self_attn", "encoder.norm")
    assert (dec.name, dec.blocks[1].attn, dec.final) == ("dec", "decoder.layers.1.self_attn", "decoder.norm")


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


def test_a_model_without_blocks_is_an_error_that_names_what_was_expected() -> None:
    with pytest.raises(CaptureError, match="No list of blocks in Linear: expected a ModuleList"):
        find_layout(nn.Linear(2, 2))


def test_finding_the_layout_changes_neither_training_mode_nor_hooks() -> None:
    model, batch = build("gpt2")
    model.train()
    model.get_submodule("transformer.h.1").eval()
    before = [module.training for module in model.modules()]
    find_layout(model, batch)
    assert [module.training for module in model.modules()] == before
    assert not hooks_of(model)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
