"""Where a model begins to give NaN or Inf on the held-out tokens, noted on the device and read once per probe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from anisoscope.data.token_table import Batch, table_of_length
from anisoscope.hooks import Layout, expand, observe_sites
from anisoscope.records import Record, Site

NOT_FINITE = "not_finite"  # the metric of these records: the share of tokens with NaN or Inf
_STREAM = ("embed", "resid", "final")


class FiniteRows:
    """Counts, at each site of the residual stream, the tokens whose vectors hold NaN or Inf.

    Padding does not count: fully masked positions of some attention kernels are NaN by design.

    Args:
        model: The bare model.
        layout: Its layout.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self._model = model
        self._layout = layout
        self._sites = [str(site) for site in expand(layout, _STREAM)]
        self._batch: Batch | None = None  # that runs now
        self._counts: dict[tuple[str, int], tuple[Tensor, int]] = {}  # of this batch, by stack and length
        self._sums: dict[Site, Tensor] = {}  # (2,): bad tokens and all tokens

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count during the forwards inside the `with`."""
        self._sums.clear()
        with observe_sites(self._model, self._sites, self._add, layout=self._layout):
            yield

    def fed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches, noting which one runs."""
        for batch in batches:
            self._batch = batch
            self._counts.clear()
            yield batch

    def records(self, step: int) -> list[Record]:
        """Return one record per site with NaN or Inf, in the order of the forward pass; the first names the cause."""
        if not self._sums:
            return []
        sites = sorted(self._sums)
        sums = torch.stack([self._sums[site].double().cpu() for site in sites]).tolist()
        broken = [(site, int(bad), int(n)) for site, (bad, n) in zip(sites, sums, strict=True) if bad]
        if not broken:
            return []
        first = broken[0][0]
        cause = _broken_parameters(self._model)
        return [
            Record(
                str(site),
                NOT_FINITE,
                bad / n,
                step=step,
                n=n,
                note=f"{bad:,} of {n:,} tokens hold NaN or Inf, which begins at {first}. {cause}",
            )
            for site, bad, n in broken
        ]

    def _add(self, site: Site, x: Tensor) -> None:
        bad = ~x.isfinite().all(-1)  # (b, T)
        counts, _ = self.counted(site.stack, x)
        sums = torch.stack(((bad & counts).sum(), counts.sum()))
        self._sums[site] = sums if site not in self._sums else self._sums[site] + sums

    def counted(self, stack: str, x: Tensor) -> tuple[Tensor, int]:
        """Which tokens of the batch that runs count, (b, T) on the device of the rows, and how many.

        Args:
            stack: The stack of the site.
            x: The rows, (b, T, d).
        """
        key = (stack, x.shape[1])
        if key not in self._counts:
            batch = self._batch
            counts = torch.ones(x.shape[:2], dtype=torch.bool)
            if batch is not None:
                table = batch.decoder if stack == "dec" and batch.decoder is not None else batch
                known = table_of_length(table, x.shape[1]).counts
                counts = known if known.shape == counts.shape else counts
            self._counts[key] = counts.to(x.device, non_blocking=True), int(counts.sum())
        return self._counts[key]


def _broken_parameters(model: nn.Module) -> str:
    # of sharded parameters this rank's part: gathering them would need the other ranks
    held = ((name, getattr(p, "to_local", lambda p=p: p)().detach()) for name, p in model.named_parameters())
    names = [name for name, x in held if not bool(x.isfinite().all())]
    if not names:
        return "All weights are finite, so activations overflow."
    return f"Weights that are not finite: {_listed(names)}."


def _listed(names: Sequence[str], most: int = 2) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more parameters" if rest > 0 else "")
