"""The reason why a metric has no value was printed in a column three letters wide."""

from io import StringIO

from rich.console import Console

from anisoscope.records import Record
from anisoscope.report.run_tables import layers_table


def test_metrics_without_a_value_are_listed_below_the_table_with_the_reason() -> None:
    records = [Record(f"resid.{i}", "mean_cosine", 0.1 * i, tokens=t) for i in range(3) for t in ("all", "no-sink")]
    why = "the smallest eigenvalue is zero; give more than 576 rows of full rank"
    records += [Record(f"resid.{i}", "tail_condition", None, tokens="all", note=why) for i in range(3)]
    console = Console(width=80, record=True, file=StringIO())
    console.print(layers_table(records, {}, "a model"))
    lines = [line.strip() for line in console.export_text().splitlines()]
    position = next(i for i, line in enumerate(lines) if line.startswith("No value of tail_condition (all):"))
    assert why in " ".join(lines[position:])
    assert not any(line.startswith("tail_condition") for line in lines)
    assert sum(line.startswith("mean_cosine") for line in lines) == 2
