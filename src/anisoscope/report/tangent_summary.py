"""A summary of the records of a tangent test: the numbers of each basis, an effect size, and a verdict in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anisoscope.records import Record
from anisoscope.stats.inference import t_quantile

ALPHA = 0.05
# Up to which ratio of the energy to its level an effect has this name. A p-value says nothing about its size.
EFFECTS = ((1.25, "hardly any effect"), (2.0, "weak effect"), (5.0, "clear effect"), (float("inf"), "strong effect"))
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
    level: float  # that E is compared with: r/d, or for the input side of a weight that of shuffled errors
    normal: float | None
    ratio: float | None
    ceiling: float | None
    slope: Record | None
    local: Record | None
    p: dict[str, float]  # by null
    q: dict[str, float]  # by null

    @property
    def enrichment(self) -> float:
        """E over its level: 1 if the basis is unrelated to the gradients."""
        return (self.energy.value or 0.0) / self.level

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the enrichment over blocks of documents; None without an error bar."""
        kind = (self.energy.error_kind or "").split("-")
        if self.energy.error is None or len(kind) < 2 or not kind[1].isdigit() or int(kind[1]) < 2:
            return None
        half = t_quantile(1 - ALPHA / 2, int(kind[1]) - 1) * self.energy.error / self.level
        return max(0.0, self.enrichment - half), self.enrichment + half

    @property
    def effect(self) -> str:
        """The size of the enrichment in words: a verdict may be significant and its effect hardly any."""
        return next(name for limit, name in EFFECTS if self.enrichment < limit)

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        return _verdict(self)[0]

    @property
    def is_finding(self) -> bool:
        """Whether the gradients are related to the basis."""
        return _verdict(self)[1]

    @property
    def verdict(self) -> str:
        """The verdict with the size of its effect, if a relation was found."""
        words, is_finding = _verdict(self)
        return f"{self.effect}: {words}" if is_finding else words


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
        shuffled = find("gradient_energy", proxy=proxy, rows="plain", null="error_shuffle")
        ratio = find("tangent_normal_ratio", proxy=proxy, rows="plain")
        ceiling = find("gradient_ceiling")
        unit = find("gradient_energy", proxy=proxy, rows="unit")
        level = record.null if shuffled is None else shuffled.null
        if rank is None or unit is None or level is None:
            continue
        out.append(
            TangentSummary(
                *case,
                proxy=proxy,
                rank=rank,
                energy=record,
                unit_energy=unit,
                level=level,
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


def _verdict(summary: TangentSummary) -> tuple[str, bool]:
    """The verdict in a few words, and whether it is a relation of the gradients to the basis."""

    def significant(null: str) -> bool:
        return summary.q.get(null, 1.0) <= ALPHA

    if summary.gradient == _WEIGHT_IN:
        if significant("error_shuffle"):
            return "beyond the tautology", True
        return "tautology: shuffled errors do the same", False
    if significant("local_test"):
        if significant("orientation"):
            return "tangent to its own patch", True
        return "own patch above others, not above chance", False
    if significant("transfer_slope") and summary.slope is not None and (summary.slope.value or 0.0) > 0:
        return "follows the covariance" + ("" if summary.local is None else ", and nothing else"), True
    if significant("orientation") and significant("coordinates"):
        return "in the basis, by no law found", True
    if significant("orientation"):
        return "privileged coordinates", True
    if summary.enrichment < 0.5:
        return "depleted", False
    return "no relation found", False
