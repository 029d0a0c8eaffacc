"""All numbers of a run as tables in a terminal: one per stream of layers, one per site without layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anisoscope.records import Record
from anisoscope.report.cells import CURVE, FittedTable, folded, new_table, number, sparkline
from anisoscope.report.checked_info import checked_info
from anisoscope.report.sentences import stream_name
from anisoscope.report.sink_words import quoted, sink_words
from anisoscope.report.tables import parse_site, stream_of

POLICIES = ("all", "no-sink", "generated", "generated no-sink")  # pairs next to each other
GLOSSARY = "Words: anisoscope words"
_LONG_CURVE = 3  # a curve by index with more points than this is one row
_NAME = 20  # characters of a name in a narrow terminal
_WIDE_NAME = 30
_SHOWN_TOKENS = 12
_MATRICES = {
    "raw": "as stored",
    "centred": "minus its mean row",
    "trained": "only rows that training can have changed: of a token, not zero, no copy of another row",
}


@dataclass(frozen=True)
class LayerRow:
    """One metric over the sites of one stream, under one token policy."""

    metric: str
    variant: str
    tokens: str
    records: Sequence[Record]  # one per site

    @property
    def known(self) -> list[Record]:
        return [record for record in self.records if record.value is not None]

    def curve(self, width: int) -> str:
        """Its curve over the layers in at most `width` bars."""
        ends = [chooser(self.known, key=lambda r: r.value or 0.0) for chooser in (min, max)]
        error = math.hypot(*(record.error or 0.0 for record in ends))
        return sparkline([record.value for record in self.records], width, error)


def layers_table(records: Sequence[Record], info: Mapping[str, Any], title: str) -> RenderableType:
    """All numbers of a run at one step: a table per stream with one row per metric and token policy, then the rest.

    A row has the curve over the layers, and the first, highest and last value. Heads are averaged per layer. Below the
    tables: which tokens are left out, and what has no value and why. Sites without a layer have one column of values.
    """
    layered = [record for record in records if has_layer(record)]
    others = [record for record in records if not has_layer(record)]
    streams = layer_rows(layered)
    parts: list[RenderableType] = []
    for stream, rows in streams.items():
        heads = any(stream_of(parse_site(record.site)) == stream and _is_head(record) for record in layered)
        caption = "" if list(streams) == ["resid"] and not others else stream_title(stream, heads)
        caption = caption if parts else f"{title}\n{caption}".strip()
        parts += [_stream_table([row for row in rows if row.known], caption), Text("")]
    if others:
        parts += [*_site_tables(others, title="" if parts else title), Text("")]
    notes = [*_policy_notes(layered, info), *_curve_notes(layered, streams), *_missing(streams)]
    notes += [*_site_notes(others), GLOSSARY]
    return Group(*parts, *(Text(note, style="dim") for note in notes))


def layer_rows(records: Iterable[Record]) -> dict[str, list[LayerRow]]:
    """The rows of a table of layers by stream; `all` and `no-sink` of one metric next to each other."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in _over_heads(record for record in records if has_layer(record)):
        stream = stream_of(parse_site(record.site))
        groups.setdefault((stream, record.metric, variant_text(record), record.tokens), []).append(record)
    order = {key: position for position, key in enumerate(dict.fromkeys(key[:3] for key in groups))}
    streams: dict[str, list[LayerRow]] = {}
    for key in sorted(groups, key=lambda key: (order[key[:3]], policy_rank(key[3]))):
        stream, metric, variant, tokens = key
        in_order = sorted(groups[key], key=lambda record: parse_site(record.site))
        streams.setdefault(stream, []).append(LayerRow(metric, variant, tokens, in_order))
    return streams


def policy_rank(tokens: str) -> tuple[int, str]:
    """The position of a token policy in a table."""
    return (POLICIES.index(tokens) if tokens in POLICIES else len(POLICIES), tokens)


def stream_title(stream: str, heads: bool = False) -> str:
    """A stream in words.

    >>> stream_title("resid"), stream_title("grad.resid"), stream_title("enc.mlp")
    ('Residual stream (resid)', 'Gradients (grad.resid)', 'Encoder MLP outputs (enc.mlp)')
    """
    words = stream_name(stream) or "residual stream"
    mean = ", mean over the heads of each layer" if heads else ""
    return f"{words[:1].upper()}{words[1:]} ({stream}){mean}"


def variant_text(record: Record) -> str:
    """What distinguishes a number from others of its metric, as text."""
    return ", ".join(f"{key}={value}" for key, value in record.variant.items())


