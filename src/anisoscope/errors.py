"""The errors a user can meet. Each says what was seen, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AnisoscopeError(Exception):
    """Anything this package raises on purpose; the command line prints it as one line and exits with 1."""


class InputError(AnisoscopeError):
    """Something the user gave (a file, a name, an option) cannot be used as it is."""


class MetricError(AnisoscopeError):
    """A metric has no value for this cloud: which metric, why, and what would help."""

    def __init__(self, metric: str, reason: str, remedy: str) -> None:
        super().__init__(f"{metric}: {_sentence(reason)} {_sentence(remedy)}")
        self.metric = metric
        self.reason = reason
        self.remedy = remedy


class CaptureError(AnisoscopeError):
    """A site that was asked for was not seen in the model."""


class StoreError(AnisoscopeError):
    """A run folder cannot be read or written."""


def visible(text: str) -> str:
    """A text whose control characters are written out: one from a stranger's file must not command the terminal.

    >>> visible("a\\x1b]0;b"), visible("two\\nlines")
    ('a\\\\x1b]0;b', 'two\\nlines')
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def first_line(error: BaseException) -> str:
    """What an error of a library says, short enough for a line of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An InputError for a name that does not exist, with its nearest neighbours."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}"
    return InputError(f"no {kind} is called {name!r}; {hint}")


def _sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    return clause[:1].upper() + clause[1:] + ("" if clause.endswith((".", "?")) else ".")
