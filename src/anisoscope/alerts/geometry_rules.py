"""Rules on the held-out tokens: logits, outlier features, layers that do nothing, lost rank, routers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from anisoscope.alerts.rules import YOUNG, Persistence, Rule, UsualRange, alert, values
from anisoscope.records import Record, Site


def logits_grow(above: float = 100.0, trend: float = 30.0, times: float = 2.0, probes: int = 4) -> Rule:
    """Alert if the largest attention logit of a layer passes a bound, or grows fast towards it.

    Softmax saturates long before the bound, and training diverges when logits keep growing.

    Args:
        above: The bound on the largest logit of a layer's heads.
        trend: A logit above this raises an alert already if it also grows.
        times: Growth over the last probes that counts as fast.
        probes: The number of these probes; the logit must have grown at each.
    """
    history: dict[str, list[tuple[int, float]]] = {}
    helps = "normalise queries and keys, clip their logits, or lower the learning rate"

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for site, (record, value) in _largest_by_site(records, "logit_max", {"over": "max"}).items():
            past = [*history.get(site, []), (record.step, value)][-probes:]
            history[site] = past
            numbers = [number for _, number in past]
            rises = len(past) == probes and all(a < b for a, b in pairwise(numbers))
            if value > above:
                text = f"an attention logit of {value:.3g}, above {above:g}"
                since = next(step for step, number in past if number > above)
                first = past[0]
                unusual = (
                    f"it was {first[1]:.3g} at step {first[0]:,}" if len(past) > 1 else "already at the first probe"
                )
                yield alert(record, "logits_grow", text, since=since, unusual=unusual, helps=helps)
            elif value > trend and rises and value > times * numbers[0]:
                text = f"the largest attention logit grew from {numbers[0]:.3g} to {value:.3g} in {probes} probes"
                unusual = f"it rose at each of them, {value / numbers[0]:.1f} times in all"
                yield alert(record, "logits_grow", text, since=past[0][0], unusual=unusual, helps=helps)

    return rule


def kurtosis_onset(times: float = 4.0, above: float = 8.0, probes: int = 2, *, tokens: str = "no-sink") -> Rule:
    """Alert if single neurons of a layer outgrow the others: the onset of outlier features.

    Args:
        times: The multiple of the run's own median kurtosis.
        above: The kurtosis over neurons that it must exceed, too (1: all neurons alike).
        probes: How many probes in a row.
        tokens: The token policy of the records that are used.
    """
    helps = "a lower learning rate, normalised queries and keys, or an optimiser without a diagonal (Muon, Shampoo)"
    return _onset("feature_kurtosis", "kurtosis_onset", {}, (times, above, probes, tokens), helps)


def massive_onset(times: float = 4.0, above: float = 300.0, probes: int = 2, *, tokens: str = "no-sink") -> Rule:
    """Alert if an entry outgrows the median entry of a layer: the onset of massive activations.

    Sinks have massive activations in most trained decoders, so only other tokens count.

    Args:
        times: The multiple of the run's own median.
        above: The ratio of the largest to the median magnitude that it must exceed, too.
        probes: How many probes in a row.
        tokens: The token policy of the records that are used.
    """
    helps = "a gated attention output or an attention bias, a lower learning rate; quantise with care"
    return _onset("entry_max", "massive_onset", {"in": "medians"}, (times, above, probes, tokens), helps)


def dead_layer(below: float = 1e-3, share: float = 1e-4, probes: int = 3, after: int = 20) -> Rule:
    """Alert if a layer copies its input, because its branches write next to nothing, or receives no gradient.

    Args:
        below: The size of a branch's output, relative to the stream, that counts as nothing.
        share: The share of the median gradient norm of all layers that counts as no gradient.
        probes: How many measurements in a row.
        after: Steps at the start that do not count: branches may be initialised to zero.
    """
    written, received = Persistence(), Persistence()
    helps = (
        "check that the branch is trained and added, that its activation is not stuck at zero, and its learning rate"
    )

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for layer, (record, size) in _written_by_layer(records).items():
            times, since = written.count(layer, record.step, size < below and record.step >= after)
            if times >= probes:
                text = f"layer {layer} writes {size:.1e} of the stream and copies its input"
                unusual = f"both branches below {below:g} for {times} probes"
                yield alert(record, "dead_layer", text, since=since, unusual=unusual, helps=helps)
        norms = [(r, value) for r, value in values(records, "gradient_norm") if Site.parse(r.site).kind == "resid"]
        usual = sorted(value for _, value in norms)[len(norms) // 2] if norms else 0.0
        for record, value in norms if len(norms) > 1 else ():
            dead = value < share * usual and record.step >= after
            times, since = received.count(record.site, record.step, dead)
            if times >= probes:
                text = f"the weights of this layer have a gradient of {value:.1e}, against {usual:.1e} in other layers"
                unusual = f"below {share:g} of the median of all layers {times} times in a row"
                yield alert(record, "dead_layer", text, since=since, unusual=unusual, helps=helps)

    return rule


def low_rank(share: float = 0.05, probes: int = 3, after: int = YOUNG, *, tokens: str = "no-sink") -> Rule:
    """Alert if the rows of a layer need only a small share of the dimensions that random rows would need.

    Args:
        share: Of the effective rank of random rows of the same documents, at most the width.
        probes: How many probes in a row.
        after: Steps at the start that do not count: rank falls in every young model.
        tokens: The token policy of the records that are used.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in values(records, "effective_rank", tokens):
            if record.null is None or record.variant.get("of", "singular values") != "singular values":
                continue
            low = value < share * record.null and record.step >= after
            times, since = held.count(record.site, record.step, low)
            if times >= probes:
                text = f"effective rank {value:.3g}, {value / record.null:.1%} of that of random rows"
                unusual = f"below {share:.0%} for {times} probes"
                helps = "check for a loss with a trivial solution, for missing normalisation, and the weight decay"
                yield alert(record, "low_rank", text, since=since, unusual=unusual, helps=helps)

    return rule


