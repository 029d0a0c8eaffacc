"""The batch that runs through the model: its tokens at every length, their norms so far, and one row per sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, TokenTable, table_of_length
from anisoscope.measurement.policies import STREAM, massive_norm
from anisoscope.records import Site
from anisoscope.stats.arithmetic import double, plain
from anisoscope.stats.rows import Rows, Tokens, token_table


def counted(table: TokenTable, special: bool) -> Tensor:
    """Return which tokens count, (b, T) bool."""
    return table.counts if special else table.counts & ~table.special


@dataclass
class CurrentBatch:
    """One batch: its token tables at each length, and the largest relative norm of each token so far."""

    batch: Batch
    block: Tensor  # (b,) the block of each item
    is_mine: Tensor  # (b,) whether this process counts the item
    special: bool
    seed: int
    rows: str = "tokens"  # or one row per item: "last", "mean" or "cls"
    sinks: bool = True  # whether there are sinks to leave out of means; an image has none
    _tokens: dict[tuple[str, int], tuple[Tensor | None, Tokens]] = field(default_factory=dict)
    _largest: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _sinks: dict[tuple[str, int], SequenceSinks] = field(default_factory=dict)

    def table(self, stack: str, length: int) -> TokenTable:
        whole: TokenTable = self.batch.decoder if stack == "dec" and self.batch.decoder is not None else self.batch
        return table_of_length(whole, length)

    def counts(self, stack: str, length: int) -> Tensor:
        """Return which tokens of a stack count, (b, T) bool."""
        return counted(self.table(stack, length), self.special) & self.is_mine[:, None]

    def tokens(self, stack: str, length: int) -> tuple[Tensor | None, Tokens]:
        """Return the flat indices of the tokens that count (None: all), and their table."""
        at = (stack, length)
        if at not in self._tokens:
            table, counts = self.table(stack, length), self._row_tokens(stack, length)
            made = token_table(
                table.document[counts],
                table.position[counts],
                offset=table.offset[counts],
                token=table.token[counts] if self.rows != "mean" else None,
                block=self.block[:, None].expand_as(counts)[counts],
                seed=self.seed,
            )
            index = None if bool(counts.all()) else counts.flatten().nonzero()[:, 0]
            self._tokens[at] = index, made
        return self._tokens[at]

    def _row_tokens(self, stack: str, length: int) -> Tensor:
        """Which tokens have a row, (b, T) bool; the mean of an item has the place of its first token."""
        counts = self.counts(stack, length)
        if self.rows == "tokens":
            return counts
        return last_of_each(counts) if self.rows == "last" else first_of_each(counts)

    def means(self, site: Site, x: Tensor) -> tuple[Rows, Rows | None]:
        """Return the mean of each item's tokens at a site, and the mean of those that are not sinks.

        Args:
            site: The site.
            x: Its tensor, (b, T, d).

        Returns:
            Rows of all items with tokens; and of those that have tokens besides sinks, or None if there are no sinks.
        """
        at = (site.stack, x.shape[1])
        _, tokens = self.tokens(*at)
        counts = self.counts(*at)
        some = counts.any(1)  # (b,)
        means = sequence_means(x, counts)  # (b, d)
        whole = Rows(means[some.to(means.device)], tokens)
        if not self.sinks:
            return whole, None
        sinks = self._sinks.setdefault(at, SequenceSinks(self.table(*at))).at(site, x)
        kept = counts & ~sinks
        left = kept.any(1)
        means = sequence_means(x, kept)
        return whole, Rows(means[left.to(means.device)], tokens.take(left[some]))

    def priority(self, site: Site, rows: Rows) -> Tensor:
        """Return each row's norm over the batch's median, or the largest such ratio at an earlier site."""
        norm = rows.norm
        ratio = (norm / norm.median().clamp(min=1e-30)).nan_to_num(torch.inf)
        at = (site.stack, len(norm))
        if at in self._largest and len(self._largest[at]) == len(ratio):
            ratio = torch.maximum(ratio, self._largest[at].to(ratio.device))
        if site.kind in STREAM:
            self._largest[at] = ratio
        return ratio


# --- one row per sequence ------------------------------------------------------------------------------------------


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
