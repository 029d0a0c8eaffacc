"""Permutation p-values."""

from __future__ import annotations

import torch

from anisoscope.tangent.permutation import permutation_p


def test_a_permutation_p_is_never_zero() -> None:
    assert permutation_p(9.0, torch.zeros(99)) == 0.01
    assert permutation_p(0.0, torch.zeros(99)) == 1.0
