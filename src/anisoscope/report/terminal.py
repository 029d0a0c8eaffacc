"""Records as tables in a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anisoscope.records import Record, Site
from anisoscope.report.checked_info import checked_info
from anisoscope.report.compare import Difference

_HIDDEN_CURVES = 3  # a curve with more points than this is shown as one sparkline row
_BARS = "▁▂▃▄▅▆▇█"
_WIDEST = 14  # characters of a sparkline
_BOTH = "first run\nsecond run"
_CURVES = ("over layers", _BOTH)  # columns of sparklines, which must not break


def records_table(records: Sequence[Record], title: str = "") -> Table:
    """One row per number: value ± one standard error, null value, n, note. A curve by index is one row."""
    table = _table(title, "metric", "value", "null value", "n", "note")
    for group in _groups(records):
        first, last = group[0], group[-1]
        label = _label(first)
        if len(group) > _HIDDEN_CURVES:
            ends = f"{_number(first.value)} … {_number(last.value)}"
            nulls = "" if first.null is None else f"{_number(first.null)} … {_number(last.null)}"
            shape = f"{sparkline([r.value for r in group])} [dim]index {first.index} … {last.index}[/]"
            table.add_row(label, ends, nulls, _count(first.n), shape)
            continue
        for record in group:
            name = label if record.index is None else f"{label} [dim]({record.index})[/]"
            null = "" if record.null is None else _number(record.null)
            table.add_row(name, _with_error(record), null, _count(record.n), f"[dim]{escape(record.note or '')}[/]")
    return table


def layers_table(records: Sequence[Record], info: Mapping[str, Any], title: str) -> RenderableType:
    """One row per metric and token policy: its curve over the layers, the first, highest and last value.

    Below the table: the tokens left out, the curves by index, and the metrics without a value, with the reason.
    """
    table = _table(title, "metric", "tokens", "over layers", "first", "highest", "last")
    _wrap_names_first(table)
    for column in table.columns[3:]:
        column.min_width = 8
    groups: dict[tuple[str, str], list[Record]] = {}
    without: dict[str, list[str]] = {}  # by the reason
    for record in (*(each for each in records if each.index is None), *_over_heads(records)):
        groups.setdefault((_label(record), record.tokens), []).append(record)
    order = {label: position for position, label in enumerate(dict.fromkeys(label for label, _ in groups))}
    # Metrics in their first-seen order, `all` and `no-sink` of one metric next to each other.
    for (label, tokens), group in sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        known = [r for r in group if r.value is not None]
        if not known:
            without.setdefault(group[0].note or "", []).append(f"{label} ({tokens})")
            continue
        highest = max(known, key=lambda r: r.value or 0.0)
        table.add_row(
            _stacked(label),
            escape(tokens),
            sparkline([r.value for r in group]),
            _with_error(known[0], 3),
            f"{_number(highest.value, 3)} [dim]{escape(highest.site)}[/]",
            _with_error(known[-1], 3),
        )
    removed = checked_info(info)["removed"]
    listed = removed["tokens"][:12]
    words = ", ".join(f"{t['text']!r}" if t.get("text") is not None else f"#{t.get('token')}" for t in listed)
    note = f"no-sink: without first tokens and {removed['count']} massive tokens" + (f" ({words})" if words else "")
    curves = dict.fromkeys(each.metric for each in records if each.index is not None and not _is_head(each))
    more = f"\nCurves (see the report): {', '.join(curves)}" if curves else ""
    more += "".join(f"\nNo value of {', '.join(labels)}: {reason}" for reason, labels in without.items())
    return Group(table, Text(note + more, style="dim"))


def _is_head(record: Record) -> bool:
    return record.index is not None and Site.parse(record.site).kind == "pattern"


def _over_heads(records: Sequence[Record]) -> list[Record]:
    """The mean over the heads of each layer; the report shows each head."""
    heads: dict[tuple[str, str, str, int], list[Record]] = {}
    for record in records:
        if _is_head(record) and record.value is not None:
            key = (record.site, record.tokens, _label(record), record.step)
            heads.setdefault(key, []).append(record)
    return [
        replace(
            group[0],
            value=math.fsum(r.value or 0.0 for r in group) / len(group),
            variant={**group[0].variant, "mean over": "heads"},
            index=None,
            error=None,
        )
        for group in heads.values()
    ]


def cost_table(cost: Any, title: str) -> Table:
    """What a measurement would cost, one row per item."""
    table = _table(title, "what", "estimate")
    table.add_row("sites", f"{cost.sites} of width {cost.width}")
    table.add_row("tokens", "all of the data" if cost.tokens is None else f"{cost.tokens:,}")
    table.add_row("speed of the pass", f"{cost.tokens_per_second:,.0f} tokens per second, including statistics")
    if cost.pass_seconds is not None:
        table.add_row("the pass", _duration(cost.pass_seconds))
    table.add_row("evaluation, error bars", _duration(cost.evaluation_seconds))
    table.add_row("memory besides the model", f"{cost.memory / 1e6:,.0f} MB")
    table.add_row("scratch disk", f"{cost.scratch / 1e6:,.0f} MB")
    return table


def _duration(seconds: float) -> str:
    """A duration as text.

    >>> _duration(75)
    'about 1 min 15 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{rest} s" if not hours else ""]
    return "about " + " ".join(part for part in parts if part)


