"""One sentence of advice that rests on the numbers of a check of embeddings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.records import Record
from anisoscope.stats.inference import t_quantile

UNCHANGED = "none"  # the remedy of rows as they are
CHANGE = "change"  # the metric of paired differences
# What decides, in this order: metric, index, what it is called
_JUDGES = (("ndcg", 10, "nDCG@10"), ("knn_accuracy", None, "accuracy of the ten nearest neighbours"))
_CONE = 0.3  # mean cosine from which a common direction matters
_SMALL = 0.05  # mean cosine that counts as none
TEST_IT = "Isotropy does not decide: test search with --queries and --relevant before you change the rows."


@dataclass(frozen=True)
class JudgedChange:
    """A change by a remedy, and whether it is clear."""

    remedy: str
    before: float
    after: float
    value: float
    error: float | None
    clear: bool

    @property
    def text(self) -> str:
        """The change in words."""
        return f"{self.before:.3f} to {self.after:.3f} ({self.value:+.3f} ± {self.error or 0.0:.3f})"


def remedies_of(records: Sequence[Record]) -> list[str]:
    """Return the names of the remedies, in the order of the records; "none" is the first."""
    return list(dict.fromkeys(str(r.variant.get("remedy")) for r in records if r.metric == "uniformity"))


def verdicts(records: Sequence[Record], metric: str, index: int | None) -> list[JudgedChange]:
    """Judge the changes of a number by all remedies.

    A change is clear if its 95 % interval excludes 0, with Student's t and divided among the remedies (Bonferroni).
    """
    names = [name for name in remedies_of(records) if name != UNCHANGED]
    values = {r.variant.get("remedy"): r.value for r in records if r.metric == metric and r.index == index}
    out = []
    for record in records:
        name = record.variant.get("remedy")
        if record.metric != CHANGE or record.variant.get("of") != metric or record.index != index or name not in names:
            continue
        before, after = values.get(UNCHANGED), values.get(name)
        if record.value is None or before is None or after is None:
            continue
        limit = clear_beyond(record, len(names))
        clear = limit is not None and abs(record.value) > limit
        out.append(JudgedChange(str(name), before, after, record.value, record.error, clear))
    return out


def clear_beyond(record: Record, tests: int = 1) -> float | None:
    """Return the size beyond which a change is clear at 95 %, for that many tests; None without an error."""
    units = re.search(r"\d+", record.error_kind or "")
    if record.error is None or units is None or int(units[0]) < 2:
        return None
    return record.error * t_quantile(1 - 0.025 / max(tests, 1), int(units[0]) - 1)


def advice(records: Sequence[Record]) -> str:
    """Say in one sentence what to do with these embeddings."""
    for metric, index, title in _JUDGES:
        judged = verdicts(records, metric, index)
        if judged:
            return _judged(judged, title)
    return _unjudged(records)


def _judged(judged: Sequence[JudgedChange], title: str) -> str:
    better = sorted((v for v in judged if v.clear and v.value > 0), key=lambda v: -v.value)
    worse = [v.remedy for v in judged if v.clear and v.value < 0]
    harm = f"; {_listed(worse)} clearly {'lowers' if len(worse) == 1 else 'lower'} it" if worse else ""
    if better:
        return f"Use {better[0].remedy!r}: it raises {title} from {better[0].text}{harm}."
    best = max(judged, key=lambda v: v.value)
    return (
        f"Keep the rows as they are: no remedy clearly raises {title} (the best, {best.remedy!r}, moves it from "
        f"{best.text}){harm}."
    )


def _unjudged(records: Sequence[Record]) -> str:
    cosine = {r.variant.get("remedy"): r.value for r in records if r.metric == "mean_cosine"}
    kept = {r.variant.get("remedy"): r.value for r in records if r.metric == "kept_neighbours"}
    plain, centred, same = cosine.get(UNCHANGED), cosine.get("centre"), kept.get("centre")
    if plain is None or centred is None or same is None:
        return TEST_IT
    if plain >= _CONE and abs(centred) <= _SMALL:
        return (
            f"The high cosines (mean {plain:.2f}) come from a common direction: centring lowers the mean to "
            f"{abs(centred):.2f} and keeps {100 * same:.0f} % of the nearest neighbours, so read cosines relative to "
            f"{plain:.2f}, and test search with --queries and --relevant before you change the rows."
        )
    return f"The mean cosine is {plain:.2f}, and centring keeps {100 * same:.0f} % of the nearest neighbours. {TEST_IT}"


def _listed(names: Sequence[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
