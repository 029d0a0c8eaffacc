"""Remedies for anisotropic embeddings: centring, removing the top directions, whitening."""

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
        """Apply the remedy to rows, (n, d) -> (n, d), in their dtype."""
        with full_precision(x.device):
            return ((double(x) - self.centre) @ self.matrix).to(x.dtype)


def fit_remedy(
    moments: Moments, *, centre: bool = False, remove_top: int = 0, whiten: bool = False, shrinkage: float | None = None
) -> Remedy:
    """Fit a remedy to rows with these moments.

    Args:
        moments: Moments of the rows.
        centre: Subtract the mean (Mu and Viswanath 2018, step 1).
        remove_top: Number of strongest directions about the mean to remove (step 2, "all but the top").
        whiten: Give all remaining directions the same variance.
        shrinkage: How far to shrink the covariance towards a sphere before whitening, from 0 to 1, so that weak
            directions are not amplified too much. None takes the optimum of Ledoit and Wolf.

    Raises:
        InputError: An option is out of range, the rows do not vary, or directions without variance cannot be whitened.

    Example:
        >>> from anisoscope.stats.rows import bare_rows
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> fit_remedy(Moments.of(bare_rows(rows)), centre=True)(rows).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
    """
    d = moments.dim
    if not 0 <= remove_top < d:
        raise InputError(f"Cannot remove {remove_top} of {d} directions. Choose 0 to {d - 1}.")
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise InputError(f"The shrinkage is {shrinkage}. Choose a number from 0 to 1.")
    if moments.n < 2 or float(moments.trace) <= 0:
        raise InputError("The rows do not vary, so there is nothing to fit. Give at least two different rows.")
    values, axes = torch.linalg.eigh(moments.scatter / moments.n)  # ascending
    used = 0.0
    gain = torch.ones_like(values)
    if whiten:
        used = optimal_shrinkage(moments) if shrinkage is None else shrinkage
        shrunk = (1 - used) * values.clamp(min=0) + used * values.clamp(min=0).mean()
        if float(shrunk[0]) <= 1e-12 * float(shrunk[-1]):
            raise InputError("Some directions have no variance and cannot be whitened. Use a shrinkage above 0.")
        gain = shrunk.rsqrt()
    if remove_top:
        gain[d - remove_top :] = 0.0
    matrix = (axes * gain) @ axes.T  # symmetric: rows change as little as the remedy allows
    return Remedy(moments.mean if centre else torch.zeros_like(moments.mean), matrix, used)


def optimal_shrinkage(moments: Moments) -> float:
    """Return the optimal shrinkage of Ledoit and Wolf (2004): min(1, E‖yyᵀ − C‖²/n ÷ ‖C − μI‖²)."""
    n, d = moments.n, moments.dim
    covariance = moments.scatter / n
    square = float(covariance.square().sum())
    mean = float(covariance.diagonal().mean())
    away = square - d * mean**2
    noise = (float(moments.fourth) / n - square) / n
    return 1.0 if away <= 0 else min(1.0, max(0.0, noise / away))
