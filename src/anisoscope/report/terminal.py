"""Records as tables in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from anisoscope.records import Record
from anisoscope.report.cells import new_table, number, sparkline
from anisoscope.report.compare import Difference, refused_text
from anisoscope.report.tables import parse_site, stream_of

_BOTH = "first run\nsecond run"
_CURVES = (_BOTH,)  # columns of sparklines, which must not break


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
    table.add_row("scratch disk", f"{cost.scratch / 1e6:,.0f} MB, deleted at the end")
    if cost.folder:
        table.add_row("run folder", f"{cost.folder / 1e6:,.1f} MB")
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
    groups: dict[tuple[str, str, str], list[Difference]] = {}
    for each in shown:
        stream = stream_of(parse_site(each.first.site))
        groups.setdefault((_label(each.first), each.first.tokens, stream), []).append(each)
    for (label, tokens, stream), group in groups.items():
        comparable = [each for each in group if each.refused is None]
        largest = max(comparable or group, key=lambda each: abs(each.value))
        counted = f"{sum(each.clear for each in group)} of {len(comparable)}" if comparable else "–"
        known = any(each.error is not None for each in group)
        difference = f"{_signed(largest)}\n[dim]{escape(_both_sites(largest))}[/]"
        curves = ([each.first.value for each in group], [each.second.value for each in group])
        table.add_row(
            _stacked(label),
            escape(tokens) + ("" if stream == "resid" else f"\n[dim]{escape(stream)}[/]"),
            "\n".join(map(sparkline, curves)),
            difference if comparable else f"[dim]not comparable: {largest.refused}[/]",
            counted if known or not comparable else "no error",
        )
    note = f"at step {last}" if last else ""
    if steps > 1:
        note = f"at step {last}, the last of {steps:,} that both have; use --sites for all of them"
    return Group(table, *([Text(note, style="dim")] if note else []), _how_compared(shown))


def sites_table(results: Sequence[Difference], title: str) -> RenderableType:
    """One row per number: both values, their difference with its error, a star if it is clear, n if it depends on n."""
    table = _table(title, "metric", "site", "tokens", "first", "second", "difference", "")
    for each in results:
        step = f", step {each.first.step}" if each.first.step else ""
        where = (_label(each.first), escape(_both_sites(each) + step), escape(each.first.tokens))
        mark = "n" if each.refused is not None else "*" if each.clear else ""
        table.add_row(*where, _with_error(each.first), _with_error(each.second), _signed(each), mark)
    marks = "*: clear; n: not comparable, because it depends on the number of rows"
    return Group(table, Text(marks, style="dim"), _how_compared(results))


def _how_compared(results: Sequence[Difference]) -> Text:
    paired = sum(each.paired for each in results)
    how = "paired by blocks of the same tokens" if paired == len(results) else "taken as independent"
    if 0 < paired < len(results):
        how = f"{paired:,} of {len(results):,} paired by blocks of the same tokens, the others taken as independent"
    steps = {(each.first.step, each.second.step) for each in results if each.first.step != each.second.step}
    apart = f" Steps differ: {', '.join(f'{a} and {b}' for a, b in sorted(steps))}." if steps else ""
    clear = "clear: the 95 % interval excludes 0, not corrected for many comparisons"
    refused = f" {refused_text(results)}" if refused_text(results) else ""
    return Text(f"second − first ± one standard error, {how}; {clear}.{apart}{refused}", style="dim")


def _signed(each: Difference) -> str:
    sign = "+" if each.value > 0 else ""
    error = "" if each.error is None else f" [dim]± {_number(each.error, 2)}[/]"
    return f"{sign}{_number(each.value, 3)}{error}"


def _both_sites(each: Difference) -> str:
    return each.sites if each.first.index is None else f"{each.sites} ({each.first.index})"


def metrics_table(cards: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The catalogue of metrics, one row per metric: its meaning; below it range, invariances, paper."""
    table = new_table("", "metric", "meaning", left=("meaning",))
    family = None
    for card in cards:
        if card["family"] != family:
            family = card["family"]
            table.add_section()
            table.add_row(Text(family, style="bold"), "")
        facts = f"{_range(card)} · ignores {_ignores(card)} · {card['paper']}"
        table.add_row(Text(card["name"]), Text.assemble(card["meaning"], (f"\n{facts}", "dim")))
    return table


def metric_card(card: Mapping[str, Any]) -> RenderableType:
    """One metric in full."""
    facts = Table.grid(padding=(0, 2))
    for name, value in (
        ("range", _range(card)),
        ("ignores", _ignores(card)),
        ("reads", ", ".join(card["needs"])),
        ("paper", card["paper"]),
        ("version", str(card["version"])),
    ):
        facts.add_row(Text(name, style="dim"), Text(value))
    return Group(Text(card["name"], style="bold"), Text(""), Text(card["text"]), Text(""), facts)


def clouds_table(records: Mapping[str, Sequence[Record]], metrics: Sequence[str]) -> Table:
    """One row per cloud, one column per metric."""
    title = "Results for clouds whose answers are known"
    table = _table(title, "cloud", *(name.replace("_", " ") for name in metrics))
    for cloud, results in records.items():
        first = {record.metric: record.value for record in reversed(results)}
        table.add_row(cloud, *(_fixed(first.get(name)) for name in metrics))
    return table


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
    return "[dim]–[/]" if value is None else number(value, digits)


def _fixed(value: float | None) -> str:
    """A number with a fixed number of decimals, for a column."""
    if value is None:
        return "[dim]–[/]"
    return f"{value + 0.0:.4f}" if abs(value) < 2 else f"{value:.2f}"


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
