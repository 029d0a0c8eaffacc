"""Numbers of runs by site, and statistics of them with an error over independent units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.records import Record, Site
from anisoscope.store.run import Run, record_key
from anisoscope.studies.claims.curve_shapes import share
from anisoscope.studies.claims.estimate import Estimate


class Missing(AnisoscopeError):
    """A number that a claim needs is missing; the message gives the reason."""


@dataclass(frozen=True)
class Entry:
    """One number of a run, with its site and variant."""

    site: Site
    index: int | None
    variant: Mapping[str, Any]
    value: float
    null: float | None = None  # the value expected without the structure in question


@dataclass(frozen=True)
class RunView:
    """The numbers of one run by metric and token policy."""

    entries: Mapping[tuple[str, str], tuple[Entry, ...]]
    reasons: Mapping[str, str]  # by metric: why a value is missing

    @classmethod
    def of(cls, records: Iterable[Record]) -> RunView:
        """Build the view of some records."""
        entries: dict[tuple[str, str], list[Entry]] = {}
        reasons: dict[str, str] = {}
        for record in records:
            if record.value is None:
                reasons.setdefault(record.metric, record.note or "it has no value")
                continue
            entry = Entry(Site.parse(record.site), record.index, record.variant, record.value, record.null)
            entries.setdefault((record.metric, record.tokens), []).append(entry)
        return cls({key: tuple(each) for key, each in entries.items()}, reasons)

    def find(self, metric: str, tokens: str = "all", **variant: Any) -> list[Entry]:
        """Return the numbers of a metric whose variant has these values, in the order of a forward pass.

        Raises:
            Missing: The view has no such number.
        """
        matches = [
            entry
            for entry in self.entries.get((metric, tokens), ())
            if variant.items() <= entry.variant.items() and ("over" in variant or "over" not in entry.variant)
        ]
        if not matches:
            reason = self.reasons.get(metric, "it was not measured")
            raise Missing(f"No {metric} of {tokens} tokens{_variant_text(variant)}: {reason}.")
        return sorted(matches, key=lambda entry: entry.site)

    def profile(self, metric: str, tokens: str = "all", **variant: Any) -> list[float]:
        """Return the values from the embedding to the last hidden state; as in papers, the last is after the norm."""
        matches = [e for e in self.find(metric, tokens, **variant) if e.site.kind in ("embed", "resid", "final")]
        stack = matches[0].site.stack if matches else ""
        stream = {e.site: e.value for e in matches if e.site.stack == stack and not e.site.grad and e.index is None}
        sites = sorted(stream)
        if sites and sites[-1].kind == "final" and len(sites) > 1:
            del sites[-2]
        if not sites:
            raise Missing(f"No {metric} over layers.")
        return [stream[site] for site in sites]

    def mean(self, metric: str, tokens: str = "all", **variant: Any) -> float:
        """Return the mean over all matching numbers: over layers, or over layers and heads."""
        return fmean(entry.value for entry in self.find(metric, tokens, **variant))

    def heads(self, metric: str, **variant: Any) -> dict[tuple[int, int], float]:
        """Return values by (layer, head)."""
        return {(e.site.layer or 0, e.index or 0): e.value for e in self.find(metric, "all", **variant)}


def _variant_text(variant: Mapping[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in variant.items())


# --- units --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Units:
    """The same measurement by independent unit.

    For seeds, each part is the measurement of one seed and `whole` is None. For documents, each part leaves out one
    block of documents and `whole` is the measurement of all of them.
    """

    parts: tuple[RunView, ...]
    unit: str = "seeds"
    whole: RunView | None = None


def by_documents(run: Run) -> Units:
    """Return a run with its leave-one-block-out replicates as units.

    Numbers without replicates are in no part, because their error is unknown.
    """
    records, replicates = list(run.records()), run.replicates()
    blocks = max(map(len, replicates.values()), default=0)
    usable = [(record, values) for record in records if len(values := replicates.get(record_key(record), ())) == blocks]
    parts = [RunView.of(_with_value(record, values[block]) for record, values in usable) for block in range(blocks)]
    return Units(tuple(parts), str(run.info.get("unit", "documents")), RunView.of(records))


def _with_value(record: Record, value: float) -> Record:
    return replace(record, value=value, error=None)


def estimate(statistic: Callable[..., float], *units: Units) -> Estimate:
    """Compute a statistic of one view of each measurement, with its error over the units that they share.

    Example: `estimate(lambda a, b: bell(a.profile(m)) - bell(b.profile(m)), decoders, encoders)` is paired by seed.
    """
    first = units[0]
    values = [statistic(*parts) for parts in zip(*(each.parts for each in units), strict=True)]
    if first.whole is None:
        return Estimate.over(values, first.unit)
    return Estimate.jackknifed(statistic(*(each.whole for each in units)), values, first.unit)


def estimate_share(flags: Callable[..., Sequence[bool]], *units: Units) -> Estimate:
    """Compute the share of flags that are true, with its error over the units that the measurements share."""
    parts = zip(*(each.parts for each in units), strict=True)
    wholes = [each.whole for each in units]
    count = len(flags(*wholes)) if None not in wholes else sum(len(flags(*part)) for part in parts)
    return estimate(lambda *views: share(flags(*views)), *units).of_answers(count)


def least_favourable(
    quantities: Sequence[Mapping[str, Estimate]], *, highest: Collection[str] = ()
) -> dict[str, Estimate]:
    """Return the lowest value of each quantity over several models: a claim must hold for every model.

    Args:
        quantities: Estimates by name, one mapping per model.
        highest: Names of quantities of which the highest value is the least favourable.
    """
    names = {name: None for each in quantities for name in each}
    values = {name: [each[name] for each in quantities if name in each] for name in names}
    return {
        name: (max if name in highest else min)(each, key=lambda estimate: estimate.value)
        for name, each in values.items()
    }


def estimates(makers: Mapping[str, Callable[[], Estimate]]) -> dict[str, Estimate]:
    """Compute the quantities whose numbers are available; leave out the others."""
    quantities = {}
    for name, make in makers.items():
        try:
            quantities[name] = make()
        except Missing:
            continue
    return quantities


def difference(a: Estimate, b: Estimate) -> Estimate:
    """Return a − b for estimates that share no unit."""
    errors = (a.error, b.error)
    error = None if None in errors else (float(a.error or 0) ** 2 + float(b.error or 0) ** 2) ** 0.5
    return Estimate(a.value - b.value, error, min(a.n, b.n), a.unit)


# --- figures ------------------------------------------------------------------------------------------------------


def figure_records(units: Units, metrics: Sequence[str], *, of: str, step: int = 0) -> list[Record]:
    """Return the numbers of some metrics with their error over the units, labelled with what they describe."""
    whole = units.whole or units.parts[0]
    return [
        estimate_record(
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
    """Return a profile over hidden states as papers draw it: the embedding, then one state per layer."""
    depth = len((units.whole or units.parts[0]).profile(metric, tokens, **variant))
    return [
        estimate_record(
            estimate(lambda view, index=index: view.profile(metric, tokens, **variant)[index], units),
            metric,
            site="embed" if index == 0 else f"resid.{index - 1}",
            of=of,
            step=step,
            tokens=tokens,
            variant=variant,
        )
        for index in range(depth)
    ]


def _over_units(units: Units, metric: str, tokens: str, entry: Entry) -> Estimate:
    same = [_same_entry(part, metric, tokens, entry) for part in units.parts]
    values = [value for value in same if value is not None]
    if units.whole is None:
        return Estimate.over(values, units.unit)
    return Estimate.jackknifed(entry.value, values, units.unit)


def _same_entry(view: RunView, metric: str, tokens: str, wanted: Entry) -> float | None:
    for entry in view.entries.get((metric, tokens), ()):
        if (entry.site, entry.index, entry.variant) == (wanted.site, wanted.index, wanted.variant):
            return entry.value
    return None


def estimate_record(
    estimate: Estimate,
    metric: str,
    *,
    of: str,
    site: str = "vectors",
    variant: Mapping[str, Any] | None = None,
    **more: Any,
) -> Record:
    """Return an estimate as a record of a figure; `of` names what it describes, and figures colour by it."""
    return Record(
        site,
        metric,
        estimate.value,
        variant={**(variant or {}), "of": of},
        error=estimate.error,
        error_kind=None if estimate.error is None else f"spread-{estimate.n}-{estimate.unit}",
        **more,
    )
