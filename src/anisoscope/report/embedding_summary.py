"""What a check of embeddings found, on one screen: five questions, the remedies, shorter rows, one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anisoscope.records import Record
from anisoscope.report.before_after import rounded
from anisoscope.report.embedding_advice import UNCHANGED, clear_beyond

_BARS = "·▁▂▃▄▅▆▇█"
_LISTED = 3  # pairs and hubs on the screen
_RIGHT: dict[str, Any] = {"justify": "right", "no_wrap": True}
Key = tuple[str, int | None, str | None, str]  # metric, index, part, remedy


class EmbeddingNumbers:
    """The records of a check by metric, index, part (`of` of hubness) and remedy."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._values: dict[Key, Record] = {}
        self._changes: dict[Key, Record] = {}
        for record in records:
            variant = record.variant
            remedy = str(variant.get("remedy", UNCHANGED))
            if record.metric == "change":
                key = (str(variant.get("of")), record.index, variant.get("part"), remedy)
                self._changes.setdefault(key, record)
            else:
                self._values.setdefault((record.metric, record.index, variant.get("of"), remedy), record)

    def get(
        self, metric: str, remedy: str = UNCHANGED, index: int | None = None, part: str | None = None
    ) -> Record | None:
        return self._values.get((metric, index, part, remedy))

    def change(self, metric: str, remedy: str, index: int | None = None) -> Record | None:
        return self._changes.get((metric, index, None, remedy))


def embedding_summary(records: Sequence[Record], info: Mapping[str, Any], title: str) -> RenderableType:
    """Everything on one screen.

    Args:
        records: The records of the run.
        info: The run's `info["embeddings"]`.
        title: What was checked.
    """
    numbers = EmbeddingNumbers(records)
    details = dict(info)
    groups = details.get("groups")
    labelled = [_maps(numbers, details, "remedies", f"{groups} groups of labels", _GROUPS)] if groups else []
    parts: list[RenderableType] = [
        _questions(numbers, details, title),
        _maps(numbers, details, "remedies", "Remedies"),
        *labelled,
        _maps(numbers, details, "compressions", "Shorter rows and fewer bits"),
        Text(_notes(details), style="dim"),
        Text(""),
        Text(str(details.get("advice", "")), style="bold"),
    ]
    return Group(*parts)


# --- five questions -------------------------------------------------------------------------------------------------


def _questions(numbers: EmbeddingNumbers, details: Mapping[str, Any], title: str) -> Table:
    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "padding": (0, 1, 0, 0)}
    table = Table("", title=escape(title), box=box.SIMPLE_HEAD, **style)
    table.add_column("", no_wrap=True)
    for heading in ("value", "null"):
        table.add_column(heading, **_RIGHT)
    table.add_column("", overflow="fold")
    for rows in (_duplicates, _norms, _cone, _hubs, _dimension):
        for number, row in enumerate(rows(numbers, details)):
            name = rows.__name__.lstrip("_") if number == 0 else ""
            table.add_row(f"[bold]{name}[/]", *row)
    return table


Cells = tuple[str, str, str, str]


def _duplicates(numbers: EmbeddingNumbers, details: Mapping[str, Any]) -> Iterator[Cells]:
    duplicates = details["duplicates"]
    copies = numbers.get("exact_duplicates")
    yield "exact copies", _count(copies), "", _pairs(duplicates["exact"])
    near = numbers.get("near_duplicates")
    listed = _pairs(duplicates["near"])
    limit = f"(cosine ≥ {duplicates['near cosine']:.3f})"
    yield "near copies", _percent(near), "", f"{listed} {limit}" if listed else limit


def _norms(numbers: EmbeddingNumbers, details: Mapping[str, Any]) -> Iterator[Cells]:
    low, middle, high = (rounded(length) for length in details["norms"])
    zero = f", {details['zero rows']:,} are zero" if details["zero rows"] else ""
    yield "spread / mean", _value(numbers.get("norm_spread")), "", f"{low} … {middle} … {high}{zero}"


def _cone(numbers: EmbeddingNumbers, details: Mapping[str, Any]) -> Iterator[Cells]:
    shown = details["cosines"][UNCHANGED]
    yield "mean cosine", _value(numbers.get("mean_cosine")), "0", _histogram(shown["random"])
    yield "nearest cosine", _value(numbers.get("nearest_cosine")), "", _histogram(shown["nearest"])
    if "relevant" in shown:
        yield "relevant above, σ", _value(numbers.get("separation")), "", _histogram(shown["relevant"])
        yield "alignment", _value(numbers.get("alignment")), "", ""
    even = numbers.get("uniformity")
    yield "uniformity", _value(even), _null(even), ""


def _hubs(numbers: EmbeddingNumbers, details: Mapping[str, Any]) -> Iterator[Cells]:
    hubs = ", ".join(f"{row} ({times}×)" for row, times in details["hubs"][:_LISTED])
    skew, share, anti = (numbers.get("hubness", index=10, part=p) for p in ("skewness", "robin hood", "anti-hubs"))
    yield "skewness, k = 10", _value(skew), _null(skew), f"rows {hubs}" if hubs else ""
    yield "Robin Hood index", _value(share), _null(share), ""
    yield "never found", _percent(anti), _null_percent(anti), ""


def _dimension(numbers: EmbeddingNumbers, details: Mapping[str, Any]) -> Iterator[Cells]:
    for metric, name in (("two_nn", "intrinsic, two_nn"), ("participation_ratio", "participation ratio")):
        record = numbers.get(metric)
        yield name, _value(record), _null(record), f"of {details['d']:,}"
    flat = numbers.get("zero_directions")
    yield "without variance", _count(flat), "" if flat is None else f"{flat.null:.0f}", ""


