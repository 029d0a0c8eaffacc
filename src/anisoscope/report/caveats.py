"""What to keep in mind when reading a run: caveats that its own records give reason for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from anisoscope.report.facts import sound
from anisoscope.report.reading import WITHOUT, by_place, number
from anisoscope.report.tidy import Row

_FEW_ROWS = 10  # tokens per dimension below which a covariance is mostly noise
_LOW_NULL = 0.8  # where a perfect sphere reads less IsoScore than this, n is too small for d
_FEW_TOKENS = 0.01  # a share of tokens this small that halves a score is a handful
_SATURATED = 20.0  # neighbour-based dimensions above this are too low (true 50 reads about 32 at n = 2048)
_DRAWN = 0.25  # a score that loses this much without sinks is drawn by them
_OWN_PANEL = ("alert", "verdict")  # metrics whose notes are told elsewhere
_LISTED = 8  # notes shown before they are only counted


def caveats(rows: Mapping[str, Sequence[Row]], info: Mapping[str, Any]) -> list[str]:
    """The caveats that apply to one run, given its rows by metric and its info."""
    info = sound(info)
    found = [
        _interrupted(info),
        _small_sample(rows, info),
        _massive(info),
        _few_tokens(rows.get("tokens_to_halve", ())),
        _drawn_by_sinks(rows.get("spectral_anisotropy", ())),
        _saturated(rows.get("two_nn", ())),
        _no_errors(rows),
        _missing(rows),
        *_random_weights(info),
        *_alerts(rows.get("alert", ())),
        *_notes(rows),
    ]
    return [text for text in found if text]


def width_of(rows: Mapping[str, Sequence[Row]], info: Mapping[str, Any]) -> int | None:
    """The dimension d of the vectors: from the data's own facts, or the highest rank of a spectrum."""
    for part in (info.get("data"), info.get("model"), info):
        for key in ("d", "dim", "width", "hidden_size"):
            if isinstance(part, Mapping) and type(part.get(key)) is int and part[key] > 0:
                return int(part[key])
    ranks = [row["index"] for row in rows.get("spectrum", ()) if row["index"] is not None]
    return max(ranks, default=None)


def _interrupted(info: Mapping[str, Any]) -> str | None:
    if not info.get("interrupted"):
        return None
    return "The measurement was interrupted: the numbers are those of the tokens seen until then."


def _small_sample(rows: Mapping[str, Sequence[Row]], info: Mapping[str, Any]) -> str | None:
    scored = _without_sinks(rows.get("isoscore", ()))
    counts = [row["n"] for row in scored or _without_sinks(rows.get("spectral_anisotropy", ())) if row["n"]]
    nulls = [row["null"] for row in scored if row["null"] is not None]
    width = width_of(rows, info)
    if nulls and min(nulls) < _LOW_NULL:
        few = f"{min(counts):,} tokens" if counts else "So few tokens"
        return (
            f"{few} are few for {f'{width:,}' if width else 'so many'} dimensions: a perfect sphere measured like this "
            f"would read an IsoScore of {number(min(nulls))}, not 1. Compare with the dotted lines, not with 1."
        )
    if counts and width and min(counts) < _FEW_ROWS * width:
        return (
            f"{min(counts):,} tokens are few for {width:,} dimensions: scores of the covariance are biased; "
            "read them against the dotted lines, which show what a cloud without structure would give."
        )
    return None


