"""The batch that runs through the model: its tokens at every length, and how large their norms have been so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, TokenTable, table_of_length
from anisoscope.measurement.sequences import STREAM, SequenceSinks, first_of_each, last_of_each, sequence_means
from anisoscope.records import Site
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
