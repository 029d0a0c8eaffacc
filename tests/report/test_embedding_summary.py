"""The summary fits a narrow terminal, in the order of the questions, and shows the numbers of the records."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import anisoscope
from anisoscope.records import Record
from anisoscope.report.embedding_summary import EmbeddingNumbers, _percent, _value, embedding_summary
from tests.embedding_quality.test_check import planted


@pytest.fixture(scope="module")
def run() -> anisoscope.Run:
    rows, queries, pairs = planted()
    return anisoscope.embeddings(rows, queries=queries, relevant=pairs, labels=[str(i % 3) for i in range(len(rows))])


def printed(run: anisoscope.Run, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(embedding_summary(list(run.records()), run.info["embeddings"], "emb.npy"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_questions_come_in_order_and_nothing_is_cut(run: anisoscope.Run, width: int) -> None:
    text = printed(run, width)
    order = [text.index(word) for word in ("duplicates", "norms", "cone", "hubs", "dimension", "Remedies", "Shorter")]
    assert order == sorted(order)
    assert "…" not in text.replace(" … ", "").replace(", …", "")
    for name in (*run.info["embeddings"]["remedies"], *run.info["embeddings"]["compressions"]):
        assert name in text
    assert " ".join(run.info["embeddings"]["advice"].split()) in " ".join(text.split())


def test_the_table_shows_the_change_of_the_records(run: anisoscope.Run) -> None:
    numbers = EmbeddingNumbers(list(run.records()))
    change = numbers.change("ndcg", "centre, whiten", 10)
    assert change is not None
    assert change.value is not None
    assert f"{change.value:+.3f}±{change.error:.3f}" in printed(run, 140)


def test_a_value_ends_with_the_first_digit_of_its_error() -> None:
    cells = [_value(Record("vectors", "m", value, error=error)) for value, error in ((1.8803, 0.21), (-1.579, 0.0234))]
    assert cells == ["1.9 [dim]± 0.2[/]", "−1.58 [dim]± 0.02[/]"]
    assert _value(Record("vectors", "m", 0.18112)) == "0.181"
    assert _percent(Record("vectors", "m", 0.046, error=0.0099)) == "4.6 [dim]± 0.99[/] %"
