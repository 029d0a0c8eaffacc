"""The command line: one thin function a command, one file a group of commands."""

from anisoscope.cli import demo, measure, runs, vectors
from anisoscope.cli.app import app, main

__all__ = ["app", "demo", "main", "measure", "runs", "vectors"]
