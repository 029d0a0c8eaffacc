"""Alert rules for training: a rule takes the records of one probe and returns alerts.

An alert is a record with the metric `alert` and the rule's name in its variant, so it is stored, shown and logged
like any other. A rule may remember earlier records; it is called in the order of the steps.

>>> rule = high_cosine(above=0.9)
>>> [alert.note for alert in rule([Record("resid.0", "mean_cosine", 0.97, tokens="no-sink", step=400)])]
['mean cosine above 0.9 in all 1 layers (lowest 0.97)']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from anisoscope.records import Record, Site

Rule = Callable[[Sequence[Record]], Iterable[Record]]  # from the records of a probe to alerts
Series = dict[str, list[tuple[int, float]]]  # (step, value) by site


def alert(at: Record, rule: str, text: str) -> Record:
    """Return the alert of a rule about a record.

    Args:
        at: The record that the alert is about; gives run, step, site, tokens and value.
        rule: The name of the rule.
        text: What happened, in one line.
    """
    return Record(
        at.site, "alert", at.value, run=at.run, step=at.step, tokens=at.tokens, variant={"rule": rule}, note=text
    )


def stop(rule: Rule) -> Rule:
    """Return the same rule, whose alerts also set `tracker.should_stop`; the integrations then end the training."""
    return lambda records: [replace(a, variant={**a.variant, "stop": True}) for a in rule(records)]


def call(rule: Rule, back: Callable[[Record], object]) -> Rule:
    """Return the same rule, which also passes each of its alerts to the function `back`."""

    def with_callback(records: Sequence[Record]) -> list[Record]:
        alerts = list(rule(records))
        for each in alerts:
            back(each)
        return alerts

    return with_callback


def standard() -> list[Rule]:
    """Return all rules of this module with their defaults: signs of failure that the literature reports."""
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
    """Alert if a layer's IsoScore stays below a floor for several probes: its rows collapse to a line.

    Args:
        below: The floor.
        probes: How many probes in a row.
        tokens: The token policy of the records that are used.
    """
    low: dict[str, int] = {}

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in _values(records, "isoscore", tokens):
            low[record.site] = low.get(record.site, 0) + 1 if value < below else 0
            if low[record.site] >= probes:
                yield alert(record, "collapse", f"isoscore {value:.2g}, below {below:g} for {low[record.site]} probes")

    return rule


def dimension_fell(by: float = 0.3, within: int = 500, *, tokens: str = "no-sink") -> Rule:
    """Alert if a layer's intrinsic dimension (TwoNN) falls by a share of its highest value within a number of steps.

    Args:
        by: The share.
        within: The number of steps.
        tokens: The token policy of the records that are used.
    """
    history: Series = {}

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in _values(records, "two_nn", tokens):
            if record.variant.get("neighbours", "all") != "all":
                continue
            highest = max(past for _, past in _recent(history, record, value, within))
            if value < (1 - by) * highest:
                text = f"two_nn fell by {1 - value / highest:.0%} to {value:.3g} within {within} steps"
                yield alert(record, "dimension_fell", text)

    return rule


# --- all layers of one step ---------------------------------------------------------------------------------------


def high_cosine(above: float = 0.9, *, tokens: str = "no-sink") -> Rule:
    """Alert if the mean cosine is high in all layers: token directions are hardly distinguishable anywhere.

    Args:
        above: The cosine that all layers exceed.
        tokens: The token policy of the records that are used.
    """

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = _layers(records, "mean_cosine", tokens)
        lowest = min((value for _, value in profile), default=0.0)
        if profile and lowest > above:
            text = f"mean cosine above {above:g} in all {len(profile)} layers (lowest {lowest:.2g})"
            yield alert(profile[0][0], "high_cosine", text)

    return rule


def flat_profile(below: float = 0.01, *, layers: int = 4, tokens: str = "no-sink") -> Rule:
    """Alert if the spectral anisotropy is the same in all layers: the layers do not change the shape.

    Args:
        below: The largest difference between two layers that counts as the same.
        layers: The fewest layers that the rule applies to.
        tokens: The token policy of the records that are used.
    """

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = _layers(records, "spectral_anisotropy", tokens)
        values = [value for _, value in profile]
        if len(profile) >= layers and max(values) - min(values) < below:
            text = f"spectral anisotropy between {min(values):.3g} and {max(values):.3g} in all {len(values)} layers"
            yield alert(profile[0][0], "flat_profile", text)

    return rule


def collapsing_profile(by: float = 0.5, within: int = 2000, *, layers: int = 4, tokens: str = "no-sink") -> Rule:
    """Alert if the bell-shaped profile of spectral anisotropy over layers flattens.

    The height of the bell is the mean of the middle third minus the higher of the two ends. Only a bell that was
    higher than 0.1 raises the alert.

    Args:
        by: The share by which the height falls.
        within: The number of steps in which it falls.
        layers: The fewest layers that the rule applies to.
        tokens: The token policy of the records that are used.
    """
    history: Series = {}

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = _layers(records, "spectral_anisotropy", tokens)
        if len(profile) < layers:
            return
        values = [value for _, value in profile]
        third = len(values) // 3
        middle = values[third : len(values) - third]
        height = sum(middle) / len(middle) - max(values[0], values[-1])
        highest = max(past for _, past in _recent(history, profile[0][0], height, within))
        if highest > 0.1 and height < (1 - by) * highest:
            text = f"the bell-shaped profile over layers fell from {highest:.3g} to {height:.3g} within {within} steps"
            yield alert(profile[len(values) // 2][0], "collapsing_profile", text)

    return rule


# --- heads --------------------------------------------------------------------------------------------------------


def sharp_parallel_drift(entropy: float = 0.3, cosine: float = 0.7, share: float = 0.5) -> Rule:
    """Alert if attention is sharp and queries and keys drift in parallel, in more than a share of a layer's heads.

    Args:
        entropy: Attention below this normalised entropy is sharp.
        cosine: Mean queries and keys with a cosine beyond this, of either sign, are parallel.
        share: The share of heads.
    """

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        entropies = {(r.site, r.index): (r, value) for r, value in _values(records, "attention_entropy", "all")}
        cosines = {(r.site, r.index): value for r, value in _values(records, "qk_cosine", "all")}
        for site in dict.fromkeys(where for where, _ in entropies):
            heads = [head for where, head in entropies if where == site and (site, head) in cosines]
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
    """Yield the activation records of this metric that have a value, with the value."""
    for record in records:
        matches = record.metric == metric and record.tokens == tokens and not record.site.startswith("grad.")
        if matches and record.value is not None:
            yield record, record.value


def _layers(records: Sequence[Record], metric: str, tokens: str) -> list[tuple[Record, float]]:
    """Return the records and values of residual layers, in the order of layers."""
    residual = [each for each in _values(records, metric, tokens) if Site.parse(each[0].site).kind == "resid"]
    return sorted(residual, key=lambda each: Site.parse(each[0].site))


def _recent(history: Series, record: Record, value: float, within: int) -> list[tuple[int, float]]:
    """Add a value to a site's history, drop values older than `within` steps, and return the history."""
    past = [each for each in history.get(record.site, []) if each[0] >= record.step - within]
    history[record.site] = [*past, (record.step, value)]
    return history[record.site]