def constant_output(above: float = 0.98, probes: int = 3, after: int = YOUNG, *, tokens: str = "no-sink") -> Rule:
    """Alert if the final vectors of all tokens point the same way: the model gives nearly the same output everywhere.

    Args:
        above: The mean cosine between final vectors.
        probes: How many probes in a row.
        after: Steps at the start that do not count: young models predict the frequencies of words first.
        tokens: The token policy of the records that are used.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        beyond = [
            (r, value) for r, value in values(records, "mean_cosine", tokens) if Site.parse(r.site).kind == "final"
        ]
        for record, value in beyond:
            times, since = held.count(record.site, record.step, value > above and record.step >= after)
            if times >= probes:
                text = f"the final vectors have a mean cosine of {value:.3f}: the output hardly depends on the token"
                unusual = f"above {above:g} for {times} probes"
                helps = "check the labels and the masking of the loss, and whether the gradient reaches the layers"
                yield alert(record, "constant_output", text, since=since, unusual=unusual, helps=helps)

    return rule


def router_collapse(load: float = 1.0, probes: int = 3, after: int = 20, *, tokens: str = "all") -> Rule:
    """Alert if a router sends most tokens to few experts, or leaves experts without any.

    Args:
        load: The coefficient of variation of the experts' loads.
        probes: How many probes in a row.
        after: Steps at the start that do not count.
        tokens: The token policy of the records that are used.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for metric, limit in (("router_load", load), ("dead_experts", 0.5)):
            for record, value in values(records, metric, tokens):
                bad = value > limit + 2 * (record.null or 0.0) and record.step >= after
                times, since = held.count(f"{metric} {record.site}", record.step, bad)
                if times >= probes:
                    text = f"{metric} is {value:.3g}: few experts get most tokens"
                    if metric == "dead_experts":
                        text = f"{value:.0f} experts get no token"
                    unusual = "" if record.null is None else f"random choices give {record.null:.3g}"
                    helps = "a load-balancing loss or bias, router noise, a router in float32"
                    yield alert(record, "router_collapse", text, since=since, unusual=unusual, helps=helps)

    return rule


def _onset(metric: str, name: str, variant: dict[str, str], limits: tuple[float, float, int, str], helps: str) -> Rule:
    times, above, probes, tokens = limits
    usual: dict[str, UsualRange] = {}
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in values(records, metric, tokens):
            if any(record.variant.get(key) != wanted for key, wanted in variant.items()):
                continue
            known = usual.setdefault(record.site, UsualRange(window=20, least=4))
            high = known.is_known and value > above and value > times * known.median
            count, since = held.count(record.site, record.step, high)
            if count >= probes:
                text = f"{metric} rose to {value:.3g} from a median of {known.median:.3g}"
                unusual = f"{value / known.median:.1f} times, for {count} probes"
                yield alert(record, name, text, since=since, unusual=unusual, helps=helps)
            if not high:
                known.add(value)

    return rule


def _largest_by_site(
    records: Sequence[Record], metric: str, variant: dict[str, str]
) -> dict[str, tuple[Record, float]]:
    """The record of largest value at each site, over heads."""
    largest: dict[str, tuple[Record, float]] = {}
    for record, value in values(records, metric):
        matches = all(record.variant.get(key, wanted) == wanted for key, wanted in variant.items())
        if matches and (record.site not in largest or value > largest[record.site][1]):
            largest[record.site] = record, value
    return largest


def _written_by_layer(records: Sequence[Record]) -> dict[str, tuple[Record, float]]:
    """The largest `write_ratio` of the branches of each layer, by the name of the layer."""
    largest: dict[str, tuple[Record, float]] = {}
    for record, value in values(records, "write_ratio", "all"):
        site = Site.parse(record.site)
        layer = f"{site.stack}.{site.layer}".lstrip(".")
        if layer not in largest or value > largest[layer][1]:
            largest[layer] = record, value
    return largest
