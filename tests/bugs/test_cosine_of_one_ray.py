"""Float32 rows on one ray had a mean cosine of 1 + 2e-6: outside its range, so no value, for a collapsed layer."""

from __future__ import annotations

import pytest
import torch

from anisoscope import metrics


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d", [3, 64, 768])
def test_rows_on_one_ray_have_cosine_one(d: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(d)
    x = (torch.randn(1, d, generator=g) * 2.0 ** torch.randint(0, 3, (200, 1), generator=g)).to(dtype)
    assert metrics.mean_cosine(x) == pytest.approx(1, abs=4e-7)
    documents = torch.arange(200) // 10
    assert metrics.mean_cosine_across_documents(x, documents=documents) == pytest.approx(1, abs=4e-7)


def test_long_sums_of_like_rows_keep_their_digits() -> None:
    g = torch.Generator().manual_seed(0)
    x = 1 + 1e-3 * torch.randn(4096, 16, generator=g)
    unit = x.double() / x.double().norm(dim=1, keepdim=True)
    true = (float(unit.sum(0) @ unit.sum(0)) - 4096) / (4096 * 4095)
    assert metrics.mean_cosine(x) == pytest.approx(true, abs=1e-9)
    assert metrics.mean_cosine_across_documents(x, documents=torch.arange(4096) // 2048) == pytest.approx(
        true, abs=1e-9
    )
