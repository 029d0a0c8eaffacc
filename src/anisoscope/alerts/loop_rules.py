"""Rules on the scalars of every step: loss, gradient norm and update/weight ratio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from anisoscope.alerts.rules import Persistence, Rule, UsualRange, alert, log_of, values
from anisoscope.records import Record

LOOP = "loop"
_LOSSES = ("train_loss", "validation_loss")
_NOTHING = 1e-12  # a layer without gradients has no usual size that a value could exceed
_RESTART = (
    "restart from a checkpoint before this step with a lower learning rate, a longer warm-up or clipped gradients"
)


def not_finite(gradients: int = 5) -> Rule:
    """Alert if the loss is NaN or Inf, if the model gives NaN, or if gradients are not finite several times in a row.

    Args:
        gradients: Steps in a row with gradients that are not finite; a loss scaler skips single ones by design.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        model = [r for r in records if r.metric == "not_finite"]
        if model:
            text = f"the model gives NaN or Inf on the held-out tokens, first at {model[0].site}"
            yield alert(model[0], "not_finite", text, unusual=(model[0].note or "").rstrip("."), helps=_RESTART)
        for record in records:
            if record.site != LOOP or record.metric not in (*_LOSSES, "gradient_norm"):
                continue
            times, since = held.count(record.metric, record.step, record.value is None)
            if times >= (gradients if record.metric == "gradient_norm" else 1):
                text = f"{record.note or record.metric + ' is not finite'} ({times} times in a row)"
                yield alert(record, "not_finite", text, since=since, helps=_RESTART)

    return rule


def loss_spike(score: float = 8.0, by: float = 0.25, window: int = 100) -> Rule:
    """Alert if the training loss jumps far outside its own recent values.

    Args:
        score: The robust z-score beyond which a loss is a spike.
        by: The share of the median that it must exceed it by, too.
        window: How many steps are compared with.
    """
    usual = UsualRange(window)

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in _at_loop(records, "train_loss"):
            median = usual.median if usual.is_known else value
            z = usual.score(value) if value - median > by * abs(median) else 0.0  # costs two more medians
            if z > score:
                text = f"the loss jumped to {value:.4g} from a median of {median:.4g}"
                yield alert(record, "loss_spike", text, unusual=_score(z, window), helps=_RESTART)
            usual.add(value)

    return rule


def gradient_spike(score: float = 8.0, times: float = 5.0, window: int = 100) -> Rule:
    """Alert if the gradient norm of all weights jumps far outside its own recent values.

    Args:
        score: The robust z-score of its logarithm.
        times: The multiple of the median that it must exceed, too.
        window: How many steps are compared with.
    """
    return _spike(
        "gradient_norm",
        "gradient_spike",
        score,
        times,
        window,
        "clip gradients, lower the learning rate, skip the batch",
    )


def update_spike(score: float = 8.0, times: float = 5.0, window: int = 100) -> Rule:
    """Alert if a step changes the weights, of the model or of one layer, far more than recent steps.

    Args:
        score: The robust z-score of the logarithm of the update/weight ratio.
        times: The multiple of the median that it must exceed, too.
        window: How many values are compared with.
    """
    helps = "lower the learning rate or the second-moment decay of Adam (β₂ = 0.95), clip updates"
    return _spike("update_ratio", "update_spike", score, times, window, helps)


def large_updates(above: float = 0.04, steps: int = 10, after: int = 10) -> Rule:
    """Alert if every step replaces a large share of the weights: the learning rate is too high.

    Large models change about a thousandth of the weights' length per step, small models with Adam up to two hundredths.

    Args:
        above: The update/weight ratio of all weights.
        steps: How many steps in a row.
        after: Steps at the start that do not count.
    """
    held = Persistence()

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in _at_loop(records, "update_ratio"):
            times, since = held.count(LOOP, record.step, value > above and record.step >= after)
            if times >= steps:
                text = f"each step changes the weights by {value:.0%} of their length"
                unusual = f"above {above:.0%} for {times} steps, while 0.1 % is usual"
                yield alert(
                    record,
                    "large_updates",
                    text,
                    since=since,
                    unusual=unusual,
                    helps="a learning rate lower by that factor, or a longer warm-up",
                )

    return rule


def _spike(metric: str, name: str, score: float, times: float, window: int, helps: str) -> Rule:
    usual: dict[str, UsualRange] = {}

    def rule(records: Sequence[Record]) -> Iterator[Record]:
        for record, value in values(records, metric):
            known = usual.setdefault(record.site, UsualRange(window))
            median = math.exp(known.median) if known.is_known else 0.0
            is_large = median > _NOTHING and value > times * median
            z = known.score(log_of(value)) if is_large else 0.0  # costs two more medians
            if z > score:
                text = f"{metric} jumped to {value:.3g}, {value / median:.3g} times its median"
                yield alert(record, name, text, unusual=_score(z, window), helps=helps)
            known.add(log_of(value))

    return rule


def _at_loop(records: Sequence[Record], metric: str) -> Iterator[tuple[Record, float]]:
    return ((record, value) for record, value in values(records, metric) if record.site == LOOP)


def _score(z: float, window: int) -> str:
    return f"{z:.0f} robust standard deviations above the last {window} values"
