"""The command line: one thin function per command."""

from anisoscope.cli import (  # noqa: F401
    claims,
    demo,
    doctor,
    lab,
    look,
    measure,
    report,
    runs,
    similarity,
    sweep,
    tangent,
    transform,
)
from anisoscope.cli.app import app, main

__all__ = ["app", "main"]
