"""The estimators pass scikit-learn's own checks and give the numbers of this package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import anisoscope

pytest.importorskip("sklearn", reason="scikit-learn is optional and not installed")

from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from anisoscope.integrations.sklearn import AllButTheTop, TwoNN, Whitening


@parametrize_with_checks([TwoNN(), Whitening(), AllButTheTop()])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_dimension_is_that_of_the_metric() -> None:
    rows = anisoscope.synthetic.cloud("plane", n=1000)
    [record] = anisoscope.measure_rows(rows, ["two_nn"])
    fitted = TwoNN().fit(rows.numpy())
    assert (fitted.dimension_, fitted.error_) == (record.value, record.error)
    assert TwoNN(sample=200).fit(rows.numpy()).dimension_ != record.value


def test_rows_without_a_dimension_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="two_nn: "):
        TwoNN().fit(np.ones((10, 2)))


def test_maps_compose_keep_tables_and_can_be_saved(tmp_path: Any) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 5)) * np.linspace(3, 1, 5) + 1.0
    pipeline = make_pipeline(StandardScaler(), clone(Whitening(shrinkage=0.0)))
    assert np.cov(pipeline.fit_transform(rows).T, bias=True) == pytest.approx(np.eye(5), abs=1e-9)
    top = AllButTheTop(remove_top=2).fit(rows)
    assert np.linalg.matrix_rank(top.transform(rows), tol=1e-6) == 3
    top.remedy_.save(tmp_path / "map.safetensors")
    assert anisoscope.Remedy.load(tmp_path / "map.safetensors").apply(rows) == pytest.approx(top.transform(rows))
    frame = pd.DataFrame(rows, columns=list("abcde"))
    table = Whitening().set_output(transform="pandas").fit_transform(frame)
    assert list(table.columns) == list("abcde")
