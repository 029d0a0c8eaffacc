"""Entropy of the spectrum of each sequence by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, full_precision
from anisoscope.stats.rows import Rows
from anisoscope.stats.token_steps import follows, sequence_table

FEWEST = 2  # rows that a sequence needs


@dataclass(frozen=True)
class SequenceSpectra:
    """Sums over complete sequences; the first and the last may continue, so their rows are kept.

    `lengths` counts the sequences by number of rows. `entropy` is Σ H/ln min(T, d) with H the entropy of the
    eigenvalues of a sequence's T × T Gram matrix, divided by their sum. Sequences of one row, or of zeros only, do not
    count.
    """

    n: int  # rows
    lengths: Tensor  # (T + 1,) int64
    entropy: Tensor  # ()
    open: Tensor  # (m, d) rows of the first and the last sequence
    table: Tensor  # (m, 3) int64: document, position, offset

    @classmethod
    def of(cls, rows: Rows) -> SequenceSpectra:
        x = rows.plain
        none = torch.zeros(1, dtype=torch.int64)
        return _closed(cls(len(x), none, double(x.new_zeros(())), x, sequence_table(rows.tokens)), keep=True)

    def __add__(self, other: SequenceSpectra) -> SequenceSpectra:
        return _closed(
            SequenceSpectra(
                self.n + other.n,
                _padded_sum(self.lengths, other.lengths),
                self.entropy + other.entropy,
                torch.cat((self.open, other.open.to(self.open.device))),
                torch.cat((self.table, other.table)),
            ),
            keep=True,
        )

    def without(self, part: SequenceSpectra) -> SequenceSpectra:
        """Return the sums without the rows of `part`, which are whole sequences."""
        whole, removed = self.complete, part.complete
        return SequenceSpectra(
            whole.n - removed.n,
            _padded_sum(whole.lengths, -removed.lengths),
            whole.entropy - removed.entropy,
            whole.open,
            whole.table,
        )

    @property
    def complete(self) -> SequenceSpectra:
        """The sums with the first and the last sequence as they are."""
        return _closed(self, keep=False)


def _closed(spectra: SequenceSpectra, *, keep: bool) -> SequenceSpectra:
    """Count the open sequences; with `keep`, the first and the last stay open."""
    if not len(spectra.open):
        return spectra
    starts = torch.cat((torch.tensor([True]), ~follows(spectra.table))).nonzero()[:, 0].tolist()
    edges = list(zip(starts, [*starts[1:], len(spectra.open)], strict=True))
    stay = ([edges[0], edges[-1]] if len(edges) > 1 else edges) if keep else []
    lengths, entropy = spectra.lengths, spectra.entropy
    for first, last in edges:
        if (first, last) in stay or last - first < FEWEST:
            continue
        count, value = _entropy(spectra.open[first:last])
        one = torch.zeros(last - first + 1, dtype=torch.int64)
        one[-1] = count
        lengths, entropy = _padded_sum(lengths, one), entropy + value
    kept = torch.cat([torch.arange(first, last) for first, last in stay]) if stay else torch.zeros(0, dtype=torch.int64)
    rows = spectra.open[kept.to(spectra.open.device)]
    return SequenceSpectra(spectra.n, lengths, entropy, rows, spectra.table[kept])


def _entropy(x: Tensor) -> tuple[int, Tensor]:
    """Return 1 and the entropy of one sequence over its largest possible value, or 0 and 0 if it is zero or NaN."""
    y = double(x)
    with full_precision(y.device):
        gram = y @ y.T if len(y) <= y.shape[1] else y.T @ y  # the same eigenvalues, besides zeros
        trace = gram.diagonal().sum()
        if not bool(trace > 0) or not bool(trace.isfinite()):
            return 0, trace.new_zeros(())
        p = torch.linalg.eigvalsh(gram / trace).clamp(min=0)
    most = math.log(len(p)) if len(p) > 1 else 1.0
    return 1, -torch.xlogy(p, p).sum() / most


def _padded_sum(a: Tensor, b: Tensor) -> Tensor:
    out = torch.zeros(max(len(a), len(b)), dtype=torch.int64)
    out[: len(a)] += a
    out[: len(b)] += b
    return out
