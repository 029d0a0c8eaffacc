"""Imports point one way: who may import whom, as DESIGN.md says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anisoscope

ROOT = Path(anisoscope.__file__).parent
EVERYTHING = {"*"}
# the rooms of the house, and the rooms each may enter (besides errors and its own)
MAY_IMPORT = {
    "__init__": EVERYTHING,  # lazily: see the test below
    "__main__": {"cli"},
    "cli": EVERYTHING,
    "demo": {"offline", "records", "synthetic"},
    "offline": {"capture", "disk", "models", "stats", "metrics", "survey", "store", "records", "tangent", "transform"},
    "survey": {"__init__", "capture", "models", "stats", "metrics", "store", "records"},
    "tracker": {
        "__init__",
        "survey",
        "capture",
        "models",
        "stats",
        "metrics",
        "tangent",
        "store",
        "schedule",
        "records",
    },
    "claims": {
        "__init__",
        "alerts",
        "capture",
        "disk",
        "lab",
        "metrics",
        "models",
        "offline",
        "records",
        "schedule",
        "stats",
        "store",
        "survey",
        "sweep",
        "synthetic",
        "tangent",
        "tracker",
    },
    "sweep": {"capture", "disk", "metrics", "models", "offline", "records", "stats", "store", "survey"},
    "schedule": set(),
    "alerts": {"records"},
    "tangent": {"stats", "metrics", "records"},
    "lab": {"tracker", "schedule", "records", "store", "disk"},
    "integrations": {"offline", "sweep", "tracker", "schedule", "store", "records"},
    "transform": {"stats"},
    "doctor": {"__init__"},  # the version
    "testing": {"metrics", "stats", "synthetic"},
    "models": {"lab.model", "records", "disk"},
    "capture": {"stats.rows", "stats.attention", "records"},
    "metrics": {"stats", "records"},
    "stats": {"records"},
    "report": {"disk", "store", "records"},
    # `Run.plot` imports the report when called: the one import that points up
    "store": {"columns", "__init__", "records", "disk", "report.charts"},
    "columns": {"records"},
    "disk": set(),
    "synthetic": set(),
    "records": set(),
    "errors": set(),
}
MODULES = sorted(ROOT.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """The anisoscope modules that a file imports, anywhere in it, as dotted names below the package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "anisoscope":
            rest = node.module.removeprefix("anisoscope").removeprefix(".")
            found |= {rest} if rest else {"__init__" if a.name.startswith("__") else a.name for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("anisoscope.") for a in node.names if a.name.startswith("anisoscope.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in MAY_IMPORT, f"{room} is a new room: say in DESIGN.md and here whom it may import"
    allowed = MAY_IMPORT[room] | {room, "errors"}
    if "*" in allowed:
        return
    for name in imports_of(path):
        parts = name.split(".")
        prefixes = {".".join(parts[:k]) for k in range(1, len(parts) + 1)}
        assert prefixes & allowed, f"{path.name} ({room}) imports {name}; it may import {sorted(allowed)}"


def test_importing_the_package_does_not_load_torch() -> None:
    rooms = "anisoscope, anisoscope.store, anisoscope.records, anisoscope.report.charts, anisoscope.report.terminal"
    code = f"import sys, {rooms}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("room", ["records.py", "errors.py"])
def test_the_bottom_needs_only_the_standard_library(room: str) -> None:
    for node in ast.walk(ast.parse((ROOT / room).read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names | {"anisoscope"}, f"{room} imports {name}"
