"""Which rows of largest norm of single blocks stay separate from the sums of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Tensor

from anisoscope.stats.cloud import Stats, at_level
from anisoscope.stats.registry import PREFIXES
from anisoscope.stats.rows import Rows, join_rows
from anisoscope.stats.sample import Extremes, has_overflowed, select_extremes


@dataclass(frozen=True)
class PooledExtremes:
    """The extremes of several blocks that stay extremes of the whole, first tokens of windows among them.

    Attributes:
        keys: Keys of their rows.
        size: The size of the whole's extremes.
        overflowed: Whether rows may be missing, by the name of the statistic: `Extremes` or `first.Extremes`.
    """

    keys: Tensor
    size: int
    overflowed: Mapping[str, bool]

    @classmethod
    def of(cls, blocks: Sequence[Stats], outsized: float) -> PooledExtremes:
        """Choose from blocks, each with its `Extremes` and, if it has any, `first.Extremes`."""
        by_name = {f"{prefix}Extremes": _named(f"{prefix}Extremes", blocks) for prefix in PREFIXES}
        keys, size = select_extremes([each for found in by_name.values() for each in found], outsized)
        return cls(keys, size, {name: has_overflowed(found, outsized) for name, found in by_name.items()})

    def take(self, blocks: Sequence[Stats], level: int) -> tuple[Stats, dict[str, Rows]]:
        """Remove the extremes from blocks that will be joined.

        Args:
            blocks: The statistics of each block.
            level: How often neighbouring blocks were joined.

        Returns:
            The extremes that stay, by name; and the rows to add to the sums, by the prefix of their names.
        """
        stay: Stats = {}
        lower: dict[str, Rows] = {}
        for prefix in PREFIXES:
            name = f"{prefix}Extremes"
            found = [replace(at_level(each, level), size=self.size) for each in _named(name, blocks)]
            high = [torch.isin(each.table[:, 0].cpu(), self.keys) for each in found]
            if found:
                kept = reduce(add, [each.keeping(mask) for each, mask in zip(found, high, strict=True)])
                stay[name] = replace(kept, overflowed=self.overflowed[name])
            rows = [each.keeping(~mask).rows for each, mask in zip(found, high, strict=True)]
            rows = [each for each in rows if len(each.tokens)]
            if rows:
                lower[prefix] = join_rows(rows)
        for stats in blocks:
            for prefix in PREFIXES:
                stats.pop(f"{prefix}Extremes", None)
        return stay, lower


def _named(name: str, blocks: Sequence[Stats]) -> list[Extremes]:
    return [stats[name] for stats in blocks if name in stats]
