"""Caveats for the reader of a run, derived from its records."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from anisoscope.report.checked_info import checked_info
from anisoscope.report.sentences import WITHOUT, number
from anisoscope.report.streams import site_text
from anisoscope.report.tables import Row
from anisoscope.report.topics import DETAILS, OTHER, topic_of

_FEW_ROWS = 10  # tokens per dimension below which a covariance is mostly noise
_LOW_NULL = 0.8  # a null value of the IsoScore below this changes how the score reads
_FEW_TOKENS = 0.01  # share of tokens; if removing so few halves a score, a few tokens dominate it
_SATURATED = 20.0  # neighbour-based dimensions above this are too low (a true 50 is estimated as 32 at n = 2048)
_DOMINATED = 0.25  # a score that loses this much without sinks is dominated by them
# metrics whose notes are shown elsewhere
_OWN_PANEL = ("alert", "verdict", "concept_share", "concepts_born", "concepts_died")
_LISTED = 8  # notes shown before they are only counted


def caveats(rows: Mapping[str, Sequence[Row]], info: Mapping[str, Any]) -> list[str]:
    """The caveats that apply to one run, given its rows by metric and its info."""
    return [text for _, text in caveats_by_topic(rows, info)]


def caveats_by_topic(rows: Mapping[str, Sequence[Row]], info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The caveats of one run, each with the topic that it concerns: one of `QUESTIONS`, `other` (all) or `details`."""
    info = checked_info(info)
    texts = [
        (OTHER, _interrupted(info)),
        ("directions", _small_sample(rows, info)),
        ("causes", _few_tokens(rows.get("tokens_to_halve", ()))),
        ("directions", _dominated_by_sinks(rows.get("spectral_anisotropy", ()))),
        ("directions", _saturated(rows.get("two_nn", ()))),
        (OTHER, _no_errors(rows)),
        *_missing(rows),
        *((OTHER, text) for text in _random_weights(info)),
        *(("development", text) for text in _alerts(rows.get("alert", ()))),
        *_notes(rows),
    ]
    return [(topic, text) for topic, text in texts if text]


def width_of(rows: Mapping[str, Sequence[Row]], info: Mapping[str, Any]) -> int | None:
    """The dimension d of the vectors: from the info of the run, or the highest rank of a spectrum."""
    for part in (info.get("data"), info.get("model"), info):
        for key in ("d", "dim", "width", "hidden_size"):
            if isinstance(part, Mapping) and type(part.get(key)) is int and part[key] > 0:
                return int(part[key])
    ranks = [row["index"] for row in rows.get("spectrum", ()) if row["index"] is not None]
    return max(ranks, default=None)


def _interrupted(info: Mapping[str, Any]) -> str | None:
    if not info.get("interrupted"):
        return None
    return "The measurement was interrupted: the numbers cover only the tokens up to then."


def _small_sample(rows: Mapping[str, Sequence[Row]], info: Mapping[str, Any]) -> str | None:
    width = width_of(rows, info)
    scored = [row for row in _without_sinks(rows.get("isoscore", ())) if row["null"] is not None]
    if scored:
        lowest = min(scored, key=lambda row: row["null"])
        if lowest["null"] < _LOW_NULL:
            return _low_null(lowest, width)
    counts = [row["n"] for row in scored or _without_sinks(rows.get("spectral_anisotropy", ())) if row["n"]]
    if counts and width and min(counts) < _FEW_ROWS * width:
        return (
            f"{min(counts):,} tokens are few for {width:,} dimensions: scores of the covariance are biased. "
            "Compare them with their null values."
        )
    return None


def _low_null(row: Row, width: int | None) -> str:
    """Why the IsoScore of a perfect sphere would be low at this site: few tokens, or what the null value preserves."""
    n = row["n"]
    level = f"would have an IsoScore of {number(row['null'])} at {row['site']}, not 1. Compare scores with their null"
    independent = _sphere(n, width) if n and n > 0 and width and width > 1 else None
    if independent is not None and independent < _LOW_NULL:
        return f"{n:,} tokens are few for {width:,} dimensions: a perfect sphere of this size {level} values."
    count = f" {n:,} independent tokens would give {number(independent)}." if independent is not None else ""
    return (
        f"A cloud without structure, but with these documents and these lengths of rows, {level} values. The cause is "
        f"not the number of tokens: tokens of one document resemble each other, or some rows are much longer.{count}"
    )


def _sphere(n: int, width: int) -> float:
    """The IsoScore that n independent rows of a sphere have on average: (PR − 1)/(d − 1) with 1/PR = 1/d + 1/n."""
    return (1 / (1 / width + 1 / n) - 1) / (width - 1)


