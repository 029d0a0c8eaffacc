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
LOW = {"errors", "records", "store"}  # needs neither torch nor metrics
# Packages and top-level modules, and what each may import besides itself, `errors` and `extras`. Imports point down.
MAY_IMPORT = {
    "__init__": EVERYTHING,  # lazily: see the test below
    "__main__": {"cli"},
    "cli": EVERYTHING,
    "studies": {
        *LOW, "__init__", "alerts", "hooks", "data", "distributed", "measurement", "metrics", "models", "schedule",
        "stats", "sweep", "synthetic", "tangent", "tracker",
    },
    "integrations": {*LOW, "measurement", "remedies", "schedule", "sweep", "tracker"},
    "sweep": {*LOW, "hooks", "data", "measurement", "metrics", "models", "stats"},
    "embedding_quality": {
        *LOW, "data", "measurement", "metrics", "remedies", "report.embedding_advice", "stats",
    },
    "tracker": {
        *LOW, "__init__", "alerts", "hooks", "data", "distributed", "measurement", "metrics", "models", "schedule",
        "stats", "tangent",
    },
    "tangent": {*LOW, "hooks", "data", "measurement", "metrics", "models", "stats"},
    "measurement": {
        *LOW, "__init__", "hooks", "data", "distributed", "metrics", "models", "remedies", "stats",
    },
    "testing": {"metrics", "stats", "synthetic"},
    "data": {*LOW, "models"},
    "hooks": {"data", "distributed", "records", "stats"},
    "models": LOW,
    "distributed": {"stats"},
    "metrics": {"records", "stats"},
    "remedies": {"__init__", "stats", "store"},
    "stats": {"records"},
    "report": {*LOW, "stats.inference"},  # which needs no torch
    # methods of `Run` import what they show when they are called: the only import that points up
    "store": {"__init__", "records", "report.views"},
    "alerts": {"records"},
    "environment": {"__init__"},  # the version
    "schedule": set(),
    "synthetic": set(),
    "records": set(),
    "extras": set(),
    "errors": set(),
}  # fmt: skip
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
def test_a_module_imports_only_what_its_package_may(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert package in MAY_IMPORT, f"{package} is new: list in DESIGN.md and here what it may import"
    allowed = MAY_IMPORT[package] | {package, "errors", "extras"}
    if "*" in allowed:
        return
    for name in imports_of(path):
        parts = name.split(".")
        prefixes = {".".join(parts[:k]) for k in range(1, len(parts) + 1)}
        assert prefixes & allowed, f"{path.name} ({package}) imports {name}; it may import {sorted(allowed)}"


def test_importing_the_package_and_its_commands_does_not_load_torch() -> None:
    rooms = "anisoscope, anisoscope.store, anisoscope.records, anisoscope.report.charts, anisoscope.report.terminal"
    rooms += ", anisoscope.stats.inference, anisoscope.cli"
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
