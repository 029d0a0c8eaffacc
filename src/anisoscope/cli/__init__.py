"""The command line: one thin function per command."""

from anisoscope.cli import claims, demo, doctor, lab, measure, report, runs, similarity, sweep, tangent, transform  # noqa: F401
from anisoscope.cli.app import app, main

__all__ = ["app", "main"]
