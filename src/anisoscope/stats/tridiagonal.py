"""A scatter reduced to tridiagonal form once: its eigenvalues, those with the mean put back, and its top axis.

Reducing is nearly all that eigenvalues cost. The uncentred matrix is S + n m mᵀ: where the space is first reflected so
that m lies along the first axis, which the reduction leaves in its place, it differs from S by one number of the
tridiagonal form. So the second spectrum is almost free. LAPACK is called through the pointers that scipy hands out:
so called it lets other threads run, as scipy's own wrappers do not.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.stats.threads import one_thread_each

_Array = NDArray[np.float64]
_BLOCK = 32  # columns that LAPACK reduces together, its own choice for these sizes


@dataclass(frozen=True)
class Tridiagonal:
    """S = H Q T Qᵀ H: T by its diagonal and the side of it, Q by LAPACK's reflectors, H the reflection of the mean."""

    diagonal: _Array  # (d,)
    side: _Array  # (d − 1,)
    reflectors: _Array  # (d, d) as LAPACK leaves them
    factors: _Array  # (d − 1,)
    towards: Tensor | None  # (d,) the vector that H = I − 2vvᵀ/vᵀv reflects; None: H = I
    lift: float  # n ‖m‖²

    @classmethod
    def of(cls, scatter: Tensor, mean: Tensor, n: int) -> Tridiagonal:
        """From a scatter (d, d) and the mean (d,) of n rows, on the CPU, finite."""
        length = float(mean.norm())
        towards = None
        if length > 0:
            towards = mean.clone()
            towards[0] += length if mean[0] >= 0 else -length
        turned = (scatter.clone() if towards is None else _reflected(scatter, towards)).numpy()
        d = len(turned)
        diagonal, side, factors = np.empty(d), np.empty(max(d - 1, 1)), np.empty(max(d - 1, 1))
        work = np.empty(d * _BLOCK)
        with one_thread_each:
            _call("dsytrd", b"L", d, turned, d, diagonal, side, factors, work, len(work))
        return cls(diagonal, side[: d - 1], turned, factors, towards, n * length**2)

    def eigenvalues(self, *, centred: bool) -> Tensor:
        """Of S, or of S + n m mᵀ; descending, rounding below zero cut off."""
        values, side = self.diagonal.copy(), self.side.copy()
        if not centred:
            values[0] += self.lift
        _call("dsterf", len(values), values, side)
        return torch.from_numpy(values).flip(0).clamp(min=0)

    def top_axis(self) -> Tensor:
        """The unit eigenvector of the largest eigenvalue of S, (d,), its sign arbitrary."""
        from scipy.linalg import eigh_tridiagonal

        d = len(self.diagonal)
        if d == 1:
            return torch.ones(1, dtype=torch.float64)
        axis = np.ascontiguousarray(
            eigh_tridiagonal(self.diagonal, self.side, select="i", select_range=(d - 1, d - 1))[1][:, 0]
        )
        top = self._turned_back(axis[None])[0]
        return top / top.norm()

    def axes_uncentred(self) -> Tensor:
        """The unit eigenvectors of S + n m mᵀ as columns, the weakest first, (d, d), their signs arbitrary."""
        d = len(self.diagonal)
        values, side = self.diagonal.copy(), self.side.copy()
        values[0] += self.lift
        axes = np.empty((d, d))  # LAPACK's columns are numpy's rows
        work, whole = np.empty(1 + 4 * d + d * d), np.empty(3 + 5 * d, dtype=np.intc)
        with one_thread_each:
            _call("dstedc", b"I", d, values, side, axes, d, work, len(work), whole, len(whole))
        return self._turned_back(axes).T

    def _turned_back(self, axes: _Array) -> Tensor:
        """H Q z for the vectors z that are the rows here, (k, d), which are overwritten."""
        k, d = axes.shape
        work = np.empty(max(k, 1) * _BLOCK)
        with one_thread_each:
            _call("dormtr", b"L", b"L", b"N", d, k, self.reflectors, d, self.factors, axes, d, work, len(work))
        turned = torch.from_numpy(axes)
        if self.towards is None:
            return turned
        along = turned @ self.towards * (-2 / (self.towards @ self.towards))
        return turned.addr_(along, self.towards)


def _reflected(s: Tensor, v: Tensor) -> Tensor:
    """H S H for H = I − 2vvᵀ/vᵀv: S − vwᵀ − wvᵀ."""
    square = v @ v
    p = (s @ v) * (2 / square)
    w = p - v * ((v @ p) / square)
    return torch.addr(s, v, w, alpha=-1).addr_(w, v, alpha=-1)


def _call(name: str, *given: Any) -> None:
    """A LAPACK routine on arrays (in place), numbers and letters; what it takes is passed by address."""
    held = [x if isinstance(x, np.ndarray) else ctypes.c_int(x) if isinstance(x, int) else x for x in given]
    info = ctypes.c_int(0)
    _routine(name)(*map(_address, held), ctypes.addressof(info))
    if info.value:
        raise np.linalg.LinAlgError(f"{name} ended with {info.value}")


def _address(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return value if isinstance(value, bytes) else ctypes.addressof(value)


@cache
def _routine(name: str) -> Any:
    """LAPACK's routine as scipy exports it for compiled code; a call through it releases the interpreter."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__[name]
    signature = ctypes.pythonapi.PyCapsule_GetName
    signature.restype, signature.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    letters = {"dsytrd": 1, "dsterf": 0, "dormtr": 3, "dstedc": 1}[name]
    count = {"dsytrd": 10, "dsterf": 4, "dormtr": 13, "dstedc": 11}[name]
    kinds = [ctypes.c_char_p] * letters + [ctypes.c_void_p] * (count - letters)
    return ctypes.CFUNCTYPE(None, *kinds)(pointer(capsule, signature(capsule)))
