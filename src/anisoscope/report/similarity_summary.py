"""The similarity of two models in the terminal: the best partner of every layer, and how the rows were made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anisoscope.records import Record

_MOST_LAYERS = 18  # rows of the table: it fits on a screen with its notes


def similarity_table(records: Sequence[Record], info: Mapping[str, Any]) -> RenderableType:
    """The most similar layer of the second model for each layer of the first, and how the rows were made."""
    names = [str(info.get(key, {}).get("source", "?")) for key in ("model", "other_model")]
    best = best_partners(records)
    shown, every = _thinned(best)
    title = f"a: {names[0]}\nb: {names[1]}\nThe most similar layer of b for each layer of a"
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", padding=(0, 1))
    for column in ("a", "b", "CKA", "null", "p", "overlap", "null"):
        table.add_column(column, justify="left" if column in "ab" else "right", no_wrap=True)
    values = {_key(record): record for record in records}
    for record in shown:
        if record.value is None:
            table.add_row(escape(record.site), "–", "–", "–", "–", "–", "–")
            continue
        other = record.variant["other"]
        p = values.get((record.site, other, "similarity_p", "layer_cka"))
        overlap = values.get((record.site, other, "layer_overlap", None))
        table.add_row(
            escape(record.site),
            escape(str(other)),
            _with_error(record),
            _number(record.null),
            _number(None if p is None else p.value),
            _with_error(overlap),
            _number(None if overlap is None else overlap.null),
        )
    return Group(table, Text("\n".join(_notes(best, info, every)), style="dim"))


def best_partners(records: Sequence[Record]) -> list[Record]:
    """The `layer_cka` of each layer of the first model with the layer of the second that is most similar to it."""
    best: dict[str, Record] = {}
    for record in records:
        if record.metric == "layer_cka":
            before = best.setdefault(record.site, record)
            if record.value is not None and (before.value is None or record.value > before.value):
                best[record.site] = record
    return list(best.values())


def _key(record: Record) -> tuple[str, Any, str, Any]:
    return record.site, record.variant.get("other"), record.metric, record.variant.get("of")


def _thinned(best: list[Record]) -> tuple[list[Record], int]:
    """Every second, third … of many layers, and the last two; 1 if all are shown."""
    every = math.ceil(len(best) / _MOST_LAYERS)
    return [r for i, r in enumerate(best) if i % every == 0 or i >= len(best) - 2], every


def _notes(best: Sequence[Record], info: Mapping[str, Any], every: int) -> list[str]:
    """What the numbers are, what was compared, and what was cut or left out."""
    facts = info.get("similarity", {})
    texts = {"windows": "passages"}.get(info.get("unit", ""), "documents")
    each = {"mean": "the mean of its tokens", "last": "its last token", "cls": "its first token"}
    how = (
        "one per word, the token at its end" if facts.get("rows") == "words" else f"each {each.get(facts.get('rows'))}"
    )
    lines = [
        f"{facts.get('compared', 0):,} rows from {facts.get('documents', 0):,} {texts}: {how}. "
        f"CKA: 1 if rotated, 0 if unrelated. overlap: common rows among the {facts.get('neighbours')} nearest. "
        f"±: one standard error over blocks of {texts}. null: expected if unrelated. p: {facts.get('permutations')} "
        f"permutations of {facts.get('permuted rows', 0):,} rows, adjusted for all pairs of layers."
    ]
    if every > 1:
        lines.append(f"One layer of every {every} is shown; the records hold all pairs.")
    if facts.get("cut"):
        lines.append(f"{facts['cut']:,} {texts} were cut, at the same character for both models.")
    if facts.get("left out"):
        lines.append(f"{facts['left out']:,} rows were left out: first tokens of a window or massive tokens (--sinks).")
    reasons = dict.fromkeys(record.note for record in best if record.value is None and record.note)
    return [*lines, *(f"No value: {reason}." for reason in reasons)]


def _with_error(record: Record | None) -> str:
    if record is None or record.value is None:
        return "–"
    error = "" if record.error is None else f" [dim]± {record.error:.3f}[/]"
    return f"{record.value:.3f}{error}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
