"""The command line: one thin function a command, one file a group of commands."""

from anisoscope.cli import claims, demo, doctor, lab, measure, report, runs, sweep, tangent, vectors
from anisoscope.cli.app import app, main

__all__ = ["app", "claims", "demo", "doctor", "lab", "main", "measure", "report", "runs", "sweep", "tangent", "vectors"]
