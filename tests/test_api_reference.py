"""The reference of the Python interface: every public name is on the page and says what it takes and returns."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import anisoscope

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))

from api_reference import api_page, parts_of, public_names  # type: ignore[import-not-found]  # noqa: E402

NAMES = dict(public_names())
FUNCTIONS = [name for name, value in NAMES.items() if inspect.isfunction(value)]
OWN = [name for name in NAMES if name.count(".") == 1]


def test_every_public_name_is_on_the_page() -> None:
    page = api_page()
    for name in anisoscope.__all__:
        assert f"\n## anisoscope.{name}\n" in page
    assert "{options}" not in page  # where the options of a request are inserted


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_a_docstring_of_one_sentence_first(name: str) -> None:
    first = (inspect.getdoc(NAMES[name]) or "").split("\n\n")[0]
    assert first, f"{name} has no docstring"
    assert first.rstrip().endswith((".", ":", "…")), f"{name}: {first}"


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name.count(".") == 1])
def test_a_public_function_documents_what_it_takes_and_returns(name: str) -> None:
    function: Any = NAMES[name]
    parts = parts_of(function.__doc__ or "")
    documented = {entry.strip("*") for entry in parts.entries("Args")}
    parameters = inspect.signature(function).parameters
    assert documented >= set(parameters), f"{name} does not document {sorted(set(parameters) - documented)}"
    assert {"Returns", "Yields"} & set(parts.sections), f"{name} does not say what it returns"
    assert ">>>" in (function.__doc__ or "") or "Example" in parts.sections, f"{name} has no example"


def test_docstrings_are_split_into_their_parts() -> None:
    parts = parts_of(
        """Do it.

        More text.

        Args:
            x: One number,
                on two lines.
            **more: Others.

        Returns:
            Something: with a colon.

        Raises:
            InputError: It is wrong.

        >>> 1 + 1
        2
        """
    )
    assert parts.entries("Args") == {"x": "One number, on two lines.", "**more": "Others."}
    assert parts.sections["Returns"][0] == "Something: with a colon."
    assert parts.entries("Raises") == {"InputError": "It is wrong."}
    assert parts.sections["Example"][:2] == [">>> 1 + 1", "2"]
