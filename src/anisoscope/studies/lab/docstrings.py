"""Docstrings of installed packages: English that is on every machine, with the package and the signature of each."""

from __future__ import annotations

import ast
import importlib.util
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anisoscope.errors import InputError

PACKAGES = ("numpy", "scipy", "torch", "transformers")  # dependencies of anisoscope, so they are always there
_SHORTEST = 40  # characters of a docstring that counts as text
_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Docstring:
    """A docstring with the package it comes from and the first line of what it documents."""

    package: str
    signature: str
    text: str


def docstrings(packages: Iterable[str] = PACKAGES) -> Iterator[Docstring]:
    """Yield the docstrings of installed packages in the order of their files, each text once.

    The source is parsed and never imported or run.

    Args:
        packages: Names of packages.

    Raises:
        InputError: A package is not installed.

    >>> next(docstrings(["numpy"])).package
    'numpy'
    """
    seen: set[str] = set()
    for package in packages:
        for path in _sources(package):
            for each in _in_file(package, path):
                key = re.sub(r"\W+", " ", each.text).lower()
                if key not in seen:
                    seen.add(key)
                    yield each


def _sources(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(f"No package {package!r} with source files is installed.")
    origin = Path(spec.origin)
    return sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]


def _in_file(package: str, path: Path) -> Iterator[Docstring]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escape sequences of others
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, RecursionError, ValueError):
        return  # a file of test data, or of another version of Python
    for node in ast.walk(tree):
        if isinstance(node, _Documented):
            text = ast.get_docstring(node)
            if text and len(text) >= _SHORTEST and text.isprintable() | ("\n" in text):
                yield Docstring(package, _signature(node), text)


def _signature(node: _Documented) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    return f"def {node.name}({ast.unparse(node.args)})"
