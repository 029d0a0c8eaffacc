"""The headline metrics of a run as questions: a sentence and a row of a table for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from anisoscope.report.cells import CURVE, NO_VALUE, FittedTable, new_table, sparkline
from anisoscope.report.layer_curves import LayerCurves, layer_curves
from anisoscope.report.sentences import layers_text, number, span
from anisoscope.report.tables import Row

_SAME = 0.1  # curves that differ by less than this share are reported once
_FEW = 0.01  # share of rows; if removing so few halves the anisotropy, few rows cause it
_ZERO = 0.01  # a mean cosine below this is about 0
_EXPLAINED = ((0.1, "yes"), (0.5, "mostly"), (math.inf, "no"))  # what is left of a mean cosine after centring
_NO_CARDS: Mapping[str, Mapping[str, Any]] = {}
_SHARE = ((0.2, "no"), (0.5, "partly"), (math.inf, "yes"))  # readings of a share


@dataclass(frozen=True)
class Question:
    """A question that a metric answers.

    Attributes:
        text: The question, in at most 24 characters.
        metric: The metric.
        clause: The answer, with `{}` for the values.
        percent: Whether values are percentages.
        relative: Whether readings depend on the value divided by its null.
        readings: Upper limits of the value at the layer of the finding, each with a word.
    """

    text: str
    metric: str
    clause: str
    percent: bool = False
    relative: bool = False
    readings: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class QuestionAnswer:
    """The answer of one run to a question."""

    question: str
    metric: str
    sentence: str
    values: str
    curve: Sequence[float]
    null: str
    reading: str


_DIRECTION = Question(
    "One direction dominates?", "spectral_anisotropy", "the top direction has {} of the variance", True, readings=_SHARE
)
_CONE = Question(
    "How narrow is the cone?",
    "mean_cosine",
    "the mean cosine between two tokens is {}",
    readings=((0.1, "no cone"), (0.3, "wide"), (0.6, "narrow"), (math.inf, "very narrow")),
)
_CENTRED = Question("Only due to the mean?", "mean_cosine_centred", "with the mean subtracted, the mean cosine is {}")
_COORDINATE = Question(
    "One coordinate carries it?",
    "top_coordinate",
    "one coordinate carries {} of the top direction",
    True,
    readings=_SHARE,
)
_OTHERS = (
    Question(
        "Is the variance even?",
        "isoscore",
        "the IsoScore is {}, where 0 is a line and 1 a sphere",
        relative=True,
        readings=((0.1, "no"), (0.5, "partly"), (math.inf, "yes")),
    ),
    Question(
        "How many directions?",
        "participation_ratio",
        "about {} directions share the variance",
        relative=True,
        readings=((0.1, "few"), (0.5, "some"), (math.inf, "most")),
    ),
    Question("Intrinsic dimension?", "two_nn", "the intrinsic dimension is about {}, from nearest neighbours"),
)
METRICS = (
    *("spectral_anisotropy", "top_coordinate", "tokens_to_halve", "mean_cosine", "mean_cosine_centred"),
    *(question.metric for question in _OTHERS),
)


def streams_of(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """The streams for which questions can be answered: the residual streams, or else what there is."""
    streams = list(dict.fromkeys(row["stream"] for metric in METRICS for row in rows.get(metric, ())))
    main = [stream for stream in streams if stream in ("resid", "enc.resid", "dec.resid")]
    return main or streams


def answers(
    rows: Mapping[str, Sequence[Row]], stream: str, cards: Mapping[str, Mapping[str, Any]] = _NO_CARDS
) -> list[QuestionAnswer]:
    """The answers for one stream at its last step.

    Args:
        rows: The rows of a run by metric. A metric that was not measured gives no answer.
        stream: The stream.
        cards: The metric cards: they decide which end of a range is the finding, and which variant is shown.

    Returns:
        The answers. Values are those without sink tokens, if they were measured.
    """
    curves = {metric: layer_curves(metric, rows.get(metric, ()), stream, cards.get(metric, {})) for metric in METRICS}
    direction = _answer(_DIRECTION, curves)
    coordinate = _answer(_COORDINATE, curves)
    if coordinate is not None and (direction is None or direction.reading == "no"):
        coordinate = replace(coordinate, reading=NO_VALUE)  # there is nothing to carry
    results = [
        direction,
        coordinate,
        _few_tokens(curves, rows.get("tokens_to_halve", ()), stream),
        _answer(_CONE, curves),
        _after_centring(curves),
        *(_answer(question, curves) for question in _OTHERS),
    ]
    return [answer for answer in results if answer is not None]


def questions_table(results: Sequence[QuestionAnswer], title: str = "") -> FittedTable:
    """One row per question: values, curve over the layers, null and reading."""
    sites = max((len(answer.curve) for answer in results), default=0)
    bars = dict.fromkeys((sites, *(width for width in (CURVE, 12, 10, 6) if width < sites)))
    layouts = [(named, width) for width in bars for named in (True, False)]
    return FittedTable([partial(_layout, results, title, *layout) for layout in layouts])


def _layout(results: Sequence[QuestionAnswer], title: str, named: bool, bars: int) -> Table:
    metric = ["metric"] if named else []
    curve = ["curve"] if bars > 1 else []
    table = new_table(
        title, "question", *metric, "value", *curve, "null", "reading", left=("metric", "curve", "reading")
    )
    for each in results:
        names = [each.metric] if named else []
        curves = [sparkline(each.curve, bars)] if bars > 1 else []
        table.add_row(*(Text(cell) for cell in (each.question, *names, each.values, *curves, each.null, each.reading)))
    return table


def _where(curve: LayerCurves) -> str:
    """`; highest at layer 7`, or nothing if the curve is flat."""
    if curve.is_flat:
        return ""
    return f"; {'lowest' if curve.low else 'highest'} at {layers_text([curve.extreme()[0]], curve.final)}"


def _over_all(curve: LayerCurves, percent: bool, tolerance: float = 0.0) -> str:
    """`; over all tokens 88–99 %`, or nothing if that is the same."""
    pairs = [(row["value"], curve.all[layer]["value"]) for layer, row in curve.main.items() if layer in curve.all]
    if not curve.sinks_out or all(abs(a - b) <= max(tolerance, _SAME * max(abs(a), abs(b))) for a, b in pairs):
        return ""
    return f"; over all tokens {value_range([row['value'] for row in curve.all.values()], percent)}"


def value_range(values: Sequence[float], percent: bool = False) -> str:
    """The lowest and highest value with a dash, or `to` if one is negative."""
    text = span(values, percent)
    return text.replace(" to ", "–") if min(values) >= 0 else text


def _answer(question: Question, curves: Mapping[str, LayerCurves | None]) -> QuestionAnswer | None:
    curve = curves[question.metric]
    if curve is None:
        return None
    values = value_range(curve.values, question.percent)
    null = value_range(curve.nulls, question.percent) if curve.nulls else ""
    rows = {row["n"] for row in curve.main.values() if row["n"] is not None}
    reading = _reading(question, curve) if question.readings else f"at n = {max(rows):,}" if rows else NO_VALUE
    expected = f" (no structure: {null})" if null else ""
    sentence = question.clause.format(values) + expected + _where(curve) + _over_all(curve, question.percent)
    return QuestionAnswer(question.text, question.metric, sentence, values, curve.values, null, reading)


def _reading(question: Question, curve: LayerCurves) -> str:
    _, row = curve.extreme()
    value = row["value"]
    if question.relative:
        if not row["null"]:
            return NO_VALUE
        value /= row["null"]
    return next(word for limit, word in question.readings if value < limit)


def _after_centring(curves: Mapping[str, LayerCurves | None]) -> QuestionAnswer | None:
    """Whether a cone is only due to the mean vector."""
    centred, cone = curves[_CENTRED.metric], curves[_CONE.metric]
    if centred is None:
        return None
    largest = max(map(abs, centred.values))
    values = "about 0" if largest < _ZERO else value_range([0.0 if abs(v) < _ZERO / 2 else v for v in centred.values])
    before = max(cone.values) if cone is not None else 0.0
    reading = NO_VALUE
    if before >= _CONE.readings[0][0]:  # there is a cone to explain
        reading = next(word for limit, word in _EXPLAINED if largest < limit * before)
    sentence = (
        _CENTRED.clause.format(values) + ("" if largest < _ZERO else _where(centred)) + _over_all(centred, False, _ZERO)
    )
    curve = [] if largest < _ZERO else centred.values
    return QuestionAnswer(_CENTRED.text, _CENTRED.metric, sentence, values, curve, "", reading)


def _few_tokens(curves: Mapping[str, LayerCurves | None], halving: Sequence[Row], stream: str) -> QuestionAnswer | None:
    """Whether few tokens cause the anisotropy: how much the top direction loses without sink tokens."""
    share = curves[_DIRECTION.metric]
    if share is None or not share.sinks_out:
        return _few_rows(halving, stream)
    lost = share.gaps()
    if not lost:
        return None
    layer = max(lost, key=lambda layer: abs(lost[layer]))
    before, after = share.all[layer], share.main[layer]
    left_out = share.left_out([layer])
    without = "without first and massive tokens"
    if left_out is not None:
        without = f"without {left_out[0]:,} of {left_out[1]:,} tokens (first and massive ones)"
    ends = [number(row["value"], percent=True) for row in (before, after)]
    values = ends[0] if ends[0] == ends[1] else " → ".join(ends)
    at = layers_text([layer], share.final)
    sentence = f"over all tokens the top direction has {ends[0]} of the variance at {at}, {without} {ends[1]}"
    if all(abs(change) <= _SAME * share.all[k]["value"] for k, change in lost.items()):
        sentence = f"{without} the top direction has the same share at every layer, within {_SAME:.0%}".replace(
            "%", " %"
        )
    dominates = max(share.values) >= _SHARE[1][0]  # without sink tokens too, at this or another layer
    reading = ("partly" if dominates else "yes") if share.caused_by_sinks() else "no"
    return QuestionAnswer("Due to few tokens?", _DIRECTION.metric, sentence, values, [], "", reading)


def _few_rows(halving: Sequence[Row], stream: str) -> QuestionAnswer | None:
    rows = [row for row in halving if row["stream"] == stream]
    if not rows:
        return None
    share, note = rows[0]["value"], rows[0]["note"]
    values = NO_VALUE if share is None else number(share, percent=True)
    sentence = (
        note or "no"
        if share is None
        else f"removing the {values} of rows with the largest norms halves the excess of the top direction"
    )
    reading = "yes" if share is not None and share <= _FEW else "no"
    return QuestionAnswer("Due to few rows?", "tokens_to_halve", sentence, values, [], "", reading)
