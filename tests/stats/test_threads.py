"""Many small computations at once."""

from __future__ import annotations

import torch

from anisoscope.stats.threads import in_threads


def test_threads_return_what_a_loop_returns_and_restore_the_settings_of_torch() -> None:
    before = torch.get_num_threads()
    matrices = [torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(9)]
    torch.set_num_threads(2)
    try:
        many = in_threads(lambda m: torch.linalg.eigvalsh(m @ m.T), matrices)
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_num_threads(before)
    for found, matrix in zip(many, matrices, strict=True):
        assert torch.allclose(found, torch.linalg.eigvalsh(matrix @ matrix.T))
