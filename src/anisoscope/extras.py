"""Packages that are not part of the base installation: what a missing one ends in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anisoscope.errors import InputError, first_line

# The extras of pyproject.toml, and what each is for.
EXTRAS = {
    "hf": "models of Hugging Face, GGUF files, LoRA adapters and the lab",
    "audio": "recordings",
    "vision": "images",
    "serve": "the live page",
    "figures": "figures as files, which the base can write too",
    "ray": "sweeps on a cluster",
}


@contextmanager
def needs(source: str, purpose: str) -> Iterator[None]:
    """Turn a failed import inside the `with` into one line that names the command to run.

    Args:
        source: An extra of this package (`hf`), or the name of another package on PyPI (`scikit-learn`).
        purpose: What cannot be done without it, as the subject of a sentence: "the live page".

    Raises:
        InputError: A package is missing or cannot be imported.

    >>> with needs("hf", "a folder of Hugging Face"):
    ...     import no_such_package
    Traceback (most recent call last):
    anisoscope.errors.InputError: A folder of Hugging Face needs no_such_package. Run: pip install 'anisoscope[hf]'
    """
    try:
        yield
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        module = (error.name or "a package").split(".")[0]
        reason = module if missing else f"{module}, which cannot be imported ({first_line(error)})"
        subject = purpose[:1].upper() + purpose[1:]
        raise InputError(f"{subject} needs {reason}. Run: {install_command(source)}") from error


def install_command(source: str) -> str:
    """Return the command that installs an extra, or another package.

    >>> install_command("hf"), install_command("datasets")
    ("pip install 'anisoscope[hf]'", 'pip install datasets')
    """
    return f"pip install 'anisoscope[{source}]'" if source in EXTRAS else f"pip install {source}"
