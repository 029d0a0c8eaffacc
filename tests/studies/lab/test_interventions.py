"""Interventions on the residual stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anisoscope.models.open import open_model
from anisoscope.studies.lab.experiment import Experiment, changed
from anisoscope.studies.lab.interventions import Interventions, principal_directions
from anisoscope.studies.lab.targets import isoscore_star
from anisoscope.studies.lab.token_data import open_data
from anisoscope.studies.lab.train import train
from anisoscope.studies.lab.transformer import Config, Transformer

TINY = {"layers": 2, "width": 16, "heads": 2, "context": 16, "batch": 4, "steps": 12, "learning_rate": 0.01}


def tiny(**switches: Any) -> Experiment:
    return changed(Experiment(), TINY | switches)


def stream(folder: Path, step: int = 12) -> Tensor:
    """Outputs of the last block on held-out text, (n, width)."""
    model: Any = open_model(folder / "checkpoints" / f"step-{step}").model
    data = open_data(folder / "data")
    kept: list[Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _m, _i, out: kept.append(out))
    with torch.no_grad():
        model(data.held_out(64, 16))
    return kept[0].flatten(0, 1)


def test_the_regulariser_moves_isotropy_in_its_direction(tmp_path: Path) -> None:
    score = {}
    for weight in (-3.0, 0.0, 3.0):
        done = train(tiny(isoscore=weight, steps=60), tmp_path / f"{weight}")
        score[weight] = float(isoscore_star(stream(done.folder, 60), 0.0))
    assert score[-3.0] < score[0.0] < score[3.0]


def test_centring_keeps_the_mean_of_the_stream_small(tmp_path: Path) -> None:
    share = {}
    for strength in (0.0, 1.0):
        x = stream(train(tiny(centring=strength, steps=60), tmp_path / f"{strength}").folder, 60)
        share[strength] = float(x.mean(0).norm() / x.square().sum(1).mean().sqrt())
    assert share[1.0] < 0.5 * share[0.0]


@pytest.mark.parametrize("part", ["tangent", "normal", "random"])
def test_projected_gradients_stay_in_their_part(part: str) -> None:
    model = Transformer(Config(vocabulary=20, context=8, layers=3, width=16, heads=2))
    ids = torch.randint(0, 20, (6, 8), generator=torch.Generator().manual_seed(0))
    recipe = tiny(project=part, rank=3).recipe
    grads: dict[int, Tensor] = {}
    expected: list[Tensor] = principal_directions(model, ids, 3)
    with Interventions(model, recipe, ids) as interventions:
        interventions.before_step(0)
        for layer, block in enumerate(model.blocks):
            block.register_forward_hook(_noting(grads, layer))
        model(ids, labels=ids).loss.backward()
    bases = interventions.bases
    if part != "random":
        assert all(torch.allclose(a @ a.mT, b @ b.mT, atol=1e-5) for a, b in zip(bases, expected, strict=True))
    for layer, basis in enumerate(bases):
        torch.testing.assert_close(basis.mT @ basis, torch.eye(3), atol=1e-5, rtol=0)
        inside = float((grads[layer] @ basis).norm() / grads[layer].norm())
        assert inside == pytest.approx(0.0 if part == "normal" else 1.0, abs=1e-4)
    grads.clear()
    model(ids, labels=ids).loss.backward()  # outside the `with` nothing is left
    assert 0.01 < float((grads[1] @ bases[1]).norm() / grads[1].norm()) < 0.999


def _noting(grads: dict[int, Tensor], layer: int) -> Callable[..., None]:
    return lambda _m, _i, out: out.register_hook(lambda g: grads.__setitem__(layer, g)) and None


def test_principal_directions_are_those_of_a_full_decomposition() -> None:
    model = Transformer(Config(vocabulary=20, context=8, layers=2, width=16, heads=2)).train()
    ids = torch.randint(0, 20, (30, 8), generator=torch.Generator().manual_seed(0))
    kept: list[Tensor] = []
    hook = model.blocks[1].register_forward_hook(lambda _m, _i, out: kept.append(out.detach().flatten(0, 1)))
    found = principal_directions(model, ids, 4)[1]
    hook.remove()
    x = kept[0].double().numpy()
    axes = np.linalg.svd(x - x.mean(0))[2][:4].T
    assert np.allclose(axes @ axes.T, found @ found.mT, atol=1e-4)
    assert model.training
