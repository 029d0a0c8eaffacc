"""A summary of the records of a tangent test: the numbers of each basis, and a verdict in a few words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anisoscope.records import Record

ALPHA = 0.05
_WEIGHT_IN = "weight_in"  # gradients of a weight on its input side, which lie in the span of the activations anyway


@dataclass(frozen=True)
class TangentSummary:
    """One basis against one kind of gradient at one site.

    A p- or q-value is the larger one of plain and unit rows: a finding must not rest on a few heavy tokens.
    """

    site: str
    step: int
    gradient: str
    basis: str
    proxy: str
    rank: int
    energy: Record
    unit_energy: Record
    normal: float | None
    ratio: float | None
    ceiling: float | None
    slope: Record | None
    local: Record | None
    p: dict[str, float]  # by null
    q: dict[str, float]  # by null

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        return _verdict(self)


def summarise(records: Iterable[Record]) -> list[TangentSummary]:
    """Summarise the records of a test: one summary per site, step, gradient, basis, proxy and rank.

    Energies that lack a part of a test (the rank, or the energy of unit rows) are left out.
    """
    every = list(records)
    known = {_address(record): record for record in every}
    tests = {metric: _tests(every, metric) for metric in ("gradient_p", "gradient_q")}
    out = []
    for record in every:
        variant = record.variant
        if record.metric != "gradient_energy" or variant.get("rows") != "plain" or {"null", "stratum"} & set(variant):
            continue
        case = _case(record)
        rank, proxy = record.index, str(variant.get("proxy"))

        def find(metric: str, index: int | None = rank, case: Any = case, **variant: Any) -> Record | None:
            return known.get((*case, metric, index, frozenset(variant.items())))

        normal = find("gradient_energy", proxy=proxy, rows="plain", null="normal_control")
        ratio = find("tangent_normal_ratio", proxy=proxy, rows="plain")
        ceiling = find("gradient_ceiling")
        unit = find("gradient_energy", proxy=proxy, rows="unit")
        if rank is None or unit is None:
            continue
        out.append(
            TangentSummary(
                *case,
                proxy=proxy,
                rank=rank,
                energy=record,
                unit_energy=unit,
                normal=None if normal is None else normal.null,
                ratio=None if ratio is None else ratio.value,
                ceiling=None if ceiling is None else ceiling.value,
                slope=find("transfer_slope", None, rows="plain"),
                local=find("local_excess", rows="plain"),
                p=_largest(tests["gradient_p"].get(case, ()), proxy, rank),
                q=_largest(tests["gradient_q"].get(case, ()), proxy, rank),
            )
        )
    return sorted(out, key=lambda s: (s.step, s.gradient != "hidden", s.gradient, _depth(s.site), s.proxy, s.rank))


def _depth(site: str) -> tuple[list[int], str]:
    """Sort key of sites in the order of a forward pass; modules by the number of their layer, 2 before 10."""
    return ([int(part) for part in site.split(".") if part.isdecimal() and len(part) < 10], site)


def _address(record: Record) -> tuple[Any, ...]:
    rest = frozenset((key, str(value)) for key, value in record.variant.items() if key not in ("gradient", "basis"))
    return (*_case(record), record.metric, record.index, rest)


def _case(record: Record) -> tuple[str, int, str, str]:
    """What one test is about: site, step, gradient and basis."""
    return record.site, record.step, str(record.variant.get("gradient")), str(record.variant.get("basis"))


def _tests(records: Iterable[Record], metric: str) -> dict[tuple[Any, ...], list[Record]]:
    """The p- or q-values by site, step, gradient and basis."""
    tests: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record.metric == metric and record.value is not None:
            tests.setdefault(_case(record), []).append(record)
    return tests


def _largest(records: Iterable[Record], proxy: str, rank: int) -> dict[str, float]:
    """The larger value of plain and unit rows for each null of this basis (or of the whole site)."""
    largest: dict[str, float] = {}
    for record in records:
        if str(record.variant.get("proxy", proxy)) == proxy and record.index in (rank, None):
            name = str(record.variant.get("null"))
            largest[name] = max(largest.get(name, 0.0), record.value or 0.0)
    return largest


def _verdict(summary: TangentSummary) -> str:
    def significant(null: str) -> bool:
        return summary.q.get(null, 1.0) <= ALPHA

    if summary.gradient == _WEIGHT_IN:
        return "beyond the tautology" if significant("error_shuffle") else "tautology: shuffled errors do the same"
    if significant("local_test"):
        return "tangent to its own patch" if significant("orientation") else "own patch above others, not above chance"
    if significant("transfer_slope") and summary.slope is not None and (summary.slope.value or 0.0) > 0:
        return "follows the covariance" + ("" if summary.local is None else ", and nothing else")
    if significant("orientation") and significant("coordinates"):
        return "in the basis, by no law found"
    if significant("orientation"):
        return "privileged coordinates"
    if (summary.energy.value or 0.0) < 0.5 * (summary.energy.null or 0.0):
        return "depleted"
    return "no relation found"
