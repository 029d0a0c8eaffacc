"""How a router spreads tokens over experts: load, entropy and margin."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, full_precision, plain


@dataclass(frozen=True)
class Routing:
    """What the router of one layer did with a batch; e experts."""

    logits: Tensor  # (b, t, e)
    chosen: Tensor  # (b, t, e) bool: the experts that each token is sent to


@dataclass(frozen=True)
class RouterSums:
    """Sums over the counted tokens of one layer, in float64.

    Probabilities are the softmax of the router's logits over all experts. The margin of a token is the smallest
    probability of its experts minus the largest of the others. Tokens that are sent to no expert (over the capacity of
    theirs), or to all, have none.
    """

    tokens: Tensor  # () counted tokens
    load: Tensor  # (e,) tokens sent to each expert
    entropy: Tensor  # () Σ H/ln e
    margin_tokens: Tensor  # () tokens with a margin
    margin: Tensor  # () Σ margin

    @classmethod
    def of(cls, routing: Routing, counts: Tensor) -> RouterSums:
        """Compute the sums of one batch; `counts` (b, t) is True for tokens that count."""
        device = routing.logits.device
        real, chosen = counts.to(device), routing.chosen.to(device)
        with full_precision(device):
            log_p = plain(routing.logits).log_softmax(-1)  # (b, t, e)
            p = log_p.exp()
            entropy = -(p * log_p.clamp(min=-1e4)).sum(-1) / math.log(max(p.shape[-1], 2))  # (b, t)
            lowest = torch.where(chosen, p, math.inf).amin(-1)
            highest = torch.where(chosen, -math.inf, p).amax(-1)
            decided = real & lowest.isfinite() & highest.isfinite()
            return cls(
                tokens=double(real.sum()),
                load=double((chosen & real[..., None]).sum((0, 1))),
                entropy=double(torch.where(real, entropy, 0.0)).sum(),
                margin_tokens=double(decided.sum()),
                margin=double(torch.where(decided, lowest - highest, 0.0)).sum(),
            )

    def __add__(self, other: RouterSums) -> RouterSums:
        return RouterSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def without(self, part: RouterSums) -> RouterSums:
        """Return the sums without the tokens of `part`."""
        return RouterSums(*(getattr(self, f.name) - getattr(part, f.name) for f in fields(self)))
