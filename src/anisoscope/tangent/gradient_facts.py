"""What a null is: one function with declared facts.

The facts are the hypothesis it stands for, which gradients it applies to, and whether it decides. One that does not
decide is a reference: a level and a difference, no p-value. Nulls of energy are called with (second, bases, frame,
seed), S = GᵀG, and give one Level a basis; the transfer slope, the local test and the error shuffle look at more than S
and have signatures of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
HIDDEN, WEIGHT_IN, WEIGHT_OUT, EMBEDDING = "hidden", "weight_in", "weight_out", "embedding"
GRADIENTS = (HIDDEN, WEIGHT_IN, WEIGHT_OUT, EMBEDDING)


@dataclass(frozen=True)
class Level:
    """What a null says of one basis: the energy expected under it, and the chance of at least the energy seen."""

    level: float | None
    p: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Null(Generic[P, T]):
    """A function with its facts."""

    name: str
    function: Callable[P, T]
    hypothesis: str
    gradients: frozenset[str]
    decides: bool

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.function(*args, **kwargs)


def null(
    hypothesis: str, gradients: Sequence[str] = GRADIENTS, *, decides: bool
) -> Callable[[Callable[P, T]], Null[P, T]]:
    """Makes a function a null; `gradients` are those it says something about."""
    return lambda function: Null(function.__name__, function, hypothesis, frozenset(gradients), decides)