# --- maps -----------------------------------------------------------------------------------------------------------

_COLUMNS = (  # title, metric, index, part, with changes
    ("cos", "mean_cosine", None, None, False),
    ("unif", "uniformity", None, None, False),
    ("hubs", "hubness", 10, "skewness", False),
    ("kept", "kept_neighbours", None, None, False),
    ("sep", "separation", None, None, False),
    ("R@10", "recall", 10, None, False),
    ("nDCG", "ndcg", 10, None, True),
)
_GROUPS = (
    ("k-NN accuracy", "knn_accuracy", None, None, True),
    ("silhouette", "silhouette", None, None, False),
    ("between groups", "between_share", None, None, False),
)


def _maps(
    numbers: EmbeddingNumbers, details: Mapping[str, Any], which: str, title: str, columns: Sequence[Any] = _COLUMNS
) -> Table:
    names = [str(name) for name in details[which]]
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", padding=0)
    table.add_column("", no_wrap=True)
    shown = [column for column in columns if any(numbers.get(column[1], n, column[2], column[3]) for n in names)]
    for heading, *_, changes in shown:
        table.add_column(f" {heading}", **_RIGHT)
        if changes:
            table.add_column("change", **_RIGHT)
    for name in names:
        cells = []
        for _, metric, index, part, changes in shown:
            cells.append(_plain(numbers.get(metric, name, index, part)))
            if changes:
                cells.append(_changed(numbers.change(metric, name, index), len(details["remedies"]) - 1))
        table.add_row(escape(name), *cells)
    return table


def _changed(record: Record | None, tests: int) -> str:
    if record is None or record.value is None:
        return ""
    limit = clear_beyond(record, tests)
    if limit is None:
        return f"{record.value:+.3f}".replace("-", "−")
    clear = abs(record.value) > limit
    return f" {record.value:+.3f}[dim]±{record.error:.3f}[/]{'*' if clear else ' '}".replace("-", "−")


def _notes(details: Mapping[str, Any]) -> str:
    n, sampled = details["n"], details["sampled"]
    searched = details["duplicates"]["searched"]
    by_dot = "Queries find rows by dot product, all other numbers are by cosine."
    by_cosine = "Rows are compared by cosine ('as stored': by distance)."
    lines = [
        f"{by_dot if details.get('search') == 'dot' else by_cosine} ±: one standard error over blocks of rows, or over "
        "queries. Bars: cosines from −1 to 1 of random, nearest and relevant pairs. null: no structure; for hubs and "
        "two_nn Gaussian rows of the same mean and covariance, for uniformity the uniform sphere.",
        "cos: mean cosine. unif: uniformity. hubs: skewness. kept: share of the ten nearest rows that stay the same, "
        "which shows how much search changes, not whether it improves. sep: matching above random cosines, in σ.",
    ]
    if details.get("queries"):
        lines.append(
            f"{details['queries']:,} queries, exact search over all {n:,} rows; remedies were fitted on the rows and "
            "applied to both. change: of nDCG@10, paired over queries; * clear at 95 % (Bonferroni over remedies)."
        )
    copies = details["duplicates"]["copies"]
    if sampled < n - copies:
        lines.append(f"Cone, hubs, dimension and kept neighbours come from {sampled:,} of {n:,} rows (--sample).")
    if searched < n - copies:
        lines.append(f"Near copies: {searched:,} rows were compared with all {n:,} (--all-pairs compares all).")
    return "\n".join(lines)


# --- cells ----------------------------------------------------------------------------------------------------------


def _value(record: Record | None) -> str:
    if record is None or record.value is None:
        return "[dim]–[/]"
    decimals = 3 if abs(record.value) < 10 else 1
    error = ""
    if record.error:  # the value ends with the first digit of its error
        decimals = min(4, max(0, -math.floor(math.log10(record.error))))
        error = f" [dim]± {record.error:,.{decimals}f}[/]"
    return f"{record.value:,.{decimals}f}{error}".replace("-", "−")


def _plain(record: Record | None) -> str:
    if record is None or record.value is None:
        return "[dim]–[/]"
    if abs(record.value) < 0.005:
        return "0"
    return (f"{record.value:.2f}" if abs(record.value) < 100 else f"{record.value:,.0f}").replace("-", "−")


def _percent(record: Record | None) -> str:
    if record is None or record.value is None:
        return "[dim]–[/]"
    error = "" if record.error is None else f" [dim]± {100 * record.error:.2g}[/]"
    return f"{100 * record.value:.2g}{error} %"


def _count(record: Record | None) -> str:
    return "[dim]–[/]" if record is None or record.value is None else f"{record.value:,.0f}"


def _null(record: Record | None) -> str:
    return "" if record is None or record.null is None else rounded(record.null)


def _null_percent(record: Record | None) -> str:
    return "" if record is None or record.null is None else f"{100 * record.null:.2g} %"


def _pairs(pairs: Sequence[Sequence[Any]]) -> str:
    if not pairs:
        return ""
    shown = ", ".join(f"{pair[0]}–{pair[1]}" for pair in pairs[:_LISTED])
    return f"rows {shown}{', …' if len(pairs) > _LISTED else ''}"


def _histogram(shares: Sequence[float]) -> str:
    """Bars of the shares, two bins per bar, from cosine −1 to 1."""
    pairs = [a + b for a, b in zip(shares[::2], shares[1::2], strict=True)]
    most = max(pairs) or 1.0
    heights = [0 if not share else max(1, round(share / most * (len(_BARS) - 1))) for share in pairs]
    return f"[dim]{''.join(_BARS[height] for height in heights)}[/]"
