"""A series of checkpoints: gaps, order, copies."""

from __future__ import annotations

import pytest
import torch

from anisoscope.models.checkpoints import Checkpoint
from anisoscope.sweep.series import gaps, out_of_order, sketch


def series(*steps: int) -> list[Checkpoint]:
    return [Checkpoint(f"checkpoint-{step}", None, step, f"checkpoint-{step}") for step in steps]


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ((1000, 2000, 4000, 5000), ["3000"]),
        ((0, 1000, 4000, 5000, 6000), ["2000, 3000"]),
        ((1000, 3000, 4000, 5000), ["2000"]),
        ((1, 2, 4, 16, 32, 64), ["8"]),
        ((0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000), []),
        ((5, 17, 80), []),
        ((0,), []),
    ],
)
def test_missing_steps_of_a_regular_series_are_found(steps: tuple[int, ...], missing: list[str]) -> None:
    found = gaps(series(*steps))
    assert len(found) == len(missing)
    assert all(names in finding.text for names, finding in zip(missing, found, strict=True))


def test_checkpoints_out_of_order_are_found_by_their_weights() -> None:
    chance = torch.Generator().manual_seed(0)
    walk = torch.randn(8, 512, generator=chance).cumsum(0)
    sound = {100 * place: walk[place].tolist() for place in range(8)}
    assert out_of_order(sound) == []
    swapped = sound | {300: sound[400], 400: sound[300]}
    assert any("step 300" in finding.text for finding in out_of_order(swapped))
    foreign = sound | {500: torch.randn(512, generator=chance).mul(9).tolist()}
    assert any("step 500" in finding.text for finding in out_of_order(foreign))


def test_a_weight_of_more_numbers_than_float32_can_count_is_sketched() -> None:
    model = torch.nn.Module()
    large = torch.zeros(1).expand(51_864 * 384)  # Whisper's vocabulary, without its memory
    model.register_parameter("words", torch.nn.Parameter(large))
    assert set(sketch(model)) == {0.0}
