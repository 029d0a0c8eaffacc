"""`Rows`: token vectors at a site, with a table of their tokens. Capture makes them, statistics are made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.arithmetic import full_precision, narrow, plain

_MASK = (1 << 63) - 1
_ORDINARY = (2.0**-40, 2.0**40)  # lengths of rows whose squares and cubes float32 can hold
_LEAST = 2.0**-250  # length of rows whose fourth powers float64 can hold


@dataclass(frozen=True)
class Tokens:
    """A table of n tokens, shared by the rows of all sites of a batch. All columns are on the CPU.

    `document` and `position` (in the document) identify a token. `offset` is its position in the model's window (0 is
    the attention sink), `token` its id, `block` the block of contiguous documents that it belongs to for error bars.
    """

    key: Tensor  # (n,) int64 in [0, 2^63): a hash of seed, document, position
    document: Tensor  # (n,) int64
    position: Tensor  # (n,) int64
    offset: Tensor  # (n,) int64
    token: Tensor  # (n,) int64, -1 if unknown
    block: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.key)

    def take(self, index: Tensor | slice) -> Tokens:
        """Return the tokens at an index, a mask or a slice."""
        return Tokens(*(column[index] for column in self.columns()))

    def columns(self) -> tuple[Tensor, ...]:
        """Return all columns in the order of the fields."""
        return (self.key, self.document, self.position, self.offset, self.token, self.block)


@dataclass(frozen=True)
class Rows:
    """The vectors of n tokens at one site: x is (n, d), any float dtype, any device.

    The output of a branch comes with `write`: what is added to the residual stream, and the stream before it.
    """

    x: Tensor  # (n, d)
    tokens: Tokens
    write: tuple[Tensor, Tensor] | None = None  # (n, d) each

    @cached_property
    def plain(self) -> Tensor:
        """The vectors for statistics: detached, in float32, or float64 if they are float64, narrow, tiny or huge.

        The squares of float32 numbers below 1e-19 or above 1e19 vanish or overflow in float32, but not in float64. On a
        device other than the CPU, rows are not checked for that: it would have to be waited for.

        Raises:
            InputError: The rows are float64 and so small that powers of them vanish even there.
        """
        x = plain(self.x)
        if x.device.type != "cpu":
            return x.double() if narrow(x) and x.device.type != "mps" else x
        if x.dtype == torch.float64:
            self._require_visible(x)
            return x
        if narrow(x):
            return x.double()
        norm = self.__dict__.get("norm")
        if norm is None:
            with full_precision(x.device):
                norm = torch.linalg.vector_norm(x, dim=1)  # (n,)
        if _beyond_float32(x, norm):
            return x.double()
        self.__dict__["norm"] = norm.to(x.dtype)
        return x

    @property
    def mapped(self) -> Tensor:
        """The vectors for linear maps: in their own precision, or in float64 if they are tiny or huge."""
        x = plain(self.x)
        return self.plain if x.device.type == "cpu" and _beyond_float32(x, self.norm) else x

    def _require_visible(self, x: Tensor) -> None:
        if len(x) and float(self.__dict__.get("norm", x).abs().max()) < _LEAST and bool(x.any()):
            raise InputError("The rows are shorter than 1e-75, so powers of them vanish. Multiply them by 1e75.")

    @cached_property
    def norm(self) -> Tensor:
        """Length of each row, (n,); several statistics share it."""
        x = self.plain
        if (known := self.__dict__.get("norm")) is not None:
            return known
        with full_precision(x.device):
            return torch.linalg.vector_norm(x, dim=1)

    @property
    def inverse_norm(self) -> Tensor:
        """One over the length of each row, (n,); 0 for a row of length 0, which has no direction."""
        norm = self.norm.to(self.plain.dtype)
        return torch.where(norm > 0, norm.reciprocal(), 0.0)

    def take(self, index: Tensor | slice) -> Rows:
        """Return the rows at an index, a mask or a slice."""
        on_device = index.to(self.x.device) if isinstance(index, Tensor) else index
        write = None if self.write is None else (self.write[0][on_device], self.write[1][on_device])
        taken = Rows(self.x[on_device], self.tokens.take(index), write)
        if "norm" in self.__dict__:
            taken.__dict__["norm"] = self.norm[on_device]
        return taken


def _beyond_float32(x: Tensor, norm: Tensor) -> bool:
    """Whether a row is too short or too long for products in float32. Rows of zeros are not."""
    odd = (norm < _ORDINARY[0]) | (norm > _ORDINARY[1])
    return bool(odd.any()) and bool(x[odd].any())


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows, without their `write`; at least one part is needed."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.tokens.columns() for part in parts), strict=True)
    joined = Rows(torch.cat([part.x for part in parts]), Tokens(*(torch.cat(column) for column in columns)))
    if all("norm" in part.__dict__ for part in parts):
        joined.__dict__["norm"] = torch.cat([part.norm for part in parts])
    return joined


def token_table(
    document: Tensor,
    position: Tensor,
    *,
    offset: Tensor | None = None,
    token: Tensor | None = None,
    block: Tensor | None = None,
    seed: int = 0,
) -> Tokens:
    """Make a table of tokens with their keys.

    By default `offset` is the position, `token` is -1 and `block` is 0.
    """
    document, position = document.to("cpu", torch.int64), position.to("cpu", torch.int64)
    return Tokens(
        key=token_key(document, position, seed),
        document=document,
        position=position,
        offset=position if offset is None else offset.to("cpu", torch.int64),
        token=torch.full_like(document, -1) if token is None else token.to("cpu", torch.int64),
        block=torch.zeros_like(document) if block is None else block.to("cpu", torch.int64),
    )


def bare_rows(
    x: Tensor, *, first: int = 0, document: Tensor | None = None, block: Tensor | None = None, seed: int = 0
) -> Rows:
    """Make rows from vectors (n, d) without tokens. Row i, counted from `first`, is by default its own document."""
    number = torch.arange(first, first + len(x))
    if document is None:
        document, number = number, torch.zeros_like(number)
    return Rows(x, token_table(document, number, offset=torch.ones_like(number), block=block, seed=seed))


def token_key(document: Tensor, position: Tensor, seed: int = 0) -> Tensor:
    """Return a 63-bit hash of (seed, document, position): a token has the same key at every site and step.

    Two rounds of the splitmix64 finaliser on wrapping int64 arithmetic.
    """
    return _mix(_mix(document + _wrap(seed * 0x9E3779B97F4A7C15)) + position) & _MASK


def _mix(z: Tensor) -> Tensor:
    z = z + _wrap(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _wrap(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _wrap(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, by: int) -> Tensor:
    """Shift right logically (torch shifts int64 arithmetically)."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _wrap(value: int) -> int:
    """Return the int64 with the same low 64 bits as a Python integer."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
