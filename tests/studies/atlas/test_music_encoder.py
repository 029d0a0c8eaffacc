"""The encoder of scores knows relative positions only, ignores padding, and opens with the weights of its package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anisoscope.models.open import open_model
from anisoscope.studies.atlas.music_encoder import MusicEncoder, turned
from anisoscope.studies.atlas.own_folders import build_midisimx

SIZES = {"vocabulary": 720, "width": 8, "layers": 2, "heads": 2, "head": 8}


@pytest.fixture
def encoder() -> MusicEncoder:
    torch.manual_seed(0)
    return MusicEncoder(**SIZES).eval()


def test_products_of_turned_vectors_depend_on_the_distance_only() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 8, dtype=torch.float64)
    speeds = torch.tensor([1.0, 0.1], dtype=torch.float64)
    products = [turned(query, (5 + shift) * speeds) @ turned(key, (2 + shift) * speeds) for shift in (0, 7)]
    assert torch.allclose(products[0], products[1], atol=1e-12)
    assert torch.equal(turned(query, 5 * speeds)[4:], query[4:])


def test_padding_changes_nothing(encoder: MusicEncoder) -> None:
    ids = torch.tensor([[0, 434, 193, 272]])
    padded = torch.cat([ids, torch.full((1, 3), 719)], 1)
    with torch.no_grad():
        alone, among = encoder(ids), encoder(padded, (padded != 719).long())
    assert torch.allclose(alone, among[:, :4], atol=1e-5)


def test_a_package_opens_with_its_weights_and_norms_are_differences_from_one(
    tmp_path: Path, encoder: MusicEncoder
) -> None:
    names = {"norm1": "0.0", "norm2": "0.0", "query": "1.to_q", "key": "1.to_k", "value": "1.to_v", "out": "1.to_out"}
    names |= {"mlp.0": "1.ff.0.0", "mlp.2": "1.ff.2"}
    stored = {"attn_layers.rotary_pos_emb.inv_freq": torch.ones(2)}
    outer = {"words.weight": "token_emb.emb.weight", "head.weight": "to_logits.weight"}
    for name, tensor in encoder.state_dict().items():
        if name in outer:
            stored[outer[name]] = tensor
        elif name == "norm.weight":
            stored["attn_layers.final_norm.gamma"] = tensor - 1
        else:
            number, part, kind = name.removeprefix("layers.").replace("mlp.", "mlp-").split(".")
            part = part.replace("-", ".")
            which = 2 * int(number) + (part == "norm2" or part.startswith("mlp"))
            norm = part.startswith("norm")
            stored[f"attn_layers.layers.{which}.{names[part]}.{'gamma' if norm else kind}"] = (
                tensor - 1 if norm else tensor
            )
    torch.save(stored, tmp_path / "model.pth")
    (tmp_path / "out").mkdir()
    build_midisimx([tmp_path / "model.pth"], tmp_path / "out", heads=2)
    opened = open_model(tmp_path / "out", head=True)
    assert opened.processor is not None
    ids = opened.processor("0 434 [MASK] 272", return_tensors="pt")["input_ids"]
    assert ids.tolist() == [[0, 434, 718, 272]]
    with torch.no_grad():
        assert torch.equal(opened.model(ids), encoder(ids))
    assert opened.info["embedding_rows"] == 720
