"""`Site`, an address in a model, and `Record`, one result line. Uses the standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anisoscope.errors import InputError

# Kinds of sites of one layer, in the order of a forward pass. Sites of q and k may name a single head.
_LAYER_KINDS = ("q.pre", "k.pre", "q", "k", "pattern", "attn", "router", "mlp", "resid")
_HEAD_KINDS = ("q.pre", "k.pre", "q", "k")
_WHOLE_KINDS = ("vectors", "embed", "final.in", "final", "loop")
_NAMED_KINDS = ("vectors", "in", "weight")
_ORDER = {
    "vectors": 0,
    "embed": 1,
    **dict.fromkeys(_LAYER_KINDS, 2),
    "final.in": 3,
    "final": 4,
    "in": 5,
    "weight": 6,
    "loop": 7,
}
SUMMED_KINDS = ("pattern", "router")  # sites that have no rows: their tensors are summed up over heads or experts
_DIGITS = 9  # of the number of a layer or head: more than any model needs, and fits in 32 bits
_STACKS = ("", "enc", "dec")


@dataclass(frozen=True)
class Site:
    """An address in a model: `embed`, `resid.7`, `q.7.3`, `enc.attn.0`, `grad.resid.7`, `weight.lm_head`, …

    - `embed`: the input of layer 0; `resid.i`: the output of layer i, counting from 0;
    - `attn.i`, `mlp.i`: the outputs of attention and MLP of layer i;
    - `q.i.h`, `k.i.h`: queries and keys of head h; `q.pre.i.h`, `k.pre.i.h`: the same before rotary embedding;
    - `pattern.i`: the attention probabilities of layer i; `router.i`: the choice of experts of layer i;
    - `final.in`, `final`: the input and output of the final norm;
    - `in.<module>`: the input of a module; `weight.<name>`: a matrix; `vectors`: rows without a model;
    - `loop`: the training loop as a whole, such as its loss.

    Encoder-decoder models prefix `enc.` or `dec.`, gradients prefix `grad.`.

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
        """Parse an address.

        Raises:
            InputError: The text is not an address.
        """
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
            f"{text[:80]!r} is not a site. Sites are embed, resid.7, attn.7, mlp.7, q.7.3, k.7.3, q.pre.7.3, "
            "pattern.7, router.7, final, final.in, in.<module> or weight.<name>, with an optional prefix enc., dec. or "
            "grad."
        )

    def __str__(self) -> str:
        parts = ["grad"] if self.grad else []
        parts += [self.stack] if self.stack else []
        parts.append(self.kind)
        parts += [str(n) for n in (self.layer, self.head) if n is not None]
        parts += [self.name] if self.name else []
        return ".".join(parts)

    def __lt__(self, other: Site) -> bool:
        """Sort in the order of a forward pass: embed, layer by layer, final, then weights; gradients come last."""
        return self._rank() < other._rank()

    def _rank(self) -> tuple[Any, ...]:
        within = _LAYER_KINDS.index(self.kind) if self.kind in _LAYER_KINDS else 0
        layer = -1 if self.layer is None else self.layer
        head = -1 if self.head is None else self.head
        return (self.grad, _STACKS.index(self.stack), _ORDER[self.kind], layer, within, head, self.name)


@dataclass(frozen=True)
class Record:
    """One result line.

    Attributes:
        site: Address in the model.
        metric: Name of the metric.
        value: The number, finite, or None if there is none.
        run: Name of the run.
        step: Training step or checkpoint.
        version: Version of the metric's formula.
        tokens: Token policy: `all` or `no-sink`.
        index: Rank, scale, dimension or head.
        variant: Whatever else distinguishes the numbers of one metric.
        error: One standard error. Intervals use Student's t with (number of blocks − 1) degrees of freedom.
        error_kind: How the error was found, such as `jackknife-16-documents`.
        null: The value that isotropic rows of the same documents would give.
        n: Number of rows.
        note: A caveat, or why `value` is missing.

    >>> Record("resid.3", "isoscore", 0.2, n=4096).to_json()["value"]
    0.2
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
                raise ValueError(f"{name} of {self.metric} at {self.site} is {number}. It must be finite or None.")

    def to_json(self) -> dict[str, Any]:
        """Return the record as a dict, with keys in the order of `COLUMNS`."""
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
        """Rebuild a record from the dict that `to_json` returned.

        Raises:
            InputError: Keys are missing or unknown. The message names them.
        """
        expected = set(COLUMNS)
        if set(row) != expected:
            wrong = sorted(set(row) ^ expected)
            raise InputError(f"This is not a record. Missing or unknown keys: {', '.join(wrong)}.")
        return cls(**row)


def headline_variant(card: Mapping[str, Any]) -> dict[str, Any]:
    """The variant that represents a metric if only one of its numbers is shown.

    Args:
        card: The metric's card, as `Metric.card` returns it and as a run stores it (`run.metrics()[name]`).

    Returns:
        The keys and values of the variant; {} if the card names none: then use the variant that was recorded first.

    >>> headline_variant({"name": "effective_rank", "headline": {"of": "singular values"}})
    {'of': 'singular values'}
    """
    variant = card.get("headline")
    return dict(variant) if isinstance(variant, Mapping) else {}


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
