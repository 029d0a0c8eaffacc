"""Docstrings of installed packages as text."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from anisoscope.errors import InputError
from anisoscope.studies.lab.corpora import open_text
from anisoscope.studies.lab.docstrings import _in_file, docstrings


def test_docstrings_come_with_package_and_signature_and_only_once(tmp_path: Path) -> None:
    text = "A function that adds numbers, which is described at some length."
    code = f'def add(a, b=1):\n    """{text}"""\n\n\nclass Sum:\n    """{text}"""\n'
    (tmp_path / "one.py").write_text(code)
    (tmp_path / "two.py").write_text("def broken(:\n")
    found = list(_in_file("mine", tmp_path / "one.py"))
    assert [(each.signature, each.text) for each in found] == [("def add(a, b=1)", text), ("class Sum", text)]
    assert list(_in_file("mine", tmp_path / "two.py")) == []
    some = list(islice(docstrings(["numpy"]), 200))
    assert {each.package for each in some} == {"numpy"}
    assert len({each.text for each in some}) == 200


def test_a_package_that_is_not_installed_is_refused() -> None:
    with pytest.raises(InputError, match="No package 'no_such_package_here'"):
        next(docstrings(["no_such_package_here"]))


def test_the_text_of_docstrings_has_long_documents() -> None:
    first = next(iter(open_text("docstrings")))
    assert len(first) > 10_000
