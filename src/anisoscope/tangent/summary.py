"""What the records of a test say in a few words, and the numbers that say it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anisoscope.records import Record
from anisoscope.tangent.null import WEIGHT_IN

ALPHA = 0.05


@dataclass(frozen=True)
class TangentSummary:
    """One basis against one kind of gradient at one site: its numbers, q-values by null, and the words for them.

    A q-value is the larger of those of plain and of unit rows: a finding must not rest on a few heavy tokens.
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
    p: dict[str, float]
    q: dict[str, float]

    @property
    def words(self) -> str:
        return _words(self)


def readings(records: Iterable[Record]) -> list[TangentSummary]:
    """One reading for each site, step, gradient, basis, proxy and rank among the records of a test."""
    every = list(records)
    known = {_address(record): record for record in every}
    out = []
    for record in every:
        variant = record.variant
        if record.metric != "gradient_energy" or variant.get("rows") != "plain" or {"null", "stratum"} & set(variant):
            continue
        here = (record.site, record.step, variant["gradient"], variant["basis"])
        rank, proxy = record.index, variant["proxy"]

        def find(metric: str, index: int | None = rank, here: Any = here, **more: Any) -> Record | None:
            return known.get((*here, metric, index, frozenset(more.items())))

        normal = find("gradient_energy", proxy=proxy, rows="plain", null="normal_control")
        ratio = find("tangent_normal_ratio", proxy=proxy, rows="plain")
        ceiling = find("gradient_ceiling")
        unit = find("gradient_energy", proxy=proxy, rows="unit")
        assert rank is not None
        assert unit is not None
        out.append(
            TangentSummary(
                *here,
                proxy=proxy,
                rank=rank,
                energy=record,
                unit_energy=unit,
                normal=None if normal is None else normal.null,
                ratio=None if ratio is None else ratio.value,
                ceiling=None if ceiling is None else ceiling.value,
                slope=find("transfer_slope", None, rows="plain"),
                local=find("local_excess", rows="plain"),
                p=_worst(every, "gradient_p", here, proxy, rank),
                q=_worst(every, "gradient_q", here, proxy, rank),
            )
        )
    return sorted(out, key=lambda r: (r.step, r.gradient != "hidden", r.gradient, _depth(r.site), r.proxy, r.rank))


def _depth(site: str) -> tuple[Any, ...]:
    """Sites in the order of a forward pass; modules by the number of their block, 2 before 10."""
    return (*(int(part) for part in site.split(".") if part.isdigit()), site)


def _address(record: Record) -> tuple[Any, ...]:
    variant = dict(record.variant)
    here = (record.site, record.step, variant.pop("gradient", None), variant.pop("basis", None))
    return (*here, record.metric, record.index, frozenset(variant.items()))


def _worst(records: Iterable[Record], metric: str, here: tuple[Any, ...], proxy: str, rank: int) -> dict[str, float]:
    """The larger value of plain and unit rows for each null that speaks of this basis (or of the whole site)."""
    worst: dict[str, float] = {}
    for record in records:
        variant = record.variant
        if record.metric != metric or record.value is None:
            continue
        if (record.site, record.step, variant.get("gradient"), variant.get("basis")) != here:
            continue
        if variant.get("proxy", proxy) == proxy and record.index in (rank, None):
            name = str(variant["null"])
            worst[name] = max(worst.get(name, 0.0), record.value)
    return worst


def _words(reading: TangentSummary) -> str:
    def called(null: str) -> bool:
        return reading.q.get(null, 1.0) <= ALPHA

    if reading.gradient == WEIGHT_IN:
        return "beyond the tautology" if called("error_shuffle") else "tautology: shuffled errors do the same"
    if called("local_test"):
        return "tangent to its own patch" if called("orientation") else "own patch above others, not above chance"
    if called("transfer_slope") and reading.slope is not None and (reading.slope.value or 0.0) > 0:
        return "follows the covariance" + ("" if reading.local is None else ", and nothing else")
    if called("orientation") and called("coordinates"):
        return "in the basis, by no law found"
    if called("orientation"):
        return "privileged coordinates"
    if (reading.energy.value or 0.0) < 0.5 * (reading.energy.null or 0.0):
        return "depleted"
    return "no relation found"
