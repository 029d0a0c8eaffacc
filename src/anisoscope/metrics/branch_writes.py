"""What attention and feed-forward layers add to the residual stream."""

from __future__ import annotations

import math
from collections.abc import Iterator

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.writes import Writes

_INF = math.inf


@metric(
    Writes, low=0, high=_INF, keeps=set(), paper="anisoscope", requires={"branch"},
    notable="low", row_effect="none", headline={"over": "all"},
)  # fmt: skip
def write_ratio(writes: Writes) -> Iterator[Value]:
    """How much a branch writes, relative to the residual stream before it.

    `over=all` is the root mean square of the branch's output divided by that of the stream. `over=rows` is the average
    over tokens of ‖b‖/‖x‖, which a few massive tokens do not change. Near 0 the branch is dead; beyond 1 it overwrites
    the stream. The output counts as it is added: after a norm that follows the branch (Gemma 2, OLMo 2).
    """
    if not float(writes.stream_square) > 0:
        raise Undefined("the stream is zero", "check the captured site")
    yield Value(math.sqrt(float(writes.branch_square / writes.stream_square)), variant={"over": "all"}, n=writes.n)
    n = int(writes.directed)
    mean = float(writes.ratio) / n if n else 0.0
    yield Value(mean, variant={"over": "rows"}, n=n)


@metric(
    Writes, low=-1, high=1, keeps=set(), paper="anisoscope", requires={"branch"},
    row_effect="none",
)  # fmt: skip
def write_cosine(writes: Writes) -> Value:
    """Average cosine between what a branch writes and the residual stream before it.

    Positive if the branch strengthens what the stream holds, negative if it removes it. The null is 0, that of
    unrelated directions.
    """
    n = int(writes.directed)
    if not n:
        raise Undefined("the branch or the stream is zero everywhere", "check the captured site")
    return Value(float(writes.cosine) / n, n=n, null=0.0)
