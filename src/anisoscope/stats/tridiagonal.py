"""A scatter matrix reduced to tridiagonal form once: both its spectra and its top axis follow at little cost.

Reducing is nearly all the work of computing eigenvalues. The uncentred matrix is S + n·m·mᵀ with m the mean. If the
space is first reflected so that m lies along the first axis, which the reduction leaves unchanged, the two tridiagonal
forms differ in one number. So the second spectrum is almost free.

LAPACK is called through the function pointers that scipy exports for compiled code, because such calls release the
interpreter lock, which scipy's Python wrappers do not. `is_usable` checks these pointers once, on a small matrix; if
they are missing or give wrong numbers, `Moments` uses `torch.linalg` instead.
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
    """S = H Q T Qᵀ H: T by its diagonal and off-diagonal, Q by LAPACK's reflectors, H the reflection of the mean."""

    diagonal: _Array  # (d,)
    side: _Array  # (d − 1,)
    reflectors: _Array  # (d, d) as LAPACK leaves them
    factors: _Array  # (d − 1,)
    towards: Tensor | None  # (d,) the vector that H = I − 2vvᵀ/vᵀv reflects; None: H = I
    lift: float  # n ‖m‖²

    @classmethod
    def of(cls, scatter: Tensor, mean: Tensor, n: int) -> Tridiagonal:
        """Reduce a scatter (d, d), given the mean (d,) of its n rows; both on the CPU and finite."""
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
        """Return the eigenvalues of S, or of S + n·m·mᵀ, descending; negative rounding errors become 0."""
        values, side = self.diagonal.copy(), self.side.copy()
        if not centred:
            values[0] += self.lift
        _call("dsterf", len(values), values, side)
        return torch.from_numpy(values).flip(0).clamp(min=0)

    def top_axis(self) -> Tensor:
        """Return the unit eigenvector of the largest eigenvalue of S, (d,); its sign is arbitrary."""
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
        """Return the unit eigenvectors of S + n·m·mᵀ as columns, the weakest first, (d, d); signs are arbitrary."""
        d = len(self.diagonal)
        values, side = self.diagonal.copy(), self.side.copy()
        values[0] += self.lift
        axes = np.empty((d, d))  # LAPACK's columns are numpy's rows
        work, whole = np.empty(1 + 4 * d + d * d), np.empty(3 + 5 * d, dtype=np.intc)
        with one_thread_each:
            _call("dstedc", b"I", d, values, side, axes, d, work, len(work), whole, len(whole))
        return self._turned_back(axes).T

    def _turned_back(self, axes: _Array) -> Tensor:
        """Return H Q z for each row z of `axes`, (k, d), which is overwritten."""
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


@cache
def is_usable() -> bool:
    """Return whether scipy's LAPACK pointers exist here and give right eigenvalues and axes; checked once."""
    try:
        return _check()
    except Exception:  # a scipy without the pointers, or with other signatures, may fail in any way
        return False


def _check() -> bool:
    """Compare all results for a small matrix with numpy's."""
    d, n = 5, 7
    scatter = torch.diag(torch.arange(1.0, d + 1, dtype=torch.float64)) + 0.3
    mean = torch.linspace(-1.0, 1.0, d, dtype=torch.float64)
    second = (scatter + n * torch.outer(mean, mean)).numpy()
    reduced = Tridiagonal.of(scatter, mean, n)
    values, vectors = np.linalg.eigh(scatter.numpy())
    uncentred = np.linalg.eigvalsh(second)
    axes = reduced.axes_uncentred().numpy()
    return (
        np.allclose(reduced.eigenvalues(centred=True).numpy(), values[::-1], rtol=1e-9)
        and np.allclose(reduced.eigenvalues(centred=False).numpy(), uncentred[::-1], rtol=1e-9)
        and bool(abs(reduced.top_axis().numpy() @ vectors[:, -1]) > 1 - 1e-9)
        and np.allclose(axes.T @ second @ axes, np.diag(uncentred), atol=1e-9 * uncentred[-1])
    )


def _call(name: str, *arguments: Any) -> None:
    """Call a LAPACK routine with arrays (changed in place), integers and letters, all passed by address."""
    values = [ctypes.c_int(x) if isinstance(x, int) else x for x in arguments]
    info = ctypes.c_int(0)
    _routine(name)(*map(_address, values), ctypes.addressof(info))
    if info.value:
        raise np.linalg.LinAlgError(f"LAPACK's {name} failed with info = {info.value}.")


def _address(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return value if isinstance(value, bytes) else ctypes.addressof(value)


_ARGUMENTS = {"dsytrd": 10, "dsterf": 4, "dormtr": 13, "dstedc": 11}
_LETTERS = {"dsytrd": 1, "dsterf": 0, "dormtr": 3, "dstedc": 1}  # how many of the first arguments are characters


@cache
def _routine(name: str) -> Any:
    """Return LAPACK's routine as scipy exports it for compiled code; calling it releases the interpreter lock."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)  # "void (char *, int *, …)"
    count, letters = _ARGUMENTS[name], _LETTERS[name]
    if signature.count(b",") + 1 != count or signature.count(b"char *") != letters:
        raise TypeError(f"scipy exports {name} with another signature than expected: {signature.decode()}.")
    kinds = [ctypes.c_char_p] * letters + [ctypes.c_void_p] * (count - letters)
    return ctypes.CFUNCTYPE(None, *kinds)(get_pointer(capsule, signature))
