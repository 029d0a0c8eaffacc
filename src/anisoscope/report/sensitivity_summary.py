"""Metrics against n, batch size and shuffling in the terminal: one table per metric and site."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anisoscope.records import Record, headline_variant
from anisoscope.report.interval import t_factor

_OWN = ("n", "batch", "shuffle", "over", "of batches")  # keys of the variant that describe the sample
_ROUNDING = 1e-6  # of the value: a smaller spread is rounding


@dataclass(frozen=True)
class SampleRow:
    """One number for samples of one size.

    Attributes:
        site: Its site.
        metric: Its metric.
        tokens: Its token policy.
        sample: "n" for the first rows of the data, "batch" for the mean over batches.
        size: Number of rows of the sample, or of each batch.
        value: The value, or the mean over batches.
        error: One standard error: the jackknife of `measure`, or that of the mean over batches.
        error_kind: How it was found, as in the record.
        batch_std: Standard deviation over batches.
        batches: Number of batches.
        shuffle_std: Standard deviation of `value` over shuffles of the documents.
        shuffles: Number of shuffles that have a value.
    """

    site: str
    metric: str
    tokens: str
    sample: str
    size: int
    value: float
    error: float | None
    error_kind: str | None
    batch_std: float | None
    batches: int | None
    shuffle_std: float | None
    shuffles: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sample_rows(records: Iterable[Record], info: Mapping[str, Any]) -> list[SampleRow]:
    """Return one row per site, metric, token policy and size: samples from small to large, then batches.

    A metric with several variants has rows for the one that its card declares, or else for the one that was recorded
    first.
    """
    by_number: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.value is not None:
            by_number.setdefault((record.site, record.metric, record.tokens), []).append(record)
    cards = info.get("metrics", {})
    rows: list[SampleRow] = []
    for (_, metric, _), listed in by_number.items():
        rows += _rows_of(_one_variant(listed, headline_variant(cards.get(metric, {}))), info["sensitivity"])
    return rows


def sensitivity_tables(records: Iterable[Record], info: Mapping[str, Any]) -> RenderableType:
    """One table per metric and site, without sinks if that was measured, each with what follows from it."""
    rows = sample_rows(records, info)
    policies = {(row.site, row.tokens) for row in rows}
    shown = [row for row in rows if row.tokens != "all" or (row.site, "no-sink") not in policies]
    parts: list[RenderableType] = []
    for site, metric in dict.fromkeys((row.site, row.metric) for row in shown):
        chosen = [row for row in shown if (row.site, row.metric) == (site, metric)]
        parts += [_table(chosen), *(Text(f"· {text}", style="dim") for text in conclusions(chosen)), Text("")]
    parts.append(Text("\n".join(_notes(info)), style="dim"))
    return Group(*parts)


def conclusions(rows: Sequence[SampleRow]) -> list[str]:
    """Return whether a number depends on n, on the size of batches and on the order of the documents, in sentences.

    A difference from the value of all rows counts if it exceeds the half-width of a 95 % interval (Student's t). The
    samples are parts of all rows, which makes this cautious.

    Args:
        rows: The rows of one number.
    """
    texts = []
    samples, batches = ([row for row in rows if row.sample == kind] for kind in ("n", "batch"))
    whole = samples[-1]
    changes = [(abs(row.value - whole.value) / row.error, row) for row in samples[:-1] if row.error]
    if changes:
        most, row = max(changes, key=lambda change: change[0] / t_factor(change[1].error_kind))
        seen = "it depends on n" if most > t_factor(row.error_kind) else "no dependence on n is visible"
        texts.append(f"From n = {row.size:,} to {whole.size:,} it changes by {most:.1f} error bars: {seen}.")
    texts += [
        f"Batches of {row.size:,} do not average to the value of all rows: it depends on their size."
        for row in batches
        if row.error and abs(row.value - whole.value) > t_factor(row.error_kind) * row.error
    ]
    if whole.shuffles > 1 and whole.shuffle_std is not None:
        exact = _is_rounding(whole.shuffle_std, whole)
        order = "does not depend" if exact else "depends, through the rows that are sampled,"
        texts.append(f"At n = {whole.size:,} all documents are in every shuffle: the value {order} on their order.")
    return texts


def _one_variant(records: Sequence[Record], headline: Mapping[str, Any]) -> list[Record]:
    """The records of one variant and index, whatever the sample."""
    known = [(record, _without_sample(record.variant), record.index) for record in records]
    fitting = [each for each in known if headline.items() <= each[1].items()] or known
    _, variant, index = fitting[0]
    return [record for record, other, number in known if (other, number) == (variant, index)]


def _without_sample(variant: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in variant.items() if key not in _OWN}


def _rows_of(records: Sequence[Record], design: Mapping[str, Any]) -> list[SampleRow]:
    rows = []
    for sample, sizes in (("n", design["n"]), ("batch", design["batches"])):
        for size in sizes:
            largest = sample == "n" and size == design["n"][-1]
            own = {} if largest else {sample: size}
            row = _row([record for record in records if _sample_of(record) == own], sample, size)
            rows += [] if row is None else [row]
    return rows


def _sample_of(record: Record) -> dict[str, Any]:
    return {key: record.variant[key] for key in ("n", "batch") if key in record.variant}


def _row(records: Sequence[Record], sample: str, size: int) -> SampleRow | None:
    """The row of one sample; None if it has no value."""
    deviations = [record for record in records if record.variant.get("of batches") == "std"]
    values = [record for record in records if record.variant.get("of batches") != "std"]
    main = next((record for record in values if "shuffle" not in record.variant), None)
    if main is None or main.value is None:
        return None
    shuffled = [record.value for record in values if "shuffle" in record.variant and record.value is not None]
    spread = next((record.value for record in deviations if "shuffle" not in record.variant), None)
    kind = main.error_kind or ""
    return SampleRow(
        site=main.site,
        metric=main.metric,
        tokens=main.tokens,
        sample=sample,
        size=size,
        value=main.value,
        error=main.error,
        error_kind=main.error_kind,
        batch_std=spread,
        batches=int(kind.split("-")[1]) if kind.endswith("-batches") else None,
        shuffle_std=statistics.stdev(shuffled) if len(shuffled) > 1 else None,
        shuffles=len(shuffled),
    )


def _table(rows: Sequence[SampleRow]) -> Table:
    first = rows[0]
    title = f"{first.metric} at {first.site} ({'all rows' if first.tokens == 'all' else first.tokens})"
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", padding=(0, 1))
    table.add_column("sample", no_wrap=True)
    for name in ("value", "error bar", "batch std", "shuffle std"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        name = f"n = {row.size:,}" if row.sample == "n" else f"{row.batches} batches of {row.size:,}"
        table.add_row(name, f"{row.value:.4g}", _short(row.error), _short(row.batch_std), _shuffle_text(row))
    return table


def _shuffle_text(row: SampleRow) -> str:
    if row.shuffle_std is None:
        return "–"
    return "0" if _is_rounding(row.shuffle_std, row) else _short(row.shuffle_std)


def _is_rounding(spread: float, row: SampleRow) -> bool:
    return spread <= _ROUNDING * max(abs(row.value), row.error or 0.0)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def _notes(info: Mapping[str, Any]) -> list[str]:
    shuffles = info["sensitivity"]["shuffles"]
    notes = [
        "error bar: one standard error, from leaving out blocks of documents; of batches: that of their mean.",
        "batch std: standard deviation over batches. shuffle std: that of the value over shuffles of the documents.",
        "A sample of n rows holds whole windows, so it may be longer by part of a window.",
    ]
    if shuffles:
        largest = info["sensitivity"]["n"][-1]
        notes.append(
            f"Each of {shuffles} shuffles draws n rows from the same {largest:,}. Draws overlap, so their spread is "
            "smaller than that of independent texts, by about √(1 − n/largest n)."
        )
    return notes
