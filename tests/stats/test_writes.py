"""Writes of branches against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope import metrics
from anisoscope.errors import MetricError
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.rows import Rows, bare_rows
from anisoscope.stats.writes import Writes


def writes(written: torch.Tensor, stream: torch.Tensor) -> Cloud:
    rows = bare_rows(torch.zeros_like(written))
    return Cloud({"Writes": Writes.of(Rows(rows.x, rows.tokens, (written, stream)))})


def test_ratio_and_cosine_equal_numpy_and_rows_without_direction_do_not_count() -> None:
    g = torch.Generator().manual_seed(0)
    written, stream = torch.randn(40, 6, generator=g), 3 * torch.randn(40, 6, generator=g) + 1
    written[3] = 0
    stream[5] = 0
    cloud = writes(written, stream)
    b, x = written.double().numpy(), stream.double().numpy()
    by = {v.variant["over"]: v for v in metrics.write_ratio.values(cloud)}
    assert by["all"].value == pytest.approx(np.sqrt((b**2).mean()) / np.sqrt((x**2).mean()))
    keep = np.delete(np.arange(40), [3, 5])
    lengths = np.linalg.norm(b[keep], axis=1), np.linalg.norm(x[keep], axis=1)
    assert by["rows"].value == pytest.approx((lengths[0] / lengths[1]).mean())
    assert by["rows"].n == 38
    (cosine,) = metrics.write_cosine.values(cloud)
    assert cosine.value == pytest.approx(((b[keep] * x[keep]).sum(1) / lengths[0] / lengths[1]).mean())
    assert cosine.null == 0.0


def test_a_branch_that_doubles_the_stream_and_one_that_erases_it() -> None:
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    assert metrics.write_cosine.values(writes(x, x))[0].value == pytest.approx(1)
    assert metrics.write_cosine.values(writes(-x, x))[0].value == pytest.approx(-1)
    assert [v.value for v in metrics.write_ratio.values(writes(-x, x))] == pytest.approx([1, 1])
    with pytest.raises(MetricError, match="zero"):
        metrics.write_ratio.values(writes(x, 0 * x))
    with pytest.raises(MetricError, match="zero"):
        metrics.write_cosine.values(writes(0 * x, x))