def _without_sinks(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows without sinks where there are such: massive tokens lower a null too, whatever the number of tokens."""
    return [row for row in rows if row["tokens"] == WITHOUT] or rows


def _massive(info: Mapping[str, Any]) -> str | None:
    removed = info["removed"]
    if not removed["count"]:
        return None
    texts = [repr(token.get("text")) for token in removed["tokens"] if token.get("text") is not None]
    words = ", ".join(dict.fromkeys(texts[:64]))
    named = f" ({words})" if words else ""
    one = removed["count"] == 1
    return (
        f"{removed['count']} massive token{'' if one else 's'}{named} {'is' if one else 'are'} left out under "
        f"{WITHOUT}, besides the first token of every window."
    )


def _few_tokens(rows: Sequence[Row]) -> str | None:
    few = [row for row in rows if row["tokens"] == "all" and row["value"] is not None and row["value"] <= _FEW_TOKENS]
    if not few:
        return None
    least = min(few, key=lambda row: row["value"])
    count = max(1, round(least["value"] * (least["n"] or 0)))
    return (
        f"A handful of tokens draws the picture: at {len(few)} site{'s' if len(few) > 1 else ''} removing at most "
        f"{number(_FEW_TOKENS, percent=True)} of the tokens halves the excess anisotropy "
        f"(at {least['site']} {count:,} of {least['n'] or 0:,})."
    )


def _drawn_by_sinks(rows: Sequence[Row]) -> str | None:
    last = max((row["step"] for row in rows), default=0)
    known = [row for row in rows if row["value"] is not None and row["step"] == last]
    curves = [by_place([row for row in known if row["tokens"] == policy]) for policy in ("all", WITHOUT)]
    lost = {place: curves[0][place] - curves[1][place] for place in curves[0] if place in curves[1]}
    if not lost or max(lost.values()) < _DRAWN:
        return None
    return (
        "The curve over all tokens is drawn by sinks: without first and massive tokens the top direction loses up to "
        f"{number(max(lost.values()), percent=True)} of the variance. For the text itself read the {WITHOUT} curve."
    )


def _saturated(rows: Sequence[Row]) -> str | None:
    high = [row["value"] for row in rows if row["value"] is not None and row["value"] > _SATURATED]
    if not high:
        return None
    return (
        f"Intrinsic dimensions above {_SATURATED:.0f} (up to {number(max(high))} here) are too low: every estimator "
        "from neighbours saturates. Compare them only at equal n."
    )


def _no_errors(rows: Mapping[str, Sequence[Row]]) -> str | None:
    every = [row for group in rows.values() for row in group if row["value"] is not None]
    if every and all(row["error"] is None for row in every):
        return (
            "There are no error bars: too few blocks of documents (more text makes more, and so does a smaller "
            "--tokens: a block is a 64th of it), or errors were switched off."
        )
    return None


def _missing(rows: Mapping[str, Sequence[Row]]) -> str | None:
    reasons: dict[str, list[str]] = {}
    for metric, group in rows.items():
        if metric not in _OWN_PANEL and group and all(row["value"] is None for row in group):
            reasons.setdefault(group[0]["note"] or "no reason was recorded", []).append(metric)
    told = [f"{', '.join(metrics)} ({reason})" for reason, metrics in reasons.items()]
    return f"Without a value: {'; '.join(told)}." if told else None


def _random_weights(info: Mapping[str, Any]) -> list[str]:
    model = info.get("model")
    random = model.get("random_weights") if isinstance(model, Mapping) else None
    return [f"Weights that the checkpoint lacks are random: {', '.join(map(str, random[:4]))}."] if random else []


def _alerts(rows: Sequence[Row]) -> list[str]:
    """What the tracker warned of while the model trained."""
    told = [f"Alert at step {row['step']:,}, {row['site']}: {row['note'] or row.get('v_rule', '')}." for row in rows]
    more = len(told) - _LISTED
    return told[:_LISTED] + ([f"{more} more alerts are in the records."] if more > 0 else [])


def _notes(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """What the records themselves note beside a value, notes that differ only in their numbers told once."""
    kinds: dict[str, tuple[str, set[str], set[str]]] = {}
    for metric, group in rows.items():
        for row in group if metric not in _OWN_PANEL else ():
            for note in (row["note"] or "").split("; ") if row["value"] is not None else ():
                kind = re.sub(r"\d[\d.,]*", "#", note)
                if note and not _only_names(kind):
                    _, sites, metrics = kinds.setdefault(kind, (note, set(), set()))
                    sites.add(row["site"])
                    metrics.add(metric)
    told = [
        f"{', '.join(sorted(metrics))}: {note} (at {len(sites)} site{'s' if len(sites) > 1 else ''}, the first quoted)."
        for note, sites, metrics in kinds.values()
    ]
    more = len(told) - _LISTED
    return told[:_LISTED] + ([f"{more} more kinds of notes are in the records."] if more > 0 else [])


def _only_names(kind: str) -> bool:
    """A note that names a coordinate or counts words adds to the number; it is no caveat."""
    return bool(re.fullmatch(r"(coordinate #|dimensions? [#, ]+|# words)", kind))