def sentences_table(headlines: Sequence[tuple[str, str]], caveats: Sequence[str]) -> RenderableType:
    """The results of a run in sentences, and the caveats."""
    sentences = Table.grid(padding=(0, 2))
    for metric, text in headlines:
        sentences.add_row(Text(metric, style="bold"), Text(text))
    notes = [Text(f"· {text}", style="dim") for text in caveats]
    return Group(sentences, *([Text(""), Text("Caveats", style="bold"), *notes] if notes else []))


def differences_table(results: Sequence[Difference], title: str, steps: int = 1) -> RenderableType:
    """One row per metric and token policy at the last of `steps` steps: both curves, their largest difference."""
    last = max(each.first.step for each in results)
    shown = [each for each in results if each.first.step == last]
    table = _table(title, "metric", "tokens", _BOTH, "largest difference", "clear")
    _wrap_names_first(table)
    for column in table.columns[1:]:
        column.no_wrap = column.header != "largest difference"
    table.columns[3].min_width = 10
    groups: dict[tuple[str, str], list[Difference]] = {}
    for each in shown:
        groups.setdefault((_label(each.first), each.first.tokens), []).append(each)
    for (label, tokens), group in groups.items():
        largest = max(group, key=lambda each: abs(each.value))
        curves = ([each.first.value for each in group], [each.second.value for each in group])
        table.add_row(
            _stacked(label),
            escape(tokens),
            "\n".join(map(sparkline, curves)),
            f"{_signed(largest)}\n[dim]{escape(_site(largest.first))}[/]",
            f"{sum(each.clear for each in group)} of {len(group)}",
        )
    note = f"at step {last}" if last else ""
    if steps > 1:
        note = f"at step {last}, the last of {steps:,} that both have; use --sites for all of them"
    return Group(table, *([Text(note, style="dim")] if note else []), _how_compared(shown))


def sites_table(results: Sequence[Difference], title: str) -> RenderableType:
    """One row per number: both values, their difference with its error, a star if the interval excludes 0."""
    table = _table(title, "metric", "site", "tokens", "first", "second", "difference", "")
    for each in results:
        where = (_label(each.first), escape(_site_and_step(each.first)), escape(each.first.tokens))
        table.add_row(
            *where, _with_error(each.first), _with_error(each.second), _signed(each), "*" if each.clear else ""
        )
    return Group(table, _how_compared(results))


def _how_compared(results: Sequence[Difference]) -> Text:
    paired = sum(each.paired for each in results)
    how = "paired by blocks of the same tokens" if paired == len(results) else "taken as independent"
    if 0 < paired < len(results):
        how = f"{paired} of {len(results)} paired by blocks of the same tokens, the others taken as independent"
    steps = {(each.first.step, each.second.step) for each in results if each.first.step != each.second.step}
    apart = f" Steps differ: {', '.join(f'{a} and {b}' for a, b in sorted(steps))}." if steps else ""
    clear = "clear: the 95 % interval excludes 0, not corrected for many comparisons"
    return Text(f"second − first ± one standard error, {how}; {clear}.{apart}", style="dim")


def _signed(each: Difference) -> str:
    sign = "+" if each.value > 0 else ""
    error = "" if each.error is None else f" [dim]± {_number(each.error, 2)}[/]"
    return f"{sign}{_number(each.value, 3)}{error}"


def _site(record: Record) -> str:
    return record.site if record.index is None else f"{record.site} ({record.index})"


def _site_and_step(record: Record) -> str:
    return f"{_site(record)}, step {record.step}" if record.step else _site(record)


def metrics_table(cards: Sequence[Mapping[str, Any]]) -> Table:
    """The catalogue of metrics, one row per metric."""
    table = _table("", "metric", "meaning", "range", "ignores", "paper")
    family = None
    for card in cards:
        if card["family"] != family:
            family = card["family"]
            table.add_section()
            table.add_row(f"[bold]{family}[/]", "", "", "", "")
        table.add_row(
            escape(card["name"]),
            escape(card["meaning"]),
            _range(card),
            ", ".join(card["ignores"]),
            escape(card["paper"]),
        )
    return table


