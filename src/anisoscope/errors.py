"""The errors that users can meet. Messages state what happened, why, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AnisoscopeError(Exception):
    """Base class of all errors of this package. The command line prints the message and exits with status 1."""


class InputError(AnisoscopeError):
    """An input (a file, a name, an option) cannot be used."""


class MetricError(AnisoscopeError):
    """A metric has no value for these rows.

    Attributes:
        metric: Name of the metric.
        reason: Why, as a clause: "the rows do not vary".
        remedy: What to do, as a clause: "give at least two different rows".
    """

    def __init__(self, metric: str, reason: str, remedy: str) -> None:
        super().__init__(f"{metric}: {_sentence(reason)} {_sentence(remedy)}")
        self.metric = metric
        self.reason = reason
        self.remedy = remedy


class CaptureError(AnisoscopeError):
    """A requested site was not seen in the model."""


class StoreError(AnisoscopeError):
    """A run folder cannot be read or written."""


def visible(text: str) -> str:
    """Return the text with control characters escaped, so that untrusted files cannot control the terminal.

    >>> visible("a\\x1b]0;b"), visible("two\\nlines")
    ('a\\\\x1b]0;b', 'two\\nlines')
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is used up: Python's own, or a RuntimeError of torch for a CPU or a GPU.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    signs = ("allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in signs)


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return an InputError for a name that does not exist; the message suggests similar names.

    >>> unknown("metric", "isoscor", ["isoscore", "two_nn"])
    InputError("No metric named 'isoscor'. Did you mean 'isoscore'?")
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(names) or 'none'}."
    return InputError(f"No {kind} named {name!r}. {hint}")


def _sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    return clause[:1].upper() + clause[1:] + ("" if clause.endswith((".", "?")) else ".")
