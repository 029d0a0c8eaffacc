"""The final norm: found, reset, permuted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anisoscope
from anisoscope.hooks import find_layout
from anisoscope.measurement.final_norm import gain_and_bias, norm_variants
from tests.tiny_models import build


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_a_reset_final_norm_is_a_plain_norm(name: str) -> None:
    model, inputs = build(name)
    layout = find_layout(model, inputs)
    norm = model.get_submodule(layout.stacks[-1].final)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.linspace(-0.3, 0.5, len(parameter))
    gain, bias = gain_and_bias(norm)
    assert gain is not None
    x = torch.randn(5, len(gain), generator=torch.Generator().manual_seed(0))
    found = {which: y.detach() for which, number, y in norm_variants(norm, x, 0, 1) if number == 0}
    assert torch.allclose(found["as trained"], norm(x).detach())
    plain = found["both reset" if bias is not None else "gain reset"]
    assert torch.allclose(plain * gain + (0 if bias is None else bias), found["as trained"], atol=1e-5)
    if bias is None:  # an RMS norm: unit root mean square, whatever the gain was
        assert torch.allclose(plain.square().mean(1), torch.ones(5), atol=1e-3)


def test_resetting_the_final_norm_is_compared_with_permuting_it(folder: Path, text: Path) -> None:
    run = anisoscope.measure(folder, text=text, tokens=400, window=32, weights=True, metrics=["mean_cosine"])
    found = {r.variant["norm"]: r for r in run.records() if r.metric == "mean_cosine" and "norm" in r.variant}
    assert set(found) == {"as trained", "gain reset", "bias reset", "both reset", "permuted"}
    direct = next(r for r in run.records() if r.site == "final" and r.metric == "mean_cosine" and not r.variant)
    assert found["as trained"].value == pytest.approx(direct.value, abs=1e-5)  # all rows are in the sample
    assert found["permuted"].error_kind == "deviation-20-permutations"
