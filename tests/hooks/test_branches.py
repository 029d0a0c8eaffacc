"""What branches write: streams and writes of real blocks add up to their outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anisoscope.hooks import find_layout, observe_sites
from anisoscope.hooks.branches import Branch
from anisoscope.records import Site
from tests.tiny_models import build

SEQUENTIAL = ("gpt2", "llama", "olmo2", "opt", "bloom", "gemma2", "mixtral", "modernbert", "vit", "wav2vec2_stable")
PARALLEL = ("gptj", "gpt_neox", "falcon", "phi")
POST = {
    "bert": ("encoder.layer.1.attention.output.LayerNorm", "encoder.layer.1.output.LayerNorm"),
    "distilbert": ("transformer.layer.1.sa_layer_norm", "transformer.layer.1.output_layer_norm"),
}


def captured(model: nn.Module, batch: dict[str, Any], branches: bool = True) -> dict[str, Any]:
    layout, found = find_layout(model, batch), {}
    sites = [site for site in layout.sites() if site.kind in ("embed", "attn", "mlp", "resid")]

    def keep(site: Site, x: Any) -> None:
        found[str(site)] = x.clone() if isinstance(x, Tensor) else x  # blocks may add to it in place

    with torch.no_grad(), observe_sites(model, sites, keep, layout=layout, branches=branches) as log:
        model(**batch)
    log.require(sites)
    return found


def layer(name: str) -> tuple[Branch, Branch, Tensor, Tensor]:
    """Attention, feed-forward layer, input and output of layer 1."""
    found = captured(*build(name))
    return found["attn.1"], found["mlp.1"], found["resid.0"], found["resid.1"]


def assert_sum(total: Tensor, *parts: Tensor | None) -> None:
    """Float32 sums of a few numbers of size 1 to 10."""
    torch.testing.assert_close(total, sum(part for part in parts if part is not None), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_each_branch_adds_its_write_to_the_stream_before_it(name: str) -> None:
    attn, mlp, before, after = layer(name)
    assert attn.stream is not None
    assert mlp.stream is not None
    assert torch.equal(attn.stream, before)
    assert_sum(mlp.stream, attn.stream, attn.written)
    assert_sum(after, mlp.stream, mlp.written)
    assert torch.equal(mlp.written, mlp.rows) == (name not in ("olmo2", "gemma2"))


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_branches_have_the_same_stream(name: str) -> None:
    attn, mlp, before, after = layer(name)
    assert attn.stream is not None
    assert mlp.stream is not None
    assert torch.equal(attn.stream, before)
    assert torch.equal(mlp.stream, before)
    assert_sum(after, before, attn.written, mlp.written)


@pytest.mark.parametrize("name", POST)
def test_blocks_that_end_in_a_norm_normalise_the_sum(name: str) -> None:
    model, batch = build(name)
    found = captured(model, batch)
    first, last = (model.get_submodule(path) for path in POST[name])
    attn, mlp = found["attn.1"], found["mlp.1"]
    with torch.no_grad():
        assert_sum(mlp.stream, first(attn.stream + attn.written))
        assert_sum(found["resid.1"], last(mlp.stream + mlp.written))


@pytest.mark.parametrize("name", ["llama", "bert", "falcon"])
def test_rows_are_the_same_with_and_without_branches(name: str) -> None:
    model, batch = build(name)
    plain, found = captured(model, batch, branches=False), captured(model, batch)
    for site, x in plain.items():
        assert torch.equal(x, found[site].rows if isinstance(found[site], Branch) else found[site])


class InPlace(nn.Module):
    """A block that adds to its stream in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x += self.mlp(self.norm(x))
        return x


def test_a_stream_that_is_changed_in_place_is_the_one_before_the_write() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([InPlace(), InPlace()])

        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            for each in self.layers:
                x = each(x)
            return x

    torch.manual_seed(0)
    model, x = Model(), torch.randn(2, 3, 8)
    found: dict[str, Any] = {}
    with torch.no_grad(), observe_sites(model, ["mlp"], lambda s, b: found.update({str(s): b}), branches=True):
        out = model(x)
    assert_sum(found["mlp.0"].stream, x)
    assert_sum(out, x, found["mlp.0"].written, found["mlp.1"].written)
