"""Captures that several tests share: the tensors at some sites of a tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anisoscope.hooks import Layout, expand, find_layout, observe_sites
from anisoscope.records import Site
from tests.tiny_models import CATALOGUE

EVERY = pytest.mark.parametrize("name", CATALOGUE)
KINDS = ["embed", "resid", "attn", "mlp", "q", "k", "q.pre", "k.pre", "pattern", "final.in", "final"]
BYPASS = ("gptj", "bloom", "mpt", "canine")  # neither interface nor scaled_dot_product_attention
STAGES = {"segformer": [8, 16], "resnet": [8, 16], "convnext": [8, 16], "efficientnet": [8, 16, 16], "cvt": [8, 16, 24]}
TWO_SIDED = ("t5", "bart", "whisper")


def captured(
    model: nn.Module, batch: Mapping[str, Any], sites: list[str], layout: Layout | None = None
) -> tuple[dict[str, Any], Any]:
    """Everything at these sites in one forward without gradients, and the model's output."""
    got: dict[str, Any] = {}
    layout = find_layout(model, batch) if layout is None else layout

    def keep(site: Site, x: Any) -> None:
        got[str(site)] = x.clone() if isinstance(x, Tensor) else x  # some models go on to add in place

    with torch.no_grad(), observe_sites(model, sites, keep, layout=layout) as seen:
        output = model(**batch)
    if not {"q", "k"} & set(sites):
        seen.require(expand(layout, sites))
    return got, output
