"""One row per sequence: means over tokens, and the tokens that are sinks of their sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from anisoscope.data.token_table import TokenTable
from anisoscope.measurement.policies import massive_norm
from anisoscope.records import Site
from anisoscope.stats.arithmetic import double, plain

STREAM = ("embed", "resid", "final.in", "final")  # where a massive token is flagged


class SequenceSinks:
    """The sinks of the sequences of one batch while it runs through a model.

    A sink is the first token of its window, or a massive token: its norm exceeds five medians of its own sequence at a
    site of the residual stream. It stays a sink at later sites. The median is that of the sequence, because the mean of
    a sequence is taken during the pass, when the median of all tokens is not known yet.

    Args:
        table: The tokens of the batch.
    """

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._massive = torch.zeros_like(table.counts)  # (b, T)

    def at(self, site: Site, x: Tensor) -> Tensor:
        """Return which tokens are sinks at a site, given its tensor (b, T, d): (b, T) bool, on the CPU."""
        if site.kind in STREAM:
            norm = plain(x).norm(dim=2).cpu().masked_fill(~self._table.counts, torch.nan)  # (b, T)
            self._massive = self._massive | (norm > massive_norm(1.0) * norm.nanmedian(dim=1, keepdim=True).values)
        return (self._table.offset == 0) | self._massive


def sequence_means(x: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of the tokens that count of each sequence, computed in float64.

    Args:
        x: (b, T, d).
        counts: (b, T) bool; a sequence without such tokens gets zeros.

    Returns:
        (b, d) in float32, or float64 if x is.

    >>> sequence_means(torch.tensor([[[1.0], [3.0], [8.0]]]), torch.tensor([[True, True, False]])).tolist()
    [[2.0]]
    """
    wide = double(x)  # (b, T, d)
    counts = counts.to(wide.device)
    weight = double(counts) / double(counts.sum(1).clamp(min=1))[:, None]  # (b, T)
    means = torch.einsum("bt,btd->bd", weight, wide.masked_fill(~counts[..., None], 0.0))
    return means if x.dtype == torch.float64 else means.float()


def last_of_each(counts: Tensor) -> Tensor:
    """Return the mask of the last token that counts of each sequence, (b, T) -> (b, T).

    >>> last_of_each(torch.tensor([[True, True, False], [False, False, False]])).tolist()
    [[False, True, False], [False, False, False]]
    """
    return counts & (counts.flip(1).long().cumsum(1).flip(1) == 1)


def first_of_each(counts: Tensor) -> Tensor:
    """Return the mask of the first token that counts of each sequence, (b, T) -> (b, T)."""
    return counts & (counts.long().cumsum(1) == 1)
