"""Rules that say when something goes wrong: a rule takes the records of one look and gives back alerts.

An alert is a record too, with the metric `alert` and the rule's name in its variant, so it is stored, shown and logged
like any other. A rule may remember what it saw before; it is asked in the order of the steps.

>>> rule = high_cosine(above=0.9)
>>> [alert.note for alert in rule([Record("resid.0", "mean_cosine", 0.97, tokens="no-sink", step=400)])]
['mean cosine above 0.9 in all 1 layers (lowest 0.97)']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from anisoscope.records import Record, Site

Rule = Callable[[Sequence[Record]], Iterable[Record]]
Series = dict[str, list[tuple[int, float]]]  # (step, value) by site


def alert(at: Record, rule: str, text: str) -> Record:
    """The alert of a rule about what a record says."""
    return Record(
        at.site, "alert", at.value, run=at.run, step=at.step, tokens=at.tokens, variant={"rule": rule}, note=text
    )


def stop(rule: Rule) -> Rule:
    """The same rule; its alerts set `tracker.should_stop`, which the integrations obey."""
    return lambda records: [replace(a, variant={**a.variant, "stop": True}) for a in rule(records)]


def call(rule: Rule, back: Callable[[Record], object]) -> Rule:
    """The same rule; each of its alerts is handed to a function of yours as well."""

    def told(records: Sequence[Record]) -> list[Record]:
        alerts = list(rule(records))
        for each in alerts:
            back(each)
        return alerts

    return told


def standard() -> list[Rule]:
    """The rules that ship: collapse, a fall in dimension, and the failure signatures that the papers name."""
    return [
        collapse(),
        dimension_fell(),
        high_cosine(),
        sharp_parallel_drift(),
        flat_profile(),
        collapsing_profile(),
    ]


# --- one layer over time ------------------------------------------------------------------------------------------


def collapse(below: float = 0.01, probes: int = 3, *, tokens: str = "no-sink") -> Rule:
    """A layer's IsoScore stays below a floor for several probes: its rows lie on a line."""
    low: dict[str, int] = {}

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in _values(records, "isoscore", tokens):
            low[record.site] = low.get(record.site, 0) + 1 if value < below else 0
            if low[record.site] >= probes:
                yield alert(record, "collapse", f"isoscore {value:.2g}, below {below:g} for {low[record.site]} probes")

    return rule


def dimension_fell(by: float = 0.3, within: int = 500, *, tokens: str = "no-sink") -> Rule:
    """A layer's intrinsic dimension (TwoNN) falls by a share of its value within so many steps."""
    seen: Series = {}

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in _values(records, "two_nn", tokens):
            if record.variant.get("neighbours", "all") != "all":
                continue
            highest = max(past for _, past in _recent(seen, record, value, within))
            if value < (1 - by) * highest:
                text = f"two_nn fell by {1 - value / highest:.0%} to {value:.3g} within {within} steps"
                yield alert(record, "dimension_fell", text)

    return rule


# --- all layers of one step ---------------------------------------------------------------------------------------


def high_cosine(above: float = 0.9, *, tokens: str = "no-sink") -> Rule:
    """The mean cosine is high in all layers: tokens cannot be told apart by their direction anywhere."""

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = _layers(records, "mean_cosine", tokens)
        lowest = min((value for _, value in profile), default=0.0)
        if profile and lowest > above:
            text = f"mean cosine above {above:g} in all {len(profile)} layers (lowest {lowest:.2g})"
            yield alert(profile[0][0], "high_cosine", text)

    return rule


def flat_profile(below: float = 0.01, *, layers: int = 4, tokens: str = "no-sink") -> Rule:
    """The spectral anisotropy is the same in all of at least `layers` layers: the blocks do nothing to the shape."""

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = _layers(records, "spectral_anisotropy", tokens)
        values = [value for _, value in profile]
        if len(profile) >= layers and max(values) - min(values) < below:
            text = f"spectral anisotropy between {min(values):.3g} and {max(values):.3g} in all {len(values)} layers"
            yield alert(profile[0][0], "flat_profile", text)

    return rule


def collapsing_profile(by: float = 0.5, within: int = 2000, *, layers: int = 4, tokens: str = "no-sink") -> Rule:
    """The bell over layers goes: middle third minus the higher end of the spectral anisotropy falls by a share.

    Only a bell that was higher than 0.1 can fall.
    """
    seen: Series = {}

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = _layers(records, "spectral_anisotropy", tokens)
        if len(profile) < layers:
            return
        values = [value for _, value in profile]
        third = len(values) // 3
        middle = values[third : len(values) - third]
        height = sum(middle) / len(middle) - max(values[0], values[-1])
        highest = max(past for _, past in _recent(seen, profile[0][0], height, within))
        if highest > 0.1 and height < (1 - by) * highest:
            text = f"the bell over layers fell from {highest:.3g} to {height:.3g} within {within} steps"
            yield alert(profile[len(values) // 2][0], "collapsing_profile", text)

    return rule


# --- heads --------------------------------------------------------------------------------------------------------


def sharp_parallel_drift(entropy: float = 0.3, cosine: float = 0.7, share: float = 0.5) -> Rule:
    """Low-entropy attention with queries and keys that drift in parallel, in more than a share of a layer's heads."""

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        entropies = {(r.site, r.index): (r, value) for r, value in _values(records, "attention_entropy", "all")}
        cosines = {(r.site, r.index): value for r, value in _values(records, "qk_cosine", "all")}
        for site in dict.fromkeys(at for at, _ in entropies):
            heads = [head for at, head in entropies if at == site and (site, head) in cosines]
            sharp = [h for h in heads if entropies[site, h][1] < entropy and abs(cosines[site, h]) > cosine]
            if heads and len(sharp) > share * len(heads):
                text = (
                    f"{len(sharp)} of {len(heads)} heads have entropy below {entropy:g} "
                    f"and mean queries and keys with a cosine beyond {cosine:g}"
                )
                yield alert(entropies[site, sharp[0]][0], "sharp_parallel_drift", text)

    return rule


# --- shared -------------------------------------------------------------------------------------------------------


def _values(records: Sequence[Record], metric: str, tokens: str) -> Iterator[tuple[Record, float]]:
    """The records of activations by this metric that have a value, with it."""
    for record in records:
        here = record.metric == metric and record.tokens == tokens and not record.site.startswith("grad.")
        if here and record.value is not None:
            yield record, record.value


def _layers(records: Sequence[Record], metric: str, tokens: str) -> list[tuple[Record, float]]:
    """The profile over residual layers, in their order."""
    found = [each for each in _values(records, metric, tokens) if Site.parse(each[0].site).kind == "resid"]
    return sorted(found, key=lambda each: Site.parse(each[0].site))


def _recent(seen: Series, record: Record, value: float, within: int) -> list[tuple[int, float]]:
    """This site's values of the last `within` steps, this one included; older ones are forgotten."""
    past = [each for each in seen.get(record.site, []) if each[0] >= record.step - within]
    seen[record.site] = [*past, (record.step, value)]
    return seen[record.site]
