"""The batch that is going through the model: its tokens at every length, and how outsized they have been so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from anisoscope.data.token_table import Batch, TokenTable, table_of_length
from anisoscope.records import Site
from anisoscope.stats.rows import Rows, Tokens, token_table

STREAM = ("embed", "resid", "final.in", "final")  # where a massive token is flagged


def counted(table: TokenTable, special: bool) -> Tensor:
    """Which tokens count, (b, T) bool."""
    return table.counts if special else table.counts & ~table.special


@dataclass
class Current:
    """One batch: its token tables at each length, and the flags raised so far."""

    batch: Batch
    block: Tensor  # (b,) the block of each item
    own: Tensor  # (b,) whether this process counts it
    special: bool
    seed: int
    _tokens: dict[tuple[str, int], tuple[Tensor | None, Tokens]] = field(default_factory=dict)
    _raised: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def table(self, stack: str, length: int) -> TokenTable:
        whole: TokenTable = self.batch.decoder if stack == "dec" and self.batch.decoder is not None else self.batch
        return table_of_length(whole, length)

    def counts(self, stack: str, length: int) -> Tensor:
        """Which tokens count here, (b, T) bool."""
        return counted(self.table(stack, length), self.special) & self.own[:, None]

    def tokens(self, stack: str, length: int) -> tuple[Tensor | None, Tokens]:
        """The flat places of the tokens that count (None: all of them), and their table."""
        at = (stack, length)
        if at not in self._tokens:
            table, counts = self.table(stack, length), self.counts(stack, length)
            made = token_table(
                table.document[counts],
                table.position[counts],
                offset=table.offset[counts],
                token=table.token[counts],
                block=self.block[:, None].expand_as(counts)[counts],
                seed=self.seed,
            )
            place = None if bool(counts.all()) else counts.flatten().nonzero()[:, 0]
            self._tokens[at] = place, made
        return self._tokens[at]

    def priority(self, site: Site, rows: Rows) -> Tensor:
        """How outsized a row is, here or at any earlier point of the stream: its norm over the batch's median."""
        norm = rows.norm
        ratio = (norm / norm.median().clamp(min=1e-30)).nan_to_num(torch.inf)
        at = (site.stack, len(norm))
        if at in self._raised and len(self._raised[at]) == len(ratio):
            ratio = torch.maximum(ratio, self._raised[at].to(ratio.device))
        if site.kind in STREAM:
            self._raised[at] = ratio
        return ratio
