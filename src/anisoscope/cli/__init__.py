"""The command line: one thin function per command."""

from anisoscope.cli import (  # noqa: F401
    atlas,
    claims,
    demo,
    doctor,
    embeddings,
    lab,
    look,
    measure,
    report,
    runs,
    sensitivity,
    show_words,
    similarity,
    sinks,
    sweep,
    tangent,
    transform,
)
from anisoscope.cli.app import app, main

__all__ = ["app", "main"]
