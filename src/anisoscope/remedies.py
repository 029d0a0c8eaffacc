"""Remedies for anisotropic embeddings: centring, removing the top directions, whitening; fitted, saved and applied."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from anisoscope import __version__
from anisoscope.errors import InputError
from anisoscope.stats.arithmetic import double, full_precision
from anisoscope.stats.collect import as_rows, cloud_of
from anisoscope.stats.moments import Moments
from anisoscope.store.files import file_errors, parse_errors, replacing

_FORMAT = "anisoscope-remedy-1"
_MAX_COLUMNS = 1 << 15  # a wider matrix takes more than 8 GB: the file is damaged or crafted
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Remedy:
    """The map x -> (x − centre) @ matrix, fitted on rows with `fit_remedy`.

    Attributes:
        centre: The row that is subtracted, (d,), float64.
        matrix: The linear part, (d, d), float64.
        shrinkage: How much the covariance was shrunk before whitening, from 0 to 1.
        name: What the map does, such as "centre, remove top 3".
        rows: Number of rows that it was fitted on.

    Example:
        >>> import anisoscope
        >>> remedy = anisoscope.fit_remedy([[1.0, 2.0], [3.0, 4.0]], centre=True)
        >>> remedy.apply([[1.0, 2.0]]).tolist()
        [[-1.0, -1.0]]
    """

    centre: Tensor  # (d,)
    matrix: Tensor  # (d, d)
    shrinkage: float = 0.0
    name: str = ""
    rows: int = 0

    @property
    def d(self) -> int:
        """Number of columns of the rows it can be applied to."""
        return len(self.centre)

    def apply(self, rows: Any) -> Any:
        """Transform rows.

        Args:
            rows: Rows (n, d): a tensor, an array, a DataFrame or nested lists, of any float dtype and device.

        Returns:
            The transformed rows: a tensor on the same device, or a DataFrame with the same index and columns, or an
            array; in the same float dtype, and in float64 for whole numbers. Products are computed in float64.

        Raises:
            InputError: The rows are not a matrix of numbers, or their width differs from that of the fitted rows.
        """
        if isinstance(rows, Tensor):
            return self._mapped(as_rows(rows))
        if hasattr(rows, "to_numpy") and hasattr(rows, "columns"):  # a DataFrame, without importing pandas
            return type(rows)(self.apply(rows.to_numpy()), index=rows.index, columns=rows.columns)
        return self._mapped(as_rows(_array(rows))).numpy()

    def _mapped(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.d:
            raise InputError(
                f"The map was fitted on rows of {self.d:,} numbers, but these rows have {x.shape[1]:,}. "
                "Use rows of the same model."
            )
        with full_precision(x.device):
            y = double(x)  # on the CPU if the device has no float64
            y = (y - self.centre.to(y.device)) @ self.matrix.to(y.device)  # (n, d)
            return y.to(x.device, x.dtype)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map to a .safetensors file, whole or not at all. An existing file is replaced.

        Args:
            path: The file.

        Raises:
            InputError: The name does not end in .safetensors.
            StoreError: The file cannot be written.

        Example:
            >>> remedy.save("map.safetensors")    # doctest: +SKIP
        """
        target = _safetensors_path(path)
        facts = {
            "format": _FORMAT,
            "anisoscope": __version__,
            "name": self.name,
            "d": str(self.d),
            "rows": str(self.rows),
            "shrinkage": repr(float(self.shrinkage)),
            "digest": _digest(self.centre, self.matrix),
        }
        arrays = {"centre": self.centre.cpu().contiguous(), "matrix": self.matrix.cpu().contiguous()}
        with file_errors("write", target), replacing(target) as temporary:
            save_file(arrays, temporary, metadata=facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Remedy:
        """Read a map that `save` wrote. Nothing is unpickled.

        Args:
            path: The file.

        Raises:
            InputError: The file is missing or damaged, or holds something else.

        Example:
            >>> Remedy.load("map.safetensors").apply(queries)    # doctest: +SKIP
        """
        source = _safetensors_path(path)
        if not source.is_file():
            raise InputError(f"No such file: {source}. Write a map with `anisoscope transform … --save {source.name}`.")
        with parse_errors(source, "save the map again"), safe_open(source, "pt") as file:
            facts = file.metadata() or {}
            if facts.get("format") != _FORMAT:
                raise InputError(f"{source} holds no map. Write one with `anisoscope transform … --save`.")
            d = int(facts["d"])
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            if not 0 < d <= _MAX_COLUMNS or shapes != {"centre": [d], "matrix": [d, d]}:
                raise InputError(f"{source}: a map of width {d:,} has other arrays. Save the map again.")
            centre, matrix = file.get_tensor("centre"), file.get_tensor("matrix")
            remedy = cls(centre, matrix, float(facts["shrinkage"]), facts["name"], int(facts["rows"]))
            if _digest(centre, matrix) != facts["digest"]:
                raise InputError(f"{source} is damaged: its numbers do not match their digest. Save the map again.")
            usable = math.isfinite(remedy.shrinkage) and all(
                x.dtype == torch.float64 and bool(x.isfinite().all()) for x in (centre, matrix)
            )
            if not usable:
                raise InputError(f"{source}: a map holds finite float64 numbers only. Save the map again.")
        return remedy


def fit_remedy(
    rows: Any, *, centre: bool = False, remove_top: int = 0, whiten: bool = False, shrinkage: float | None = None
) -> Remedy:
    """Fit a remedy on rows.

    Args:
        rows: Rows (n, d): a tensor, an array, a DataFrame or nested lists; or their `Moments`.
        centre: Subtract the mean (Mu and Viswanath 2018, step 1).
        remove_top: Number of strongest directions about the mean to remove (step 2, "all but the top").
        whiten: Give all remaining directions the same variance.
        shrinkage: How far to shrink the covariance towards a sphere before whitening, from 0 to 1, so that weak
            directions are not amplified too much. None takes the optimum of Ledoit and Wolf.

    Returns:
        The fitted map. Isotropic rows are not better rows: test the map on your own task.

    Raises:
        InputError: An option is out of range, the rows do not vary, or directions without variance cannot be whitened.

    Example:
        >>> fit_remedy([[1.0, 2.0], [3.0, 4.0]], centre=True).apply([[1.0, 2.0], [3.0, 4.0]]).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
    """
    moments = rows if isinstance(rows, Moments) else _moments_of(rows)
    d = moments.dim
    if not 0 <= remove_top < d:
        raise InputError(f"Cannot remove {remove_top} of {d} directions. Choose 0 to {d - 1}.")
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise InputError(f"The shrinkage is {shrinkage}. Choose a number from 0 to 1.")
    if not bool(moments.fourth.isfinite()):
        raise InputError("Some rows hold NaN or Inf (or numbers whose square overflows). Drop or rescale those rows.")
    if moments.n < 2 or float(moments.trace) <= 0:
        raise InputError("The rows do not vary, so there is nothing to fit. Give at least two different rows.")
    used = (optimal_shrinkage(moments) if shrinkage is None else shrinkage) if whiten else 0.0
    steps = ("centre" if centre else "", f"remove top {remove_top}" if remove_top else "", "whiten" if whiten else "")
    return Remedy(
        moments.mean if centre else torch.zeros_like(moments.mean),
        _matrix(moments, remove_top, used if whiten else None),
        used,
        ", ".join(step for step in steps if step),
        moments.n,
    )


def _matrix(moments: Moments, remove_top: int, shrinkage: float | None) -> Tensor:
    """The symmetric matrix that removes directions and, unless `shrinkage` is None, whitens the others, (d, d).

    Symmetric, so that rows change as little as the remedy allows.
    """
    if not remove_top and shrinkage is None:
        return torch.eye(moments.dim, dtype=torch.float64, device=moments.scatter.device)
    values, axes = torch.linalg.eigh(moments.scatter / moments.n)  # ascending
    gain = torch.ones_like(values)
    if shrinkage is not None:
        positive = values.clamp(min=0)
        shrunk = (1 - shrinkage) * positive + shrinkage * positive.mean()
        if float(shrunk[0]) <= 1e-12 * float(shrunk[-1]):
            raise InputError("Some directions have no variance and cannot be whitened. Use a shrinkage above 0.")
        gain = shrunk.rsqrt()
    if remove_top:
        gain[moments.dim - remove_top :] = 0.0
    return (axes * gain) @ axes.T


def optimal_shrinkage(moments: Moments) -> float:
    """Return the optimal shrinkage of Ledoit and Wolf (2004): min(1, E‖yyᵀ − C‖²/n ÷ ‖C − μI‖²)."""
    n, d = moments.n, moments.dim
    covariance = moments.scatter / n
    square = float(covariance.square().sum())
    mean = float(covariance.diagonal().mean())
    away = square - d * mean**2
    noise = (float(moments.fourth) / n - square) / n
    return 1.0 if away <= 0 else min(1.0, max(0.0, noise / away))


def _moments_of(rows: Any) -> Moments:
    return cloud_of(rows if isinstance(rows, Tensor) else _array(rows), {"Moments"}).get(Moments)


def _array(rows: Any) -> Any:
    """Rows as an array that torch may share: tables of pandas are read-only."""
    array = np.asarray(rows)
    return array if array.flags.writeable else array.copy()


def _digest(*arrays: Tensor) -> str:
    """SHA-256 of the numbers, in order."""
    digest = hashlib.sha256()
    for x in arrays:
        digest.update(np.ascontiguousarray(x.detach().cpu().numpy()).data)
    return digest.hexdigest()


def _safetensors_path(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix != _SUFFIX:
        raise InputError(f"A map is a {_SUFFIX} file, not {target.name!r}. Use a name that ends in {_SUFFIX}.")
    return target
