"""What runs say, as numbers by place, and statistics of them with an error over independent units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.records import Record, Site
from anisoscope.store.run import Run, record_key
from anisoscope.studies.claims.claim import Estimate
from anisoscope.studies.claims.statistics import share


class Missing(AnisoscopeError):
    """A number that a claim asks for is not there, and why."""


@dataclass(frozen=True)
class Entry:
    """One number of a reading: where it is, and what tells it apart from others of its metric."""

    site: Site
    index: int | None
    variant: Mapping[str, Any]
    value: float
    null: float | None = None  # the level without structure


@dataclass(frozen=True)
class RunView:
    """The numbers of one run by metric and token policy."""

    entries: Mapping[tuple[str, str], tuple[Entry, ...]]
    reasons: Mapping[str, str]  # by metric: why a value is missing

    @classmethod
    def of(cls, records: Iterable[Record]) -> RunView:
        found: dict[tuple[str, str], list[Entry]] = {}
        reasons: dict[str, str] = {}
        for record in records:
            if record.value is None:
                reasons.setdefault(record.metric, record.note or "it has no value")
                continue
            entry = Entry(Site.parse(record.site), record.index, record.variant, record.value, record.null)
            found.setdefault((record.metric, record.tokens), []).append(entry)
        return cls({key: tuple(entries) for key, entries in found.items()}, reasons)

    def find(self, metric: str, tokens: str = "all", **variant: Any) -> list[Entry]:
        """The numbers of a metric whose variant agrees with these values, in the order of a forward pass."""
        found = [
            entry
            for entry in self.entries.get((metric, tokens), ())
            if variant.items() <= entry.variant.items() and ("over" in variant or "over" not in entry.variant)
        ]
        if not found:
            why = self.reasons.get(metric, "it was not measured")
            raise Missing(f"there is no {metric} of {tokens} tokens{_said(variant)}: {why}")
        return sorted(found, key=lambda entry: entry.site)

    def profile(self, metric: str, tokens: str = "all", **variant: Any) -> list[float]:
        """Values from the embedding to the last state, as papers list hidden states: the last one is after the norm."""
        found = [e for e in self.find(metric, tokens, **variant) if e.site.kind in ("embed", "resid", "final")]
        stack = found[0].site.stack if found else ""
        stream = {e.site: e.value for e in found if e.site.stack == stack and not e.site.grad and e.index is None}
        sites = sorted(stream)
        if sites and sites[-1].kind == "final" and len(sites) > 1:
            del sites[-2]
        if not sites:
            raise Missing(f"there is no {metric} over layers")
        return [stream[site] for site in sites]

    def mean(self, metric: str, tokens: str = "all", **variant: Any) -> float:
        """The mean over everything that agrees: layers, or layers and heads."""
        return fmean(entry.value for entry in self.find(metric, tokens, **variant))

    def value(self, site: str, metric: str, tokens: str = "all", **variant: Any) -> float:
        """The one number at a site."""
        for entry in self.find(metric, tokens, **variant):
            if str(entry.site) == site:
                return entry.value
        raise Missing(f"there is no {metric} at {site}")

    def heads(self, metric: str, **variant: Any) -> dict[tuple[int, int], float]:
        """Values by (layer, head)."""
        return {(e.site.layer or 0, e.index or 0): e.value for e in self.find(metric, "all", **variant)}


def _said(variant: Mapping[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in variant.items())


# --- units --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Units:
    """Readings of one thing by independent unit.

    Seeds are readings each on its own. Documents are readings without one block each, beside that of the whole.
    """

    parts: tuple[RunView, ...]
    unit: str = "seeds"
    whole: RunView | None = None


def by_documents(run: Run) -> Units:
    """A run and its leave-one-block-out replicates; numbers that have none are in no part: their error is not known."""
    records, replicates = list(run.records()), run.replicates()
    blocks = max(map(len, replicates.values()), default=0)
    there = [(record, values) for record in records if len(values := replicates.get(record_key(record), ())) == blocks]
    parts = [RunView.of(_with_value(record, values[block]) for record, values in there) for block in range(blocks)]
    return Units(tuple(parts), str(run.info.get("unit", "documents")), RunView.of(records))


def _with_value(record: Record, value: float) -> Record:
    return replace(record, value=value, error=None)


def estimate(statistic: Callable[..., float], *units: Units) -> Estimate:
    """A statistic of one reading of each, with its error over the units, which all of them share.

    Example: `estimate(lambda a, b: bell(a.profile(m)) - bell(b.profile(m)), decoders, encoders)` is paired by seed.
    """
    first = units[0]
    values = [statistic(*parts) for parts in zip(*(each.parts for each in units), strict=True)]
    if first.whole is None:
        return Estimate.over(values, first.unit)
    return Estimate.jackknifed(statistic(*(each.whole for each in units)), values, first.unit)


def estimate_share(answers: Callable[..., Sequence[bool]], *units: Units) -> Estimate:
    """The share of yes among the answers that readings give, with its error over the units, which all of them share."""
    parts = zip(*(each.parts for each in units), strict=True)
    wholes = [each.whole for each in units]
    count = len(answers(*wholes)) if None not in wholes else sum(len(answers(*part)) for part in parts)
    return estimate(lambda *readings: share(answers(*readings)), *units).of_answers(count)


def least_favourable(found: Sequence[Mapping[str, Estimate]], *, highest: Collection[str] = ()) -> dict[str, Estimate]:
    """Of several models' quantities the lowest each, the highest of those named: a claim must hold for every model."""
    names = {name: None for each in found for name in each}
    there = {name: [each[name] for each in found if name in each] for name in names}
    return {
        name: (max if name in highest else min)(values, key=lambda estimate: estimate.value)
        for name, values in there.items()
    }


