"""Rules for signs of failure that the literature on representation geometry reports.

None of them counts the first `after` steps: dimension falls, cosines rise and profiles are flat in every young model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from anisoscope.alerts.rules import YOUNG, Persistence, Rule, alert, layers, values
from anisoscope.records import Record

_History = list[tuple[int, float, float | None]]  # step, value, and the loss at the time if it is known
_RECENT = 20  # losses whose median is the loss at the time
_IMPROVED = 0.98  # a loss below this share of the earlier one has improved


def collapse(below: float = 0.01, probes: int = 3, *, after: int = YOUNG, tokens: str = "no-sink") -> Rule:
    """Alert if a layer's IsoScore stays below a floor for several probes: its rows collapse to a line.

    Args:
        below: The floor.
        probes: How many probes in a row.
        after: Steps at the start that do not count.
        tokens: The token policy of the records that are used.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in values(records, "isoscore", tokens):
            times, since = held.count(record.site, record.step, value < below and record.step >= after)
            if times >= probes:
                text = f"isoscore {value:.2g}, below {below:g}: the variance lies along few directions"
                yield alert(record, "collapse", text, since=since, unusual=_in_a_row(times), helps=_RANK_HELPS)

    return rule


def dimension_fell(
    by: float = 0.3, within: int = 500, probes: int = 3, *, after: int = YOUNG, tokens: str = "no-sink"
) -> Rule:
    """Alert if a layer's intrinsic dimension (TwoNN) falls by a share of its highest value within a number of steps.

    A fall while the loss improves is learning, not failure, and raises no alert.

    Args:
        by: The share.
        within: The number of steps.
        probes: How many probes in a row: the dimension of a small sample is noisy.
        after: Steps at the start that do not count.
        tokens: The token policy of the records that are used.
    """
    history: dict[str, _History] = {}
    held = Persistence()
    losses: list[float] = []

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        losses.extend(value for record, value in values(records, "train_loss") if record.site == "loop")
        del losses[:-_RECENT]
        loss = statistics.median(losses) if losses else None
        for record, value in values(records, "two_nn", tokens):
            if record.variant.get("neighbours", "all") != "all" or record.step < after:
                continue
            past = _recent(history.setdefault(record.site, []), record.step, value, loss, within)
            start, highest, loss_then = max(past, key=lambda each: each[1])
            learns = loss is not None and loss_then is not None and loss < _IMPROVED * loss_then
            times, _ = held.count(record.site, record.step, value < (1 - by) * highest and not learns)
            if times >= probes:
                text = f"two_nn fell by {1 - value / highest:.0%} to {value:.3g} within {record.step - start:,} steps"
                unusual = "" if loss is None else "while the loss did not improve"
                yield alert(record, "dimension_fell", text, since=start, unusual=unusual, helps=_RANK_HELPS)

    return rule


def high_cosine(above: float = 0.9, *, after: int = YOUNG, tokens: str = "no-sink") -> Rule:
    """Alert if the mean cosine is high in all layers: token directions are hardly distinguishable anywhere.

    Args:
        above: The cosine that all layers exceed.
        after: Steps at the start that do not count.
        tokens: The token policy of the records that are used.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = [each for each in layers(records, "mean_cosine", tokens) if each[0].step >= after]
        if not profile:
            return
        lowest = min(value for _, value in profile)
        times, since = held.count("", profile[0][0].step, lowest > above)
        if lowest > above:
            text = f"mean cosine above {above:g} in all {len(profile)} layers (lowest {lowest:.2g})"
            helps = "remove the common mean before comparing rows; check weight decay of embeddings and norms"
            yield alert(profile[0][0], "high_cosine", text, since=since, unusual=_in_a_row(times), helps=helps)

    return rule


def flat_profile(
    below: float = 0.01, above: float = 0.3, *, fewest: int = 4, after: int = YOUNG, tokens: str = "no-sink"
) -> Rule:
    """Alert if the spectral anisotropy is high and the same in all layers: the layers do not change the shape.

    Args:
        below: The largest difference between two layers that counts as the same.
        above: The anisotropy that all layers exceed: a low profile is flat in many healthy models.
        fewest: The fewest layers that the rule applies to.
        after: Steps at the start that do not count.
        tokens: The token policy of the records that are used.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = [each for each in layers(records, "spectral_anisotropy", tokens) if each[0].step >= after]
        numbers = [value for _, value in profile]
        if len(profile) < fewest:
            return
        flat = max(numbers) - min(numbers) < below and min(numbers) > above
        times, since = held.count("", profile[0][0].step, flat)
        if flat:
            text = f"spectral anisotropy between {min(numbers):.3g} and {max(numbers):.3g} in all {len(numbers)} layers"
            helps = "check that gradients reach the layers and that their branches are not scaled away"
            yield alert(profile[0][0], "flat_profile", text, since=since, unusual=_in_a_row(times), helps=helps)

    return rule


