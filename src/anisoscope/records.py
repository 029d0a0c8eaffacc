"""Sites (where in a model) and records (one result line). Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anisoscope.errors import InputError

# Kinds of one layer in the order in which a forward pass meets them; a head makes q and k one site each.
_LAYER_KINDS = ("q.pre", "k.pre", "q", "k", "pattern", "attn", "mlp", "resid")
_HEAD_KINDS = ("q.pre", "k.pre", "q", "k")
_WHOLE_KINDS = ("vectors", "embed", "final.in", "final")
_NAMED_KINDS = ("vectors", "in", "weight")
_ORDER = {"vectors": 0, "embed": 1, **dict.fromkeys(_LAYER_KINDS, 2), "final.in": 3, "final": 4, "in": 5, "weight": 6}
_DIGITS = 9  # of a layer's or a head's number: more than any model has, few enough for any type of number
_STACKS = ("", "enc", "dec")


@dataclass(frozen=True)
class Site:
    """An address in a model: `embed`, `resid.7`, `q.7.3`, `enc.attn.0`, `grad.resid.7`, `weight.lm_head`, …

    `resid.i` is the output of block i counting from 0, `embed` what enters block 0, `final` what leaves the final
    norm, `final.in` what enters it; `q.pre` / `k.pre` are queries and keys before rotary embedding, `pattern.i` the
    attention's probabilities, `in.<module>` a module's input, `weight.<name>` a matrix. Encoder-decoder models prefix
    `enc.` / `dec.`, gradients `grad.`; bare vectors have the site `vectors`.

    >>> str(Site.parse("enc.q.7.3")), Site.parse("enc.q.7.3").head
    ('enc.q.7.3', 3)
    """

    kind: str
    layer: int | None = None
    head: int | None = None
    name: str = ""
    stack: str = ""
    grad: bool = False

    @classmethod
    def parse(cls, text: str) -> Site:
        rest = text
        grad = rest.startswith("grad.")
        rest = rest.removeprefix("grad.")
        stack = ""
        for prefix in _STACKS[1:]:
            if rest.startswith(prefix + "."):
                stack, rest = prefix, rest.removeprefix(prefix + ".")
        if rest in _WHOLE_KINDS:
            return cls(rest, stack=stack, grad=grad)
        for kind in _NAMED_KINDS:
            if rest.startswith(kind + ".") and len(rest) > len(kind) + 1:
                return cls(kind, name=rest[len(kind) + 1 :], stack=stack, grad=grad)
        for kind in _LAYER_KINDS:
            numbers = rest.removeprefix(kind + ".").split(".") if rest.startswith(kind + ".") else []
            if not numbers or not all(n.isascii() and n.isdigit() and len(n) <= _DIGITS for n in numbers):
                continue
            if len(numbers) == 1:
                return cls(kind, layer=int(numbers[0]), stack=stack, grad=grad)
            if len(numbers) == 2 and kind in _HEAD_KINDS:
                return cls(kind, layer=int(numbers[0]), head=int(numbers[1]), stack=stack, grad=grad)
        raise InputError(
            f"{text[:80]!r} is not a site; sites look like embed, resid.7, attn.7, mlp.7, q.7.3, k.7.3, q.pre.7.3, "
            "pattern.7, final, final.in, in.<module>, weight.<name>, with enc./dec. or grad. in front"
        )

    def __str__(self) -> str:
        parts = ["grad"] if self.grad else []
        parts += [self.stack] if self.stack else []
        parts.append(self.kind)
        parts += [str(n) for n in (self.layer, self.head) if n is not None]
        parts += [self.name] if self.name else []
        return ".".join(parts)

    def __lt__(self, other: Site) -> bool:
        """The order of a forward pass: embed, layer by layer, final; then weights; gradients after activations."""
        return self._rank() < other._rank()

    def _rank(self) -> tuple[Any, ...]:
        within = _LAYER_KINDS.index(self.kind) if self.kind in _LAYER_KINDS else 0
        layer = -1 if self.layer is None else self.layer
        head = -1 if self.head is None else self.head
        return (self.grad, _STACKS.index(self.stack), _ORDER[self.kind], layer, within, head, self.name)


@dataclass(frozen=True)
class Record:
    """One result: what was measured where, its value, one standard error, and the value expected without structure.

    `index` is a rank, scale, dimension or head; `variant` whatever else tells two numbers of one metric apart;
    `error` one standard error (intervals use t with blocks - 1); `null` what isotropic rows of the same documents
    would give; `note` the caveat, or why `value` is missing. A value is finite or None, never NaN.
    """

    site: str
    metric: str
    value: float | None
    run: str = ""
    step: int = 0
    version: int = 1
    tokens: str = "all"
    index: int | None = None
    variant: Mapping[str, Any] = field(default_factory=dict)
    error: float | None = None
    error_kind: str | None = None
    null: float | None = None
    n: int | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        for name in ("value", "error", "null"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"a record's {name} is finite or None, got {number} for {self.metric} at {self.site}")

    def to_json(self) -> dict[str, Any]:
        """The record as a plain dict, keys in the order users script against."""
        return {
            "run": self.run,
            "step": self.step,
            "site": self.site,
            "metric": self.metric,
            "version": self.version,
            "tokens": self.tokens,
            "index": self.index,
            "variant": dict(self.variant),
            "value": self.value,
            "error": self.error,
            "error_kind": self.error_kind,
            "null": self.null,
            "n": self.n,
            "note": self.note,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Record:
        """The inverse of `to_json`; a row with missing or unknown keys raises an InputError that names them."""
        expected = set(COLUMNS)
        if set(row) != expected:
            odd = sorted(set(row) ^ expected)
            raise InputError(f"not a record: missing or unknown keys {', '.join(odd)}")
        return cls(**row)


class Replicates(tuple[float, ...]):
    """Leave-one-block-out values of one record, with the number of rows in each block.

    `sizes` is None if they are not known: a run from an older version does not store them.

    >>> Replicates([0.4, 0.6], sizes=[128, 96]).sizes
    (128, 96)
    """

    sizes: tuple[int, ...] | None

    def __new__(cls, values: Iterable[float] = (), sizes: Sequence[int] | None = None) -> Replicates:
        replicates = super().__new__(cls, values)
        replicates.sizes = None if sizes is None else tuple(sizes)
        if replicates.sizes is not None and len(replicates.sizes) != len(replicates):
            raise ValueError(f"{len(replicates)} replicates, but the sizes of {len(replicates.sizes)} blocks")
        return replicates


COLUMNS = (
    "run",
    "step",
    "site",
    "metric",
    "version",
    "tokens",
    "index",
    "variant",
    "value",
    "error",
    "error_kind",
    "null",
    "n",
    "note",
)