def _without_sinks(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows without sinks if there are any: massive tokens lower a null value too, for any number of tokens."""
    return [row for row in rows if row["tokens"] == WITHOUT] or rows


def _few_tokens(rows: Sequence[Row]) -> str | None:
    few = [row for row in rows if row["tokens"] == "all" and row["value"] is not None and row["value"] <= _FEW_TOKENS]
    if not few:
        return None
    least = min(few, key=lambda row: row["value"])
    count = max(1, round(least["value"] * (least["n"] or 0)))
    return (
        f"A few tokens dominate: at {len(few)} site{'s' if len(few) > 1 else ''} removing at most "
        f"{number(_FEW_TOKENS, percent=True)} of the tokens halves the excess anisotropy "
        f"(at {least['site']} {count:,} of {least['n'] or 0:,})."
    )


def _dominated_by_sinks(rows: Sequence[Row]) -> str | None:
    stream = [row for row in rows if row["stream"].split(".")[-1] == "resid" and not row["stream"].startswith("grad.")]
    last = max((row["step"] for row in stream), default=0)
    known = [row for row in stream if row["value"] is not None and row["step"] == last]
    values = {
        policy: {row["site"]: row["value"] for row in known if row["tokens"] == policy} for policy in ("all", WITHOUT)
    }
    lost = {site: value - values[WITHOUT][site] for site, value in values["all"].items() if site in values[WITHOUT]}
    if not lost or max(lost.values()) < _DOMINATED:
        return None
    most = max(lost, key=lambda site: lost[site])
    before, after = (number(values[policy][most], percent=True) for policy in ("all", WITHOUT))
    return (
        "Sink tokens dominate the curve over all tokens: without first and massive tokens the top direction's share of "
        f"the variance falls from {before} to {after} at {site_text(most)}. "
        f"For ordinary tokens read the solid curve, {WITHOUT}."
    )


def _saturated(rows: Sequence[Row]) -> str | None:
    high = [row["value"] for row in rows if row["value"] is not None and row["value"] > _SATURATED]
    if not high:
        return None
    return (
        f"Intrinsic dimensions above {_SATURATED:.0f} (here up to {number(max(high))}) are underestimated: every "
        "estimator from neighbours saturates. Compare them only at equal n."
    )


def _no_errors(rows: Mapping[str, Sequence[Row]]) -> str | None:
    every = [row for group in rows.values() for row in group if row["value"] is not None]
    if every and all(row["error"] is None for row in every):
        return (
            "There are no error bars: there were too few blocks of documents, or errors were switched off. More text "
            "gives more blocks, and so does a smaller --tokens (a block is 1/64 of it)."
        )
    return None


def _missing(rows: Mapping[str, Sequence[Row]]) -> list[tuple[str, str]]:
    """The metrics without any value and the reason, by topic."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for metric, group in rows.items():
        if metric not in _OWN_PANEL and group and all(row["value"] is None for row in group):
            reason = group[0]["note"] or "no reason was recorded"
            topic = topic_of(metric)
            reasons.setdefault(DETAILS if topic == OTHER else topic, {}).setdefault(reason, []).append(metric)
    return [
        (topic, f"No value: {'; '.join(_listed(metrics, reason) for reason, metrics in by_reason.items())}.")
        for topic, by_reason in reasons.items()
    ]


def _listed(metrics: Sequence[str], reason: str) -> str:
    return f"{', '.join(metrics)} ({reason})"


def _random_weights(info: Mapping[str, Any]) -> list[str]:
    model = info.get("model")
    random = model.get("random_weights") if isinstance(model, Mapping) else None
    return [f"Weights missing in the checkpoint are random: {', '.join(map(str, random[:4]))}."] if random else []


def _alerts(rows: Sequence[Row]) -> list[str]:
    """The alerts of the tracker during training."""
    texts = [f"Alert at step {row['step']:,}, {row['site']}: {row['note'] or row.get('v_rule', '')}." for row in rows]
    more = len(texts) - _LISTED
    return texts[:_LISTED] + ([f"{more} more alerts are in the records."] if more > 0 else [])


def _notes(rows: Mapping[str, Sequence[Row]]) -> list[tuple[str, str]]:
    """The notes of records that have a value; notes that differ only in their numbers are shown once."""
    kinds: dict[str, dict[str, dict[str, None]]] = {}  # by kind: the sites of each note, in order
    named: dict[str, set[str]] = {}  # by kind: the metrics
    for metric, group in rows.items():
        for row in group if metric not in _OWN_PANEL else ():
            for note in (row["note"] or "").split("; ") if row["value"] is not None else ():
                kind = re.sub(r"\d[\d.,]*", "#", note).replace("rows", "row")
                if note and not _only_names(kind):
                    kinds.setdefault(kind, {}).setdefault(note, {})[row["site"]] = None
                    named.setdefault(kind, set()).add(metric)
    texts = [
        (_common_topic(named[kind]), f"{', '.join(sorted(named[kind]))}: {_note_text(notes)}.")
        for kind, notes in kinds.items()
    ]
    more = len(texts) - _LISTED
    rest = [(DETAILS, f"{more} more kinds of notes are in the records.")] if more > 0 else []
    return texts[:_LISTED] + rest


def _common_topic(metrics: Collection[str]) -> str:
    topics = {topic_of(metric) for metric in metrics} - {OTHER}
    return topics.pop() if len(topics) == 1 else DETAILS


def _note_text(notes: Mapping[str, Mapping[str, None]]) -> str:
    """A note with the sites that have it, or the first of several and the number of sites that have similar ones."""
    note, first = next(iter(notes.items()))
    sites = {site for each in notes.values() for site in each}
    if len(notes) == 1:
        return f"{note} (at {next(iter(first)) if len(sites) == 1 else f'{len(sites)} sites'})"
    others = len(sites) - 1
    similar = f", with similar notes at {others} other site{'s' if others > 1 else ''}" if others else ""
    return f"{note} (at {next(iter(first))}{similar})"


def _only_names(kind: str) -> bool:
    """Whether a note only names a coordinate or counts words: that is part of the result, not a caveat."""
    counts = r"(coordinate #|dimensions? [#, ]+|(over )?# words?|(from the )?# (largest )?eigenvalues)"
    return bool(re.fullmatch(counts, kind))