def metric_card(card: Mapping[str, Any]) -> RenderableType:
    """One metric in full."""
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("range", _range(card)),
        ("ignores", _ignores(card)),
        ("reads", ", ".join(card["needs"])),
        ("paper", escape(card["paper"])),
        ("version", str(card["version"])),
    ):
        facts.add_row(f"[dim]{name}[/]", value)
    return Group(Text(card["name"], style="bold"), Text(""), Text(card["text"]), Text(""), facts)


def clouds_table(records: Mapping[str, Sequence[Record]], metrics: Sequence[str]) -> Table:
    """One row per cloud, one column per metric."""
    title = "Results for clouds whose answers are known"
    table = _table(title, "cloud", *(name.replace("_", " ") for name in metrics))
    for cloud, results in records.items():
        first = {record.metric: record.value for record in reversed(results)}
        table.add_row(cloud, *(_fixed(first.get(name)) for name in metrics))
    return table


def sparkline(values: Sequence[float | None]) -> str:
    """A curve in one line of text, short enough for a table; a missing value leaves a gap."""
    drawn = _binned(values, _WIDEST)
    known = [v for v in drawn if v is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = (high / 2 - low / 2) or 1.0  # halves: the difference of two huge numbers may be infinite
    return "".join(" " if v is None else _BARS[round((v / 2 - low / 2) / span * (len(_BARS) - 1))] for v in drawn)


def _binned(values: Sequence[float | None], most: int) -> Sequence[float | None]:
    """At most `most` values; if there are more, neighbours are averaged."""
    if len(values) <= most:
        return values
    edges = [len(values) * k // most for k in range(most + 1)]
    bins = [[v for v in values[a:b] if v is not None] for a, b in pairwise(edges)]
    return [sum(v / len(part) for v in part) if part else None for part in bins]


def _groups(records: Sequence[Record]) -> list[list[Record]]:
    """Consecutive records of one metric and variant."""
    groups: list[list[Record]] = []
    for record in records:
        if groups and (groups[-1][0].metric, groups[-1][0].variant) == (record.metric, record.variant):
            groups[-1].append(record)
        else:
            groups.append([record])
    return groups


def _wrap_names_first(table: Table) -> None:
    """Let long names wrap in a narrow terminal, so that numbers do not."""
    table.columns[0].no_wrap, table.columns[0].min_width, table.columns[0].max_width = False, 20, 28


def _label(record: Record) -> str:
    variant = ", ".join(f"{key}={value}" for key, value in record.variant.items())
    return escape(record.metric) + (f" [dim]{escape(variant)}[/]" if variant else "")


def _stacked(label: str) -> str:
    """A label with its variant on a second line, which leaves space for the numbers."""
    return label.replace(" [dim]", "\n[dim]", 1)


def _with_error(record: Record | None, digits: int = 4) -> str:
    if record is None or record.value is None:
        return "[dim]–[/]"
    if record.error is None:
        return _number(record.value, digits)
    return f"{_number(record.value, digits)} [dim]± {_number(record.error, 2)}[/]"


def _number(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits, in plain notation if that is short."""
    if value is None:
        return "[dim]–[/]"
    if abs(value) < 1e-12:
        return "0"
    size = math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, digits - 1 - size)}f}" if -4 <= size < 6 else f"{value:.{digits - 1}e}"


def _fixed(value: float | None) -> str:
    """A number with a fixed number of decimals, for a column."""
    if value is None:
        return "[dim]–[/]"
    return f"{value + 0.0:.4f}" if abs(value) < 2 else f"{value:.2f}"


def _count(n: int | None) -> str:
    return "" if n is None else f"{n:,}"


def _ignores(card: Mapping[str, Any]) -> str:
    """What leaves the metric unchanged; a rotation includes a permutation."""
    laws = [law for law in card["ignores"] if law != "permutation" or "rotation" not in card["ignores"]]
    return ", ".join(laws) or "nothing"


def _range(card: Mapping[str, Any]) -> str:
    low = "−∞" if card["low"] is None else f"{card['low']:g}"
    high = "∞" if card["high"] is None else f"{card['high']:g}"
    return f"{low} … {high}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=escape(title) or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for position, column in enumerate(columns):
        text = position == 0 or column in ("note", "meaning")
        whole = position == 0 or column in _CURVES
        table.add_column(column, justify="left" if text else "right", no_wrap=whole, overflow="fold")
    return table
