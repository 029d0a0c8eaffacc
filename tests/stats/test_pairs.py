"""Derived statistics of two clouds of the same tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anisoscope.stats import pairs
from anisoscope.stats.cloud import Cloud
from anisoscope.stats.pairs import PairedKernels, centred_rows, hsic
from anisoscope.stats.rows import bare_rows
from anisoscope.stats.sample import Sample


def drawn(seed: int, n: int = 40, d: int = 6) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def cloud_of(x: Tensor) -> Cloud:
    return Cloud({"Sample": Sample.of(bare_rows(x), 1000)})


def kernels(now: Tensor, then: Cloud) -> PairedKernels:
    cloud = cloud_of(now)
    return cloud.with_reference(then, only=cloud.stats).get(PairedKernels)


def test_hsic_of_the_reference_with_itself_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = cloud_of(drawn(0))
    calls: list[Tensor] = []

    def counted(x: Tensor, y: Tensor) -> float:
        calls.append(x)
        return hsic(x, y)

    monkeypatch.setattr(pairs, "hsic", counted)
    first, second = (kernels(drawn(seed), reference) for seed in (1, 2))
    assert len(calls) == 1
    assert first.own == second.own == pytest.approx(hsic(first.then, first.then))


def test_only_paired_rows_count_if_some_tokens_are_missing() -> None:
    reference = cloud_of(drawn(0))
    pair = kernels(drawn(1)[:25], reference)
    assert len(pair.now) == len(pair.then) == 25
    assert pair.own == pytest.approx(hsic(centred_rows(drawn(0)[:25]), centred_rows(drawn(0)[:25])))