def has_layer(record: Record) -> bool:
    """Whether a record belongs to the layers of a model."""
    site = parse_site(record.site)
    return site.layer is not None or site.kind in ("embed", "final.in", "final")


def _is_head(record: Record) -> bool:
    site = parse_site(record.site)
    return site.head is not None or (site.kind == "pattern" and record.index is not None)


def _over_heads(records: Iterable[Record]) -> list[Record]:
    """Records of one number per site; those of heads become the mean over the heads of each layer."""
    whole: list[Record] = []
    heads: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in records:
        if _is_head(record):
            layer = str(replace(parse_site(record.site), head=None))
            heads.setdefault((layer, record.metric, variant_text(record), record.tokens), []).append(record)
        elif record.index is None:
            whole.append(record)
    return whole + [_mean(layer, group) for (layer, *_), group in heads.items()]


def _mean(site: str, heads: Sequence[Record]) -> Record:
    values = [record.value for record in heads if record.value is not None]
    mean = math.fsum(values) / len(values) if values else None
    return replace(
        heads[0], site=site, value=mean, index=None, error=None, note=heads[0].note if mean is None else None
    )


# --- one stream ---------------------------------------------------------------------------------------------------


def _stream_table(rows: Sequence[LayerRow], title: str) -> FittedTable:
    """A table that drops bars of the curve first, then puts errors and sites on a second line."""
    sites = max((len(row.records) for row in rows), default=0)
    widths = dict.fromkeys((sites, min(sites, CURVE)))
    layouts = [(stacked, width) for stacked in (False, True) for width in widths]
    return FittedTable([partial(_layers_layout, rows, title, *layout) for layout in layouts])


def _layers_layout(rows: Sequence[LayerRow], title: str, stacked: bool, bars: int) -> Table:
    table = new_table(title, "metric", "tokens", "curve", "first", "highest", "last", left=("curve", "tokens"))
    for row in rows:
        highest = max(row.known, key=lambda record: record.value or 0.0)
        table.add_row(
            _name(row.metric, row.variant, _NAME if stacked else _WIDE_NAME),
            Text(folded(row.tokens, 9)),
            row.curve(bars),
            _value(row.known[0], stacked),
            _two(number(highest.value, 3), highest.site, stacked),
            _value(row.known[-1], stacked),
        )
    return table


def _name(metric: str, variant: str, width: int) -> Text:
    """A metric, and its variant on the lines below."""
    lines = [(folded(metric, width), "")] + ([("\n" + folded(variant, width), "dim")] if variant else [])
    return Text.assemble(*lines)


def _value(record: Record, stacked: bool, digits: int = 3) -> Text:
    error = "" if record.error is None else f"±{number(record.error, 2)}"
    return _two(number(record.value, digits), error, stacked)


def _two(first: str, second: str, stacked: bool) -> Text:
    """Two texts in one cell, the second one dimmed, on one line or on two."""
    return Text.assemble(first, (("\n" if stacked else " ") + second if second else "", "dim"))


# --- below the tables ---------------------------------------------------------------------------------------------


def _policy_notes(layered: Sequence[Record], info: Mapping[str, Any]) -> list[str]:
    """Which tokens the policies leave out, if some number was measured without them."""
    if not any(record.tokens.endswith("no-sink") for record in layered):
        return []
    removed = checked_info(info)["removed"]
    different = [quoted(word) + (f" × {word.count:,}" if word.count > 1 else "") for word in sink_words(removed)]
    words = ", ".join(different[:_SHOWN_TOKENS]) + (", …" if len(different) > _SHOWN_TOKENS else "")
    massive = (
        f" and {removed['count']:,} massive token{'s' * (removed['count'] > 1)}"
        if removed["count"]
        else "; there are no massive tokens"
    )
    return [f"no-sink: without the first token of each window{massive}{f' ({words})' if words else ''}"]


def _curve_notes(layered: Sequence[Record], streams: Mapping[str, Sequence[LayerRow]]) -> list[str]:
    notes = []
    if any(len(row.records) > 1 for rows in streams.values() for row in rows):
        notes.append("curve: from the row's lowest to its highest value; flat if they differ by under 1 % or one error")
    curves = dict.fromkeys(r.metric for r in layered if r.index is not None and parse_site(r.site).kind != "pattern")
    return notes + ([f"Curves by index, in the report: {', '.join(curves)}"] if curves else [])


