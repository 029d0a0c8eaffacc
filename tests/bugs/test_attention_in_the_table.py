"""`measure` printed a table without attention metrics: all rows with an index were left out, heads too."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from anisoscope.records import Record
from anisoscope.report.run_tables import layers_table


def printed(records: list[Record]) -> str:
    console = Console(width=100, record=True, file=StringIO())
    console.print(layers_table(records, {}, title="model"))
    return console.export_text()


def test_heads_are_a_row_with_their_mean() -> None:
    heads = [
        Record(f"pattern.{layer}", "attention_entropy", 0.25 * (layer + head), index=head)
        for layer in range(2)
        for head in range(2)
    ]
    text = printed(heads)
    assert "attention_entropy" in text
    assert "mean over the heads of each layer" in text
    assert text.index("0.125") < text.index("0.375")  # (0 + 0.25)/2 at the first layer, (0.25 + 0.5)/2 at the last


def test_a_head_without_a_value_does_not_count() -> None:
    text = printed([Record("pattern.0", "sink_mass", 0.5, index=0), Record("pattern.0", "sink_mass", None, index=1)])
    assert "0.500" in text


@pytest.mark.parametrize("metric", ["spectrum", "removal_curve"])
def test_curves_that_a_table_cannot_show_are_named(metric: str) -> None:
    text = printed([Record("resid.0", metric, 0.5, index=0), Record("resid.0", metric, 0.4, index=1)])
    assert f"Curves by index, in the report: {metric}" in text
