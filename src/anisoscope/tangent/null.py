"""Kinds of gradients, and what a null hypothesis is: one function with declared facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
HIDDEN, WEIGHT_IN, WEIGHT_OUT, EMBEDDING = "hidden", "weight_in", "weight_out", "embedding"
GRADIENTS = (HIDDEN, WEIGHT_IN, WEIGHT_OUT, EMBEDDING)


@dataclass(frozen=True)
class NullLevel:
    """What a null expects of one basis.

    Attributes:
        level: The expected gradient energy; None if the null does not apply, `note` then has the reason.
        p: The probability of at least the observed energy; None for a reference without a p-value.
        note: A remark for the record.
    """

    level: float | None
    p: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Null(Generic[P, T]):
    """A null: a function with its facts.

    Nulls of energy are called with (second, bases, fitted, seed), where second is S = GᵀG, and return one `NullLevel`
    per basis. The transfer slope, the local test and the error shuffle need more than S and have other signatures.

    Attributes:
        name: The name of the function.
        function: The function.
        hypothesis: What would be true if there were no relation.
        gradients: The kinds of gradients that it applies to.
        decides: Whether it tests. One that does not is a reference: a level and a difference, without a verdict.
    """

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
    """Decorator that turns a function into a `Null` with these facts."""
    return lambda function: Null(function.__name__, function, hypothesis, frozenset(gradients), decides)
