"""What `measure` and `show` print: sentences, a short table or all of it, caveats."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from anisoscope.records import Record
from anisoscope.report.overview import frame_of, overview
from anisoscope.report.sentences import in_rows
from anisoscope.report.tables import records_of
from tests import report_runs as runs


def printed(records: list[Record], width: int = 80, **more: Any) -> str:
    console = Console(width=width, file=StringIO(), record=True)
    console.print(overview(frame_of(records), runs.info(), "a model", **more))
    return console.export_text()


def many() -> list[Record]:
    names = ("spectral_anisotropy", "isoscore", "two_nn", "rankme", "stable_rank", "drift_norm")
    return [Record(s, name, 0.5, tokens=t) for name in names for s in runs.sites() for t in ("all", "no-sink")]


def test_a_short_table_is_printed_in_full() -> None:
    text = printed(runs.profiles((1000,)))
    assert "highest" in text
    assert "question" not in text
    assert text.index("A few tokens make this model look one-dimensional.") < text.index("Top direction's share")
    assert text.index("Top direction's share") < text.index("highest") < text.index("Caveats")


def test_a_long_table_becomes_one_row_per_question() -> None:
    text = printed(many())
    assert "One direction dominates?" in text
    assert "rankme" not in text
    assert "6 metrics in all: see --all" in " ".join(text.split())
    assert len(text.splitlines()) < 40


def test_all_prints_every_metric() -> None:
    text = printed(many(), full=True)
    assert text.count("rankme") == text.count("stable_rank") == 2  # under both token policies
    assert "question" not in text


def test_a_run_without_a_finding_is_named_once() -> None:
    console = Console(width=80, file=StringIO(), record=True)
    info = {**runs.info(), "model": {"source": "./model"}}
    console.print(overview(frame_of([Record("resid.2", "isoscore", 0.7)]), info, "./model"))
    lines = [line.strip() for line in console.export_text().splitlines() if line.strip()]
    assert lines[0] == "./model"
    assert lines[1].startswith("0.7"), lines


def test_of_vectors_tokens_are_rows() -> None:
    records = [Record("vectors", "mean_cosine", 0.5, n=100), Record("vectors", "massive_tokens", 3.0, n=100)]
    text = printed(records)
    assert "The mean cosine between two rows is 0.50" in " ".join(text.split())
    assert "The vectors point the same way" in text
    assert "massive_tokens" in text
    assert in_rows("2 tokens, 1 token, massive_tokens, --tokens") == "2 rows, 1 row, massive_tokens, --tokens"
    assert in_rows("2 tokens", tokens=True) == "2 tokens"


def test_a_frame_holds_the_records_it_was_made_of() -> None:
    records = [*runs.profiles(), *runs.curves()]
    assert records_of(frame_of(records)) == records
