"""C1 and C2: what is measured over layers and over training, on models and curves whose answer is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anisoscope.studies.claims.later_papers import _layers, depth_of_valley, rank_and_exponent
from anisoscope.studies.lab.transformer import Config, Transformer

WINDOW, LAYERS = 16, 4


def model_with_a_massive_token() -> Transformer:
    """Token 0 gets a huge coordinate in layer 1 and loses it in the last layer."""
    model = Transformer(Config(vocabulary=12, context=WINDOW, layers=LAYERS, width=16, heads=2, tied=False)).eval()

    def huge(sign: float) -> object:
        def hook(_module: object, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
            first = torch.zeros_like(out)
            first[:, 0, 3] = sign * 500.0
            return out + first

        return hook

    model.blocks[1].register_forward_hook(huge(1.0))  # type: ignore[arg-type]
    model.blocks[3].register_forward_hook(huge(-1.0))  # type: ignore[arg-type]
    return model


def test_a_massive_token_makes_a_valley_that_vanishes_without_it() -> None:
    ids = torch.randint(0, 12, (8, WINDOW), generator=torch.Generator().manual_seed(0))
    layers = _layers(model_with_a_massive_token(), [{"input_ids": part} for part in ids.split(4)], 0)
    assert list(layers.massive) == [0, 8, 8, 0]  # one per window, after layers 1 and 2
    assert layers.entropy[1] < 0.1 < layers.entropy[0]
    assert depth_of_valley(layers.entropy) > 0.3
    assert depth_of_valley(layers.entropy_left) < 0.05
    assert len(layers.sinks) == LAYERS - 1


def test_a_valley_is_below_both_ends() -> None:
    assert depth_of_valley([0.9, 0.2, 0.1, 0.8]) == pytest.approx(0.7)
    assert depth_of_valley([0.1, 0.5, 0.9]) < 0
    assert depth_of_valley([0.5, 0.5, 0.5]) == 0


def test_rank_and_exponent_of_known_spectra() -> None:
    assert rank_and_exponent(torch.eye(32))[0] == pytest.approx(32)
    j = torch.arange(1, 33, dtype=torch.float64)
    rows = torch.randn(4000, 32, generator=torch.Generator().manual_seed(0)).double() * j**-0.5
    assert rank_and_exponent(rows)[1] == pytest.approx(1.0, abs=0.05)
