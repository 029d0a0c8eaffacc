"""`Geometry`: batches of any size give the numbers of `measure_rows`, and states add up, are saved and are loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

import anisoscope
from anisoscope import Geometry, Record
from anisoscope.errors import InputError, MetricError
from tests.ranks import join_group, leave_group

NAMES = ["mean_cosine", "isoscore", "two_nn", "drift_norm", "massive_tokens"]
SUMS = ["mean_cosine", "isoscore", "spectral_anisotropy"]


def rows_of(n: int, d: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator) * torch.linspace(3, 1, d) + 0.5


def fed(geometry: Geometry, x: Tensor, size: int, documents: Tensor | None = None) -> Geometry:
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        geometry.update(x[part], documents=None if documents is None else documents[part])
    return geometry


def numbers(records: Iterable[Record]) -> list[Any]:
    return [(r.metric, r.variant, r.index, r.value, r.error, r.error_kind, r.null, r.n, r.note) for r in records]


def values(geometry: Geometry) -> dict[str, float | None]:
    return {record.metric: record.value for record in geometry.compute().records()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("documented", [False, True])
def test_results_equal_those_of_measure_rows_to_the_bit_for_any_batches(dtype: torch.dtype, documented: bool) -> None:
    x = rows_of(9000).to(dtype)  # more than one piece
    documents = torch.arange(9000) // 7 if documented else None
    expected = numbers(anisoscope.measure_rows(x, NAMES, sample=512, documents=documents))
    for size in (9000, 1024, 997):
        geometry = fed(Geometry(NAMES, sample=512, expected=9000), x, size, documents)
        assert numbers(geometry.compute().records()) == expected, size


@pytest.mark.parametrize("n", [5, 500, 8192])
def test_a_few_rows_need_no_expected_number(n: int) -> None:
    x = rows_of(n)
    assert numbers(fed(Geometry(NAMES), x, 100).compute().records()) == numbers(anisoscope.measure_rows(x, NAMES))


def test_all_metrics_are_computed_by_default_and_centred_ones_come_from_the_sample() -> None:
    x = rows_of(600)
    ours = {(r.metric, str(r.variant), r.index): r for r in fed(Geometry(), x, 128).compute().records()}
    theirs = {(r.metric, str(r.variant), r.index): r for r in anisoscope.measure_rows(x)}
    assert ours.keys() == theirs.keys()
    for key, record in theirs.items():  # all rows are in the sample, in another order: only rounding differs
        assert ours[key].value == (None if record.value is None else pytest.approx(record.value, rel=1e-6, abs=1e-9))


def test_more_rows_can_be_added_after_compute() -> None:
    x = rows_of(9000)
    geometry = fed(Geometry(NAMES, sample=512, expected=9000), x[:8500], 700)
    geometry.compute()
    fed(geometry, x[8500:], 100)
    assert numbers(geometry.compute().records()) == numbers(anisoscope.measure_rows(x, NAMES, sample=512))
    assert numbers(geometry.compute().records()) == numbers(geometry.compute().records())


def test_rows_are_copied_when_they_are_added() -> None:
    x = rows_of(300)
    geometry = Geometry(SUMS)
    buffer = x.clone()
    geometry.update(buffer)
    buffer.fill_(1e9)
    assert numbers(geometry.compute().records()) == numbers(anisoscope.measure_rows(x, SUMS))


def test_sequences_with_a_mask_are_documents_of_the_rows_that_count() -> None:
    x = rows_of(400).reshape(40, 10, 6)
    mask = torch.arange(10)[None] < torch.arange(40)[:, None] % 9 + 1  # (40, 10)
    geometry = Geometry(NAMES)
    geometry.update(x[:15], mask=mask[:15])
    geometry.update(x[15:].numpy(), mask=mask[15:].int().tolist())
    documents = torch.arange(40)[:, None].expand(40, 10)[mask]
    assert numbers(geometry.compute().records()) == numbers(
        anisoscope.measure_rows(x[mask], NAMES, documents=documents)
    )
    named = Geometry(NAMES)
    named.update(x, mask=mask, documents=torch.arange(40) // 2)
    pairs = anisoscope.measure_rows(x[mask], NAMES, documents=documents // 2)
    assert numbers(named.compute().records()) == numbers(pairs)


def test_arrays_tables_and_rows_with_gradients_are_taken() -> None:
    x = rows_of(100)
    expected = numbers(anisoscope.measure_rows(x, SUMS))
    for rows in (x.numpy(), pd.DataFrame(x.numpy()), x.clone().requires_grad_()):
        geometry = Geometry(SUMS)
        geometry.update(rows)
        assert numbers(geometry.compute().records()) == expected
    whole = Geometry(SUMS)
    whole.update([[1, 2], [3, 5]])
    assert whole.n == 2


def test_workers_add_up_to_one_pass() -> None:
    x = rows_of(20_000)
    parts = [
        fed(Geometry(SUMS, worker=k), x[a:b], 999) for k, (a, b) in enumerate([(0, 100), (100, 9000), (9000, 20_000)])
    ]
    total = parts[0] + parts[1] + parts[2]
    assert total.n == 20_000
    assert [part.n for part in parts] == [100, 8900, 11_000]
    expected = {record.metric: record for record in anisoscope.measure_rows(x, SUMS)}
    for record in total.compute().records():
        assert record.value == pytest.approx(expected[record.metric].value, rel=1e-6, abs=1e-9)
        assert record.error is not None
        assert expected[record.metric].error is not None
        # other blocks: an error from 8 or more of them varies by about a quarter
        assert 0.3 < record.error / (expected[record.metric].error or 1) < 3
    backwards = values(parts[2] + parts[0] + parts[1])
    for name, value in values(total).items():
        assert backwards[name] == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_the_sample_of_a_sum_is_that_of_all_rows() -> None:
    x = rows_of(4000, d=3)
    a, b = (fed(Geometry(["two_nn"], sample=300, worker=k), x[k::2], 500) for k in range(2))
    [record] = (a + b).compute().records()
    assert record.n == 300
    assert 2.4 < (record.value or 0) < 3.6  # of a Gaussian in three dimensions, from 300 rows: ± 0.2
    assert (a + Geometry(["two_nn"], sample=300, worker=9)).n == 2000


def test_what_cannot_be_added_is_refused() -> None:
    x = rows_of(50)
    one, same = fed(Geometry(SUMS), x, 50), fed(Geometry(SUMS), x, 50)
    with pytest.raises(InputError, match="Both were collected as worker 0"):
        one + same
    with pytest.raises(InputError, match=r"different options .*sample"):
        one + fed(Geometry(SUMS, sample=100, worker=1), x, 50)
    documents = torch.arange(50) // 10
    a, b = (fed(Geometry(SUMS, worker=k), x, 50, documents) for k in range(2))
    with pytest.raises(InputError, match="Document 0 is in both"):
        a + b
    with pytest.raises(InputError, match="Only one of the two came with documents"):
        one + b
    total = one + fed(Geometry(SUMS, worker=1), x, 50)
    with pytest.raises(InputError, match="sum of several workers"):
        total.update(x)
    with pytest.raises(InputError, match="Save the states of the workers"):
        total.state_dict()


@pytest.mark.parametrize("cut", [1, 4000, 8192, 8500])
def test_a_saved_state_continues_to_the_bit(cut: int, tmp_path: Path) -> None:
    x, documents = rows_of(9000), torch.arange(9000) // 3
    first = fed(Geometry(NAMES, sample=512), x[:cut], 900, documents[:cut])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = Geometry(NAMES, sample=512)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for geometry in (first, second):
        fed(geometry, x[cut:], 333, documents[cut:])
    assert numbers(second.compute().records()) == numbers(first.compute().records())
    with pytest.raises(InputError, match=r"of another Geometry .*seed"):
        Geometry(NAMES, sample=512, seed=1).load_state_dict(first.state_dict())


def test_reset_forgets_all_rows() -> None:
    geometry = fed(Geometry(SUMS), rows_of(9000, seed=3) * 100, 4500)
    geometry.reset()
    fed(geometry, rows_of(200), 50)
    assert numbers(geometry.compute().records()) == numbers(anisoscope.measure_rows(rows_of(200), SUMS))


def test_a_run_can_be_written_and_recomputed(tmp_path: Path) -> None:
    geometry = fed(Geometry(["isoscore"]), rows_of(200), 50)
    run = geometry.compute(tmp_path / "run")
    assert len(anisoscope.Run.open(tmp_path / "run").frame()) == 1
    assert run.info["complete"]
    assert anisoscope.recompute(tmp_path / "run", ["participation_ratio"]).records()[-1].value is not None
    with pytest.raises(anisoscope.StoreError, match="holds a run already"):
        geometry.compute(tmp_path / "run")


def test_wrong_input_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="Did you mean 'isoscore'"):
        Geometry(["isoscor"])
    with pytest.raises(MetricError, match="tokens"):
        Geometry(["self_similarity"])
    geometry = Geometry(SUMS)
    with pytest.raises(InputError, match="There are no rows yet"):
        geometry.compute()
    geometry.update(np.zeros((0, 4)))
    x = rows_of(20)
    geometry.update(x, documents=[0] * 10 + [1] * 10)
    for options, message in (
        ({"rows": x[0]}, r"the shape \(n, d\) or \(batch, time, d\)"),
        ({"rows": x[:, :5], "documents": [2] * 20}, "Rows of 5 numbers follow rows of 6"),
        ({"rows": x}, "some without"),
        ({"rows": x, "documents": [0] * 20}, "Document 0 continues after another one"),
        ({"rows": x, "documents": [2, 3] * 10}, "continues after another one"),
        ({"rows": x, "documents": [2] * 19}, "The documents have the shape"),
        ({"rows": x, "documents": [0.5] * 20}, "whole numbers"),
        ({"rows": x, "documents": ["a"] * 20}, "whole numbers"),
        ({"rows": x, "mask": [True], "documents": [2] * 20}, "The mask has the shape"),
    ):
        with pytest.raises(InputError, match=message):
            geometry.update(**options)
    assert geometry.n == 20


def work(rank: int, folder: str) -> None:
    join_group(Path(folder), rank, 3)
    geometry = Geometry(SUMS)
    if rank < 2:
        geometry.update(rows_of(3000, seed=rank))
    total = geometry.across_ranks()
    torch.save([[r.value, r.error] for r in total.compute().records()], Path(folder) / f"{rank}.pt")
    leave_group()


def test_ranks_add_up_with_one_call(tmp_path: Path) -> None:
    spawn(work, args=(str(tmp_path),), nprocs=3)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    assert ranks[0] == ranks[1] == ranks[2]
    both = torch.cat((rows_of(3000, seed=0), rows_of(3000, seed=1)))
    expected = [record.value for record in anisoscope.measure_rows(both, SUMS)]
    assert [value for value, _ in ranks[0]] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    alone = fed(Geometry(SUMS), both, 1000)
    assert numbers(alone.across_ranks().compute().records()) == numbers(alone.compute().records())
