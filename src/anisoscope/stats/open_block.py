"""The part of a collector that is still growing, as arrays: the open block, the rows that wait for it, the sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.cloud import Stats, from_arrays, to_arrays
from anisoscope.stats.packing import pack, unpack
from anisoscope.stats.registry import PREFIXES
from anisoscope.stats.rows import Rows, Tokens, join_rows
from anisoscope.stats.sample import Sample


@dataclass(frozen=True)
class OpenBlock:
    """What a collector holds besides closed blocks."""

    stats: Stats
    pending: Mapping[str, list[Rows]]  # rows that wait for a product, by the prefix of their statistics
    sample: Sample | None

    def arrays(self) -> dict[str, Tensor]:
        """Return everything as named arrays on the CPU."""
        out = {f"open/{name}": value for name, value in to_arrays(self.stats).items()}
        for prefix, rows in self.pending.items():
            waiting = [each for each in rows if len(each.tokens)]
            if waiting:
                together = join_rows(waiting)
                out[f"pending/{prefix}x"] = together.x.cpu()
                out[f"pending/{prefix}table"] = torch.stack(together.tokens.columns(), 1)
        if self.sample is not None:
            out |= {f"sample/{name}": value for name, value in pack(self.sample).items()}
        return out

    @classmethod
    def of(cls, arrays: Mapping[str, Tensor]) -> OpenBlock:
        """Return what `arrays` described."""
        part = {
            kind: {name.removeprefix(kind + "/"): x for name, x in arrays.items() if name.startswith(kind + "/")}
            for kind in ("open", "pending", "sample")
        }
        pending = {
            prefix: [Rows(part["pending"][f"{prefix}x"], Tokens(*part["pending"][f"{prefix}table"].T))]
            for prefix in PREFIXES
            if f"{prefix}x" in part["pending"]
        }
        return cls(from_arrays(part["open"]), pending, unpack(Sample, part["sample"]) if part["sample"] else None)
