"""Nulls and their facts."""

from __future__ import annotations

import doctest
from importlib import import_module
from typing import Any

import pytest

from anisoscope.tangent.covariance import transfer_slope
from anisoscope.tangent.patches import local_test


@pytest.mark.parametrize("null", [transfer_slope, local_test])
def test_examples_in_docstrings_of_nulls_are_correct(null: Any) -> None:
    names = vars(import_module(null.function.__module__))
    (example,) = doctest.DocTestFinder().find(null.function, null.name, globs=names)
    assert doctest.DocTestRunner().run(example).failed == 0
