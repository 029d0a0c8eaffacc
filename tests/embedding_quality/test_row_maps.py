"""Maps of rows: remedies end with unit length, shorter rows and fewer bits stay close to the original."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import anisoscope
from anisoscope.embedding_quality.row_maps import Ranges, compression_maps, remedy_maps, unit
from anisoscope.stats.collect import cloud_of
from anisoscope.stats.moments import Moments


def world() -> tuple[torch.Tensor, Moments]:
    x = torch.randn(400, 40, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 41).rsqrt() + 0.3
    return x, cloud_of(x, ["Moments"]).get(Moments)


def test_remedies_are_those_of_fit_remedy_at_unit_length() -> None:
    x, moments = world()
    maps = {each.name: each for each in remedy_maps(moments, 2, norm_spread=0.5)}
    assert list(maps) == ["none", "centre", "centre, remove top 2", "centre, whiten", "as stored"]
    whitened = anisoscope.fit_remedy(x, centre=True, whiten=True).apply(x)
    assert maps["centre, whiten"].apply(x).numpy() == pytest.approx(unit(whitened).numpy(), abs=1e-5)
    for name, each in maps.items():
        lengths = each.apply(x).norm(dim=1)
        assert (name == "as stored") != bool(torch.allclose(lengths, torch.ones(400), atol=1e-5))
    assert "as stored" not in {each.name for each in remedy_maps(moments, None, norm_spread=0.0)}


def test_principal_axes_keep_cosines_better_than_any_other_axes() -> None:
    x, moments = world()
    maps = {each.name: each for each in compression_maps(moments, Ranges.of(unit(x)))}
    assert list(maps) == ["first 32", "PCA 32", "first 16", "PCA 16", "int8", "binary"]
    assert maps["first 16"].apply(x).numpy() == pytest.approx(unit(x[:, :16]).numpy())
    _, _, axes = np.linalg.svd(x.double().numpy(), full_matrices=False)
    wanted = unit(x.double() @ torch.from_numpy(axes[:16].T.copy()))
    got = maps["PCA 16"].apply(x)
    assert (got @ got.T).numpy() == pytest.approx((wanted @ wanted.T).numpy(), abs=1e-4)


def test_int8_is_within_half_a_step_and_binary_keeps_signs() -> None:
    x, moments = world()
    maps = {each.name: each for each in compression_maps(moments, Ranges.of(unit(x)))}
    ranges = Ranges.of(unit(x[:200])) + Ranges.of(unit(x[200:]))
    step = float((ranges.high - ranges.low).max()) / 255
    # rounding moves each of 40 entries by at most half a step before the length is set to 1 again
    assert float((maps["int8"].apply(x) - unit(x)).norm(dim=1).max()) < 2 * 0.5 * step * 40**0.5
    assert torch.equal(maps["binary"].apply(x) > 0, x > 0)


def test_maps_for_dot_products_keep_lengths() -> None:
    x, moments = world()
    x = x * torch.linspace(0.5, 2.0, len(x))[:, None]
    remedies = {each.name: each for each in remedy_maps(moments, 2, norm_spread=0.5, dot=True)}
    assert list(remedies) == ["none", "centre", "centre, remove top 2", "centre, whiten", "unit length"]
    assert torch.equal(remedies["none"].plain(x), x)
    assert torch.equal(remedies["unit length"].plain(x), unit(x))
    short = {each.name: each for each in compression_maps(moments, Ranges.of(x), dot=True)}
    assert torch.equal(short["first 16"].plain(x), x[:, :16])
    step = (x.amax(0) - x.amin(0)) / 255  # each entry moves by at most half a step, and rounding of float32
    assert bool(((short["int8"].plain(x) - x).abs() <= 0.51 * step).all())
