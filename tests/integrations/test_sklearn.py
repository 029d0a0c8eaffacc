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
from typer.testing import CliRunner

from anisoscope.cli import app
from anisoscope.integrations.sklearn import AllButTheTop, MeanCentring, TwoNN, Whitening


@parametrize_with_checks([TwoNN(), MeanCentring(), Whitening(), AllButTheTop()])  # type: ignore[untyped-decorator]
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


@pytest.mark.parametrize("estimator", [MeanCentring(), Whitening(), AllButTheTop()], ids=lambda e: type(e).__name__)
def test_a_map_saved_by_the_command_equals_the_estimator(estimator: Any, tmp_path: Any) -> None:
    rows = np.random.default_rng(1).standard_normal((400, 6)).astype(np.float32) * np.linspace(3, 1, 6) + 1.0
    rows = rows.astype(np.float32)
    queries = rows[:50] + 0.1
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "queries.npy", queries)
    options = {"MeanCentring": [], "Whitening": ["--whiten"], "AllButTheTop": ["--remove-top", "1"]}[
        type(estimator).__name__
    ]
    saved, out = str(tmp_path / "map.safetensors"), str(tmp_path / "out.npy")
    few = ["--metrics", "mean_cosine"]
    for words in (
        [str(tmp_path / "rows.npy"), "--centre", *options, "--save", saved, *few],
        [str(tmp_path / "queries.npy"), "--apply", saved, "--out", out, *few],
    ):
        done = CliRunner().invoke(app, ["transform", *words])
        assert done.exit_code == 0, done.output
    fitted = estimator.fit(rows)
    assert np.load(out) == pytest.approx(fitted.transform(queries), rel=1e-4, abs=1e-4)
    assert list(fitted.get_feature_names_out()) == [f"x{i}" for i in range(6)]
