"""Gradient energy against its definition."""

from __future__ import annotations

import pytest
import torch

from anisoscope.errors import InputError
from anisoscope.tangent import energy
from tests.oracles import tangent as oracle
from tests.tangent_rows import made


def test_energy_is_the_share_of_squared_length_inside() -> None:
    fitted, g, _, _ = made()
    for basis in fitted.bases:
        assert energy(g.T @ g, basis) == pytest.approx(oracle.energy(g.numpy(), basis.q.numpy()), rel=1e-9)
    with pytest.raises(InputError, match="all zero"):
        energy(torch.zeros(16, 16), fitted.bases[0])
