"""Estimators with the interface of scikit-learn: `TwoNN`, `MeanCentring`, `Whitening` and `AllButTheTop`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from anisoscope.errors import InputError, MetricError
from anisoscope.extras import needs
from anisoscope.measurement.measure_rows import measure_rows
from anisoscope.remedies import Remedy, fit_remedy

with needs("scikit-learn", "an estimator of scikit-learn"):
    from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data

_FLOATS = (np.float64, np.float32)


class TwoNN(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Intrinsic dimension from the ratio of the distances to the second and the first neighbour (Facco et al. 2017).

    It is the metric `two_nn` of this package: exact neighbours of the rows of a sample.

    Args:
        sample: Number of rows whose neighbours are searched. None uses all rows.
        seed: Seed of the sample.

    Attributes:
        dimension_: The intrinsic dimension.
        error_: One standard error, or None for fewer than four rows.
        n_features_in_: Number of columns.

    Example:
        >>> from anisoscope import synthetic
        >>> round(float(TwoNN().fit(synthetic.cloud("plane")).dimension_))
        3
    """

    def __init__(self, sample: int | None = None, seed: int = 0) -> None:
        self.sample = sample
        self.seed = seed

    def fit(self, X: Any, y: Any = None) -> Self:
        """Estimate the dimension of rows (n, d).

        Raises:
            ValueError: The rows are not a matrix of finite numbers, or have no dimension; the message has the reason.
        """
        rows = validate_data(self, X, dtype=_FLOATS, ensure_min_samples=3, force_writeable=True)  # (n, d)
        size = len(rows) if self.sample is None else self.sample
        [record] = measure_rows(rows, ["two_nn"], sample=max(size, 16), seed=self.seed)
        if record.value is None:
            raise ValueError(str(MetricError("two_nn", *(record.note or "").split("; ", 1))))
        self.dimension_ = record.value
        self.error_ = record.error
        return self


class _FittedMap(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer that applies the remedy `remedy_`, which `fit` fitted. It can be saved: `remedy_.save(path)`."""

    remedy_: Remedy

    def transform(self, X: Any) -> Any:
        """Transform rows (n, d), in their precision."""
        check_is_fitted(self)
        return self.remedy_.apply(validate_data(self, X, dtype=_FLOATS, reset=False))

    def _fitted(self, rows: Any, **options: Any) -> Self:
        try:
            self.remedy_ = fit_remedy(rows, **options)
        except InputError as error:
            raise ValueError(str(error)) from error
        return self


class MeanCentring(_FittedMap):
    """Subtract the mean row: x -> x − mean.

    Attributes:
        remedy_: The fitted map. `remedy_.save("map.safetensors")` writes it for `anisoscope transform --apply`.

    Example:
        >>> MeanCentring().fit_transform([[1.0, 2.0], [3.0, 4.0]]).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the map on rows (n, d)."""
        rows = validate_data(self, X, dtype=_FLOATS, ensure_min_samples=2)  # (n, d)
        return self._fitted(rows, centre=True)


class Whitening(_FittedMap):
    """Give all directions the same variance: x -> (x − mean) (shrunk covariance)^(−1/2).

    Args:
        centre: Subtract the mean row.
        shrinkage: How far the covariance is shrunk towards a sphere, from 0 to 1. None: the optimum of Ledoit and Wolf.

    Attributes:
        remedy_: The fitted map.

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((500, 3)) * [1, 2, 3]
        >>> bool(np.allclose(np.cov(Whitening(shrinkage=0.0).fit_transform(rows).T, bias=True), np.eye(3)))
        True
    """

    def __init__(self, *, centre: bool = True, shrinkage: float | None = None) -> None:
        self.centre = centre
        self.shrinkage = shrinkage

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the map on rows (n, d)."""
        rows = validate_data(self, X, dtype=_FLOATS, ensure_min_samples=2)  # (n, d)
        return self._fitted(rows, centre=self.centre, whiten=True, shrinkage=self.shrinkage)


class AllButTheTop(_FittedMap):
    """Subtract the mean and remove the strongest directions (Mu and Viswanath 2018).

    Args:
        remove_top: Number of directions to remove. None: a hundredth of the width, at least one, as published.

    Attributes:
        remedy_: The fitted map.

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((500, 3)) * [1, 2, 3]
        >>> int(np.linalg.matrix_rank(AllButTheTop().fit_transform(rows), tol=1e-6))
        2
    """

    def __init__(self, remove_top: int | None = None) -> None:
        self.remove_top = remove_top

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the map on rows (n, d)."""
        rows = validate_data(self, X, dtype=_FLOATS, ensure_min_samples=2, ensure_min_features=2)  # (n, d)
        removed = max(1, rows.shape[1] // 100) if self.remove_top is None else self.remove_top
        return self._fitted(rows, centre=True, remove_top=removed)
