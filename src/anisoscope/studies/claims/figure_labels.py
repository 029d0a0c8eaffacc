"""Labels of figures in words, and which records a figure shows: at most seven things."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from anisoscope.records import Record

MOST = 7  # things that one figure compares
WITHDRAWN = ("equal_energy",)  # controls that are recorded and that no rule uses any more
_CELLS = {
    "causal-masked": "causal model of masked tokens",
    "short-decoder": "softmax attention",
    "softmax": "softmax attention",
    "sigmoid": "sigmoid attention",
    "off-by-one": "softmax with 1 more in the sum",
    "cosine": "cosine attention",
    "mean-free-queries": "queries without their mean",
    "mean-free-keys": "keys without their mean",
    "heads": "mean over heads",
}
_GRADIENTS = {
    "hidden": "hidden gradients",
    "weight_in": "weight gradients, input side",
    "weight_out": "weight gradients, output side",
    "embedding": "embedding gradients",
}
_BASES = {"pca": "PCA", "semi_nmf": "semi-NMF"}
_NULLS = {
    "normal_control": "subspaces orthogonal to the basis",
    "orientation": "random subspace",
    "coordinates": "permuted coordinates",
    "error_shuffle": "shuffled errors",
}
_DOSES = {"isoscore": "isotropy regulariser", "centring": "mean removed, share"}
_GRADIENT = re.compile(r"(\w+), (\w+), step (\d+), against (\w+)")
_SURFACE = re.compile(r"s = ([\d.]+), γ = ([\d.]+)")
_DOSE = re.compile(r"(isoscore|centring): (?:\1-([\d.]+)|short-decoder)")
_TEMPERATURE = re.compile(r"temperature-([\d.]+)")
_EXPONENT = re.compile(r", Zipf exponent [\d.]+$")


def label(of: str) -> str:
    """Return what a record describes, in words.

    >>> label("hidden, pca, step 900, against orientation"), label("isoscore: isoscore-0.1")
    ('hidden gradients, PCA, against random subspace', 'isotropy regulariser 0.1')
    """
    if match := _GRADIENT.fullmatch(of):
        gradient, basis, _, null = match.groups()
        words = _GRADIENTS.get(gradient, gradient), _BASES.get(basis, basis), f"against {_NULLS.get(null, null)}"
        return ", ".join(words)
    if match := _SURFACE.fullmatch(of):
        return f"frequency bias {match[1]}, pinning {match[2]}"
    if match := _DOSE.fullmatch(of):
        return f"{_DOSES[match[1]]} {match[2] or '0'}"
    if match := _TEMPERATURE.fullmatch(of):
        return f"softmax, temperature {match[1]}"
    return _CELLS.get(of, of)


def shown_records(records: Sequence[Record]) -> list[Record]:
    """Return the records of one metric with labels in words; if there are more than seven, those that matter most.

    Of gradients at several steps the first step is shown. Token distributions that differ in their exponent only are
    averaged; the error of the average is that of its parts, as if they moved together. Of both correlations, published
    values and models, those named first are shown.
    """
    kept = [record for record in records if record.variant.get("null") not in WITHDRAWN]
    if _things(kept) > MOST:
        kept = _first_step(kept)
    if _things(kept) > MOST:
        kept = _averaged(kept)
    if _things(kept) > MOST:
        kept = [record for record in kept if "centred" not in _of(record) and "causal-masked" not in _of(record)]
    names = list(dict.fromkeys(map(_of, kept)))[:MOST]
    return [replace(r, variant={**r.variant, "of": label(_of(r))}) for r in kept if _of(r) in names]


def _of(record: Record) -> str:
    return str(record.variant.get("of", ""))


def _things(records: Sequence[Record]) -> int:
    return len({_of(record) for record in records})


def _first_step(records: list[Record]) -> list[Record]:
    steps = {int(match[3]) for record in records if (match := _GRADIENT.fullmatch(_of(record)))}
    return [r for r in records if not (match := _GRADIENT.fullmatch(_of(r))) or int(match[3]) == min(steps)]


def _averaged(records: list[Record]) -> list[Record]:
    """Average records that differ in the exponent of Zipf's law only."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(_EXPONENT.sub("", _of(record)), []).append(record)
    if not any(_EXPONENT.search(_of(record)) for record in records) or any(r.value is None for r in records):
        return records
    return [
        replace(
            each[0],
            value=fmean(r.value or 0.0 for r in each),
            error=None if any(r.error is None for r in each) else fmean(r.error or 0.0 for r in each),
            variant={**each[0].variant, "of": name},
        )
        for name, each in groups.items()
    ]
