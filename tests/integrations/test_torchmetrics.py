"""`GeometryMetric` behaves as torchmetrics expects: alone, in a collection, over batches, and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import spawn

import anisoscope
from tests.ranks import join_group, leave_group

torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is optional and not installed")

NAMES = ["mean_cosine", "isoscore"]


def metric(**options: Any) -> Any:
    from anisoscope.integrations.torchmetrics import GeometryMetric

    return GeometryMetric(NAMES, **options)


def rows_of(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)) * torch.linspace(2, 1, 5) + 0.3


def expected(x: torch.Tensor) -> dict[str, Any]:
    return {record.metric: pytest.approx(record.value) for record in anisoscope.measure_rows(x, NAMES)}


def floats(numbers: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items()}


def test_batches_give_the_numbers_of_all_rows_and_reset_forgets_them() -> None:
    x, ours = rows_of(300), metric()
    for batch in x.split(70):
        ours.update(batch)
    assert floats(ours.compute()) == expected(x)
    ours.reset()
    ours.update(x[:100])
    assert floats(ours.compute()) == expected(x[:100])


def test_a_call_returns_the_numbers_of_the_batch_and_counts_it() -> None:
    x, ours = rows_of(200), metric()
    assert floats(ours(x[:90])) == expected(x[:90])
    assert floats(ours(x[90:])) == expected(x[90:])
    assert floats(ours.compute()) == expected(x)


def test_errors_and_masks_are_passed_on() -> None:
    x, ours = rows_of(320), metric(errors=True)
    mask = torch.arange(320).reshape(32, 10) % 10 < 7
    ours.update(x.reshape(32, 10, 5), mask=mask)
    documents = torch.arange(32).repeat_interleave(7)
    records = anisoscope.measure_rows(x[mask.flatten()], NAMES, documents=documents)
    assert floats(ours.compute()) == {
        **{record.metric: pytest.approx(record.value) for record in records},
        **{f"{record.metric}_error": pytest.approx(record.error) for record in records},
    }


def test_it_works_in_a_collection_with_other_metrics() -> None:
    x = rows_of(100)
    group = torchmetrics.MetricCollection({"shape": metric(), "again": metric()})
    group.update(x[:50])
    group.update(x[50:])
    numbers = floats(group.compute())
    assert len(numbers) in (2, 4)  # names with or without prefix, as the collection decides
    assert {round(value, 6) for value in numbers.values()} == {
        round(float(record.value or 0), 6) for record in anisoscope.measure_rows(x, NAMES)
    }
    copied = group.clone(prefix="test_")
    copied.reset()
    assert set(copied(x)) == {f"test_{name}" for name in group.compute()}
    assert floats(group.compute()) == numbers


def test_a_number_without_a_value_is_nan() -> None:
    ours = metric()
    ours.update(torch.ones(1, 3))
    assert torch.isnan(ours.compute()["isoscore"])


def test_the_state_is_saved_if_it_is_persistent(tmp_path: Path) -> None:
    x = rows_of(200)
    ours, fresh, without = metric(persistent=True), metric(persistent=True), metric()
    for each in (ours, without):
        each.update(x[:150])
    torch.save(ours.state_dict(), tmp_path / "state.pt")
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    fresh.update(x[150:])
    assert floats(fresh.compute()) == expected(x)
    later = metric()
    later.load_state_dict(without.state_dict())
    assert later.geometry.n == 0


def work(rank: int, folder: str) -> None:
    join_group(Path(folder), rank, 2)
    ours = metric()
    ours.update(rows_of(150, rank))
    torch.save(ours.compute(), Path(folder) / f"{rank}.pt")
    leave_group()


def test_ranks_are_added_by_compute(tmp_path: Path) -> None:
    spawn(work, args=(str(tmp_path),), nprocs=2)
    both = expected(torch.cat((rows_of(150, 0), rows_of(150, 1))))
    for rank in range(2):
        assert floats(torch.load(tmp_path / f"{rank}.pt")) == both
