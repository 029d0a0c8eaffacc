"""Imported once by the process that tasks are forked from: loads what would be loaded on first use."""

from __future__ import annotations

import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests.killed_work import make_material, measure, track

with (
    tempfile.TemporaryDirectory() as _folder,
    open(os.devnull, "w") as _nowhere,
    redirect_stdout(_nowhere),
    redirect_stderr(_nowhere),
):
    measure(make_material(Path(_folder) / "material"), Path(_folder) / "measured")
    track(Path(_folder) / "material", Path(_folder) / "tracked")
