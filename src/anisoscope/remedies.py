"""The field's remedies for embeddings: centring, removing the top directions, whitening; fitted by streaming."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import InputError
from anisoscope.stats.arithmetic import double, full_precision
from anisoscope.stats.moments import Moments


@dataclass(frozen=True)
class Remedy:
    """The map x -> (x − centre) @ matrix, and how much the covariance was shrunk before whitening."""

    centre: Tensor  # (d,)
    matrix: Tensor  # (d, d)
    shrinkage: float

    def __call__(self, x: Tensor) -> Tensor:
        """The rows after the remedy, (n, d) -> (n, d), in their own dtype."""
        with full_precision(x.device):
            return ((double(x) - self.centre) @ self.matrix).to(x.dtype)


def fit_remedy(
    moments: Moments, *, centre: bool = False, remove_top: int = 0, whiten: bool = False, shrinkage: float | None = None
) -> Remedy:
    """The remedy for rows with these moments.

    `centre` subtracts the mean (Mu and Viswanath 2018, step 1); `remove_top` takes out the k strongest directions
    about the mean (step 2: all but the top); `whiten` gives all directions that are left the same variance, after
    shrinking the covariance towards a sphere by `shrinkage` (Ledoit and Wolf's optimum unless given), so that
    directions which the sample hardly shows are not blown up.
    """
    d = moments.dim
    if not 0 <= remove_top < d:
        raise InputError(f"cannot remove {remove_top} of {d} directions; choose 0 to {d - 1}")
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise InputError(f"a shrinkage lies between 0 and 1, got {shrinkage}")
    if moments.n < 2 or float(moments.trace) <= 0:
        raise InputError("the rows do not vary: there is nothing to fit")
    values, axes = torch.linalg.eigh(moments.scatter / moments.n)  # ascending
    used = 0.0
    gain = torch.ones_like(values)
    if whiten:
        used = optimal_shrinkage(moments) if shrinkage is None else shrinkage
        shrunk = (1 - used) * values.clamp(min=0) + used * values.clamp(min=0).mean()
        if float(shrunk[0]) <= 1e-12 * float(shrunk[-1]):
            raise InputError("some directions have no variance and cannot be whitened; give a --shrinkage above 0")
        gain = shrunk.rsqrt()
    if remove_top:
        gain[d - remove_top :] = 0.0
    matrix = (axes * gain) @ axes.T  # symmetric: rows stay as close to what they were as the remedy allows
    return Remedy(moments.mean if centre else torch.zeros_like(moments.mean), matrix, used)


def optimal_shrinkage(moments: Moments) -> float:
    """Ledoit and Wolf's (2004) share of the sphere: min(1, E‖yyᵀ − C‖²/n ÷ ‖C − μI‖²), exact from the fourth moment."""
    n, d = moments.n, moments.dim
    covariance = moments.scatter / n
    square = float(covariance.square().sum())
    mean = float(covariance.diagonal().mean())
    away = square - d * mean**2
    noise = (float(moments.fourth) / n - square) / n
    return 1.0 if away <= 0 else min(1.0, max(0.0, noise / away))
