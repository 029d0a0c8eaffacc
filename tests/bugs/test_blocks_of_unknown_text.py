"""A text of unknown length with a large --tokens was a single block and had no error bars."""

from collections.abc import Iterator
from pathlib import Path

import anisoscope
from tests import model_folders


def test_a_stream_of_documents_has_error_bars_for_any_number_of_tokens(tmp_path: Path) -> None:
    def stream() -> Iterator[str]:
        for number in range(60):
            yield f"Document {number} says that number {number * 7} is the one to take, and no other. " * 6

    folder = model_folders.gpt2(tmp_path / "model")
    run = anisoscope.measure(
        str(folder), text=stream(), metrics=["mean_cosine"], sites=["resid.0"], tokens=10_000_000, window=64
    )
    (record,) = [each for each in run.records() if each.tokens == "all"]
    assert record.error is not None, record.note
    assert record.error_kind is not None
    assert int(record.error_kind.split("-")[1]) >= 8
