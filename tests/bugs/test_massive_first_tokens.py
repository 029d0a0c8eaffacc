"""First tokens of windows, which decoders make massive, were missing from the rows of largest norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anisoscope
from anisoscope.errors import InputError
from tests.oracles import metrics as slow

_WINDOWS, _LENGTH = 96, 16


class FirstIsMassive(nn.Module):
    """Two blocks; the first makes the first token of each window fifty times as long, along one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.blocks = nn.ModuleList([Stretch(50.0), Stretch(1.0)])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return x


class Stretch(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, :1].clone()
        first[..., 3] = first[..., 3].abs() + 4 * (self.by - 1)
        return torch.cat((first, x[:, 1:]), 1)


def model_and_ids(windows: int = _WINDOWS, length: int = _LENGTH) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return FirstIsMassive().eval(), torch.randint(0, 64, (windows, length))


def batches_of(ids: Tensor) -> Iterator[dict[str, Tensor]]:
    yield from ({"input_ids": part} for part in ids.split(8))


def measured(*metrics: str) -> dict[tuple[str, str, Any], Any]:
    model, ids = model_and_ids()
    one = [{"input_ids": ids}]  # a row's place among the largest depends on the median norm of its batch
    run = anisoscope.measure(model, one, sites=["resid"], metrics=list(metrics), tokens=ids.numel())
    return {
        (r.metric, r.site, r.variant.get("rule") if r.variant else r.index): r
        for r in run.records()
        if r.tokens == "all"
    }


def rows_of(site: str) -> np.ndarray[Any, Any]:
    model, ids = model_and_ids()
    with torch.no_grad(), anisoscope.capture(model, [site]) as cache:
        model(ids)
    return cache[site].double().flatten(0, 1).numpy()


@pytest.mark.parametrize("site", ["resid.0", "resid.1"])
def test_massive_tokens_counts_massive_first_tokens(site: str) -> None:
    found = measured("massive_tokens")["massive_tokens", site, "norm"]
    norms = np.linalg.norm(rows_of(site), axis=1)
    assert found.value == (norms > 5 * np.median(norms)).sum() == _WINDOWS


def test_the_removal_curve_removes_first_tokens_too() -> None:
    found, x = measured("removal_curve", "tokens_to_halve"), rows_of("resid.0")
    for removed in (0, 1, 64, 128):
        assert found["removal_curve", "resid.0", removed].value == pytest.approx(
            slow.removal_curve(x, removed), rel=1e-9
        )
    assert found["removal_curve", "resid.0", 128].value < 0.2 < 0.9 < found["removal_curve", "resid.0", 0].value
    halved = found["tokens_to_halve", "resid.0", None]
    assert halved.value is not None
    assert halved.value <= _WINDOWS / (_WINDOWS * _LENGTH)


def test_the_policy_leaves_them_out_once() -> None:
    model, ids = model_and_ids()
    run = anisoscope.measure(
        model, batches_of(ids), sites=["resid"], metrics=["spectral_anisotropy"], tokens=ids.numel()
    )
    assert run.info["removed"]["count"] == 0  # massive tokens besides first ones
    x = rows_of("resid.0").reshape(_WINDOWS, _LENGTH, -1)[:, 1:].reshape(-1, 16)
    (record,) = [r for r in run.records() if (r.site, r.tokens) == ("resid.0", "no-sink")]
    assert record.value == pytest.approx(slow.removal_curve(x, 0), rel=1e-6)
    assert record.n == len(x)


def test_sinks_finds_the_first_tokens() -> None:
    model, ids = model_and_ids()
    entry = anisoscope.sinks(model, batches_of(ids)).at("resid.0")
    first = next(each for each in entry.classes if each.name == "first")
    assert (first.tokens, first.massive, entry.massive) == (_WINDOWS, _WINDOWS, _WINDOWS)


def test_more_massive_first_tokens_than_a_block_keeps_are_no_error_of_a_measurement() -> None:
    model, ids = model_and_ids(windows=12288, length=3)
    batches = [{"input_ids": part} for part in ids.split(4096)]
    run = anisoscope.measure(
        model, batches, sites=["resid"], metrics=["massive_tokens"], tokens=ids.numel(), errors=False
    )
    by_norm = [r for r in run.records() if r.site == "resid.0" and r.variant == {"rule": "norm"}]
    assert "lower bound" in (by_norm[0].note or "")
    with pytest.raises(InputError, match="first tokens"):
        anisoscope.sinks(model, batches)