def _missing(streams: Mapping[str, Sequence[LayerRow]]) -> list[str]:
    """The metrics without any value, by the reason."""
    reasons: dict[str, dict[str, None]] = {}
    for rows in streams.values():
        for row in rows:
            if not row.known:
                named = f"{row.metric} ({', '.join(filter(None, (row.variant, row.tokens)))})"
                reasons.setdefault(row.records[0].note or "no reason was recorded", {})[named] = None
    return [f"No value of {', '.join(names)}: {reason}" for reason, names in reasons.items()]


# --- sites without layers -----------------------------------------------------------------------------------------


def _site_tables(records: Sequence[Record], title: str) -> list[RenderableType]:
    """One table per site with one row per number: value ± one standard error, null value. A long curve is one row."""
    sites: dict[str, list[Record]] = {}
    for record in records:
        sites.setdefault(record.site, []).append(record)
    tables: list[RenderableType] = []
    for site, group in sites.items():
        name = title if list(sites) == ["vectors"] else f"{title}\n{site}".strip() if not tables else site
        tables.append(FittedTable([partial(_site_layout, _merged(group), name, stacked) for stacked in (False, True)]))
    return tables


def _site_layout(groups: Sequence[Sequence[Record]], title: str, stacked: bool) -> Table:
    policies = {group[0].tokens for group in groups}
    tokens_column = ["tokens"] if len(policies) > 1 else []
    curve_column = ["curve"] if any(len(group) > 1 for group in groups) else []
    table = new_table(title, "metric", *tokens_column, "value", "null", *curve_column, left=("curve",))
    width = _NAME if stacked else _WIDE_NAME
    for group in groups:
        first, last = group[0], group[-1]
        about = [variant_text(first)] if first.variant else []
        tokens = [Text(folded(first.tokens, 9))] if tokens_column else []
        if len(group) == 1:
            about += [] if first.index is None else [f"index {first.index}"]
            value, null, curve = _value(first, stacked, 4), Text("" if first.null is None else number(first.null)), ""
        else:
            about.append(f"index {first.index} … {last.index}")
            value = _two(f"{number(first.value)} …", number(last.value), stacked)
            null = _two(f"{number(first.null)} …", number(last.null), stacked) if first.null is not None else Text("")
            curve = sparkline([record.value for record in group])
        table.add_row(
            _name(first.metric, ", ".join(about), width), *tokens, value, null, *([curve] if curve_column else [])
        )
    return table


def _merged(records: Sequence[Record]) -> list[list[Record]]:
    """Consecutive records of one metric and variant, long curves together; of equal matrices only one."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record.metric, variant_text(record), record.tokens), []).append(record)
    by_matrix: dict[tuple[Any, ...], dict[str, list[Record]]] = {}
    for group in groups.values():
        rest = replace(group[0], variant={k: v for k, v in group[0].variant.items() if k != "matrix"})
        same = by_matrix.setdefault((rest.metric, variant_text(rest), rest.tokens), {})
        same[str(group[0].variant.get("matrix", ""))] = group
    merged: list[list[Record]] = []
    for matrices in by_matrix.values():
        for names, group in _equal(matrices):
            variant = {**group[0].variant, "matrix": " / ".join(names)}
            if len(names) == len(matrices):
                del variant["matrix"]  # all of them agree, or there is only one
            shown = [replace(record, variant=variant) for record in group]
            merged += [shown] if len(shown) > _LONG_CURVE else [[record] for record in shown]
    return merged


def _equal(matrices: Mapping[str, list[Record]]) -> list[tuple[list[str], list[Record]]]:
    """Groups of matrices whose values are printed alike."""
    alike: dict[tuple[str, ...], tuple[list[str], list[Record]]] = {}
    for name, group in matrices.items():
        alike.setdefault(tuple(number(record.value) for record in group), ([], group))[0].append(name)
    return list(alike.values())


def _site_notes(records: Sequence[Record]) -> list[str]:
    """The notes of the records, each once; the number of rows; the words that need an explanation."""
    counts = {record.n for record in records if record.n is not None}
    notes: dict[str, dict[str, None]] = {}
    for record in records:
        if record.note:
            notes.setdefault(record.note, {})[record.metric] = None
    texts = [f"{', '.join(metrics)}: {note}" for note, metrics in notes.items()]
    if counts:
        texts.append(f"n: {max(counts):,} rows" + (f", for some metrics {min(counts):,}" if len(counts) > 1 else ""))
    matrices = {part for r in records for part in str(r.variant.get("matrix", "")).split(", ")}
    texts += [f"matrix={name}: {meaning}" for name, meaning in _MATRICES.items() if name in matrices]
    vectors = any(parse_site(record.site).kind in ("vectors", "weight") for record in records)
    if vectors and any("token" in record.metric for record in records):
        texts.append("In the names of metrics, a token is a row.")
    return texts
