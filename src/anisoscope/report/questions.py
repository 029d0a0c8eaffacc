"""The headline metrics of a run as questions: a sentence and a row of a table for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.table import Table
from rich.text import Text

from anisoscope.report.cells import CURVE, NO_VALUE, FittedTable, new_table, sparkline
from anisoscope.report.sentences import WITHOUT, layers_text, number, span
from anisoscope.report.tables import Row

_SAME = 0.1  # curves that differ by less than this share are reported once
_FLAT = 0.05  # a curve that varies by less than this share of its largest value has no highest layer
_CAUSED = 0.25  # share of the variance that the top direction must lose without sink tokens to be caused by them
_FEW = 0.01  # share of rows; if removing so few halves the anisotropy, few rows cause it
_ZERO = 0.01  # a mean cosine below this is about 0
_EXPLAINED = ((0.1, "yes"), (0.5, "mostly"), (math.inf, "no"))  # what is left of a mean cosine after centring
_SHARE = ((0.2, "no"), (0.5, "partly"), (math.inf, "yes"))  # readings of a share


@dataclass(frozen=True)
class Question:
    """A question that a metric answers.

    Attributes:
        text: The question, in at most 24 characters.
        metric: The metric.
        clause: The answer, with `{}` for the values.
        percent: Whether values are percentages.
        low: Whether a low value is the finding, instead of a high one.
        relative: Whether readings depend on the value divided by its null.
        readings: Upper limits of the value at the layer of the finding, each with a word.
    """

    text: str
    metric: str
    clause: str
    percent: bool = False
    low: bool = False
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
        low=True,
        relative=True,
        readings=((0.1, "no"), (0.5, "partly"), (math.inf, "yes")),
    ),
    Question(
        "How many directions?",
        "participation_ratio",
        "about {} directions share the variance",
        low=True,
        relative=True,
        readings=((0.1, "few"), (0.5, "some"), (math.inf, "most")),
    ),
    Question("Intrinsic dimension?", "two_nn", "about {}, from nearest neighbours", low=True),
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


def answers(rows: Mapping[str, Sequence[Row]], stream: str) -> list[QuestionAnswer]:
    """The answers for one stream at its last step, given the rows of a run by metric.

    Values are those without sink tokens, if they were measured. A metric that was not measured gives no answer.
    """
    curves = {metric: _Curves.of(rows.get(metric, ()), stream) for metric in METRICS}
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


@dataclass(frozen=True)
class _Curves:
    """A metric over the layers of one stream, under the main policy and over all tokens."""

    main: Mapping[float, Row]
    all: Mapping[float, Row]
    sinks_out: bool
    final: float | None

    @classmethod
    def of(cls, rows: Sequence[Row], stream: str) -> _Curves | None:
        single = [row for row in rows if row["stream"] == stream and row["index"] is None and row["head"] is None]
        known = [row for row in single if row["value"] is not None]
        if not known:
            return None
        variant = {key: value for key, value in known[0].items() if key.startswith("v_")}
        last = max(row["step"] for row in known)
        known = [r for r in known if r["step"] == last and all(r[key] == value for key, value in variant.items())]
        policies = {row["tokens"] for row in known}
        main = WITHOUT if WITHOUT in policies else "all" if "all" in policies else sorted(policies)[0]
        final = next((row["layer"] for row in known if row["site"].endswith("final")), None)
        return cls(_by_layer(known, main), _by_layer(known, "all"), main == WITHOUT, final)

    @property
    def values(self) -> list[float]:
        return [row["value"] for row in self.main.values()]

    @property
    def nulls(self) -> list[float]:
        return [row["null"] for row in self.main.values() if row["null"] is not None]

    def extreme(self, low: bool) -> tuple[float, Row]:
        """The layer of the lowest or highest value, and its row."""
        chooser = min if low else max
        return chooser(self.main.items(), key=lambda item: item[1]["value"])

    def where(self, low: bool) -> str:
        """`; highest at layer 7`, or nothing if the curve is flat."""
        if max(self.values) - min(self.values) <= _FLAT * max(map(abs, self.values)):
            return ""
        return f"; {'lowest' if low else 'highest'} at {layers_text([self.extreme(low)[0]], self.final)}"

    def over_all(self, percent: bool, tolerance: float = 0.0) -> str:
        """`; over all tokens 88–99 %`, or nothing if that is the same."""
        pairs = [(row["value"], self.all[layer]["value"]) for layer, row in self.main.items() if layer in self.all]
        if not self.sinks_out or all(abs(a - b) <= max(tolerance, _SAME * max(abs(a), abs(b))) for a, b in pairs):
            return ""
        return f"; over all tokens {_range([row['value'] for row in self.all.values()], percent)}"


def _range(values: Sequence[float], percent: bool = False) -> str:
    """The lowest and highest value with a dash, or `to` if one is negative."""
    text = span(values, percent)
    return text.replace(" to ", "–") if min(values) >= 0 else text


def _by_layer(rows: Sequence[Row], policy: str) -> dict[float, Row]:
    """The rows of one policy by layer; vectors have layer 0."""
    return dict(sorted((row["layer"] or 0.0, row) for row in rows if row["tokens"] == policy))


def _answer(question: Question, curves: Mapping[str, _Curves | None]) -> QuestionAnswer | None:
    curve = curves[question.metric]
    if curve is None:
        return None
    values = _range(curve.values, question.percent)
    null = _range(curve.nulls, question.percent) if curve.nulls else ""
    rows = {row["n"] for row in curve.main.values() if row["n"] is not None}
    reading = _reading(question, curve) if question.readings else f"n ≤ {max(rows):,}" if rows else NO_VALUE
    expected = f" (null {null})" if null else ""
    sentence = question.clause.format(values) + expected + curve.where(question.low) + curve.over_all(question.percent)
    return QuestionAnswer(question.text, question.metric, sentence, values, curve.values, null, reading)


def _reading(question: Question, curve: _Curves) -> str:
    _, row = curve.extreme(question.low)
    value = row["value"]
    if question.relative:
        if not row["null"]:
            return NO_VALUE
        value /= row["null"]
    return next(word for limit, word in question.readings if value < limit)


def _after_centring(curves: Mapping[str, _Curves | None]) -> QuestionAnswer | None:
    """Whether a cone is only due to the mean vector."""
    centred, cone = curves[_CENTRED.metric], curves[_CONE.metric]
    if centred is None:
        return None
    largest = max(map(abs, centred.values))
    values = "about 0" if largest < _ZERO else _range([0.0 if abs(v) < _ZERO / 2 else v for v in centred.values])
    before = max(cone.values) if cone is not None else 0.0
    reading = NO_VALUE
    if before >= _CONE.readings[0][0]:  # there is a cone to explain
        reading = next(word for limit, word in _EXPLAINED if largest < limit * before)
    sentence = (
        _CENTRED.clause.format(values)
        + ("" if largest < _ZERO else centred.where(False))
        + centred.over_all(False, _ZERO)
    )
    curve = [] if largest < _ZERO else centred.values
    return QuestionAnswer(_CENTRED.text, _CENTRED.metric, sentence, values, curve, "", reading)


def _few_tokens(curves: Mapping[str, _Curves | None], halving: Sequence[Row], stream: str) -> QuestionAnswer | None:
    """Whether few tokens cause the anisotropy: how much the top direction loses without sink tokens."""
    share = curves[_DIRECTION.metric]
    if share is None or not share.sinks_out:
        return _few_rows(halving, stream)
    lost = {layer: share.all[layer]["value"] - row["value"] for layer, row in share.main.items() if layer in share.all}
    if not lost:
        return None
    layer = max(lost, key=lambda layer: abs(lost[layer]))
    before, after = share.all[layer], share.main[layer]
    left_out = max((share.all[k]["n"] or 0) - (row["n"] or 0) for k, row in share.main.items() if k in share.all)
    ends = [number(row["value"], percent=True) for row in (before, after)]
    values = ends[0] if ends[0] == ends[1] else " → ".join(ends)
    without = f"without {left_out:,} of {before['n'] or 0:,} tokens (first and massive ones)"
    at = layers_text([layer], share.final)
    sentence = f"over all tokens the top direction has {ends[0]} of the variance at {at}, {without} {ends[1]}"
    if all(abs(change) <= _SAME * share.all[k]["value"] for k, change in lost.items()):
        sentence = f"{without} the top direction has the same share at every layer, within {_SAME:.0%}".replace(
            "%", " %"
        )
    reading = "yes" if lost[layer] >= _CAUSED else "no"
    return QuestionAnswer("Due to few tokens?", _DIRECTION.metric, sentence, values, [], "", reading)


def _few_rows(halving: Sequence[Row], stream: str) -> QuestionAnswer | None:
    rows = [row for row in halving if row["stream"] == stream]
    if not rows:
        return None
    share, note = rows[0]["value"], rows[0]["note"]
    values = NO_VALUE if share is None else number(share, percent=True)
    sentence = (
        note or "no" if share is None else f"removing the {values} of rows with the largest norms halves its excess"
    )
    reading = "yes" if share is not None and share <= _FEW else "no"
    return QuestionAnswer("Due to few rows?", "tokens_to_halve", sentence, values, [], "", reading)
