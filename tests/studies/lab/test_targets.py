"""Training targets."""

from __future__ import annotations

import pytest
import torch

from anisoscope.studies.lab.targets import isoscore_star, masked_token
from tests.oracles import lab as slow


def test_masking_has_the_shares_of_bert() -> None:
    ids = torch.randint(0, 50, (400, 128), generator=torch.Generator().manual_seed(0))
    batch = masked_token(ids, 51, 0.15, 3)
    asked = batch["labels"] != -100
    assert float(asked.float().mean()) == pytest.approx(0.15, abs=0.005)
    assert torch.equal(batch["labels"][asked], ids[asked])
    assert torch.equal(batch["input_ids"][~asked], ids[~asked])
    now = batch["input_ids"][asked]
    assert float((now == 51).float().mean()) == pytest.approx(0.8, abs=0.015)
    assert float((now == ids[asked]).float().mean()) == pytest.approx(0.1 + 0.1 / 51, abs=0.015)
    again = masked_token(ids, 51, 0.15, 3)
    assert torch.equal(again["input_ids"], batch["input_ids"])
    assert bool((masked_token(ids[:1, :4], 51, 0.0, 3)["labels"] != -100).any())


@pytest.mark.parametrize("shrinkage", [0.0, 0.2, 1.0])
def test_isoscore_star_is_that_of_the_shrunk_eigenvalues(shrinkage: float) -> None:
    x = torch.randn(300, 12, generator=torch.Generator().manual_seed(4)) * torch.linspace(3, 0.1, 12) + 5
    x.requires_grad_()
    score = isoscore_star(x, shrinkage)
    assert float(score.detach()) == pytest.approx(slow.isoscore_star(x.detach().numpy(), shrinkage), rel=1e-4)
    score.backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


def test_rows_that_are_all_the_same_have_a_gradient() -> None:
    x = torch.ones(5, 3, requires_grad=True)
    value = isoscore_star(x, 0.2)
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()
