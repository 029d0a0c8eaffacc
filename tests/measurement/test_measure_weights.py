"""Vocabulary matrices: geometry that needs no data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anisoscope
from anisoscope import metrics
from anisoscope.models.open import open_model
from tests.tiny_models import build

Values = dict[tuple[Any, ...], float]


def values(run: anisoscope.Run, **wanted: Any) -> Values:
    found: Values = {}
    for r in run.records():
        if r.value is not None and all(getattr(r, name) == value for name, value in wanted.items()):
            found[r.site, r.metric, r.tokens, r.index, *sorted(r.variant.items())] = r.value
    return found


def test_weights_need_no_data_and_equal_those_of_the_matrix(folder: Path) -> None:
    run = anisoscope.measure(folder, weights=True, metrics=["mean_cosine", "partition_isotropy"])
    matrix = open_model(folder).model.get_parameter("wte.weight").detach()
    found = values(run, metric="mean_cosine")
    raw = found["weight.input", "mean_cosine", "all", None, ("matrix", "raw")]
    centred = found["weight.input", "mean_cosine", "all", None, ("matrix", "centred")]
    assert raw == pytest.approx(metrics.mean_cosine(matrix), abs=1e-6)
    assert centred == pytest.approx(metrics.mean_cosine(matrix - matrix.mean(0)), abs=1e-6)
    gain = {r.variant["of"]: r.value for r in run.records() if r.metric == "norm_gain"}
    assert gain["mean"] == pytest.approx(1.0)
    assert {r.site for r in run.records()} == {"weight.input", "weight.final_norm"}  # GPT-2 ties its output


def test_untrained_rows_are_excluded_in_a_separate_variant() -> None:
    model, _ = build("gpt2")
    matrix = model.get_input_embeddings().weight
    with torch.no_grad():
        matrix[-7:] = 0.25  # padding of the vocabulary: all alike
    run = anisoscope.measure(model, weights=True, metrics=["mean_cosine"])
    kept = {r.variant["matrix"]: r.n for r in run.records() if r.metric == "mean_cosine"}
    assert kept["raw"] == len(matrix)
    assert kept["trained"] == len(matrix) - 7