def collapsing_profile(
    by: float = 0.5, within: int = 2000, *, fewest: int = 4, after: int = YOUNG, tokens: str = "no-sink"
) -> Rule:
    """Alert if the bell-shaped profile of spectral anisotropy over layers flattens.

    The height of the bell is the mean of the middle third minus the higher of the two ends. Only a bell that was
    higher than 0.1 raises the alert.

    Args:
        by: The share by which the height falls.
        within: The number of steps in which it falls.
        fewest: The fewest layers that the rule applies to.
        after: Steps at the start that do not count.
        tokens: The token policy of the records that are used.
    """
    history: _History = []

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = [each for each in layers(records, "spectral_anisotropy", tokens) if each[0].step >= after]
        if len(profile) < fewest:
            return
        numbers = [value for _, value in profile]
        height = _bell_height(numbers)
        past = _recent(history, profile[0][0].step, height, None, within)
        start, highest, _ = max(past, key=lambda each: each[1])
        if highest > 0.1 and height < (1 - by) * highest:
            text = f"the bell-shaped profile over layers fell from {highest:.3g} to {height:.3g}"
            record = profile[len(numbers) // 2][0]
            unusual = f"{1 - height / highest:.0%} below its height at step {start:,}"
            yield alert(record, "collapsing_profile", text, since=start, unusual=unusual, helps=_RANK_HELPS)

    return rule


def missing_bell(
    above: float = 0.0, probes: int = 3, *, fewest: int = 6, after: int = YOUNG, tokens: str = "all"
) -> Rule:
    """Alert if the spectral anisotropy of a decoder does not peak in the middle layers.

    The published decoders have such a bell over all tokens, encoders do not; so this rule is in no preset. A model
    without a bell is not broken: it differs from the published ones.

    Args:
        above: The height that counts as a bell: the mean of the middle third minus the higher of the two ends.
        probes: The number of measurements in a row without a bell.
        fewest: The fewest layers that the rule applies to.
        after: Steps at the start that do not count.
        tokens: The token policy of the records that are used.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        profile = [each for each in layers(records, "spectral_anisotropy", tokens) if each[0].step >= after]
        if len(profile) < fewest:
            return
        height = _bell_height([value for _, value in profile])
        count, since = held.count("", profile[0][0].step, height <= above)
        if count >= probes:
            text = f"no bell over layers: the middle third is {height:+.3g} from the higher end"
            helps = "compare with an earlier checkpoint, and with and without sinks: a few tokens can make a bell"
            record, unusual = profile[len(profile) // 2][0], f"for {count} probes in a row"
            yield alert(record, "missing_bell", text, since=since, unusual=unusual, helps=helps)

    return rule


def sharp_parallel_drift(entropy: float = 0.3, cosine: float = 0.7, share: float = 0.5, *, after: int = YOUNG) -> Rule:
    """Alert if attention is sharp and queries and keys drift in parallel, in more than a share of a layer's heads.

    Args:
        entropy: Attention below this normalised entropy is sharp.
        cosine: Mean queries and keys with a cosine beyond this, of either sign, are parallel.
        share: The share of heads.
        after: Steps at the start that do not count.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        late = [record for record in records if record.step >= after]
        entropies = {(r.site, r.index): (r, value) for r, value in values(late, "attention_entropy", "all")}
        cosines = {(r.site, r.index): value for r, value in values(late, "qk_cosine", "all")}
        for site in dict.fromkeys(where for where, _ in entropies):
            heads = [head for where, head in entropies if where == site and (site, head) in cosines]
            sharp = [h for h in heads if entropies[site, h][1] < entropy and abs(cosines[site, h]) > cosine]
            fires = bool(heads) and len(sharp) > share * len(heads)
            times, since = held.count(site, entropies[site, heads[0]][0].step if heads else 0, fires)
            if fires:
                text = (
                    f"{len(sharp)} of {len(heads)} heads have entropy below {entropy:g} "
                    f"and mean queries and keys with a cosine beyond {cosine:g}"
                )
                helps = "normalise queries and keys, or lower their learning rate"
                where, unusual = entropies[site, sharp[0]][0], _in_a_row(times)
                yield alert(where, "sharp_parallel_drift", text, since=since, unusual=unusual, helps=helps)

    return rule


def _bell_height(profile: Sequence[float]) -> float:
    """The mean of the middle third minus the higher of the two ends."""
    third = len(profile) // 3
    return statistics.fmean(profile[third : len(profile) - third]) - max(profile[0], profile[-1])


_RANK_HELPS = "a lower learning rate or weight decay, normalisation before each branch, a check of the data for repeats"


def _in_a_row(times: int) -> str:
    return f"for {times} probe{'s' if times > 1 else ''} in a row"


def _recent(history: _History, step: int, value: float, loss: float | None, within: int) -> _History:
    """Add a value to a history and drop those older than `within` steps."""
    history[:] = [*(each for each in history if each[0] >= step - within), (step, value, loss)]
    return history
