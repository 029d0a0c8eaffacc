"""Angles between successive steps from token to token within sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.arithmetic import double, full_precision
from anisoscope.stats.rows import Rows, Tokens


@dataclass(frozen=True)
class TokenSteps:
    """Sums over triples of successive rows of one sequence, with the first two and the last two rows.

    The angle at a row is that between the step to it and the step from it. Rows of one window of one document that
    follow each other are a sequence. Adding also counts the triples that cross from one side to the other.
    """

    n: int  # rows
    angles: Tensor  # () triples whose steps are not zero
    total: Tensor  # () Σ angle, in radians
    head: Tensor  # (≤ 2, d)
    head_table: Tensor  # (≤ 2, 3) int64: document, position, offset
    tail: Tensor  # (≤ 2, d)
    tail_table: Tensor  # (≤ 2, 3)

    @classmethod
    def of(cls, rows: Rows) -> TokenSteps:
        x, table = rows.plain, sequence_table(rows.tokens)
        angles, total = _angles(x, table)
        ends = slice(0, 2), slice(max(0, len(x) - 2), None)
        head, tail = ((x[end].clone(), table[end].clone()) for end in ends)
        return cls(len(x), angles, total, *head, *tail)

    def __add__(self, other: TokenSteps) -> TokenSteps:
        rows = torch.cat((self.tail, other.head.to(self.tail.device)))  # (≤ 4, d)
        table = torch.cat((self.tail_table, other.head_table))
        angles, total = _angles(rows, table)
        k = len(self.tail)
        for side in (slice(0, k), slice(k, None)):  # triples inside one side are counted there
            inner, inside = _angles(rows[side], table[side])
            angles, total = angles - inner, total - inside
        head, head_table = (self.head, self.head_table) if self.n >= 2 else _joined(self, other, slice(0, 2))
        tail, tail_table = (other.tail, other.tail_table) if other.n >= 2 else _joined(self, other, slice(-2, None))
        return TokenSteps(
            self.n + other.n,
            self.angles + other.angles + angles,
            self.total + other.total + total,
            *(head, head_table, tail, tail_table),
        )

    def without(self, part: TokenSteps) -> TokenSteps:
        """Return the sums without the rows of `part`, which are whole sequences."""
        none, empty = self.head[:0], self.head_table[:0]
        sums = self.angles - part.angles, self.total - part.total
        return TokenSteps(self.n - part.n, *sums, none, empty, none, empty)


def sequence_table(tokens: Tokens) -> Tensor:
    """Return what tells whether two rows follow each other in a sequence, (n, 3): document, position, offset."""
    return torch.stack((tokens.document, tokens.position, tokens.offset), 1)


def follows(table: Tensor) -> Tensor:
    """Return for each row but the first whether it continues the sequence of the row before it, (n − 1,) bool.

    The offset in the window must not go back; rows without a window all have the same.
    """
    change = table[1:] - table[:-1]
    return (change[:, 0] == 0) & (change[:, 1] == 1) & ((change[:, 2] == 0) | (change[:, 2] == 1))


def _angles(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of angles and their sum, for rows (n, d)."""
    zero = double(x.new_zeros(()))
    if len(x) < 3:
        return zero, zero
    together = follows(table)
    triple = (together[1:] & together[:-1]).to(x.device)  # (n − 2,)
    with full_precision(x.device):
        step = x[1:] - x[:-1]  # (n − 1, d)
        length = double(torch.linalg.vector_norm(step, dim=1))
        dot = double((step[1:] * step[:-1]).sum(1))
    product = length[1:] * length[:-1]
    counted = triple & ~(product == 0)
    angle = torch.acos((dot / torch.where(product == 0, 1.0, product)).clamp(-1, 1))
    return double(counted.sum()), torch.where(counted, angle, 0.0).sum()


def _joined(a: TokenSteps, b: TokenSteps, part: slice) -> tuple[Tensor, Tensor]:
    """Return the first or last two rows of both sides, one of which has fewer than two."""
    left, left_table = (a.head, a.head_table) if part.start == 0 else (a.tail, a.tail_table)
    right, right_table = (b.head, b.head_table) if part.start == 0 else (b.tail, b.tail_table)
    return torch.cat((left, right.to(left.device)))[part], torch.cat((left_table, right_table))[part]
