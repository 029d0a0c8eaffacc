"""Routers of mixtures of experts: how evenly and how decidedly they spread tokens."""

from __future__ import annotations

import math

from anisoscope.metrics.metric import Undefined, Value, metric
from anisoscope.stats.router_sums import RouterSums

_INF = math.inf


@metric(
    RouterSums, low=0, high=_INF, keeps=set(), paper="shazeer2017", requires={"router"},
    notable="high", row_effect="null",
)  # fmt: skip
def router_load(router: RouterSums) -> Value:
    """How unevenly experts are used: the coefficient of variation of the tokens per expert.

    std/mean over experts: 0 if all get the same number of tokens, √(E − 1) if one of E experts gets all. The null is
    that of tokens which choose their experts at random.
    """
    mean, n = _mean_load(router), float(router.tokens)
    random = math.sqrt(max(0.0, n / mean - 1) / n)  # the load of an expert is binomial with probability mean/n
    return Value(float(router.load.std(correction=0)) / mean, n=int(n), null=random)


@metric(
    RouterSums, low=0, high=1, keeps=set(), paper="fedus2022", requires={"router"},
    notable="low", row_effect="none",
)  # fmt: skip
def router_entropy(router: RouterSums) -> Value:
    """Average entropy of a token's probabilities over all experts, relative to uniform ones.

    H/ln E of the softmax of the router's logits: 1 if the router does not distinguish experts, 0 if it is certain.
    """
    _mean_load(router)
    return Value(min(1.0, float(router.entropy / router.tokens)), n=int(router.tokens))


@metric(
    RouterSums, low=0, high=_INF, keeps=set(), paper="fedus2022", requires={"router"}, bars=False,
    notable="high",
)  # fmt: skip
def dead_experts(router: RouterSums) -> Value:
    """Number of experts that got no token.

    The null is that of tokens which choose their experts at random. The note names the first of them.
    """
    mean, n = _mean_load(router), float(router.tokens)
    dead = (router.load == 0).nonzero()[:, 0].tolist()
    note = f"experts {', '.join(map(str, dead[:8]))}" if dead else None
    return Value(float(len(dead)), n=int(n), null=len(router.load) * (1 - min(1.0, mean / n)) ** n, note=note)


@metric(
    RouterSums, low=-1, high=1, keeps=set(), paper="anisoscope", requires={"router"},
    notable="low", row_effect="none",
)  # fmt: skip
def router_margin(router: RouterSums) -> Value:
    """By how much a token prefers its experts: the smallest probability among them minus the largest of the others.

    Averaged over tokens. 0 if choices are arbitrary; negative if a router does not choose by probability alone (a bias
    that balances the load, or groups of experts).
    """
    n = float(router.margin_tokens)
    if not n:
        raise Undefined("no token was sent to some experts but not to others", "route tokens to fewer experts")
    return Value(float(router.margin) / n, n=int(n))


def _mean_load(router: RouterSums) -> float:
    mean = float(router.load.mean())
    if not mean > 0:
        raise Undefined("no token was sent to an expert", "check the capacity of the experts")
    return mean
