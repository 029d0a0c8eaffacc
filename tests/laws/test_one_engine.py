"""One engine: `measure_rows`, `Geometry` and batches of rows give the same numbers, and `measure` those of its rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anisoscope
from anisoscope import Geometry

NAMES = ["mean_cosine", "mean_cosine_across_documents", "isoscore", "effective_rank", "two_nn"]
PLAIN = [name for name in NAMES if "documents" not in name]


def rows_of(n: int, d: int = 12) -> Tensor:
    scale = torch.linspace(2.0, 0.2, d)
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n)) * scale + 0.3


def numbers(run: anisoscope.Run) -> list[tuple[Any, ...]]:
    return [(r.metric, r.index, str(r.variant), r.value, r.error, r.error_kind, r.null, r.n) for r in run]


@pytest.mark.parametrize(("n", "size"), [(500, 64), (20_000, 1000)])
def test_an_iterator_of_batches_is_what_geometry_computes(n: int, size: int) -> None:
    x = rows_of(n)
    geometry = Geometry(PLAIN, sample=512)
    for batch in x.split(size):
        geometry.update(batch)
    streamed = anisoscope.measure_rows(iter(x.split(size)), PLAIN, sample=512)
    assert numbers(streamed) == numbers(geometry.compute())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_known_number_give_the_same_bits_in_any_batches(dtype: torch.dtype) -> None:
    x, documents = rows_of(9000).to(dtype), torch.arange(9000) // 7
    expected = numbers(anisoscope.measure_rows(x, NAMES, sample=512, documents=documents))
    for size in (333, 9000):
        geometry = Geometry(NAMES, sample=512, expected=9000)
        for first in range(0, 9000, size):
            part = slice(first, first + size)
            geometry.update(x[part], documents=documents[part])
        assert numbers(geometry.compute()) == expected


def test_sequences_of_an_iterator_are_documents() -> None:
    x = rows_of(1200).reshape(40, 30, 12)
    documents = torch.arange(40).repeat_interleave(30)
    expected = numbers(anisoscope.measure_rows(x.reshape(-1, 12), NAMES, documents=documents))
    assert numbers(anisoscope.measure_rows([x[:16], x[16:]], NAMES)) == expected


class Rows(nn.Module):
    """A model whose residual stream is a table of rows, by token id."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(rows)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        for block in self.blocks:
            x = block(x)
        return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * self.linear(x)


def test_a_model_has_the_numbers_of_its_rows() -> None:
    x = rows_of(1280)
    ids = torch.arange(1280).reshape(40, 32)
    run = anisoscope.measure(Rows(x), ids.split(8), sites=["resid.0"], metrics=NAMES, sample=1280)
    rows = anisoscope.measure_rows(x, NAMES, documents=torch.arange(40).repeat_interleave(32), sample=1280)
    of_rows = {(r.metric, str(r.variant)): r for r in rows}
    of_model = {(r.metric, str(r.variant)): r for r in run if r.tokens == "all"}
    assert of_model.keys() == of_rows.keys()
    for key, record in of_rows.items():
        # 1,280 rows added in another order and in other blocks
        assert of_model[key].value == pytest.approx(record.value, rel=1e-6, abs=1e-9), key
        assert of_model[key].n == record.n
