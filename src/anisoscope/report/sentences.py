"""The results of a run in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anisoscope.report.tables import Row

WITHOUT = "no-sink"  # the token policy that leaves out first and massive tokens
_FLAT = 0.25  # a curve whose values vary by less than this share of the largest is called flat
_NOTHING = 1e-5
_HEADLINE_RANK = 32  # of a curve by rank, the rank whose value is reported
_SAME = 0.1  # numbers that differ by less than this share are reported once


@dataclass(frozen=True)
class Phrase:
    """The wording for a metric: a clause with `{}` for the number, as a percentage or not."""

    clause: str
    percent: bool = False


# In the order in which a reader needs them; any other metric is reported by its name.
PHRASES: Mapping[str, Phrase] = {
    "spectral_anisotropy": Phrase("the top direction has {} of the variance", percent=True),
    "mean_cosine": Phrase("the mean cosine between two tokens is {}"),
    "mean_cosine_centred": Phrase("the mean cosine between two tokens after centring is {}"),
    "relative_drift": Phrase("the mean vector has {} of the tokens' norm", percent=True),
    "isoscore": Phrase("the IsoScore is {} (1 is a sphere, 0 a line)"),
    "participation_ratio": Phrase("the variance is spread over about {} directions"),
    "effective_rank": Phrase("the effective rank is {}"),
    "two_nn": Phrase("the intrinsic dimension is about {}"),
    "tyler_share": Phrase("ignoring the tokens' norms, the top direction has {} of the variance", percent=True),
    "attention_entropy": Phrase("the entropy of attention is {} of that of uniform attention", percent=True),
    "sink_mass": Phrase("heads put {} of their attention on the first token", percent=True),
    "qk_cosine": Phrase("the cosine between mean query and mean key is {}"),
    "gradient_energy": Phrase("{} of the gradients' energy lies in the tangent proxy", percent=True),
    "gradient_enrichment": Phrase("the tangent proxy has {} times the gradient energy of a random subspace"),
    "mean_direction_drift": Phrase("the cosine between the mean direction and that of the reference step is {}"),
    "cka": Phrase("the similarity (CKA) with the reference is {}"),
}


def headlines(rows: Mapping[str, Sequence[Row]]) -> list[tuple[str, str]]:
    """The main results of one run as (metric, sentence), given its rows by metric."""
    results = [(metric, sentences(metric, rows[metric])) for metric in PHRASES if metric in rows]
    return [(metric, f"{'; '.join(texts)}.") for metric, texts in results if texts]


def sentences(metric: str, rows: Sequence[Row]) -> list[str]:
    """The results of one metric of one run: over the layers at the last step, and over the steps.

    >>> rows = [{"tokens": "all", "stream": "resid", "site": f"resid.{i}", "layer": float(i), "head": None,
    ...          "index": None, "step": 0, "value": v, "null": None} for i, v in enumerate([0.1, 0.9, 0.9, 0.1])]
    >>> sentences("spectral_anisotropy", rows)
    ['layers 1–2: the top direction has 90 % of the variance; elsewhere 10 %']
    """
    shown = _one_variant(rows, indexed=metric in PHRASES)
    if not shown:
        return []
    last = max(row["step"] for row in shown)
    texts = [_over_layers(metric, [row for row in shown if row["step"] == last]) + _index_text(shown)]
    if last != min(row["step"] for row in shown):
        texts.append(_over_steps(metric, shown))
    return [text for text in texts if text]


def number(value: float, percent: bool = False) -> str:
    """A number for a sentence: at most three digits, or a percentage.

    >>> number(0.0734, percent=True), number(0.0734), number(128.4), number(9.0), number(0.00041, percent=True)
    ('7.3 %', '0.073', '128', '9', '0.04 %')
    """
    if abs(value) < _NOTHING:
        return "0 %" if percent else "0"
    if percent:
        scaled = 100 * value
        return (
            f"{scaled:.0f} %" if abs(scaled) >= 9.95 else f"{scaled:.1f} %" if abs(scaled) >= 0.1 else f"{scaled:.1g} %"
        )
    if abs(value) >= 100 or (value == round(value) and value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def span(values: Sequence[float], percent: bool = False) -> str:
    """The range of numbers, or one number if both ends round to the same."""
    low, high = number(min(values), percent), number(max(values), percent)
    if low == high:
        return low
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


def _one_variant(rows: Sequence[Row], indexed: bool) -> list[Row]:
    """The rows of the first variant and stream with a value; of a curve by index, one index if `indexed`."""
    known = [row for row in rows if row["value"] is not None]
    flat = [row for row in known if row["index"] is None]
    if not flat and indexed and known:
        ranks = {row["index"] for row in known}
        shown = _HEADLINE_RANK if _HEADLINE_RANK in ranks else max(ranks)
        flat = [row for row in known if row["index"] == shown]
    if not flat:
        return []
    first = flat[0]
    keys = ["stream", *(key for key in first if key.startswith("v_"))]
    return [row for row in flat if all(row.get(key) == first.get(key) for key in keys)]


def _index_text(rows: Sequence[Row]) -> str:
    return "" if rows[0]["index"] is None else f" (at index {rows[0]['index']})"


def _over_layers(metric: str, rows: Sequence[Row]) -> str:
    """The layers around the peak against the rest, with and without sink tokens."""
    phrase = _phrase(metric)
    policies = list(dict.fromkeys(row["tokens"] for row in rows))
    main = "all" if "all" in policies else policies[0]
    curve = by_layer([row for row in rows if row["tokens"] == main])
    other = by_layer([row for row in rows if row["tokens"] == WITHOUT]) if main != WITHOUT else {}
    if not curve:
        text = phrase.clause.format(span([row["value"] for row in rows if row["tokens"] == main], phrase.percent))
        # Sites without a layer have rows of vectors or weights, not tokens.
        return f"{rows[0]['site']}: {text.replace('tokens', 'rows')}{_null_text(rows, phrase)}"
    high, rest = peak(curve)
    depth = _final(rows)
    text = f"{layers_text(high, depth)}: {phrase.clause.format(span([curve[p] for p in high], phrase.percent))}"
    if other and set(high) <= set(other):
        left = [other[p] for p in high]
        if any(abs(other[p] - curve[p]) > _SAME * abs(curve[p]) for p in high):
            text += f"; without first and massive tokens {span(left, phrase.percent)}"
    if rest:
        text += f"; elsewhere {span([curve[p] for p in rest], phrase.percent)}"
    return text + _null_text([row for row in rows if row["tokens"] == main], phrase)


def _over_steps(metric: str, rows: Sequence[Row]) -> str:
    """The change over the steps of the layer that changed most."""
    phrase = _phrase(metric)
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
    where = site if head is None else f"{site}, head {head}"
    verb = "rose" if end > start else "fell"
    if number(start, phrase.percent) == number(end, phrase.percent):
        return f"from step {min(path):,} to {max(path):,} it hardly changed"
    return (
        f"from step {min(path):,} to {max(path):,} it changed most at {where}, where it {verb} "
        f"from {number(start, phrase.percent)} to {number(end, phrase.percent)}"
    )


def by_layer(rows: Sequence[Row]) -> dict[float, float]:
    """The value at each layer, averaged over heads."""
    sums: dict[float, list[float]] = {}
    for row in rows:
        if row["layer"] is not None:
            sums.setdefault(row["layer"], []).append(row["value"])
    return {layer: sum(sums[layer]) / len(sums[layer]) for layer in sorted(sums)}


def peak(curve: Mapping[float, float]) -> tuple[list[float], list[float]]:
    """The layers around the highest value that stay above half of the rise, and all other layers.

    >>> peak({0: 0.1, 1: 0.8, 2: 0.9, 3: 0.2})
    ([1, 2], [0, 3])
    """
    layers = list(curve)
    low, high = min(curve.values()), max(curve.values())
    if high - low <= _FLAT * max(abs(high), abs(low)):
        return layers, []
    middle = (low + high) / 2
    top = layers.index(max(layers, key=lambda layer: curve[layer]))
    start, end = top, top
    while start > 0 and curve[layers[start - 1]] >= middle:
        start -= 1
    while end < len(layers) - 1 and curve[layers[end + 1]] >= middle:
        end += 1
    return layers[start : end + 1], layers[:start] + layers[end + 1 :]


def _phrase(metric: str) -> Phrase:
    return PHRASES.get(metric, Phrase(f"{metric.replace('_', ' ')} is {{}}"))


def _null_text(rows: Sequence[Row], phrase: Phrase) -> str:
    nulls = [row["null"] for row in rows if row["null"] is not None]
    return f" (null value {span(nulls, phrase.percent)})" if nulls else ""


def _final(rows: Sequence[Row]) -> float | None:
    layers: list[float] = [row["layer"] for row in rows if row["site"].endswith("final")]
    return layers[0] if layers else None
