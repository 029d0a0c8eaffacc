"""The results of a run in plain sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from anisoscope.records import headline_variant
from anisoscope.report.checked_info import checked_info
from anisoscope.report.tables import NONE, Row

WITHOUT = "no-sink"  # the token policy that leaves out first and massive tokens
_FLAT = 0.25  # a curve whose values vary by less than this share of the largest is called flat
_NOTHING = 1e-5
_HEADLINE_RANK = 32  # of a curve by rank, the rank whose value is reported
_SAME = 0.1  # numbers that differ by less than this share are reported once
_STRETCHES = 3  # separate ranges of layers that a sentence names
_NAMED = 3  # sites without a layer that a sentence names


@dataclass(frozen=True)
class Phrase:
    """The wording for a metric.

    Attributes:
        clause: The statement, with `{}` for the number and `{rank}` for the index of a curve by rank.
        percent: Whether the number is a percentage.
        zero: Numbers closer to 0 than this are "about 0".
        stream: What the clause is about. If the numbers belong to another stream, the sentence names it first.
    """

    clause: str
    percent: bool = False
    zero: float = _NOTHING
    stream: str = "resid"

    def text(self, values: Sequence[float]) -> str:
        """The range of these numbers."""
        return span(values, self.percent, self.zero)


# In the order in which a reader needs them; any other metric is reported by its name.
PHRASES: Mapping[str, Phrase] = {
    "spectral_anisotropy": Phrase("the top direction has {} of the variance", percent=True),
    "mean_cosine": Phrase("the mean cosine between two tokens is {}", zero=0.01),
    "mean_cosine_centred": Phrase("the mean cosine between two tokens after centring is {}", zero=0.01),
    "relative_drift": Phrase("the mean vector has {} of the tokens' norm", percent=True),
    "isoscore": Phrase("the IsoScore (1 is a sphere, 0 a line) is {}", zero=0.001),
    "participation_ratio": Phrase("the variance is spread over about {} directions"),
    "effective_rank": Phrase("the effective rank is {}"),
    "two_nn": Phrase("the intrinsic dimension is about {}"),
    "tyler_share": Phrase("ignoring the tokens' norms, the top direction has {} of the variance", percent=True),
    "attention_entropy": Phrase(
        "the entropy of attention is {} of that of uniform attention", percent=True, stream="pattern"
    ),
    "sink_mass": Phrase("heads put {} of their attention on the first token", percent=True, stream="pattern"),
    "qk_cosine": Phrase("the cosine between mean query and mean key is {}", zero=0.01, stream="pattern"),
    "gradient_energy": Phrase(
        "{} of the gradients' energy lies in the tangent proxy of rank {rank}", percent=True, stream="grad.resid"
    ),
    "gradient_enrichment": Phrase(
        "the tangent proxy of rank {rank} has {} times the gradient energy of a random subspace", stream="grad.resid"
    ),
    "mean_direction_drift": Phrase(
        "the cosine between the mean direction and that of the reference step is {}", zero=0.01
    ),
    "cka": Phrase("the similarity (CKA) with the reference is {}", zero=0.01),
}

# The rows of a stream, as a sentence calls them.
_ROWS = {
    "attn": "attention outputs",
    "mlp": "MLP outputs",
    "q": "queries",
    "k": "keys",
    "q.pre": "queries before rotation",
    "k.pre": "keys before rotation",
    "pattern": "attention",
    "in": "inputs of modules",
    "weight": "weights",
}
_STACKS = {"enc": "encoder", "dec": "decoder"}


def headlines(rows: Mapping[str, Sequence[Row]], info: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    """The main results of one run as (metric, sentence).

    Args:
        rows: The rows of the run by metric.
        info: The info of the run. The cards of its metrics decide which end of a curve is the finding.
    """
    cards = checked_info(info or {})["metrics"]
    results = [(metric, sentences(metric, rows[metric], cards.get(metric))) for metric in PHRASES if metric in rows]
    return [
        (metric, " ".join(f"{_capital(text) if i else text}." for i, text in enumerate(t)))
        for metric, t in results
        if t
    ]


def sentences(metric: str, rows: Sequence[Row], card: Mapping[str, Any] | None = None) -> list[str]:
    """The results of one metric of one run, one sentence per stream: over the layers at the last step, over the steps.

    The residual stream and its gradients are described; other streams only if the metric has no values there.

    >>> rows = [{"tokens": "all", "stream": "resid", "site": f"resid.{i}", "layer": float(i), "head": None,
    ...          "index": None, "step": 0, "value": v, "null": None} for i, v in enumerate([0.1, 0.9, 0.9, 0.1])]
    >>> sentences("spectral_anisotropy", rows, {"notable": "high"})
    ['layers 1–2: the top direction has 90 % of the variance; elsewhere 10 %']
    """
    facts = card or {}
    shown = _one_variant(rows, headline_variant(facts), indexed=metric in PHRASES)
    texts = []
    for stream in _streams(shown):
        part = [row for row in shown if row["stream"] == stream]
        last = max(row["step"] for row in part)
        phrase = _phrase(metric, part)
        parts = [_over_layers(phrase, [row for row in part if row["step"] == last], facts.get("notable"))]
        if last != min(row["step"] for row in part):
            parts.append(_over_steps(phrase, part))
        name = "" if stream == phrase.stream else stream_name(stream)
        # Sites without a layer name themselves.
        prefix = f"{name}, " if name and part[0]["layer"] is not None else ""
        texts.append(prefix + "; ".join(text for text in parts if text))
    return texts


def in_rows(text: str, tokens: bool = False) -> str:
    """A text about tokens as one about rows, unless the rows are tokens.

    >>> in_rows("2 massive tokens; massive_tokens; --tokens")
    '2 massive rows; massive_tokens; --tokens'
    """
    # what is left out of a mean are tokens, also if a row is the mean of a sequence
    return text if tokens else re.sub(r"(?<!first and massive )(?<![\w-])token(s?)\b", r"row\1", text)


def stream_name(stream: str) -> str:
    """What a stream holds, in words; "" for the residual stream and for vectors.

    >>> [stream_name(stream) for stream in ("resid", "grad.resid", "enc.q", "grad.mlp", "dec.resid")]
    ['', 'gradients', 'encoder queries', 'gradients of MLP outputs', 'decoder']
    """
    kind = stream.removeprefix("grad.")
    first, _, rest = kind.partition(".")
    stack, kind = (_STACKS[first], rest) if first in _STACKS else ("", kind)
    name = " ".join(part for part in (stack, _ROWS.get(kind, "")) if part)
    if not stream.startswith("grad."):
        return name
    return f"gradients of {name}" if kind in _ROWS else f"{stack} gradients".strip()


def number(value: float, percent: bool = False, zero: float = _NOTHING) -> str:
    """A number for a sentence: at most three digits, or a percentage; "about 0" if it is closer to 0 than `zero`.

    >>> number(0.0734, percent=True), number(0.0734), number(128.4), number(9.0), number(0.00041, percent=True)
    ('7.3 %', '0.073', '128', '9', '0.04 %')
    """
    if abs(value) < _NOTHING:
        return "0 %" if percent else "0"
    if abs(value) < zero:
        return "about 0"
    if percent:
        scaled = 100 * value
        return (
            f"{scaled:.0f} %" if abs(scaled) >= 9.95 else f"{scaled:.1f} %" if abs(scaled) >= 0.1 else f"{scaled:.1g} %"
        )
    if abs(value) >= 100 or (value == round(value) and value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def error_text(error: float | None, percent: bool) -> str:
    """` ± 0.3 %`, or "" without an error."""
    if error is None:
        return ""
    return f" ± {100 * error:.2g} %" if percent else f" ± {error:.2g}"


def span(values: Sequence[float], percent: bool = False, zero: float = _NOTHING) -> str:
    """The range of numbers, or one number if both ends round to the same."""
    low, high = (number(end, percent, zero) for end in (min(values), max(values)))
    if {low, high} == {"0", "about 0"}:
        return "about 0"
    if low == high:
        return low
    if low.isdigit() and "." in high and "%" not in high:
        low += ".0"  # as many decimals as the other end
    return f"{low.removesuffix(' %')}–{high}" if percent and min(values) >= 0 else f"{low} to {high}"


def layers_text(layers: Sequence[float], depth: float | None) -> str:
    """A range of layers in words; `depth` is the position of `final`.

    >>> layers_text([3.0, 4.0, 5.0], 12.0), layers_text([-1.0, 0.0], 12.0), layers_text([11.0, 12.0], 12.0)
    ('layers 3–5', 'embed to layer 0', 'layer 11 to final')
    """
    first, last = layers[0], layers[-1]
    if first == last:
        return _layer_text(first, depth)
    if first == -1 or last == depth:
        return f"{_layer_text(first, depth)} to {_layer_text(last, depth)}"
    return f"layers {first:g}–{last:g}"


def _layer_text(layer: float, depth: float | None) -> str:
    return "embed" if layer == -1 else "final" if layer == depth else f"layer {layer:g}"


def _one_variant(rows: Sequence[Row], headline: Mapping[str, Any], indexed: bool) -> list[Row]:
    """The rows of the headline variant with a value, otherwise of the first; of a curve one index if `indexed`."""
    known = [row for row in rows if row["value"] is not None]
    flat = [row for row in known if row["index"] is None]
    if not flat and indexed and known:
        ranks = {row["index"] for row in known}
        shown = _HEADLINE_RANK if _HEADLINE_RANK in ranks else max(ranks)
        flat = [row for row in known if row["index"] == shown]
    if not flat:
        return []
    wanted = {f"v_{key}": value for key, value in headline.items()}
    first = next((row for row in flat if all(row.get(key) == value for key, value in wanted.items())), flat[0])
    variant = {key: value for key, value in first.items() if key.startswith("v_")}
    return [row for row in flat if all(row.get(key, NONE) == value for key, value in variant.items())]


def _streams(rows: Sequence[Row]) -> list[str]:
    """The streams that are described: the residual stream of each stack and its gradients, otherwise the first."""
    streams = list(dict.fromkeys(row["stream"] for row in rows))
    return [stream for stream in streams if stream.split(".")[-1] == "resid"] or streams[:1]


def _over_layers(phrase: Phrase, rows: Sequence[Row], notable: str | None) -> str:
    """The layers that stand out against the rest, with and without sink tokens."""
    policies = list(dict.fromkeys(row["tokens"] for row in rows))
    main = "all" if "all" in policies else policies[0]
    own = [row for row in rows if row["tokens"] == main]
    curve = by_layer(own)
    if not curve:
        return _without_layers(phrase, own)
    other = by_layer([row for row in rows if row["tokens"] == WITHOUT]) if main != WITHOUT else {}
    stretches, rest = standing_out({p: v if abs(v) >= phrase.zero else 0.0 for p, v in curve.items()}, notable)
    inside = [layer for stretch in stretches for layer in stretch]
    depth = _final(rows)
    *most, last = [layers_text(stretch, depth) for stretch in stretches]
    where = f"{', '.join(most)} and {last}" if most else last
    text = f"{where}: {phrase.clause.format(phrase.text([curve[p] for p in inside]))}"
    if not rest and not _is_flat(curve) and len({phrase.text([value]) for value in curve.values()}) > 1:
        text += _ends(curve, notable, depth)
    text += _null_text([row for row in own if row["layer"] in inside], phrase)
    if other and set(inside) <= set(other) and any(_differs(curve[p], other[p]) for p in inside):
        text += f"; without first and massive tokens {phrase.text([other[p] for p in inside])}"
    if rest:
        text += f"; elsewhere {phrase.text([curve[p] for p in rest])}"
    return text


def _without_layers(phrase: Phrase, rows: Sequence[Row]) -> str:
    """Sites without a layer: vectors, weights."""
    sites = list(dict.fromkeys(row["site"] for row in rows))
    more = f" and {len(sites) - _NAMED} more" if len(sites) > _NAMED else ""
    text = phrase.clause.format(phrase.text([row["value"] for row in rows]))
    return f"{', '.join(sites[:_NAMED])}{more}: {text}{_null_text(rows, phrase)}"


def _over_steps(phrase: Phrase, rows: Sequence[Row]) -> str:
    """The change over the steps of the layer that changed most."""
    policy = rows[0]["tokens"]
    paths: dict[tuple[Any, Any], dict[int, float]] = {}
    for row in rows:
        if row["tokens"] == policy:
            paths.setdefault((row["site"], row["head"]), {})[row["step"]] = row["value"]
    changes = {key: path[max(path)] - path[min(path)] for key, path in paths.items() if len(path) > 1}
    if not changes:
        return ""
    site, head = max(changes, key=lambda key: abs(changes[key]))
    path = paths[site, head]
    start, end = path[min(path)], path[max(path)]
    before, after = phrase.text([start]), phrase.text([end])
    where = site if head is None else f"{site}, head {head}"
    if before == after:
        return f"from step {min(path):,} to {max(path):,} it hardly changed"
    return (
        f"from step {min(path):,} to {max(path):,} it changed most at {where}, where it "
        f"{'rose' if end > start else 'fell'} from {before} to {after}"
    )


def by_layer(rows: Sequence[Row]) -> dict[float, float]:
    """The value at each layer, averaged over heads."""
    sums: dict[float, list[float]] = {}
    for row in rows:
        if row["layer"] is not None:
            sums.setdefault(row["layer"], []).append(row["value"])
    return {layer: sum(sums[layer]) / len(sums[layer]) for layer in sorted(sums)}


def standing_out(curve: Mapping[float, float], notable: str | None) -> tuple[list[list[float]], list[float]]:
    """The stretches of layers beyond the middle of the range, at the end that is notable, and all other layers.

    All layers are one stretch if the curve is flat, if neither end is notable, or if there would be many stretches.

    >>> standing_out({0: 0.1, 1: 0.8, 2: 0.9, 3: 0.2}, "high")
    ([[1, 2]], [0, 3])
    >>> standing_out({0: 0.1, 1: 0.8, 2: 0.9, 3: 0.2}, "low")
    ([[0], [3]], [1, 2])
    """
    layers = list(curve)
    if notable is None or _is_flat(curve):
        return [layers], []
    middle = (min(curve.values()) + max(curve.values())) / 2
    beyond = {layer: (curve[layer] > middle) == (notable == "high") for layer in layers}
    stretches = [list(stretch) for out, stretch in groupby(layers, key=lambda layer: beyond[layer]) if out]
    if len(stretches) > _STRETCHES:
        return [layers], []
    return stretches, [layer for layer in layers if not beyond[layer]]


def _is_flat(curve: Mapping[float, float]) -> bool:
    low, high = min(curve.values()), max(curve.values())
    return high - low <= _FLAT * max(abs(high), abs(low))


def _differs(value: float, other: float) -> bool:
    return abs(other - value) > _SAME * abs(value)


def _ends(curve: Mapping[float, float], notable: str | None, depth: float | None) -> str:
    """Where a curve has its extremes: the notable one, or both."""
    lowest, highest = (pick(curve, key=lambda layer: curve[layer]) for pick in (min, max))
    ends = {"low": f"lowest at {_layer_text(lowest, depth)}", "high": f"highest at {_layer_text(highest, depth)}"}
    return "".join(f", {text}" for end, text in ends.items() if notable in (None, end))


def _phrase(metric: str, rows: Sequence[Row]) -> Phrase:
    """The phrase for these rows: it calls them what they are, and names the rank."""
    phrase = PHRASES.get(metric, Phrase(f"{metric.replace('_', ' ')} is {{}}"))
    noun = _noun(rows[0]) if metric in PHRASES else "tokens"
    index = "" if rows[0]["index"] is None else str(rows[0]["index"])
    clause = phrase.clause.replace("tokens", noun).replace("{rank}", index)
    if len({(row["layer"], row["tokens"], row["step"]) for row in rows}) < len(rows) and rows[0]["layer"] is not None:
        clause += " (mean over heads)"
    return Phrase(clause, phrase.percent, phrase.zero, phrase.stream)


def _noun(row: Row) -> str:
    if row["stream"].startswith("grad."):
        return "gradients"
    kind = row["stream"].split(".", 1)[-1] if row["stream"].split(".")[0] in _STACKS else row["stream"]
    if row["layer"] is None:
        return "rows"
    return {"q": "queries", "k": "keys", "q.pre": "queries", "k.pre": "keys"}.get(kind, "tokens")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _null_text(rows: Sequence[Row], phrase: Phrase) -> str:
    nulls = [row["null"] for row in rows]
    if not nulls or None in nulls:
        return ""
    return f" (null value {phrase.text(nulls)})"


def _final(rows: Sequence[Row]) -> float | None:
    layers: list[float] = [row["layer"] for row in rows if row["site"].endswith("final")]
    return layers[0] if layers else None