def estimates(made: Mapping[str, Callable[[], Estimate]]) -> dict[str, Estimate]:
    """The quantities that can be made; one whose numbers are missing stays out."""
    found = {}
    for name, make in made.items():
        try:
            found[name] = make()
        except Missing:
            continue
    return found


def difference(a: Estimate, b: Estimate) -> Estimate:
    """a − b of estimates that share no unit."""
    errors = (a.error, b.error)
    error = None if None in errors else (float(a.error or 0) ** 2 + float(b.error or 0) ** 2) ** 0.5
    return Estimate(a.value - b.value, error, min(a.n, b.n), a.unit)


# --- figures ------------------------------------------------------------------------------------------------------


def figure_records(units: Units, metrics: Sequence[str], *, of: str, step: int = 0) -> list[Record]:
    """The numbers of some metrics with their error over the units, labelled with what they are of."""
    whole = units.whole or units.parts[0]
    return [
        drawn(
            _over_units(units, metric, tokens, entry),
            metric,
            site=str(entry.site),
            of=of,
            step=step,
            tokens=tokens,
            index=entry.index,
            variant=entry.variant,
            null=entry.null,
        )
        for (metric, tokens), entries in whole.entries.items()
        if metric in metrics
        for entry in entries
        if "over" not in entry.variant
    ]


def profile_records(
    units: Units, metric: str, *, of: str, step: int = 0, tokens: str = "all", **variant: Any
) -> list[Record]:
    """A profile over hidden states as papers draw it: the embedding, a state a layer, the last one after the norm."""
    places = range(len((units.whole or units.parts[0]).profile(metric, tokens, **variant)))
    return [
        drawn(
            estimate(lambda reading, place=place: reading.profile(metric, tokens, **variant)[place], units),
            metric,
            site="embed" if place == 0 else f"resid.{place - 1}",
            of=of,
            step=step,
            tokens=tokens,
            variant=variant,
        )
        for place in places
    ]


def _over_units(units: Units, metric: str, tokens: str, entry: Entry) -> Estimate:
    same = [_same(part, metric, tokens, entry) for part in units.parts]
    values = [value for value in same if value is not None]
    if units.whole is None:
        return Estimate.over(values, units.unit)
    return Estimate.jackknifed(entry.value, values, units.unit)


def _same(reading: RunView, metric: str, tokens: str, wanted: Entry) -> float | None:
    for entry in reading.entries.get((metric, tokens), ()):
        if (entry.site, entry.index, entry.variant) == (wanted.site, wanted.index, wanted.variant):
            return entry.value
    return None


def drawn(
    estimate: Estimate,
    metric: str,
    *,
    of: str,
    site: str = "vectors",
    variant: Mapping[str, Any] | None = None,
    **more: Any,
) -> Record:
    """One estimate as a record of a figure; `of` says what it is of and is what the figure colours."""
    return Record(
        site,
        metric,
        estimate.value,
        variant={**(variant or {}), "of": of},
        error=estimate.error,
        error_kind=None if estimate.error is None else f"spread-{estimate.n}-{estimate.unit}",
        **more,
    )
