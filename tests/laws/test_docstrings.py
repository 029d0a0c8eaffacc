"""Examples in docstrings print what they show, in every module of the library."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest
import torch

import anisoscope

ROOT = Path(anisoscope.__file__).parent
MODULES = sorted(
    ".".join(("anisoscope", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text() and path.stem != "__init__"
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_print_what_they_show(name: str) -> None:
    result = doctest.testmod(import_module(name), extraglobs={"torch": torch})
    assert not result.failed


def test_there_are_examples_to_run() -> None:
    assert len(MODULES) > 30
