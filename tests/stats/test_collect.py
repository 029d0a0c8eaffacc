"""Rows come from arrays, lists, tensors and data frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import anisoscope
from anisoscope.errors import InputError
from anisoscope.stats.collect import as_rows


def test_a_data_frame_of_numbers_is_measured_like_its_array() -> None:
    rows = np.random.default_rng(0).standard_normal((60, 4))
    frame = pd.DataFrame(rows, columns=["a", "b", "c", 16])  # names that are no positions
    assert anisoscope.metrics.isoscore(frame) == anisoscope.metrics.isoscore(rows)
    first, second = (anisoscope.measure_rows(x, ["isoscore"]).records() for x in (frame, rows))
    assert first == second
    assert as_rows(pd.DataFrame({"a": [1, 2], "b": [3, 4]})).tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_columns_that_are_no_numbers_are_named() -> None:
    with pytest.raises(InputError, match=r"not numbers: text, label\. Leave them out"):
        as_rows(pd.DataFrame({"a": [1.0], "text": ["x"], "label": ["y"]}))
